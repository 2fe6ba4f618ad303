//! The training steps of the examples, for the example itself and for `larger-batches`. Plain Burn: a task knows nothing of
//! budgets, it trains on the device that it is given.

mod accumulation;
mod mnist;
mod segmentation;
mod sequences;
mod text_classification;
mod text_generation;
mod wgan;

pub use accumulation::Accumulation;
pub use mnist::Mnist;
pub use segmentation::Segmentation;
pub use sequences::Sequences;
pub use text_classification::TextClassification;
pub use text_generation::TextGeneration;
pub use wgan::Wgan;

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_remat::RematExt;

use crate::cli::read;
use crate::data::Images;
use crate::training::{Job, ModelKind};

/// Seed of a task's parameters and noise.
pub const SEED: u64 = 0;

/// The training of one example: its models, optimizers and data.
pub trait Task: Sized {
    /// A fresh start on the autodiff device `device`, with the data that is always at hand.
    ///
    /// # Errors
    ///
    /// Data that cannot be read.
    fn standard(device: &Device) -> Result<Self, String>;

    /// Training step number `step` on `batch_size` samples. The loss is not read yet.
    fn step(self, step: usize, batch_size: usize) -> (Self, Tensor<1>);
}

/// Backward pass and update: the end of most training steps.
fn update<M: Module>(model: M, optimizer: &mut ModuleOptimizer, rate: f64, loss: &Tensor<1>) -> M {
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    optimizer.step(rate, model, gradients)
}

/// Share of `images` that `classify` (from `[batch, 1, SIDE, SIDE]` to logits `[batch, classes]`) gets right.
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

/// Trains on a device with a batch size for some steps, and tells each step's number when it is done.
type Run = fn(&Device, usize, usize, &mut dyn FnMut(usize)) -> Result<(), String>;

/// A training program by its name, for `larger-batches`.
#[derive(Clone, Copy)]
pub struct Workload {
    /// The name of the example or model.
    pub name: &'static str,
    run: Run,
}

impl Workload {
    /// All of them: the examples, then the models of `train`.
    pub const ALL: [Self; 13] = [
        Self { name: "mnist", run: train::<Mnist> },
        Self { name: "text-classification", run: train::<TextClassification> },
        Self { name: "custom-training-loop", run: train::<Accumulation> },
        Self { name: "text-generation", run: train::<TextGeneration> },
        Self { name: "image-segmentation", run: train::<Segmentation> },
        Self { name: "wgan", run: train::<Wgan> },
        Self { name: "modern-lstm", run: train::<Sequences> },
        Self { name: "cnn", run: |device, batch, steps, seen| job(ModelKind::Cnn, device, batch, steps, seen) },
        Self { name: "resnet", run: |device, batch, steps, seen| job(ModelKind::Resnet, device, batch, steps, seen) },
        Self { name: "unet", run: |device, batch, steps, seen| job(ModelKind::Unet, device, batch, steps, seen) },
        Self {
            name: "transformer",
            run: |device, batch, steps, seen| job(ModelKind::Transformer, device, batch, steps, seen),
        },
        Self { name: "lstm", run: |device, batch, steps, seen| job(ModelKind::Lstm, device, batch, steps, seen) },
        Self { name: "mlp", run: |device, batch, steps, seen| job(ModelKind::Mlp, device, batch, steps, seen) },
    ];

    /// The workload called `name`.
    ///
    /// # Errors
    ///
    /// The names that there are.
    pub fn by_name(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|workload| workload.name == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|workload| workload.name).collect();
            format!("unknown model `{name}`: use {}", names.join(", "))
        })
    }

    /// Trains `steps` steps on `device` and calls `seen` after each.
    ///
    /// # Errors
    ///
    /// Data that cannot be read, and what the device reports when a loss is read.
    pub fn train(
        &self,
        device: &Device,
        batch_size: usize,
        steps: usize,
        mut seen: impl FnMut(usize),
    ) -> Result<(), String> {
        (self.run)(device, batch_size, steps, &mut seen)
    }
}

fn train<T: Task>(device: &Device, batch_size: usize, steps: usize, seen: &mut dyn FnMut(usize)) -> Result<(), String> {
    let device = &device.clone().autodiff();
    device.seed(SEED);
    let mut task = T::standard(device)?;
    for step in 0..steps {
        device.remat_mark_step();
        let loss;
        (task, loss) = task.step(step, batch_size);
        read(loss)?;
        seen(step);
    }
    device.remat_mark_step();
    Ok(())
}

fn job(
    model: ModelKind,
    device: &Device,
    batch_size: usize,
    steps: usize,
    seen: &mut dyn FnMut(usize),
) -> Result<(), String> {
    Job::standard(model, batch_size, steps, SEED)?.run(device, |step, _| seen(step)).map(drop)
}
