//! The cost of a remat device: plain Burn, Burn's own group of one device, and remat devices train side by side in one process.
//!
//! All devices take turns step by step, so that whatever else the machine does affects all of them alike. Every ratio is that of two
//! steps of one round; the median and quartiles of the ratios are reported, in wall time and in processor time of the whole process. Losses are
//! compared bit for bit.

use std::fmt;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_autodiff::Autodiff;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{AutodiffBackend, Distribution, FloatDType, Shape};
use burn_flex::{Flex, FlexDevice};
use burn_remat::{DisplayBytes, Remat, RematConfig, RematDevice, RematExt, RematReport};
use serde_json::{Value, json};

use crate::bare::Bare;
use crate::cli::Outcome;
use crate::clock::Others;
use crate::paired::{Entrant, Spread, Times, take_turns};
use crate::training::{Job, ModelKind};

/// More than anything here needs.
const AMPLE: &str = "8 GiB";
/// Budgets, as shares of what the step takes without a limit.
pub const SHARES: [u64; 4] = [100, 70, 50, 35];
/// The most time for a plan: the default of a remat device.
pub const PLAN_TIME: Duration = Duration::from_secs(10);
/// Steps of a device before it is measured: the engine has seen the step after a few, and its plan comes into force soon after it is found.
const WARMUP: usize = 6;

// ---- steps of models

/// What a step of one model costs on each device.
pub struct StepCost {
    /// The model.
    pub model: ModelKind,
    /// Samples per step.
    pub batch_size: usize,
    /// Operations of a step.
    pub operations: u64,
    /// Most bytes of a step without a limit.
    pub peak_bytes: u64,
    /// Steps of each device that were measured.
    pub rounds: usize,
    /// Whether all devices computed the same losses, bit for bit.
    pub losses_identical: bool,
    /// The share of the machine's processors that other programs took, if it is known.
    pub others_busy: Option<f64>,
    /// Plain Burn, the group of one, and the remat devices.
    pub devices: Vec<DeviceCost>,
}

/// What steps cost on one device.
pub struct DeviceCost {
    /// Its name.
    pub name: String,
    /// The time of a step, compared with plain Burn's in the same round.
    pub times: Times,
    /// Time of a step divided by that of the group of one in the same round.
    pub group_ratio: Spread,
    /// The report of a remat device.
    pub report: Option<RematReport>,
}

impl DeviceCost {
    fn of(entrant: &Entrant<'_>, plain: &Entrant<'_>, group: &Entrant<'_>) -> Self {
        Self {
            name: entrant.name.clone(),
            times: entrant.times(plain),
            group_ratio: entrant.times(group).wall_ratio,
            report: entrant.device.remat_report().ok(),
        }
    }
}

/// The batch size at which a model is measured unless another one is asked for.
pub fn usual_batch_size(model: ModelKind) -> usize {
    match model {
        ModelKind::Lstm => 16,
        ModelKind::Mlp => 64,
        _ => 32,
    }
}

/// How steps are measured.
#[derive(Clone, Copy, Debug)]
pub struct StepProtocol<'a> {
    /// Samples per step.
    pub batch_size: usize,
    /// Steps of each device that are measured.
    pub rounds: usize,
    /// Budgets, in percent of what the step takes without a limit.
    pub shares: &'a [u64],
    /// The most time for a plan.
    pub plan_time: Duration,
}

/// Measures steps of `model` on plain Burn, on Burn's group of one, on a remat device that evicts nothing, and on one for each budget.
///
/// # Errors
///
/// Data that cannot be read, and what a device reports.
pub fn per_step(model: ModelKind, protocol: StepProtocol<'_>) -> Outcome<StepCost> {
    let StepProtocol { batch_size, rounds, .. } = protocol;
    let job = Job::standard(model, batch_size, 0, 1)?;
    let (peak_bytes, operations) = unlimited(&job)?;
    let mut entrants = entrants(&job, peak_bytes, protocol)?;
    let others = Others::watch();
    take_turns(&mut entrants, rounds, || {})?;
    let others_busy = others.share();
    let bits = |entrant: &Entrant<'_>| entrant.losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    let losses_identical = entrants.iter().all(|entrant| bits(entrant) == bits(&entrants[0]));
    let devices = entrants.iter().map(|entrant| DeviceCost::of(entrant, &entrants[0], &entrants[1])).collect();
    Ok(StepCost { model, batch_size, operations, peak_bytes, rounds, losses_identical, others_busy, devices })
}

