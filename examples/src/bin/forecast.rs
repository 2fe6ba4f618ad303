//! What a program needs and what smaller budgets cost, before anything is allocated.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{Compression, DisplayBytes, Forecast, Forecaster, RematConfig, RematExt};
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::device;
use burn_remat_examples::tasks::Workload;
use clap::Parser;
use indicatif::ProgressBar;

/// Steps of a program that is only observed.
const STEPS: usize = 4;
/// Steps after which a program in training has a plan made from measurements.
const WARMUP: usize = 6;

/// The most time for a plan in a run that only checks that everything works.
const QUICK: Duration = Duration::from_millis(100);

/// Forecast what a training program needs, what a budget costs, and how large its batch may be.
#[derive(Parser)]
struct Arguments {
    /// An example or model, as for `larger-batches`.
    #[arg(long, default_value = "unet", value_parser = Workload::by_name)]
    model: Workload,
    /// Samples per step.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// The budget asked about: `64 MiB`, `50%` of what the program needs, `80% free` of the device's free memory, or `unlimited` to ask about none.
    #[arg(long, default_value = "50%")]
    budget: String,
    /// The most time for a plan, in seconds.
    #[arg(long, default_value_t = 0.5)]
    plan_time: f64,
    /// How evicted tensors may be compressed or offloaded: `none`, `exact`, `all`, or names separated by commas.
    #[arg(long, alias = "alternatives", default_value = "exact")]
    compression: Compression,
    /// Train a few steps with the minimum, within the budget, and with the largest batch, to check whether they keep to the forecast.
    #[arg(long)]
    verify: bool,
    /// Write the forecast as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
    /// A small batch, to check that everything works.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let device = device::by_name(&arguments.device)?;
    let batch = if arguments.quick { 4 } else { arguments.batch_size as usize };
    let config = RematConfig::new(&*arguments.budget).without_cache();
    let config = config.advanced(|advanced| advanced.with_compression(arguments.compression));
    let plan_time =
        Duration::try_from_secs_f64(arguments.plan_time).map_err(|error| format!("--plan-time: {error}"))?;
    let (config, plan_time) = match arguments.quick {
        true => (config.with_time_limit(QUICK), QUICK.min(plan_time)),
        false => (config, plan_time),
    };
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    let shown = bar.clone();
    let forecaster = Forecaster::new(config)
        .with_plan_time(plan_time)
        .with_progress(move |progress| shown.set_message(progress.to_string()));
    let train = |device: &Device, batch: usize| {
        if let Err(error) = arguments.model.train(device, batch, STEPS, |_| {}) {
            bar.suspend(|| eprintln!("{}, batch {batch}: {error}", arguments.model.name));
        }
    };
    let forecast = forecaster.forecast_batch(&device, batch, train);
    bar.finish_and_clear();
    let forecast = forecast?;
    println!("{}, batch {batch}: {forecast}", arguments.model.name);
    if arguments.verify || arguments.quick {
        verify(arguments.model, &device, batch, &forecast)?;
    }
    let write = |option: &str, path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{option} {}: {error}", path.display()))
    };
    if let Some(path) = &arguments.json {
        write("--json", path, serde_json::to_string_pretty(&forecast)? + "\n")?;
    }
    if let Some(path) = &arguments.svg {
        write("--svg", path, forecast.overhead_picture((960, 540))?)?;
    }
    Ok(())
}

/// Trains within the budgets and with the batch of the forecast.
fn verify(model: Workload, device: &Device, batch: usize, forecast: &Forecast) -> Outcome {
    let mut budgets = vec![forecast.minimum_bytes];
    budgets.extend(forecast.budget_bytes.filter(|&budget| budget > forecast.minimum_bytes));
    for budget in budgets {
        let predicted = forecast.within(budget).map_or(0.0, |point| point.predicted_overhead);
        print!("trained within {}", DisplayBytes(budget));
        trained(model, &forecast.device(device, budget)?, batch, predicted)?;
    }
    if let Some(largest) = &forecast.largest_batch {
        print!("trained with a batch of {}", largest.batch);
        trained(model, &largest.device(device)?, largest.batch, largest.predicted_overhead)?;
    }
    Ok(())
}

/// Trains some steps on `device`, and prints what they held and how long they took.
fn trained(model: Workload, device: &Device, batch: usize, predicted: f64) -> Outcome {
    let mut waited = Ok(true);
    model.train(device, batch, WARMUP + STEPS, |step| {
        if step + 1 == WARMUP {
            waited = device.remat_wait_for_plan(Duration::from_secs(60));
        }
    })?;
    waited?;
    let report = device.remat_report()?;
    let measured = report.plan.as_ref().and_then(|plan| plan.measured_overhead);
    let measured = measured.map_or_else(|| "not measured".to_owned(), |share| format!("{:.1}%", 100.0 * share));
    println!(
        ": {} over budget in {} steps; at most {} held; time added {measured}, {:.1}% predicted",
        report.steps_over_budget,
        report.steps,
        DisplayBytes(report.peak_bytes),
        100.0 * predicted
    );
    Ok(())
}
