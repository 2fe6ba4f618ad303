//! A generator of images and a critic that rates them.

use burn::module::Module;
use burn::nn::conv::{Conv2d, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{leaky_relu, relu, sigmoid};
use burn::tensor::{Device, Distribution, Tensor};

use super::conv3x3;
use crate::data::SIDE;

const NOISE: usize = 32;
const CHANNELS: [usize; 4] = [64, 32, 16, 1];
/// Side of the smallest image: doubling it three times gives [`SIDE`].
const SMALL: usize = SIDE / 8;

/// Generates images from noise.
#[derive(Module, Debug)]
pub struct Generator {
    input: Linear,
    norms: Vec<BatchNorm>,
    layers: Vec<ConvTranspose2d>,
}

impl Generator {
    /// A network from noise to images of one channel.
    pub fn new(device: &Device) -> Self {
        let doubling = |pair: &[usize]| {
            ConvTranspose2dConfig::new([pair[0], pair[1]], [4, 4]).with_stride([2, 2]).with_padding([1, 1]).init(device)
        };
        let norms = CHANNELS.iter().take(3).map(|&channels| BatchNormConfig::new(channels).init(device));
        Self {
            input: LinearConfig::new(NOISE, CHANNELS[0] * SMALL * SMALL).init(device),
            norms: norms.collect(),
            layers: CHANNELS.windows(2).map(doubling).collect(),
        }
    }

    /// Generates `count` images `[count, 1, SIDE, SIDE]`, with values from 0 to 1.
    pub fn draw(&self, count: usize, device: &Device) -> Tensor<4> {
        let noise = Tensor::<2>::random([count, NOISE], Distribution::Normal(0.0, 1.0), device);
        let x = self.input.forward(noise).reshape([count, CHANNELS[0], SMALL, SMALL]);
        let layers = self.norms.iter().zip(&self.layers);
        sigmoid(layers.fold(x, |x, (norm, layer)| layer.forward(relu(norm.forward(x)))))
    }
}

/// Rates how real an image looks.
#[derive(Module, Debug)]
pub struct Critic {
    layers: Vec<Conv2d>,
    output: Linear,
}

impl Critic {
    /// A network from images of one channel to a number.
    pub fn new(device: &Device) -> Self {
        let channels = CHANNELS.iter().rev().copied().collect::<Vec<_>>();
        Self {
            layers: channels.windows(2).map(|pair| conv3x3([pair[0], pair[1]], 2, device)).collect(),
            output: LinearConfig::new(CHANNELS[0] * SMALL * SMALL, 1).init(device),
        }
    }

    /// From `images` `[batch, 1, SIDE, SIDE]` to `[batch, 1]`; the higher, the more real.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.layers.iter().fold(images, |x, layer| leaky_relu(layer.forward(x), 0.2));
        self.output.forward(x.flatten::<2>(1, 3))
    }
}
