//! A U-Net (Ronneberger et al.): long skip connections from the way down to the way up.
//!
//! Its task needs no labels: find the pixels of the digit, in an image with noise over it.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Device, Distribution, Tensor};

use super::conv3x3;

const LEVELS: [usize; 4] = [8, 16, 32, 64];

/// Two convolutions with BatchNorm and ReLU.
#[derive(Module, Debug)]
struct DoubleConv {
    first: Conv2d,
    first_norm: BatchNorm,
    second: Conv2d,
    second_norm: BatchNorm,
}

impl DoubleConv {
    fn new([from, to]: [usize; 2], device: &Device) -> Self {
        Self {
            first: conv3x3([from, to], 1, device),
            first_norm: BatchNormConfig::new(to).init(device),
            second: conv3x3([to, to], 1, device),
            second_norm: BatchNormConfig::new(to).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = relu(self.first_norm.forward(self.first.forward(x)));
        relu(self.second_norm.forward(self.second.forward(x)))
    }
}

/// Four resolutions down and up again.
#[derive(Module, Debug)]
pub struct UNet {
    down: Vec<DoubleConv>,
    up: Vec<ConvTranspose2d>,
    merge: Vec<DoubleConv>,
    pool: MaxPool2d,
    output: Conv2d,
}

impl UNet {
    /// A network from one channel to one.
    pub fn new(device: &Device) -> Self {
        Self::with_channels(&LEVELS, device)
    }

    /// The same with other channels at each resolution, the finest first.
    pub fn with_channels(levels: &[usize], device: &Device) -> Self {
        let sizes: Vec<usize> = std::iter::once(&1).chain(levels).copied().collect();
        let down = sizes.windows(2).map(|pair| DoubleConv::new([pair[0], pair[1]], device)).collect();
        let pairs: Vec<[usize; 2]> = levels.windows(2).rev().map(|pair| [pair[1], pair[0]]).collect();
        let up = |channels: &[usize; 2]| ConvTranspose2dConfig::new(*channels, [2, 2]).with_stride([2, 2]).init(device);
        Self {
            down,
            up: pairs.iter().map(up).collect(),
            merge: pairs.iter().map(|[_, to]| DoubleConv::new([2 * to, *to], device)).collect(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            output: Conv2dConfig::new([sizes[1], 1], [1, 1]).init(device),
        }
    }

    /// From noisy images `[batch, 1, SIDE, SIDE]` to how likely each pixel belongs to the figure, in the same shape.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let mut x = images;
        let mut skips = Vec::new();
        for (level, conv) in self.down.iter().enumerate() {
            if level > 0 {
                x = self.pool.forward(x);
            }
            x = conv.forward(x);
            skips.push(x.clone());
        }
        skips.pop();
        for (up, merge) in self.up.iter().zip(&self.merge) {
            let Some(skip) = skips.pop() else { break };
            x = merge.forward(Tensor::cat(vec![skip, up.forward(x)], 1));
        }
        sigmoid(self.output.forward(x))
    }

    /// The pixels of the figure in clean images, 1 or 0, and the images with noise over them.
    pub fn example(images: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let figure = images.clone().greater_elem(0.5).float();
        let noise = images.random_like(Distribution::Normal(0.0, 0.2));
        (figure, images + noise)
    }

    /// Loss on clean images `[batch, 1, SIDE, SIDE]`.
    pub fn loss(&self, images: Tensor<4>) -> Tensor<1> {
        let (figure, noisy) = Self::example(images);
        let error = self.forward(noisy) - figure;
        (error.clone() * error).mean()
    }
}
