//! A U-Net (Ronneberger et al.): long skip connections from the way down to the way up.
//!
//! Its task needs no labels: find the pixels of the digit in an image with noise added.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Device, Distribution, Tensor};

use super::{Blocks, conv3x3};

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

    /// The same with other numbers of channels at each resolution, the finest first.
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

    /// From noisy images `[batch, 1, SIDE, SIDE]` to how likely each pixel is to belong to the figure, in the same shape.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let mut state = vec![images];
        for level in 0..self.down.len() {
            self.go_down(level, &mut state);
        }
        for step in 0..self.up.len() {
            self.go_up(step, &mut state);
        }
        self.pixels(state)
    }

    /// `state` holds what the way up still has to read, the finest first, and the image at the coarsest resolution so far.
    fn go_down(&self, level: usize, state: &mut Vec<Tensor<4>>) {
        // The finest level begins with the image itself, which is not read again.
        let x = match (level, state.last()) {
            (0, _) => state.pop(),
            (_, last) => last.cloned().map(|x| self.pool.forward(x)),
        };
        state.extend(x.map(|x| self.down[level].forward(x)));
    }

    fn go_up(&self, step: usize, state: &mut Vec<Tensor<4>>) {
        let (Some(x), Some(skip)) = (state.pop(), state.pop()) else { return };
        state.push(self.merge[step].forward(Tensor::cat(vec![skip, self.up[step].forward(x)], 1)));
    }

    fn pixels(&self, mut state: Vec<Tensor<4>>) -> Tensor<4> {
        sigmoid(self.output.forward(state.swap_remove(0)))
    }

    /// The pixels of the figure in clean images, 1 or 0, and the images with noise added.
    pub fn example(images: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let figure = images.clone().greater_elem(0.5).float();
        let noise = images.random_like(Distribution::Normal(0.0, 0.2));
        (figure, images + noise)
    }

    /// Loss on clean images `[batch, 1, SIDE, SIDE]`.
    pub fn loss(&self, images: Tensor<4>) -> Tensor<1> {
        let (figure, noisy) = Self::example(images);
        Self::error(self.forward(noisy), figure)
    }

    fn error(found: Tensor<4>, figure: Tensor<4>) -> Tensor<1> {
        let error = found - figure;
        (error.clone() * error).mean()
    }
}

/// The pixels of the figure and the noisy images, as returned by [`example`](UNet::example).
impl Blocks<4> for UNet {
    type Batch = (Tensor<4>, Tensor<4>);

    fn enter(&self, (_, noisy): &Self::Batch) -> Vec<Tensor<4>> {
        vec![noisy.clone()]
    }

    fn learns_to_enter(&self) -> bool {
        false
    }

    fn count(&self) -> usize {
        self.down.len() + self.up.len()
    }

    fn block(&self, at: usize, mut state: Vec<Tensor<4>>, _: &Self::Batch) -> Vec<Tensor<4>> {
        match at.checked_sub(self.down.len()) {
            None => self.go_down(at, &mut state),
            Some(step) => self.go_up(step, &mut state),
        }
        state
    }

    fn leave(&self, state: Vec<Tensor<4>>, (figure, _): &Self::Batch) -> Tensor<1> {
        Self::error(self.pixels(state), figure.clone())
    }
}
