//! The models of `compare`, each in three sizes, with an artificial batch and two ways of computing gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::attention::generate_autoregressive_mask;
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};
use clap::ValueEnum;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::by_hand;
use crate::models::{
    Adapt, AdapterSize, Blocks, CausalText, CharTransformer, DiffusionUNet, Llama, NoisyImages, ResNet50, SequenceNet,
    TransformerSize, UNet, VisionSize, VisionTransformer, loss_of_blocks,
};
use crate::tasks::SEED;
use crate::training::{Training, begin, begin_with};

/// The models of `compare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Contender {
    /// ResNet-50.
    Resnet50,
    /// U-Net with long skip connections.
    Unet,
    /// A causal transformer; of GPT-2's small size with `--full`.
    Gpt2,
    /// A decoder like Llama with low-rank adapters (LoRA) on a frozen base.
    Llama,
    /// Vision transformer.
    Vit,
    /// Recurrent network of two layers.
    Lstm,
    /// U-Net of a diffusion model, with attention.
    Diffusion,
}

/// The size of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// To check that everything works.
    Quick,
    /// A step should take about half a second on two cores.
    Moderate,
    /// The size that is used in practice.
    Full,
}

impl Scale {
    fn pick<T>(self, quick: T, moderate: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Moderate => moderate,
            Self::Full => full,
        }
    }
}

/// How a program computes its gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Forward and backward through the whole model.
    Whole,
    /// Block by block: [`by_hand`].
    ByHand,
}

impl Contender {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resnet50 => "resnet50",
            Self::Unet => "unet",
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Vit => "vit",
            Self::Lstm => "lstm",
            Self::Diffusion => "diffusion",
        }
    }

    /// Its training on `device`, which has autodiff; the same batch in every step.
    pub fn begin(self, scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
        device.seed(SEED);
        match self {
            Self::Resnet50 => resnet50(scale, pass, device),
            Self::Unet => unet(scale, pass, device),
            Self::Gpt2 => gpt2(scale, pass, device),
            Self::Llama => llama(scale, pass, device),
            Self::Vit => vit(scale, pass, device),
            Self::Lstm => lstm(scale, pass, device),
            Self::Diffusion => diffusion(scale, pass, device),
        }
    }
}

fn training<const D: usize, M: Blocks<D> + 'static>(
    model: M,
    pass: Pass,
    batch: impl Fn() -> M::Batch + 'static,
) -> Box<dyn Training> {
    // A parameter is drawn when it is first read: here, so that all ways of training draw them in the same order.
    model.visit(&mut Draw);
    match pass {
        Pass::Whole => begin(model, move |model, _| loss_of_blocks(model, &batch())),
        Pass::ByHand => begin_with(model, move |model, _| by_hand::loss_and_gradients(model, &batch())),
    }
}

/// Reads the parameters that it visits.
struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}

/// Numbers between 0 and 1, or around 0.
fn numbers<const D: usize>(shape: [usize; D], distribution: Distribution) -> TensorData {
    TensorData::random::<f32, _, _>(shape, distribution, &mut StdRng::seed_from_u64(SEED))
}

/// Numbers below `most`, all equally likely.
pub fn labels<const D: usize>(shape: [usize; D], most: usize) -> TensorData {
    let count = shape.iter().product::<usize>() as i64;
    TensorData::new((0..count).map(|at| at * 7919 % most as i64).collect::<Vec<_>>(), shape)
}

/// Images or sequences with labels.
fn labelled<const D: usize>(
    shape: [usize; D],
    classes: usize,
    device: &Device,
) -> impl Fn() -> (Tensor<D>, Tensor<1, Int>) + use<D> {
    let (inputs, labels) = (numbers(shape, Distribution::Default), labels([shape[0]], classes));
    let device = device.clone();
    move || (Tensor::from_data(inputs.clone(), &device), Tensor::from_data(labels.clone(), &device))
}

fn resnet50(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    let (batch, side, width, classes) = scale.pick((4, 64, 8, 10), (8, 112, 32, 1000), (16, 224, 64, 1000));
    training(ResNet50::new(classes, width, device), pass, labelled([batch, 3, side, side], classes, device))
}

