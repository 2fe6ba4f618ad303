//! ResNet-50 (He et al.): residual blocks of three convolutions, the middle one on fewer channels.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Int, Tensor, activation::relu};

use super::blocks::{loss_of_blocks, single};
use super::{Blocks, conv1x1, conv3x3, cross_entropy};

/// Blocks of each group.
const GROUPS: [usize; 4] = [3, 4, 6, 3];
/// How many times more channels a block has at its ends than in the middle.
const EXPANSION: usize = 4;

/// Narrow, convolve, widen; beside a shortcut.
#[derive(Module, Debug)]
struct Bottleneck {
    narrow: Conv2d,
    narrow_norm: BatchNorm,
    middle: Conv2d,
    middle_norm: BatchNorm,
    widen: Conv2d,
    widen_norm: BatchNorm,
    shortcut: Option<(Conv2d, BatchNorm)>,
}

impl Bottleneck {
    fn new(from: usize, middle: usize, stride: usize, device: &Device) -> Self {
        let to = EXPANSION * middle;
        let norm = |channels: usize| BatchNormConfig::new(channels).init(device);
        let shortcut = (from != to || stride != 1).then(|| (conv1x1([from, to], stride, device), norm(to)));
        Self {
            narrow: conv1x1([from, middle], 1, device),
            narrow_norm: norm(middle),
            middle: conv3x3([middle, middle], stride, device),
            middle_norm: norm(middle),
            widen: conv1x1([middle, to], 1, device),
            widen_norm: norm(to),
            shortcut,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let shortcut = match &self.shortcut {
            Some((conv, norm)) => norm.forward(conv.forward(x.clone())),
            None => x.clone(),
        };
        let x = relu(self.narrow_norm.forward(self.narrow.forward(x)));
        let x = relu(self.middle_norm.forward(self.middle.forward(x)));
        relu(self.widen_norm.forward(self.widen.forward(x)) + shortcut)
    }
}

/// Sixteen blocks in four groups.
#[derive(Module, Debug)]
pub struct ResNet50 {
    stem: Conv2d,
    stem_norm: BatchNorm,
    pool: MaxPool2d,
    blocks: Vec<Bottleneck>,
    average: AdaptiveAvgPool2d,
    output: Linear,
}

impl ResNet50 {
    /// A network for `classes` labels; `width` is 64 in the paper.
    pub fn new(classes: usize, width: usize, device: &Device) -> Self {
        let mut blocks = Vec::new();
        let mut from = width;
        for (group, &count) in GROUPS.iter().enumerate() {
            let middle = width << group;
            for block in 0..count {
                let stride = if group > 0 && block == 0 { 2 } else { 1 };
                blocks.push(Bottleneck::new(from, middle, stride, device));
                from = EXPANSION * middle;
            }
        }
        let stem = Conv2dConfig::new([3, width], [7, 7])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(3, 3, 3, 3))
            .with_bias(false);
        let pool =
            MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        Self {
            stem: stem.init(device),
            stem_norm: BatchNormConfig::new(width).init(device),
            pool: pool.init(),
            blocks,
            average: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            output: LinearConfig::new(from, classes).init(device),
        }
    }

    /// Loss on images `[batch, 3, side, side]` with labels `[batch]`.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        loss_of_blocks(self, &(images, labels))
    }
}

/// Images `[batch, 3, side, side]` with labels `[batch]`. Between blocks: `[batch, channels, side, side]`.
impl Blocks<4> for ResNet50 {
    type Batch = (Tensor<4>, Tensor<1, Int>);

    fn enter(&self, (images, _): &Self::Batch) -> Vec<Tensor<4>> {
        let x = relu(self.stem_norm.forward(self.stem.forward(images.clone())));
        vec![self.pool.forward(x)]
    }

    fn count(&self) -> usize {
        self.blocks.len()
    }

    fn block(&self, at: usize, state: Vec<Tensor<4>>, _: &Self::Batch) -> Vec<Tensor<4>> {
        vec![self.blocks[at].forward(single(state))]
    }

    fn leave(&self, state: Vec<Tensor<4>>, (_, labels): &Self::Batch) -> Tensor<1> {
        let x = self.average.forward(single(state)).flatten::<2>(1, 3);
        cross_entropy(self.output.forward(x), labels.clone())
    }
}
