//! Tasks by name, for `larger-batches`.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{RematExt, RematReport};

use super::accumulation::Accumulation;
use super::mnist::Mnist;
use super::segmentation::Segmentation;
use super::sequences::Sequences;
use super::task::{SEED, Task};
use super::text_classification::TextClassification;
use super::text_generation::TextGeneration;
use super::wgan::Wgan;
use crate::cli::{Outcome, read};
use crate::training::{Job, ModelKind, median};

/// Trains on a device with a batch size for some steps, and calls back with each step's number when it is done.
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
    /// The known names.
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

    /// Trains the few steps that a forecast observes. An error is logged: what was seen until then may be enough.
    pub fn look(&self, device: &Device, batch_size: usize) {
        const STEPS: usize = 4;
        if let Err(error) = self.train(device, batch_size, STEPS, |_| {}) {
            log::warn!("{}, batch {batch_size}: {error}", self.name);
        }
    }

    /// Trains some steps on a remat device until its plan is replaced by one with measured times, then a few more, and reports on these alone.
    ///
    /// # Errors
    ///
    /// Those of [`train`](Self::train), and [`burn_remat::RematError::NotRemat`] for any other device.
    pub fn report_with_plan(&self, device: &Device, batch_size: usize) -> Outcome<RematReport> {
        self.seconds_per_step(device, batch_size)?;
        Ok(device.remat_report()?)
    }

    /// Trains as [`report_with_plan`](Self::report_with_plan) does, on any device, and returns the median time of the last steps.
    ///
    /// # Errors
    ///
    /// Those of [`train`](Self::train).
    pub fn seconds_per_step(&self, device: &Device, batch_size: usize) -> Outcome<f64> {
        const WARMUP: usize = 6;
        let plans = device.remat_report().is_ok();
        let (mut result, mut times, mut begun) = (Ok(()), Vec::new(), Instant::now());
        self.train(device, batch_size, WARMUP + 6, |step| {
            times.push(begun.elapsed().as_secs_f64());
            let next = match step + 1 {
                WARMUP if plans => device.remat_wait_for_plan(Duration::from_secs(60)).map(drop),
                // The plan is in force from the step after next.
                step if plans && step == WARMUP + 1 => device.remat_reset_report(),
                _ => Ok(()),
            };
            if result.is_ok() {
                result = next;
            }
            begun = Instant::now();
        })?;
        result?;
        Ok(median(&times, WARMUP + 1))
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
