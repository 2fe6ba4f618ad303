//! An LSTM that reads an image row by row.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig, LstmState};
use burn::tensor::{Device, Int, Tensor};

use super::{Blocks, cross_entropy};
use crate::data::SIDE;

const HIDDEN: usize = 64;

/// Two LSTM layers and a classifier on the last state.
#[derive(Module, Debug)]
pub struct SequenceNet {
    first: Lstm,
    second: Lstm,
    output: Linear,
    blocks: usize,
}

impl SequenceNet {
    /// A network for `classes` labels.
    pub fn new(classes: usize, device: &Device) -> Self {
        Self::with_width([SIDE, HIDDEN], classes, 1, device)
    }

    /// The same for elements of `width` numbers with `hidden` states. As [`Blocks`], it reads a sequence in this many parts.
    pub fn with_width([width, hidden]: [usize; 2], classes: usize, blocks: usize, device: &Device) -> Self {
        Self {
            first: LstmConfig::new(width, hidden, true).init(device),
            second: LstmConfig::new(hidden, hidden, true).init(device),
            output: LinearConfig::new(hidden, classes).init(device),
            blocks,
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

/// Sequences `[batch, length, width]` with labels `[batch]`.
pub type Sequences = (Tensor<3>, Tensor<1, Int>);

/// A block is a part of the sequence, through both layers. Between blocks: cell state and hidden state of each layer, `[batch, hidden]`.
impl Blocks<2> for SequenceNet {
    type Batch = Sequences;

    fn enter(&self, (elements, _): &Sequences) -> Vec<Tensor<2>> {
        let zeros = || Tensor::zeros([elements.dims()[0], self.first.d_hidden], &elements.device());
        (0..4).map(|_| zeros()).collect()
    }

    fn learns_to_enter(&self) -> bool {
        false
    }

    fn count(&self) -> usize {
        self.blocks
    }

    fn block(&self, at: usize, state: Vec<Tensor<2>>, (elements, _): &Sequences) -> Vec<Tensor<2>> {
        let length = elements.dims()[1];
        let [from, to] = [at, at + 1].map(|at| at * length / self.blocks);
        let state = |layer: usize| Some(LstmState::new(state[2 * layer].clone(), state[2 * layer + 1].clone()));
        let (x, first) = self.first.forward(elements.clone().narrow(1, from, to - from), state(0));
        let (_, second) = self.second.forward(x, state(1));
        vec![first.cell, first.hidden, second.cell, second.hidden]
    }

    fn leave(&self, mut state: Vec<Tensor<2>>, (_, labels): &Sequences) -> Tensor<1> {
        cross_entropy(self.output.forward(state.swap_remove(3)), labels.clone())
    }
}
