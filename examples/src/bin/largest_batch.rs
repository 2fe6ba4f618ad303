//! Finds the largest batch that trains within a budget, trains it, and shows that the next one does not fit.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{DisplayBytes, LargestBatch, RematConfig, RematExt, RematReport, largest_batch};
use burn_remat_examples::data::{Images, Text};
use burn_remat_examples::device;
use burn_remat_examples::training::{Job, ModelKind, Source};
use clap::Parser;

/// Find the largest batch that trains within a memory budget.
#[derive(Parser)]
struct Arguments {
    /// The model.
    #[arg(long, value_enum, default_value = "unet")]
    model: ModelKind,
    /// Memory budget in bytes: `64 MiB`, `64MB`.
    #[arg(long, default_value = "32 MiB")]
    budget: String,
    /// Most time that recomputing may add, as a share of the step's own: 1.0 is as long again.
    #[arg(long, default_value_t = 1.0)]
    overhead: f64,
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn job(model: ModelKind, batch_size: usize, steps: usize) -> Result<Job, String> {
    let source = match model {
        ModelKind::Transformer => Source::Text(Text::open(None)?),
        _ => Source::Images(Images::digits()?),
    };
    Ok(Job { model, batch_size, steps, seed: 0, source })
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let device = device::by_name(&arguments.device)?;
    let model = arguments.model;
    let start = Instant::now();
    let train = |device: &Device, batch: usize| {
        if let Err(error) = job(model, batch, 4).and_then(|job| job.run(device, |_, _| {})) {
            eprintln!("batch {batch}: {error}");
        }
    };
    let found: LargestBatch = largest_batch(&device, arguments.budget.as_str(), arguments.overhead, train)
        .map_err(|error| error.to_string())?;
    println!(
        "{} within {}, recomputing at most {:.0}% (found in {:.1} s)\n",
        model.name(),
        arguments.budget,
        100.0 * arguments.overhead,
        start.elapsed().as_secs_f64()
    );
    println!("largest batch, store-all {:>8}", found.store_all_batch);
    println!(
        "largest batch, remat     {:>8}   {:.1}x; planned peak {}, overhead {:.1}%",
        found.batch,
        found.batch as f64 / found.store_all_batch.max(1) as f64,
        DisplayBytes(found.predicted_peak_bytes),
        100.0 * found.predicted_overhead
    );
    for batch in [found.batch, found.batch + 1] {
        let report = trained(&device, &arguments.budget, model, batch)?;
        let budget = report.budget_bytes.unwrap_or(u64::MAX);
        let plan = report.plan.as_ref();
        let peak = report.peak_bytes;
        println!(
            "trained with batch {batch:>8}: {} ({}), overhead measured {}",
            if peak <= budget { "fits" } else { "does not fit" },
            DisplayBytes(peak),
            plan.and_then(|plan| plan.measured_overhead)
                .map_or("-".to_owned(), |share| format!("{:.1}%", 100.0 * share))
        );
    }
    Ok(())
}

/// Trains some steps under the plan.
fn trained(device: &Device, budget: &str, model: ModelKind, batch: usize) -> Result<RematReport, String> {
    const WARMUP: usize = 6;
    let device = device.remat(RematConfig::new(budget).without_cache()).map_err(|error| error.to_string())?;
    let seen = |step: usize, _: f32| {
        let result = match step + 1 {
            WARMUP => device.remat_wait_for_plan(Duration::from_secs(60)).map(|_| ()),
            step if step == WARMUP + 1 => device.remat_reset_report(),
            _ => Ok(()),
        };
        if let Err(error) = result {
            eprintln!("{error}");
        }
    };
    job(model, batch, WARMUP + 4)?.run(&device, seen)?;
    device.remat_report().map_err(|error| error.to_string())
}
