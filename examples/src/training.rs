//! The training loop of the `train` program: plain Burn. All it knows of burn-remat is the report that a comparison needs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_remat::RematReport;
use clap::ValueEnum;

use crate::data::{Images, Text};
use crate::models::{CharTransformer, Cnn, Mlp, ResNet, SequenceNet, UNet};

/// The models of `train`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelKind {
    /// Multilayer perceptron.
    Mlp,
    /// Convolutional network with dropout.
    Cnn,
    /// Residual network with BatchNorm.
    Resnet,
    /// U-Net with long skip connections.
    Unet,
    /// Recurrent network over image rows.
    Lstm,
    /// Causal transformer at character level.
    Transformer,
}

impl ModelKind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Mlp, Self::Cnn, Self::Resnet, Self::Unet, Self::Lstm, Self::Transformer];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
            Self::Resnet => "resnet",
            Self::Unet => "unet",
            Self::Lstm => "lstm",
            Self::Transformer => "transformer",
        }
    }
}

/// What to train on.
pub enum Source {
    /// Labelled images, for all models but the transformer.
    Images(Images),
    /// A text, for the transformer.
    Text(Text),
}

/// One training job, to be run on several devices.
pub struct Job {
    /// The model.
    pub model: ModelKind,
    /// Images or sequences per step.
    pub batch_size: usize,
    /// Optimizer steps.
    pub steps: usize,
    /// Seed of initial parameters and dropout.
    pub seed: u64,
    /// The data.
    pub source: Source,
}

/// The result of running a job.
pub struct Run {
    /// Loss of every step.
    pub losses: Vec<f32>,
    /// Time of every step, in ms.
    pub step_ms: Vec<f64>,
    /// Digest of the last step's gradients and of the final parameters, bit for bit.
    pub digest: u64,
}

impl Run {
    /// Median step time in ms, without the first `warmup` steps if there are others.
    pub fn median_ms(&self, warmup: usize) -> f64 {
        median(&self.step_ms, warmup)
    }

    /// Whether two runs computed the same, bit for bit.
    pub fn is_identical(&self, other: &Self) -> bool {
        let bits = |run: &Self| run.losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        bits(self) == bits(other) && self.digest == other.digest
    }

    /// Whether a run on the device of `report` computed the same as `plain`: to the last bit, or approximately if two runs of plain Burn differ too.
    pub fn is_as(&self, plain: &Self, report: &RematReport) -> bool {
        if adds_by_chance(report) { self.loss_difference(plain) <= 1e-3 } else { self.is_identical(plain) }
    }

    /// The largest difference between the losses of two runs, as a share of the loss; infinite if one is not a number.
    pub fn loss_difference(&self, other: &Self) -> f64 {
        loss_difference(&self.losses, &other.losses)
    }
}

/// The largest difference between losses, one by one, as a share of the loss; infinite if one is not a number.
pub fn loss_difference(losses: &[f32], others: &[f32]) -> f64 {
    let share = |(a, b): (&f32, &f32)| f64::from((a - b).abs() / a.abs().max(f32::MIN_POSITIVE));
    let shares = losses.iter().zip(others).map(share);
    shares.map(|share| if share.is_nan() { f64::INFINITY } else { share }).fold(0.0, f64::max)
}