/// The devices, warmed up: nothing is being planned any more while steps are measured.
fn entrants<'a>(job: &'a Job, peak_bytes: u64, protocol: StepProtocol<'_>) -> Outcome<Vec<Entrant<'a>>> {
    let remat = |config: RematConfig| Device::flex().remat(config.with_time_limit(protocol.plan_time).without_cache());
    let entrant = |name: &str, device: Device| -> Outcome<Entrant<'a>> {
        let training = job.begin(&device)?;
        Ok(Entrant::new(name, device, training))
    };
    let mut entrants = vec![
        entrant("plain Burn", Device::flex())?,
        entrant("Burn's group of one", Device::group_options(&[Device::flex()]).init()?)?,
        entrant("remat, ample", remat(RematConfig::new(AMPLE))?)?,
    ];
    for share in protocol.shares {
        let device = remat(RematConfig::new(peak_bytes * share / 100))?;
        entrants.push(entrant(&format!("remat, {share}%"), device)?);
    }
    entrants.iter_mut().try_for_each(|entrant| entrant.warm_up(WARMUP, WARMUP))?;
    Ok(entrants)
}

/// Bytes and operations of a step without a limit.
fn unlimited(job: &Job) -> Outcome<(u64, u64)> {
    let device = Device::flex().remat("unlimited")?;
    let mut training = job.begin(&device)?;
    for _ in 0..3 {
        training.step(None)?;
    }
    let operations = device.remat_report()?.operations;
    training.step(None)?;
    let report = device.remat_report()?;
    Ok((report.peak_bytes, report.operations - operations))
}

impl StepCost {
    /// The figures as JSON.
    pub fn json(&self) -> Value {
        let device = |device: &DeviceCost| {
            let report = device.report.as_ref();
            device.times.add_to(json!({
                "device": device.name,
                "budget_bytes": report.and_then(|report| report.budget_bytes),
                "peak_bytes": report.map(|report| report.peak_bytes),
                "floor_bytes": report.map(|report| report.floor_bytes),
                "steps_over_budget": report.map(|report| report.steps_over_budget),
            }))
        };
        json!({
            "model": self.model.name(),
            "losses_identical": self.losses_identical,
            "others_busy": self.others_busy,
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for StepCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{} at batch size {}: {} operations per step, {} without a limit; {} rounds, losses {}",
            self.model.name(),
            self.batch_size,
            self.operations,
            DisplayBytes(self.peak_bytes),
            self.rounds,
            if self.losses_identical { "identical to the last bit" } else { "DIFFERENT" }
        )?;
        writeln!(f, "{}", Others::warning(self.others_busy))?;
        writeln!(f, "  {:<22}{}{:>10}{:>9}", "", Times::head(), "peak", "over")?;
        for DeviceCost { name, times, report, .. } in &self.devices {
            let (peak, over) = report.as_ref().map_or_else(Default::default, |report| {
                (DisplayBytes(report.peak_bytes).to_string(), report.steps_over_budget.to_string())
            });
            writeln!(f, "  {name:<22}{}{peak:>10}{over:>9}", times.columns())?;
        }
        // Compared with the group, for models of small operations.
        for DeviceCost { name, group_ratio, .. } in &self.devices[2..] {
            writeln!(f, "  {name:<22}over the group of one: wall {group_ratio}")?;
        }
        Ok(())
    }
}

// ---- operations at the level of backends

/// The cost of an operation at the level of backends, on a chain of 24 layers with forward pass, backward pass and update.
pub struct OperationCost {
    /// Rows and columns of the tensors.
    pub shape: [usize; 2],
    /// Operations of a step.
    pub operations: f64,
    /// Time of a step on plain Flex, with Burn's router in between, and on a remat device, in us.
    pub step_us: [f64; 3],
    /// What a remat device adds to an operation, in ns.
    pub added_ns: Spread,
    /// The part of it that is due to the engine, not to the router.
    pub engine_ns: Spread,
}

/// Measures what a remat device adds to an operation on tensors of `rows` x `width`.
///
/// # Errors
///
/// A device that cannot be made.
pub fn per_operation(width: usize, rows: usize, rounds: usize) -> Outcome<OperationCost> {
    let device = RematDevice::new(FlexDevice, RematConfig::new(AMPLE))?;
    let mut plain = Chain::<Autodiff<Flex>>::new(FlexDevice, width, rows);
    let mut router = Chain::<Autodiff<Bare>>::new(FlexDevice, width, rows);
    let mut remat = Chain::<Autodiff<Remat<Flex>>>::new(device.clone(), width, rows);
    for _ in 0..rounds {
        plain.step();
        router.step();
        remat.step();
    }
    let operations = device.report::<Flex>().operations as f64 / rounds as f64;
    let added = |of: &[f64], to: &[f64]| Spread::of(of.iter().zip(to).map(|(of, to)| (of - to) / operations).collect());
    let us = |ns: &[f64]| Spread::of(ns.to_vec()).median / 1e3;
    Ok(OperationCost {
        shape: [rows, width],
        operations,
        step_us: [us(&plain.ns), us(&router.ns), us(&remat.ns)],
        added_ns: added(&remat.ns, &plain.ns),
        engine_ns: added(&remat.ns, &router.ns),
    })
}

impl OperationCost {
    /// The figures as JSON.
    pub fn json(&self) -> Value {
        json!({
            "chain": self.shape,
            "operations": self.operations,
            "added_ns_per_operation": self.added_ns.json(),
            "engine_ns_per_operation": self.engine_ns.json(),
        })
    }
}

impl fmt::Display for OperationCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, width] = self.shape;
        writeln!(f, "  [{rows}, {width}]: {:.0} operations per step", self.operations)?;
        let names = ["Autodiff<Flex>", "with Burn's router between", "Autodiff<Remat<Flex>>"];
        for (name, us) in names.into_iter().zip(self.step_us) {
            writeln!(f, "    {name:<27} {us:>8.1} us per step")?;
        }
        for (what, spread) in [("added in total", self.added_ns), ("added by the engine", self.engine_ns)] {
            let Spread { low, median, high } = spread;
            writeln!(f, "    {what:<27} {median:>8.0} ns per operation ({low:.0}-{high:.0})")?;
        }
        Ok(())
    }
}

