//! A decoder like Llama, to be adapted: RMS norm before each part, rotary positions, SwiGLU, a causal mask.
//!
//! Attention is written out in single operations, as in Burn's own `MultiHeadAttention`. On a group of devices, which a remat device is, Burn's function
//! `attention` would compute gradients by another formula than on plain Flex; the results differ in the last bits.

use burn::module::{Module, ParamGroup, Quantizer};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig, RotaryEncoding, RotaryEncodingConfig,
    SwiGlu, SwiGluConfig,
};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{Bool, Device, Int, Tensor};

use super::adapter::{adapted, merged};
use super::blocks::single;
use super::{Adapted, Adapter, AdapterSize, Blocks, CausalText, TransformerSize, cross_entropy};

/// The projections of a [`Llama`] that get adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapt {
    /// Those of attention: query, key, value and output.
    Attention,
    /// Also those of the feed-forward parts.
    AttentionAndFeedForward,
}

/// Decoder layers between an embedding and a projection to symbols.
#[derive(Module, Debug)]
pub struct Llama {
    symbols: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    output: Linear,
    positions: RotaryEncoding,
}

#[derive(Module, Debug)]
struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_forward_norm: RmsNorm,
    feed_forward: FeedForward,
}

#[derive(Module, Debug)]
struct Attention {
    query: Adapted,
    key: Adapted,
    value: Adapted,
    output: Adapted,
    heads: usize,
}

#[derive(Module, Debug)]
struct FeedForward {
    gated: SwiGlu,
    inner_adapter: Option<Adapter>,
    outer_adapter: Option<Adapter>,
    down: Adapted,
}

impl Llama {
    /// What occurs in the paths of adapters' parameters, ours and Burn's own, and in no others.
    const ADAPTERS: [&'static str; 2] = ["adapter.", ".lora."];

    /// A model without adapters.
    pub fn new(size: &TransformerSize, device: &Device) -> Self {
        let norm = || RmsNormConfig::new(size.width).init(device);
        let layer = |_| Layer {
            attention_norm: norm(),
            attention: Attention::new(size, device),
            feed_forward_norm: norm(),
            feed_forward: FeedForward::new(size.width, device),
        };
        Self {
            symbols: EmbeddingConfig::new(size.symbols, size.width).init(device),
            layers: (0..size.layers).map(layer).collect(),
            norm: norm(),
            output: LinearConfig::new(size.width, size.symbols).with_bias(false).init(device),
            positions: RotaryEncodingConfig::new(size.length, size.width / size.heads).init(device),
        }
    }

    /// The same with the weights of the layers' projections quantized to `scheme`. Embedding, norms and the last projection stay as they are.
    pub fn quantized(self, scheme: QuantScheme) -> Self {
        let projections = Self::projections(Adapt::AttentionAndFeedForward);
        self.quantize_weights_group(&mut Quantizer::new(Calibration::MinMax, scheme), projections)
    }

    /// The same with fresh adapters.
    pub fn with_adapters(mut self, adapt: Adapt, size: AdapterSize, device: &Device) -> Self {
        self.layers = self.layers.into_iter().map(|layer| layer.with_adapters(adapt, size, device)).collect();
        self
    }

    /// The same without its adapters, ours or Burn's own, which are merged into the weights; these are then in full precision.
    pub fn merged(self) -> Self {
        let mut model = self.materialize();
        model.layers = model.layers.into_iter().map(Layer::merged).collect();
        model
    }

    /// The weights of the projections that `adapt` names.
    pub fn projections(adapt: Adapt) -> ParamGroup {
        ParamGroup::from_any_predicates(match adapt {
            Adapt::Attention => vec![".attention."],
            Adapt::AttentionAndFeedForward => vec![".attention.", ".feed_forward."],
        })
    }

    /// The parameters of all adapters: the contents of a fine-tuning checkpoint.
    pub fn adapters() -> ParamGroup {
        ParamGroup::from_any_predicates(Self::ADAPTERS.to_vec())
    }

    /// From text `[batch, length]` to logits of the symbols that follow, `[batch, length, symbols]`.
    pub fn forward(&self, text: Tensor<2, Int>) -> Tensor<3> {
        let [_, length] = text.dims();
        // One for all sequences, heads and layers.
        let hidden = generate_autoregressive_mask(1, length, &text.device()).unsqueeze();
        let mut x = self.symbols.forward(text);
        for layer in &self.layers {
            x = layer.forward(x, &self.positions, &hidden);
        }
        self.output.forward(self.norm.forward(x))
    }

    /// Loss of predicting `next` from `text`, both `[batch, length]`.
    pub fn loss(&self, text: Tensor<2, Int>, next: Tensor<2, Int>) -> Tensor<1> {
        cross_entropy(self.forward(text).flatten::<2>(0, 1), next.flatten::<1>(0, 1))
    }
}

/// Between blocks: `[batch, length, width]`.
impl Blocks<3> for Llama {
    type Batch = CausalText<4>;

