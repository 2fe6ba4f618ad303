//! A plain convolutional network with BatchNorm, pooling and dropout.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Int, Tensor};

use super::{conv3x3, cross_entropy};
use crate::data::SIDE;

const CHANNELS: usize = 16;

/// Three convolutions at two resolutions, then two linear layers.
#[derive(Module, Debug)]
pub struct Cnn {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    third: Conv2d,
    pool: MaxPool2d,
    dropout: Dropout,
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    /// A network for `classes` labels.
    pub fn new(classes: usize, device: &Device) -> Self {
        let features = CHANNELS * (SIDE / 4) * (SIDE / 4);
        Self {
            first: conv3x3([1, CHANNELS], 1, device),
            norm: BatchNormConfig::new(CHANNELS).init(device),
            second: conv3x3([CHANNELS, CHANNELS], 1, device),
            third: conv3x3([CHANNELS, CHANNELS], 1, device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.25).init(),
            hidden: LinearConfig::new(features, 64).init(device),
            output: LinearConfig::new(64, classes).init(device),
        }
    }

    /// From `images` `[batch, 1, SIDE, SIDE]` to logits `[batch, classes]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = gelu(self.norm.forward(self.first.forward(images)));
        let x = self.pool.forward(relu(self.second.forward(x)));
        let x = x.clone() + relu(self.third.forward(x));
        let x = self.dropout.forward(self.pool.forward(x));
        let x = relu(self.hidden.forward(x.flatten::<2>(1, 3)));
        self.output.forward(x)
    }

    /// Loss on images `[batch, 1, SIDE, SIDE]` with labels `[batch]`.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(self.forward(images), labels)
    }
}