fn unet(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    let (batch, side, levels): (_, _, &[usize]) =
        scale.pick((4, 64, &[8, 16, 32]), (8, 128, &[16, 32, 64, 128]), (4, 256, &[64, 128, 256, 512, 1024]));
    let (images, device) = (numbers([batch, 1, side, side], Distribution::Default), device.clone());
    training(UNet::with_channels(levels, &device), pass, move || {
        UNet::example(Tensor::from_data(images.clone(), &device))
    })
}

fn transformer_size(scale: Scale, symbols: usize) -> (usize, TransformerSize) {
    scale.pick(
        (4, TransformerSize { layers: 4, width: 64, heads: 4, length: 96, symbols: 128 }),
        (2, TransformerSize { layers: 6, width: 256, heads: 8, length: 256, symbols: 1024 }),
        (4, TransformerSize { layers: 12, width: 768, heads: 12, length: 256, symbols }),
    )
}

/// `batch` texts of `length` symbols, and one mask for all of them or one for each.
fn causal<const D: usize, H>(
    [batch, length]: [usize; 2],
    symbols: usize,
    device: &Device,
    hidden: H,
) -> impl Fn() -> CausalText<D> + use<D, H>
where
    H: Fn(&Device) -> Tensor<D, Bool>,
{
    let (text, device) = (labels([batch, length + 1], symbols), device.clone());
    move || {
        let text = Tensor::<2, Int>::from_data(text.clone(), &device);
        CausalText { next: text.clone().narrow(1, 1, length), text: text.narrow(1, 0, length), hidden: hidden(&device) }
    }
}

fn gpt2(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    let (batch, size) = transformer_size(scale, 50257);
    let hidden = move |device: &Device| generate_autoregressive_mask(batch, size.length, device);
    let text = causal([batch, size.length], size.symbols, device, hidden);
    training(CharTransformer::with_dropout(&size, 0.0, device), pass, text)
}

fn llama(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    let (batch, size) = transformer_size(scale, 32000);
    let hidden = move |device: &Device| generate_autoregressive_mask(1, size.length, device).unsqueeze();
    let text = causal([batch, size.length], size.symbols, device, hidden);
    let adapters = AdapterSize { rank: 8, alpha: 16.0 };
    let model = Llama::new(&size, device).no_grad().with_adapters(Adapt::Attention, adapters, device);
    training(model, pass, text)
}

fn vit(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    let (batch, size) = scale.pick(
        (4, VisionSize { side: 64, patch: 8, layers: 4, width: 64, heads: 4, classes: 10 }),
        (4, VisionSize { side: 112, patch: 8, layers: 6, width: 192, heads: 6, classes: 1000 }),
        (8, VisionSize { side: 224, patch: 16, layers: 12, width: 768, heads: 12, classes: 1000 }),
    );
    let images = labelled([batch, 3, size.side, size.side], size.classes, device);
    training(VisionTransformer::new(&size, device), pass, images)
}

fn lstm(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    // The number of blocks is about the square root of the length, which balances what is kept between blocks against what is held inside one.
    let (batch, length, width, hidden, blocks) =
        scale.pick((16, 16, 32, 64, 4), (32, 48, 64, 256, 6), (64, 256, 256, 1024, 16));
    let sequences = labelled([batch, length, width], 10, device);
    training(SequenceNet::with_width([width, hidden], 10, blocks, device), pass, sequences)
}

fn diffusion(scale: Scale, pass: Pass, device: &Device) -> Box<dyn Training> {
    let (batch, side, channels, heads): (_, _, &[usize], _) =
        scale.pick((4, 32, &[16, 32], 4), (8, 32, &[32, 64, 128], 4), (8, 64, &[128, 256, 512], 8));
    let (noise, images) = (numbers([batch, 3, side, side], Distribution::Normal(0.0, 1.0)), [batch, 3, side, side]);
    let images = numbers(images, Distribution::Default);
    let steps: Vec<f32> = (0..batch).map(|at| (1000 * (at + 1) / (batch + 1)) as f32).collect();
    let levels = TensorData::new(DiffusionUNet::noise_levels(&steps, channels[0]), [batch, channels[0]]);
    let device = device.clone();
    training(DiffusionUNet::new(channels, heads, &device), pass, move || {
        let noise = Tensor::from_data(noise.clone(), &device);
        NoisyImages {
            images: Tensor::from_data(images.clone(), &device) + noise.clone(),
            levels: Tensor::from_data(levels.clone(), &device),
            noise,
        }
    })
}
