//! A multilayer perceptron: mostly parameters, few activations.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, activation::relu};

use super::cross_entropy;
use crate::data::SIDE;

/// Five linear layers with ReLU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Vec<Linear>,
    output: Linear,
}

impl Mlp {
    /// Layers of 512 units down to `classes`.
    pub fn new(classes: usize, device: &Device) -> Self {
        let sizes = [SIDE * SIDE, 512, 512, 512, 512];
        let hidden = sizes.windows(2).map(|pair| LinearConfig::new(pair[0], pair[1]).init(device)).collect();
        Self { hidden, output: LinearConfig::new(512, classes).init(device) }
    }

    /// Loss on images `[batch, 1, SIDE, SIDE]` with labels `[batch]`.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        let x = images.flatten::<2>(1, 3);
        let x = self.hidden.iter().fold(x, |x, layer| relu(layer.forward(x)));
        cross_entropy(self.output.forward(x), labels)
    }
}
