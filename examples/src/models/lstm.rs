//! An LSTM that reads an image row by row.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::tensor::{Device, Int, Tensor};

use super::cross_entropy;
use crate::data::SIDE;

const HIDDEN: usize = 64;

/// Two LSTM layers and a classifier on the last state.
#[derive(Module, Debug)]
pub struct SequenceNet {
    first: Lstm,
    second: Lstm,
    output: Linear,
}

impl SequenceNet {
    /// A network for `classes` labels.
    pub fn new(classes: usize, device: &Device) -> Self {
        Self {
            first: LstmConfig::new(SIDE, HIDDEN, true).init(device),
            second: LstmConfig::new(HIDDEN, HIDDEN, true).init(device),
            output: LinearConfig::new(HIDDEN, classes).init(device),
        }
    }

    /// Loss on images `[batch, 1, SIDE, SIDE]`, read as sequences `[batch, SIDE, SIDE]`, with labels `[batch]`.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        let rows = images.squeeze_dim::<3>(1);
        let (x, _) = self.first.forward(rows, None);
        let (_, state) = self.second.forward(x, None);
        cross_entropy(self.output.forward(state.hidden), labels)
    }
}