    fn enter(&self, batch: &Self::Batch) -> Vec<Tensor<3>> {
        vec![self.symbols.forward(batch.text.clone())]
    }

    fn learns_to_enter(&self) -> bool {
        self.symbols.weight.is_require_grad()
    }

    fn count(&self) -> usize {
        self.layers.len()
    }

    fn block(&self, at: usize, state: Vec<Tensor<3>>, batch: &Self::Batch) -> Vec<Tensor<3>> {
        vec![self.layers[at].forward(single(state), &self.positions, &batch.hidden)]
    }

    fn leave(&self, state: Vec<Tensor<3>>, batch: &Self::Batch) -> Tensor<1> {
        let logits = self.output.forward(self.norm.forward(single(state))).flatten::<2>(0, 1);
        cross_entropy(logits, batch.next.clone().flatten::<1>(0, 1))
    }
}

impl Layer {
    fn with_adapters(mut self, adapt: Adapt, size: AdapterSize, device: &Device) -> Self {
        self.attention = self.attention.map_projections(|projection| projection.with_adapter(size, device));
        if adapt == Adapt::AttentionAndFeedForward {
            self.feed_forward = self.feed_forward.with_adapters(size, device);
        }
        self
    }

    fn merged(mut self) -> Self {
        self.attention = self.attention.map_projections(Adapted::merged);
        self.feed_forward = self.feed_forward.merged();
        self
    }

    /// `x` is `[batch, length, width]`; `hidden` says which symbols each symbol may not see, `[1, 1, length, length]`.
    fn forward(&self, x: Tensor<3>, positions: &RotaryEncoding, hidden: &Tensor<4, Bool>) -> Tensor<3> {
        let x = x.clone() + self.attention.forward(self.attention_norm.forward(x), positions, hidden);
        x.clone() + self.feed_forward.forward(self.feed_forward_norm.forward(x))
    }
}

impl Attention {
    fn new(size: &TransformerSize, device: &Device) -> Self {
        let projection = || Adapted::new([size.width; 2], device);
        Self { query: projection(), key: projection(), value: projection(), output: projection(), heads: size.heads }
    }

    fn map_projections(self, map: impl Fn(Adapted) -> Adapted) -> Self {
        let Self { query, key, value, output, heads } = self;
        Self { query: map(query), key: map(key), value: map(value), output: map(output), heads }
    }

    fn forward(&self, x: Tensor<3>, positions: &RotaryEncoding, hidden: &Tensor<4, Bool>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let head_width = width / self.heads;
        // To `[batch, heads, length, head_width]`.
        let heads = |x: Tensor<3>| x.reshape([batch, length, self.heads, head_width]).swap_dims(1, 2);
        let query = positions.forward(heads(self.query.forward(x.clone())));
        let key = positions.forward(heads(self.key.forward(x.clone())));
        let value = heads(self.value.forward(x));
        let scores = query.matmul(key.transpose()) / (head_width as f64).sqrt();
        let weights = softmax(scores.mask_fill(hidden.clone(), f32::NEG_INFINITY), 3);
        let seen = weights.matmul(value);
        self.output.forward(seen.swap_dims(1, 2).reshape([batch, length, width]))
    }
}

impl FeedForward {
    fn new(width: usize, device: &Device) -> Self {
        let hidden = Self::hidden(width);
        Self {
            gated: SwiGluConfig::new(width, hidden).init(device),
            inner_adapter: None,
            outer_adapter: None,
            down: Adapted::new([hidden, width], device),
        }
    }

    /// A third less than the factor four of other transformers, since a gated layer has three matrices; a multiple of 32.
    fn hidden(width: usize) -> usize {
        (8 * width / 3).next_multiple_of(32)
    }

    fn with_adapters(self, size: AdapterSize, device: &Device) -> Self {
        let adapter = |linear: &Linear| Some(Adapter::new(size, linear.weight.dims(), device));
        Self {
            inner_adapter: adapter(&self.gated.linear_inner),
            outer_adapter: adapter(&self.gated.linear_outer),
            down: self.down.with_adapter(size, device),
            gated: self.gated,
        }
    }

    fn merged(self) -> Self {
        let SwiGlu { linear_inner, linear_outer } = self.gated;
        let gated = SwiGlu {
            linear_inner: merged(linear_inner, self.inner_adapter.as_ref()),
            linear_outer: merged(linear_outer, self.outer_adapter.as_ref()),
        };
        Self { gated, inner_adapter: None, outer_adapter: None, down: self.down.merged() }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = match (&self.inner_adapter, &self.outer_adapter) {
            (None, None) => self.gated.forward(x),
            (inner, outer) => {
                let gate = silu(adapted(&self.gated.linear_inner, inner.as_ref(), x.clone()));
                gate * adapted(&self.gated.linear_outer, outer.as_ref(), x)
            }
        };
        self.down.forward(hidden)
    }
}