/// Median of `times`, without the first `warmup` if there are others.
pub fn median(times: &[f64], warmup: usize) -> f64 {
    let mut steady = times[if times.len() > warmup { warmup } else { 0 }..].to_vec();
    steady.sort_by(f64::total_cmp);
    steady.get(steady.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether the device of `report` adds to the rows of a table in an order that is left to chance, as GPUs do in the backward pass of an
/// embedding. There, two runs of plain Burn differ in the last bits.
pub fn adds_by_chance(report: &RematReport) -> bool {
    report.nondeterministic.iter().any(|op| op.contains("EmbeddingBackward") || op.contains("SelectAssign"))
}

/// Whether two losses are equal apart from the order in which a device adds.
pub fn is_about(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-3 * b.abs()
}

impl Job {
    /// A job of `model` with the data that the repository ships.
    ///
    /// # Errors
    ///
    /// Data that cannot be read.
    pub fn standard(model: ModelKind, batch_size: usize, steps: usize, seed: u64) -> Result<Self, String> {
        let source = match model {
            ModelKind::Transformer => Source::Text(Text::open(None)?),
            _ => Source::Images(Images::digits()?),
        };
        Ok(Self { model, batch_size, steps, seed, source })
    }

    /// Trains on `device` and calls `seen` with every step's number and loss.
    ///
    /// # Errors
    ///
    /// What the device reports when a loss is read.
    pub fn run(&self, device: &Device, mut seen: impl FnMut(usize, f32)) -> Result<Run, String> {
        run(&mut *self.begin(device)?, self.steps, &mut seen)
    }

    /// Starts the training on `device`, before its first step.
    ///
    /// # Errors
    ///
    /// If model and data do not go together.
    pub fn begin(&self, device: &Device) -> Result<Box<dyn Training + '_>, String> {
        let device = &device.clone().autodiff();
        device.seed(self.seed);
        match (&self.source, self.model) {
            (Source::Text(text), _) => {
                let device = device.clone();
                let length = crate::models::SEQUENCE_LENGTH;
                Ok(begin(CharTransformer::new(&device), move |model, step| {
                    let (text, next) = text.batch(step, self.batch_size, length, &device);
                    model.loss(text, next)
                }))
            }
            (Source::Images(images), ModelKind::Unet) => {
                let device = device.clone();
                Ok(begin(UNet::new(&device), move |model, step| {
                    model.loss(images.batch(step, self.batch_size, &device).0)
                }))
            }
            (Source::Images(images), ModelKind::Mlp) => {
                Ok(self.begin_on(images, Mlp::new(images.classes(), device), Mlp::loss, device))
            }
            (Source::Images(images), ModelKind::Cnn) => {
                Ok(self.begin_on(images, Cnn::new(images.classes(), device), Cnn::loss, device))
            }
            (Source::Images(images), ModelKind::Resnet) => {
                Ok(self.begin_on(images, ResNet::new(images.classes(), device), ResNet::loss, device))
            }
            (Source::Images(images), ModelKind::Lstm) => {
                Ok(self.begin_on(images, SequenceNet::new(images.classes(), device), SequenceNet::loss, device))
            }
            (Source::Images(_), ModelKind::Transformer) => Err("the transformer trains on text".to_owned()),
        }
    }

    fn begin_on<'a, M: Module + 'a>(
        &'a self,
        images: &'a Images,
        model: M,
        loss: fn(&M, Tensor<4>, Tensor<1, burn::tensor::Int>) -> Tensor<1>,
        device: &Device,
    ) -> Box<dyn Training + 'a> {
        let device = device.clone();
        begin(model, move |model, step| {
            let (images, labels) = images.batch(step, self.batch_size, &device);
            loss(model, images, labels)
        })
    }
}

/// A model in training.
pub trait Training {
    /// One step: forward pass, backward pass, update; returns the loss. `digest` receives the bits of the gradients.
    ///
    /// # Errors
    ///
    /// What the device reports when the loss is read.
    fn step(&mut self, digest: Option<&mut DefaultHasher>) -> Result<f32, String>;

    /// Hashes the bits of the parameters.
    ///
    /// # Errors
    ///
    /// What the device reports when they are read.
    fn digest(&self, hasher: &mut DefaultHasher) -> Result<(), String>;
}

struct Steps<M, F> {
    /// Moved out and back by the optimizer, which updates it in place.
    model: Option<M>,
    optimizer: ModuleOptimizer,
    rate: f64,
    /// Loss and gradients of a step.
    pass: F,
    next: usize,
}

/// The learning rate if the caller names none.
const RATE: f64 = 1e-3;

impl<M, F: Fn(&M, usize) -> (Tensor<1>, GradientsParams)> Steps<M, F> {
    fn new(optimizer: ModuleOptimizer, model: M, pass: F) -> Self {
        Self { model: Some(model), optimizer, rate: RATE, pass, next: 0 }
    }
}

/// Forward and backward pass through the whole model.
fn whole<M: Module>(loss: impl Fn(&M, usize) -> Tensor<1>) -> impl Fn(&M, usize) -> (Tensor<1>, GradientsParams) {
    move |model, step| {
        let loss = loss(model, step);
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        (loss, gradients)
    }
}

