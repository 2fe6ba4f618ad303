//! A residual network with BatchNorm, in the small form that He et al. used for CIFAR-10.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, activation::relu};

use super::{conv1x1, conv3x3, cross_entropy};

/// Two convolutions beside a shortcut.
#[derive(Module, Debug)]
struct Block {
    first: Conv2d,
    first_norm: BatchNorm,
    second: Conv2d,
    second_norm: BatchNorm,
    shortcut: Option<Conv2d>,
}

impl Block {
    fn new([from, to]: [usize; 2], stride: usize, device: &Device) -> Self {
        let shortcut = (from != to || stride != 1).then(|| conv1x1([from, to], stride, device));
        Self {
            first: conv3x3([from, to], stride, device),
            first_norm: BatchNormConfig::new(to).init(device),
            second: conv3x3([to, to], 1, device),
            second_norm: BatchNormConfig::new(to).init(device),
            shortcut,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let shortcut = match &self.shortcut {
            Some(conv) => conv.forward(x.clone()),
            None => x.clone(),
        };
        let x = relu(self.first_norm.forward(self.first.forward(x)));
        relu(self.second_norm.forward(self.second.forward(x)) + shortcut)
    }
}

/// Three groups of three blocks at 16, 32 and 64 channels.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: Conv2d,
    stem_norm: BatchNorm,
    blocks: Vec<Block>,
    pool: AdaptiveAvgPool2d,
    output: Linear,
}

impl ResNet {
    /// A network for `classes` labels.
    pub fn new(classes: usize, device: &Device) -> Self {
        let groups = [([16, 16], 1), ([16, 32], 2), ([32, 64], 2)];
        let blocks = groups
            .into_iter()
            .flat_map(|([from, to], stride)| [([from, to], stride), ([to, to], 1), ([to, to], 1)])
            .map(|(channels, stride)| Block::new(channels, stride, device))
            .collect();
        Self {
            stem: conv3x3([1, 16], 1, device),
            stem_norm: BatchNormConfig::new(16).init(device),
            blocks,
            pool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            output: LinearConfig::new(64, classes).init(device),
        }
    }

    /// From `images` `[batch, 1, SIDE, SIDE]` to logits `[batch, classes]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.stem_norm.forward(self.stem.forward(images)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.pool.forward(x).flatten::<2>(1, 3);
        self.output.forward(x)
    }

    /// Loss on images `[batch, 1, SIDE, SIDE]` with labels `[batch]`.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        cross_entropy(self.forward(images), labels)
    }
}
