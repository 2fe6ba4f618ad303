//! What all tasks have in common.

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::cli::read;
use crate::data::Images;

/// Seed of a task's parameters and noise.
pub const SEED: u64 = 0;

/// The training of one example: its models, optimizers and data.
pub trait Task: Sized {
    /// A fresh start on the autodiff device `device`, with the data that is always available.
    ///
    /// # Errors
    ///
    /// Data that cannot be read.
    fn standard(device: &Device) -> Result<Self, String>;

    /// Training step number `step` on `batch_size` samples. The loss has not been read yet.
    fn step(self, step: usize, batch_size: usize) -> (Self, Tensor<1>);
}

/// Backward pass and update: the end of most training steps.
pub(super) fn update<M: Module>(model: M, optimizer: &mut ModuleOptimizer, rate: f64, loss: &Tensor<1>) -> M {
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    optimizer.step(rate, model, gradients)
}

/// The share of `images` that `classify` (from `[batch, 1, SIDE, SIDE]` to logits `[batch, classes]`) classifies correctly.
///
/// # Errors
///
/// What the device reports.
pub fn accuracy(
    images: &Images,
    batch_size: usize,
    device: &Device,
    classify: impl Fn(Tensor<4>) -> Tensor<2>,
) -> Result<f32, String> {
    let batches = images.len().div_ceil(batch_size);
    let mut sum = 0.0;
    for batch in 0..batches {
        let (images, labels) = images.batch(batch, batch_size, device);
        sum += read(classify(images).argmax(1).squeeze_dim::<1>(1).equal(labels).float().mean())?;
    }
    Ok(sum / batches as f32)
}
