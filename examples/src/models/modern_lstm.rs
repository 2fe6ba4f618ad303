//! A custom LSTM: layer norm on the gates and on the cell, dropout between stacked layers.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Int, Tensor};

use super::cross_entropy;
use crate::data::SIDE;

/// Elements of a sequence: each is two rows of an image.
const ELEMENTS: usize = SIDE / 2;
const WIDTH: usize = 2 * SIDE;
const HIDDEN: usize = 48;
const LAYERS: usize = 2;

/// One layer: its state changes from one element of the sequence to the next.
#[derive(Module, Debug)]
struct Layer {
    input: Linear,
    hidden: Linear,
    input_norm: LayerNorm,
    hidden_norm: LayerNorm,
    cell_norm: LayerNorm,
}

impl Layer {
    fn new(width: usize, device: &Device) -> Self {
        let norm = |width| LayerNormConfig::new(width).init(device);
        Self {
            input: LinearConfig::new(width, 4 * HIDDEN).init(device),
            hidden: LinearConfig::new(HIDDEN, 4 * HIDDEN).with_bias(false).init(device),
            input_norm: norm(4 * HIDDEN),
            hidden_norm: norm(4 * HIDDEN),
            cell_norm: norm(HIDDEN),
        }
    }

    /// From elements `[batch, width]` to hidden states `[batch, HIDDEN]`.
    fn forward(&self, elements: Vec<Tensor<2>>) -> Vec<Tensor<2>> {
        let Some(first) = elements.first() else { return elements };
        let zeros = Tensor::zeros([first.dims()[0], HIDDEN], &first.device());
        let (mut hidden, mut cell) = (zeros.clone(), zeros);
        let mut states = Vec::with_capacity(elements.len());
        for element in elements {
            let gates = self.input_norm.forward(self.input.forward(element))
                + self.hidden_norm.forward(self.hidden.forward(hidden));
            let gate = |number: usize| gates.clone().narrow(1, number * HIDDEN, HIDDEN);
            cell = sigmoid(gate(0)) * cell + sigmoid(gate(1)) * gate(2).tanh();
            hidden = sigmoid(gate(3)) * self.cell_norm.forward(cell.clone()).tanh();
            states.push(hidden.clone());
        }
        states
    }
}

/// Stacked layers and a classifier on the last state.
#[derive(Module, Debug)]
pub struct ModernLstm {
    layers: Vec<Layer>,
    dropout: Dropout,
    output: Linear,
}

impl ModernLstm {
    /// A network for `classes` labels.
    pub fn new(classes: usize, device: &Device) -> Self {
        let width = |layer| if layer == 0 { WIDTH } else { HIDDEN };
        Self {
            layers: (0..LAYERS).map(|layer| Layer::new(width(layer), device)).collect(),
            dropout: DropoutConfig::new(0.1).init(),
            output: LinearConfig::new(HIDDEN, classes).init(device),
        }
    }

    /// From images `[batch, 1, SIDE, SIDE]`, read two rows at a time, to logits `[batch, classes]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let [batch, ..] = images.dims();
        let device = images.device();
        let sequences = images.reshape([batch, ELEMENTS, WIDTH]);
        let element = |at| sequences.clone().narrow(1, at, 1).reshape([batch, WIDTH]);
        let mut states: Vec<Tensor<2>> = (0..ELEMENTS).map(element).collect();
        for (number, layer) in self.layers.iter().enumerate() {
            if number > 0 {
                states = states.into_iter().map(|state| self.dropout.forward(state)).collect();
            }
            states = layer.forward(states);
        }
        let last = states.pop().unwrap_or_else(|| Tensor::zeros([batch, HIDDEN], &device));
        self.output.forward(last)
    }

    /// Loss on images `[batch, 1, SIDE, SIDE]` with labels `[batch]`.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(self.forward(images), labels)
    }
}