/// A chain of layers at the level of backends, and the times of its steps.
struct Chain<B: AutodiffBackend> {
    device: B::Device,
    shape: [usize; 2],
    weights: Vec<B::FloatTensorPrimitive>,
    ns: Vec<f64>,
}

impl<B: AutodiffBackend> Chain<B> {
    fn new(device: B::Device, width: usize, rows: usize) -> Self {
        let weights = weights::<B>(&device, width);
        Self { device, shape: [rows, width], weights, ns: Vec::new() }
    }

    fn step(&mut self) {
        let start = Instant::now();
        self.weights = step::<B>(std::mem::take(&mut self.weights), &self.device, self.shape);
        self.ns.push(start.elapsed().as_nanos() as f64);
    }
}

fn weights<B: AutodiffBackend>(device: &B::Device, width: usize) -> Vec<B::FloatTensorPrimitive> {
    B::seed(device, 7);
    let random = Distribution::Uniform(-0.3, 0.3);
    (0..24)
        .map(|_| B::float_random(Shape::new([width, width]), random, device, FloatDType::F32))
        .map(|weight| B::float_set_require_grad(weight, true))
        .collect()
}

/// One step of gradient descent on a chain of matrix products with elementwise work between them.
fn step<B: AutodiffBackend>(
    weights: Vec<B::FloatTensorPrimitive>,
    device: &B::Device,
    shape: [usize; 2],
) -> Vec<B::FloatTensorPrimitive> {
    let mut x = B::float_ones(Shape::new(shape), device, FloatDType::F32);
    for weight in &weights {
        let h = B::float_tanh(B::float_matmul(x.clone(), weight.clone()));
        let h = B::float_add(B::gelu(B::float_mul_scalar(h, 1.5.into())), x);
        let scale = B::float_exp(B::float_mul_scalar(h.clone(), (-0.1).into()));
        x = B::float_mul(h, scale);
    }
    let mut gradients = B::backward(B::float_mean(B::float_mul(x.clone(), x)));
    weights
        .into_iter()
        .map(|weight| match B::grad_remove(&weight, &mut gradients) {
            Some(gradient) => {
                let change = B::InnerBackend::float_mul_scalar(gradient, 0.01.into());
                let weight = B::InnerBackend::float_sub(B::inner(weight), change);
                B::float_set_require_grad(B::from_inner(weight), true)
            }
            None => weight,
        })
        .collect()
}