impl<M: Module, F: Fn(&M, usize) -> (Tensor<1>, GradientsParams)> Training for Steps<M, F> {
    fn step(&mut self, hasher: Option<&mut DefaultHasher>) -> Result<f32, String> {
        let model = self.model.take().ok_or("an earlier step failed")?;
        let (loss, gradients) = (self.pass)(&model, self.next);
        self.next += 1;
        if let Some(hasher) = hasher {
            digest(&model, Some(&gradients), hasher)?;
        }
        self.model = Some(self.optimizer.step(self.rate, model, gradients));
        crate::cli::read(loss)
    }

    fn digest(&self, hasher: &mut DefaultHasher) -> Result<(), String> {
        self.model.as_ref().map_or(Ok(()), |model| digest(model, None, hasher))
    }
}

/// The training of `model` with Adam; `loss` computes the loss for each step.
pub fn begin<'a, M: Module + 'a>(model: M, loss: impl Fn(&M, usize) -> Tensor<1> + 'a) -> Box<dyn Training + 'a> {
    begin_with(model, whole(loss))
}

/// The same for a program that computes its gradients itself.
pub fn begin_with<'a, M: Module + 'a>(
    model: M,
    pass: impl Fn(&M, usize) -> (Tensor<1>, GradientsParams) + 'a,
) -> Box<dyn Training + 'a> {
    Box::new(Steps::new(AdamConfig::new().init(), model, pass))
}

/// Trains `model` with Adam, using the `loss` of each step, and calls `seen` with every step's number and loss.
///
/// # Errors
///
/// What the device reports when a loss is read.
pub fn train<M: Module>(
    model: M,
    steps: usize,
    seen: &mut dyn FnMut(usize, f32),
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> Result<Run, String> {
    train_with(AdamConfig::new().init(), model, steps, seen, loss)
}

/// The same with any optimizer.
///
/// # Errors
///
/// As [`train`].
pub fn train_with<M: Module>(
    optimizer: ModuleOptimizer,
    model: M,
    steps: usize,
    seen: &mut dyn FnMut(usize, f32),
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> Result<Run, String> {
    run(&mut Steps::new(optimizer, model, whole(loss)), steps, seen)
}

/// As [`train`] with a learning rate; also returns the trained model.
///
/// # Errors
///
/// As [`train`].
pub fn train_model<M: Module>(
    model: M,
    rate: f64,
    steps: usize,
    seen: &mut dyn FnMut(usize, f32),
    loss: impl Fn(&M, usize) -> Tensor<1>,
) -> Result<(Run, M), String> {
    let mut training = Steps { rate, ..Steps::new(AdamConfig::new().init(), model, whole(loss)) };
    let run = run(&mut training, steps, seen)?;
    let model = training.model.ok_or("an earlier step failed")?;
    Ok((run, model))
}

fn run(training: &mut dyn Training, steps: usize, seen: &mut dyn FnMut(usize, f32)) -> Result<Run, String> {
    let mut run = Run { losses: Vec::new(), step_ms: Vec::new(), digest: 0 };
    let mut hasher = DefaultHasher::new();
    for step in 0..steps {
        let start = Instant::now();
        let loss = training.step((step + 1 == steps).then_some(&mut hasher))?;
        run.step_ms.push(start.elapsed().as_secs_f64() * 1e3);
        run.losses.push(loss);
        seen(step, loss);
    }
    training.digest(&mut hasher)?;
    run.digest = hasher.finish();
    Ok(run)
}

/// Hashes the bits of a model's float parameters, or of their gradients.
fn digest<M: Module>(model: &M, gradients: Option<&GradientsParams>, hasher: &mut DefaultHasher) -> Result<(), String> {
    let mut visitor = Digest { gradients, hasher, result: Ok(()) };
    model.visit(&mut visitor);
    visitor.result
}

struct Digest<'a> {
    gradients: Option<&'a GradientsParams>,
    hasher: &'a mut DefaultHasher,
    result: Result<(), String>,
}

impl ModuleVisitor for Digest<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.gradients {
            None => Some(param.val().inner()),
            Some(gradients) => gradients.get::<D>(param.id),
        };
        let Some(tensor) = tensor else { return };
        match tensor.try_into_data() {
            Ok(data) => data.as_bytes().hash(self.hasher),
            Err(error) => self.result = Err(error.to_string()),
        }
    }
}
