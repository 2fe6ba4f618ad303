//! Low-rank adapters (LoRA): a small trained projection beside a frozen one.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

/// The size of adapters.
#[derive(Clone, Copy, Debug)]
pub struct AdapterSize {
    /// Numbers between the two factors.
    pub rank: usize,
    /// What an adapter adds is multiplied by `alpha / rank`.
    pub alpha: f64,
}

/// Adds `scale * up(down(x))` to the output of a frozen projection.
#[derive(Module, Debug)]
pub struct Adapter {
    down: Linear,
    up: Linear,
    scale: f64,
}

impl Adapter {
    /// An adapter for a projection from `inputs` to `outputs` numbers. Before training it adds nothing.
    pub fn new(size: AdapterSize, [inputs, outputs]: [usize; 2], device: &Device) -> Self {
        let config = |inputs, outputs| LinearConfig::new(inputs, outputs).with_bias(false);
        Self {
            down: config(inputs, size.rank).init(device),
            up: config(size.rank, outputs).with_initializer(Initializer::Zeros).init(device),
            scale: size.alpha / size.rank as f64,
        }
    }

    /// From `[.., inputs]` to `[.., outputs]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.up.forward(self.down.forward(x)) * self.scale
    }

    /// The adapter as a weight, `[inputs, outputs]`.
    fn weight(&self) -> Tensor<2> {
        self.down.weight.val().matmul(self.up.weight.val()) * self.scale
    }
}

/// A projection without a bias, with an adapter beside it once one is added.
#[derive(Module, Debug)]
pub struct Adapted {
    base: Linear,
    adapter: Option<Adapter>,
}

impl Adapted {
    /// A projection from `inputs` to `outputs` numbers without an adapter.
    pub fn new([inputs, outputs]: [usize; 2], device: &Device) -> Self {
        Self { base: LinearConfig::new(inputs, outputs).with_bias(false).init(device), adapter: None }
    }

    /// The same with a fresh adapter.
    pub fn with_adapter(self, size: AdapterSize, device: &Device) -> Self {
        let dims = self.base.weight.dims();
        Self { adapter: Some(Adapter::new(size, dims, device)), ..self }
    }

    /// From `[.., inputs]` to `[.., outputs]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        adapted(&self.base, self.adapter.as_ref(), x)
    }

    /// The same without its adapter, which is merged into the weight.
    pub fn merged(self) -> Self {
        Self { base: merged(self.base, self.adapter.as_ref()), adapter: None }
    }
}

/// The output of `base`, plus that of `adapter` if there is one.
pub(super) fn adapted<const D: usize>(base: &Linear, adapter: Option<&Adapter>, x: Tensor<D>) -> Tensor<D> {
    match adapter {
        Some(adapter) => base.forward(x.clone()) + adapter.forward(x),
        None => base.forward(x),
    }
}

/// `base` in full precision, with `adapter` merged into its weight if there is one.
pub(super) fn merged(mut base: Linear, adapter: Option<&Adapter>) -> Linear {
    base.weight = base.weight.map(|weight| {
        let weight = weight.dequantize();
        match adapter {
            Some(adapter) => weight + adapter.weight(),
            None => weight,
        }
    });
    base
}
