//! What a remat device costs, measured against plain Burn and against Burn's own group of one device.
//!
//! All devices train side by side in this process and take turns step by step: see `paired.rs`. Losses are compared bit for bit.

use std::process::ExitCode;
use std::time::Instant;

use burn::tensor::Device;
use burn_autodiff::Autodiff;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{AutodiffBackend, Distribution, FloatDType, Shape};
use burn_flex::{Flex, FlexDevice};
use burn_remat::{DisplayBytes, Remat, RematConfig, RematDevice, RematExt};
use burn_remat_examples::bare::Bare;
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::clock::Others;
use burn_remat_examples::paired::{Entrant, Spread, Times, take_turns};
use burn_remat_examples::training::{Job, ModelKind};
use clap::Parser;
use serde_json::{Value, json};

/// More than anything here needs.
const AMPLE: &str = "8 GiB";
/// Budgets, as shares of what the step takes without a limit.
const SHARES: [u64; 4] = [100, 70, 50, 35];
/// Steps of a device before it is measured: the engine has seen the step after a few, and its plan is in force soon after it was found.
const WARMUP: usize = 6;

/// Measure what a remat device costs beside plain Burn.
#[derive(Parser)]
struct Arguments {
    /// Rounds: steps of each device that are measured.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only this model; without it all, and the cost of an operation.
    #[arg(long, value_enum)]
    model: Option<ModelKind>,
    /// Samples per step; without it 16 for the LSTM, 64 for the multilayer perceptron, 32 for the others.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Only devices that evict nothing: plain Burn, the group of one, and the ample budget.
    #[arg(long)]
    ample: bool,
    /// Write the figures to this file as JSON.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let mut figures = Vec::new();
    if arguments.model.is_none() {
        println!("per operation: a chain of 24 layers, forward, backward and update, at the level of backends");
        for (width, rows) in [(16, 4), (64, 32)] {
            figures.push(per_operation(width, rows, 8 * arguments.rounds as usize)?);
        }
    }
    for model in ModelKind::ALL.into_iter().filter(|&model| arguments.model.is_none_or(|only| only == model)) {
        figures.push(per_step(model, arguments)?);
    }
    if let Some(file) = &arguments.json {
        std::fs::write(file, serde_json::to_string_pretty(&figures)?)
            .map_err(|error| format!("--json {}: {error}", file.display()))?;
    }
    Ok(())
}

// ---- steps of models

fn per_step(model: ModelKind, arguments: &Arguments) -> Outcome<Value> {
    let usual = match model {
        ModelKind::Lstm => 16,
        ModelKind::Mlp => 64,
        _ => 32,
    };
    let job = Job::standard(model, arguments.batch_size.unwrap_or(usual) as usize, 0, 1)?;
    let remat = |config: RematConfig| Device::flex().remat(config.without_cache());
    let entrant = |name: &str, device: Device| -> Outcome<Entrant<'_>> {
        let training = job.begin(&device)?;
        Ok(Entrant::new(name, device, training))
    };
    let mut entrants = vec![
        entrant("plain Burn", Device::flex())?,
        entrant("Burn's group of one", Device::group_options(&[Device::flex()]).init()?)?,
        entrant("remat, ample", remat(RematConfig::new(AMPLE))?)?,
    ];
    let (peak, operations) = unlimited(&job)?;
    if !arguments.ample {
        for share in SHARES {
            entrants.push(entrant(&format!("remat, {share}%"), remat(RematConfig::new(peak * share / 100))?)?);
        }
    }
    // One after the other, and nothing is planned any more while steps are measured.
    entrants.iter_mut().try_for_each(|entrant| entrant.warm_up(WARMUP, WARMUP))?;
    let others = Others::watch();
    take_turns(&mut entrants, arguments.rounds as usize, || {})?;
    let busy = others.share();
    let bits = |entrant: &Entrant<'_>| entrant.losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    let identical = entrants.iter().all(|entrant| bits(entrant) == bits(&entrants[0]));
    println!(
        "\n{} at batch size {}: {operations} operations a step, {} without a limit; {} rounds, losses {}",
        model.name(),
        job.batch_size,
        DisplayBytes(peak),
        arguments.rounds,
        if identical { "identical to the last bit" } else { "DIFFERENT" }
    );
    println!("{}", Others::warning(busy));
    Ok(table(model, &entrants, identical, busy))
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

fn table(model: ModelKind, entrants: &[Entrant], identical: bool, busy: Option<f64>) -> Value {
    println!("  {:<22}{}{:>10}{:>9}", "", Times::head(), "peak", "over");
    let plain = &entrants[0];
    let rows = entrants.iter().map(|entrant| {
        let times = entrant.times(plain);
        let report = entrant.device.remat_report().ok();
        let (peak, over) = report.as_ref().map_or_else(Default::default, |report| {
            (DisplayBytes(report.peak_bytes).to_string(), report.steps_over_budget.to_string())
        });
        println!("  {:<22}{}{peak:>10}{over:>9}", entrant.name, times.columns());
        times.add_to(json!({
            "device": entrant.name,
            "budget_bytes": report.as_ref().and_then(|report| report.budget_bytes),
            "peak_bytes": report.as_ref().map(|report| report.peak_bytes),
            "floor_bytes": report.as_ref().map(|report| report.floor_bytes),
            "steps_over_budget": report.as_ref().map(|report| report.steps_over_budget),
        }))
    });
    let rows: Vec<Value> = rows.collect();
    // Against the group, for models of small operations.
    let group = &entrants[1];
    for entrant in &entrants[2..] {
        let Times { wall_ratio, processor_ratio, .. } = entrant.times(group);
        println!("  {:<22}beside the group of one: wall {wall_ratio}, processor {processor_ratio}", entrant.name);
    }
    json!({ "model": model.name(), "losses_identical": identical, "others_busy": busy, "devices": rows })
}

// ---- operations at the level of backends

fn per_operation(width: usize, rows: usize, rounds: usize) -> Outcome<Value> {
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
    let (all, engine) = (added(&remat.ns, &plain.ns), added(&remat.ns, &router.ns));
    println!("  [{rows}, {width}]: {operations:.0} operations a step");
    for (name, ns) in [
        ("Autodiff<Flex>", &plain.ns),
        ("with Burn's router between", &router.ns),
        ("Autodiff<Remat<Flex>>", &remat.ns),
    ] {
        println!("    {name:<27} {:>8.1} us a step", Spread::of(ns.clone()).median / 1e3);
    }
    for (what, spread) in [("added by all", all), ("added by the engine", engine)] {
        println!("    {what:<27} {:>8.0} ns an operation ({:.0}-{:.0})", spread.median, spread.low, spread.high);
    }
    Ok(json!({
        "chain": [rows, width],
        "operations": operations,
        "added_ns_per_operation": all.json(),
        "engine_ns_per_operation": engine.json(),
    }))
}

/// A chain of layers at the level of backends, and what its steps took.
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
