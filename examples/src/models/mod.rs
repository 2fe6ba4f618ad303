//! Models, each with its loss on one batch.

mod adapter;
mod blocks;
mod cnn;
mod diffusion;
mod gan;
mod llama;
mod lstm;
mod mlp;
mod modern_lstm;
mod resnet;
mod resnet50;
mod text_classifier;
mod transformer;
mod unet;
mod vit;

pub use adapter::{Adapted, Adapter, AdapterSize};
pub use blocks::{Blocks, loss_of_blocks};
pub use cnn::Cnn;
pub use diffusion::{DiffusionUNet, NoisyImages};
pub use gan::{Critic, Generator};
pub use llama::{Adapt, Llama};
pub use lstm::{SequenceNet, Sequences};
pub use mlp::Mlp;
pub use modern_lstm::ModernLstm;
pub use resnet::ResNet;
pub use resnet50::ResNet50;
pub use text_classifier::TextClassifier;
pub use transformer::{CausalText, CharTransformer, SEQUENCE_LENGTH, TransformerSize};
pub use unet::UNet;
pub use vit::{VisionSize, VisionTransformer};

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};

/// Mean cross entropy of `logits` `[batch, classes]` against `labels` `[batch]`.
pub(crate) fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let device = logits.device();
    CrossEntropyLossConfig::new().init(&device).forward(logits, labels)
}

/// A 1 x 1 convolution at every `stride`-th pixel.
fn conv1x1(channels: [usize; 2], stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new(channels, [1, 1]).with_stride([stride, stride]).with_bias(false).init(device)
}

/// A 3 x 3 convolution that keeps the image size (divided by `stride`).
fn conv3x3(channels: [usize; 2], stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new(channels, [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_bias(false)
        .init(device)
}
