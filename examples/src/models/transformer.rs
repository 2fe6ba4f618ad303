//! A transformer language model at character level.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Device, Int, Tensor};

use super::blocks::single;
use super::{Blocks, cross_entropy};

/// Characters per sequence.
pub const SEQUENCE_LENGTH: usize = 64;

/// The size of a [`CharTransformer`] or a [`Llama`](super::Llama).
#[derive(Clone, Copy, Debug)]
pub struct TransformerSize {
    /// Layers.
    pub layers: usize,
    /// Numbers per symbol.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Symbols per sequence, at most.
    pub length: usize,
    /// Number of different symbols.
    pub symbols: usize,
}

/// Causal transformer layers between embeddings and a projection to symbols.
#[derive(Module, Debug)]
pub struct CharTransformer {
    symbols: Embedding,
    positions: Embedding,
    layers: TransformerEncoder,
    output: Linear,
}

impl CharTransformer {
    /// A model of bytes with four layers, for sequences of [`SEQUENCE_LENGTH`].
    pub fn new(device: &Device) -> Self {
        let size = TransformerSize { layers: 4, width: 64, heads: 4, length: SEQUENCE_LENGTH, symbols: 256 };
        Self::with_size(&size, device)
    }

    /// The same in another size.
    pub fn with_size(size: &TransformerSize, device: &Device) -> Self {
        Self::with_dropout(size, 0.1, device)
    }

    /// The same in another size, with another dropout rate.
    pub fn with_dropout(size: &TransformerSize, dropout: f64, device: &Device) -> Self {
        let &TransformerSize { layers, width, heads, length, symbols } = size;
        Self {
            symbols: EmbeddingConfig::new(symbols, width).init(device),
            positions: EmbeddingConfig::new(length, width).init(device),
            layers: TransformerEncoderConfig::new(width, 4 * width, heads, layers)
                .with_dropout(dropout)
                .with_norm_first(true)
                .init(device),
            output: LinearConfig::new(width, symbols).init(device),
        }
    }

    /// From text `[batch, length]` to logits of the symbols that follow, `[batch, length, symbols]`.
    pub fn forward(&self, text: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = text.dims();
        let x = self.embed(text);
        let mask = generate_autoregressive_mask(batch, length, &x.device());
        let x = self.layers.forward(TransformerEncoderInput::new(x).mask_attn(mask));
        self.output.forward(x)
    }

    fn embed(&self, text: Tensor<2, Int>) -> Tensor<3> {
        let positions = Tensor::arange(0..text.dims()[1] as i64, &text.device()).unsqueeze::<2>();
        self.symbols.forward(text) + self.positions.forward(positions)
    }

    /// Loss of predicting `next` from `text`, both `[batch, length]`.
    pub fn loss(&self, text: Tensor<2, Int>, next: Tensor<2, Int>) -> Tensor<1> {
        let logits = self.forward(text).flatten::<2>(0, 1);
        cross_entropy(logits, next.flatten::<1>(0, 1))
    }
}

/// A text, what follows, and which symbols each symbol may not see.
pub struct CausalText<const D: usize> {
    /// Symbols, `[batch, length]`.
    pub text: Tensor<2, Int>,
    /// The symbol after each.
    pub next: Tensor<2, Int>,
    /// `[.., length, length]`, in the shape that the model's attention expects.
    pub hidden: Tensor<D, Bool>,
}

/// Between blocks: `[batch, length, width]`.
impl Blocks<3> for CharTransformer {
    type Batch = CausalText<3>;

    fn enter(&self, batch: &Self::Batch) -> Vec<Tensor<3>> {
        vec![self.embed(batch.text.clone())]
    }

    fn count(&self) -> usize {
        self.layers.layers.len()
    }

    fn block(&self, at: usize, state: Vec<Tensor<3>>, batch: &Self::Batch) -> Vec<Tensor<3>> {
        vec![self.layers.layers[at].forward(single(state), None, Some(batch.hidden.clone()))]
    }

    fn leave(&self, state: Vec<Tensor<3>>, batch: &Self::Batch) -> Tensor<1> {
        let logits = self.output.forward(single(state)).flatten::<2>(0, 1);
        cross_entropy(logits, batch.next.clone().flatten::<1>(0, 1))
    }
}
