//! The U-Net of a diffusion model (Ho et al.): residual blocks that are given the noise level of an image, and attention at the coarser resolutions. It
//! learns to predict the noise in an image.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Tensor};

use super::{Blocks, conv1x1};

/// Groups of channels that are normalized together.
const GROUPS: usize = 4;

fn conv(channels: [usize; 2], stride: usize, device: &Device) -> Conv2d {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    Conv2dConfig::new(channels, [3, 3]).with_stride([stride; 2]).with_padding(padding).init(device)
}

fn norm(channels: usize, device: &Device) -> GroupNorm {
    GroupNormConfig::new(GROUPS, channels).init(device)
}

/// Two convolutions beside a shortcut; the noise level of the image is added in between.
#[derive(Module, Debug)]
struct Residual {
    first_norm: GroupNorm,
    first: Conv2d,
    noise_level: Linear,
    second_norm: GroupNorm,
    second: Conv2d,
    shortcut: Option<Conv2d>,
}

impl Residual {
    fn new([from, to]: [usize; 2], level: usize, device: &Device) -> Self {
        Self {
            first_norm: norm(from, device),
            first: conv([from, to], 1, device),
            noise_level: LinearConfig::new(level, to).init(device),
            second_norm: norm(to, device),
            second: conv([to, to], 1, device),
            shortcut: (from != to).then(|| conv1x1([from, to], 1, device)),
        }
    }

    /// `level` is `[batch, level, 1, 1]`.
    fn forward(&self, x: Tensor<4>, level: Tensor<4>) -> Tensor<4> {
        let level = self.noise_level.forward(silu(level.flatten::<2>(1, 3)));
        let [batch, channels] = level.dims();
        let h = self.first.forward(silu(self.first_norm.forward(x.clone())));
        let h = h + level.reshape([batch, channels, 1, 1]);
        let h = self.second.forward(silu(self.second_norm.forward(h)));
        let shortcut = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x),
            None => x,
        };
        h + shortcut
    }
}

/// Every pixel attends to all others.
#[derive(Module, Debug)]
struct Attention {
    norm: GroupNorm,
    projection: Linear,
    output: Linear,
    heads: usize,
}

impl Attention {
    fn new(channels: usize, heads: usize, device: &Device) -> Self {
        Self {
            norm: norm(channels, device),
            projection: LinearConfig::new(channels, 3 * channels).init(device),
            output: LinearConfig::new(channels, channels).init(device),
            heads,
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, channels, height, width] = x.dims();
        let (pixels, head) = (height * width, channels / self.heads);
        let flat = self.norm.forward(x.clone()).flatten::<3>(2, 3).swap_dims(1, 2);
        let all = self.projection.forward(flat);
        // To `[batch, heads, pixels, head]`.
        let part = |at: usize| {
            let part = all.clone().narrow(2, at * channels, channels);
            part.reshape([batch, pixels, self.heads, head]).swap_dims(1, 2)
        };
        let scores = part(0).matmul(part(1).transpose()) / (head as f64).sqrt();
        let seen = softmax(scores, 3).matmul(part(2)).swap_dims(1, 2).reshape([batch, pixels, channels]);
        x + self.output.forward(seen).swap_dims(1, 2).reshape([batch, channels, height, width])
    }
}

/// A residual block, attention if the image is small enough, and before them a change of resolution if there is one.
#[derive(Module, Debug)]
struct Level {
    shrink: Option<Conv2d>,
    grow: Option<ConvTranspose2d>,
    residual: Residual,
    attention: Option<Attention>,
}

impl Level {
    fn forward(&self, x: Tensor<4>, level: Tensor<4>, skip: Option<Tensor<4>>) -> Tensor<4> {
        let x = match (&self.shrink, &self.grow) {
            (Some(shrink), _) => shrink.forward(x),
            (None, Some(grow)) => grow.forward(x),
            (None, None) => x,
        };
        let x = match skip {
            Some(skip) => Tensor::cat(vec![skip, x], 1),
            None => x,
        };
        let x = self.residual.forward(x, level);
        match &self.attention {
            Some(attention) => attention.forward(x),
            None => x,
        }
    }
}

