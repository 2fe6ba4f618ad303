//! A transformer language model at character level.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use super::cross_entropy;

/// Characters per sequence.
pub const SEQUENCE_LENGTH: usize = 64;
const WIDTH: usize = 64;
const SYMBOLS: usize = 256;

/// Four causal transformer layers between embeddings and a projection to characters.
#[derive(Module, Debug)]
pub struct CharTransformer {
    symbols: Embedding,
    positions: Embedding,
    layers: TransformerEncoder,
    output: Linear,
}

impl CharTransformer {
    /// A model of bytes.
    pub fn new(device: &Device) -> Self {
        Self {
            symbols: EmbeddingConfig::new(SYMBOLS, WIDTH).init(device),
            positions: EmbeddingConfig::new(SEQUENCE_LENGTH, WIDTH).init(device),
            layers: TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 4)
                .with_dropout(0.1)
                .with_norm_first(true)
                .init(device),
            output: LinearConfig::new(WIDTH, SYMBOLS).init(device),
        }
    }

    /// From text `[batch, length]`, at most [`SEQUENCE_LENGTH`] long, to logits of the characters that follow,
    /// `[batch, length, SYMBOLS]`.
    pub fn forward(&self, text: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = text.dims();
        let device = text.device();
        let positions = Tensor::arange(0..length as i64, &device).unsqueeze::<2>();
        let x = self.symbols.forward(text) + self.positions.forward(positions);
        let mask = generate_autoregressive_mask(batch, length, &device);
        let x = self.layers.forward(TransformerEncoderInput::new(x).mask_attn(mask));
        self.output.forward(x)
    }

    /// Loss of predicting `next` from `text`, both `[batch, SEQUENCE_LENGTH]`.
    pub fn loss(&self, text: Tensor<2, Int>, next: Tensor<2, Int>) -> Tensor<1> {
        let logits = self.forward(text).flatten::<2>(0, 1);
        cross_entropy(logits, next.flatten::<1>(0, 1))
    }
}
