//! A transformer encoder that recognises where a passage of text comes from.

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use super::cross_entropy;
use crate::data::PASSAGE_LENGTH;

const WIDTH: usize = 64;
const SYMBOLS: usize = 256;

/// Two transformer layers between embeddings and a classifier on the mean of their outputs.
#[derive(Module, Debug)]
pub struct TextClassifier {
    symbols: Embedding,
    positions: Embedding,
    layers: TransformerEncoder,
    output: Linear,
}

impl TextClassifier {
    /// A model for `classes` labels.
    pub fn new(classes: usize, device: &Device) -> Self {
        Self {
            symbols: EmbeddingConfig::new(SYMBOLS, WIDTH).init(device),
            positions: EmbeddingConfig::new(PASSAGE_LENGTH, WIDTH).init(device),
            layers: TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, 2)
                .with_dropout(0.1)
                .with_norm_first(true)
                .init(device),
            output: LinearConfig::new(WIDTH, classes).init(device),
        }
    }

    /// From passages `[batch, PASSAGE_LENGTH]`, padded with zeros, to logits `[batch, classes]`.
    pub fn forward(&self, passages: Tensor<2, Int>) -> Tensor<2> {
        let device = passages.device();
        let positions = Tensor::arange(0..PASSAGE_LENGTH as i64, &device).unsqueeze::<2>();
        let padding = passages.clone().equal_elem(0);
        // [batch, PASSAGE_LENGTH, 1]
        let present = padding.clone().bool_not().float().unsqueeze_dim::<3>(2);
        let x = self.symbols.forward(passages) + self.positions.forward(positions);
        let x = self.layers.forward(TransformerEncoderInput::new(x).mask_pad(padding));
        let mean = (x * present.clone()).sum_dim(1) / present.sum_dim(1);
        self.output.forward(mean.squeeze_dim::<2>(1))
    }

    /// Loss on `passages` `[batch, PASSAGE_LENGTH]` with `labels` `[batch]`.
    pub fn loss(&self, passages: Tensor<2, Int>, labels: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(self.forward(passages), labels)
    }
}