/// Levels down and up again, with attention at all but the finest.
#[derive(Module, Debug)]
pub struct DiffusionUNet {
    input: Conv2d,
    level: Linear,
    down: Vec<Level>,
    up: Vec<Level>,
    output_norm: GroupNorm,
    output: Conv2d,
}

/// A step's inputs.
pub struct NoisyImages {
    /// Images with noise, `[batch, 3, side, side]`.
    pub images: Tensor<4>,
    /// How noisy they are, as sines and cosines `[batch, frequencies]`: see [`DiffusionUNet::noise_levels`].
    pub levels: Tensor<2>,
    /// The noise.
    pub noise: Tensor<4>,
}

impl DiffusionUNet {
    /// A network for images of three channels, with the given number of channels at each resolution, the finest first; each a multiple of eight and of `heads`.
    pub fn new(channels: &[usize], heads: usize, device: &Device) -> Self {
        let finest = channels[0];
        let level = 4 * finest;
        let attention = |at: usize| (at > 0).then(|| Attention::new(channels[at], heads, device));
        let down = |at: usize| Level {
            shrink: (at > 0).then(|| conv([channels[at - 1], channels[at]], 2, device)),
            grow: None,
            residual: Residual::new([channels[at]; 2], level, device),
            attention: attention(at),
        };
        let up = |at: usize| Level {
            shrink: None,
            grow: channels.get(at + 1).map(|&coarser| {
                ConvTranspose2dConfig::new([coarser, channels[at]], [2, 2]).with_stride([2, 2]).init(device)
            }),
            residual: Residual::new([2 * channels[at], channels[at]], level, device),
            attention: attention(at),
        };
        Self {
            input: conv([3, finest], 1, device),
            level: LinearConfig::new(finest, level).init(device),
            down: (0..channels.len()).map(down).collect(),
            up: (0..channels.len()).rev().map(up).collect(),
            output_norm: norm(finest, device),
            output: conv([finest, 3], 1, device),
        }
    }

    /// Sines and cosines of `steps` (0 is clean, 1000 is only noise) at this many `frequencies`: `[steps, frequencies]`, row by row.
    pub fn noise_levels(steps: &[f32], frequencies: usize) -> Vec<f32> {
        let half = frequencies / 2;
        let angle = |step: f32, at: usize| step * 10_000_f32.powf(-(at as f32) / half as f32);
        let row = |&step: &f32| {
            let angles = (0..half).map(move |at| angle(step, at));
            angles.clone().map(f32::sin).chain(angles.map(f32::cos)).collect::<Vec<_>>()
        };
        steps.iter().flat_map(row).collect()
    }
}

/// Between blocks: the image, its noise level, and what the way up still has to read, the finest first.
impl Blocks<4> for DiffusionUNet {
    type Batch = NoisyImages;

    fn enter(&self, batch: &NoisyImages) -> Vec<Tensor<4>> {
        let level = self.level.forward(batch.levels.clone());
        let [images, width] = level.dims();
        vec![self.input.forward(batch.images.clone()), level.reshape([images, width, 1, 1])]
    }

    fn count(&self) -> usize {
        self.down.len() + self.up.len()
    }

    fn block(&self, at: usize, mut state: Vec<Tensor<4>>, _: &NoisyImages) -> Vec<Tensor<4>> {
        let (x, level) = (state[0].clone(), state[1].clone());
        match self.down.get(at) {
            Some(down) => {
                state[0] = down.forward(x, level, None);
                state.push(state[0].clone());
            }
            None => {
                let skip = state.pop();
                state[0] = self.up[at - self.down.len()].forward(x, level, skip);
            }
        }
        state
    }

    fn leave(&self, state: Vec<Tensor<4>>, batch: &NoisyImages) -> Tensor<1> {
        let found = self.output.forward(silu(self.output_norm.forward(state[0].clone())));
        let error = found - batch.noise.clone();
        (error.clone() * error).mean()
    }
}
