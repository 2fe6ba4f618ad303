//! The largest batch of each example and model in the same memory, without and with rematerialization: a table and a
//! picture.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{Compression, DisplayBytes, LargestBatch, RematConfig, largest_batch};
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::tasks::Workload;
use burn_remat_examples::{bars, device};
use clap::Parser;
use indicatif::ProgressBar;

/// Find the largest batch that trains within a memory budget, without and with rematerialization.
#[derive(Parser)]
struct Arguments {
    /// An example or model; may be given several times. Default: all examples, and the models `resnet` and `unet`.
    #[arg(long, value_parser = Workload::by_name)]
    model: Vec<Workload>,
    /// Memory budget in bytes: `64 MiB`, `64MB`, or `80% free` of the device's free memory.
    #[arg(long, default_value = "32 MiB")]
    budget: String,
    /// The most time that recomputation may add, as a share of the step's own time: 1.0 doubles it.
    #[arg(long, default_value_t = 1.0)]
    overhead: f64,
    /// How evicted tensors may be compressed or offloaded: `none`, `exact`, `all`, or names separated by commas.
    #[arg(long, alias = "alternatives", default_value = "exact")]
    compression: Compression,
    /// Train a few steps with the batch found, to see how much they really hold.
    #[arg(long)]
    verify: bool,
    /// Write a picture (SVG).
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
    /// One small model and a small budget, to check that everything works.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let device = device::by_name(&arguments.device)?;
    let budget = if arguments.quick { "4 MiB" } else { &arguments.budget };
    let config = RematConfig::new(budget).without_cache();
    let config = config.advanced(|advanced| advanced.with_compression(arguments.compression));
    let config = config.with_time_limit(cli::plan_time(arguments.quick));
    let named = |names: &[&str]| names.iter().map(|name| Workload::by_name(name)).collect::<Result<Vec<_>, _>>();
    let workloads = match (&*arguments.model, arguments.quick) {
        ([], true) => named(&["image-segmentation"])?,
        ([], false) => named(&[
            "mnist",
            "text-classification",
            "custom-training-loop",
            "text-generation",
            "image-segmentation",
            "wgan",
            "modern-lstm",
            "resnet",
            "unet",
        ])?,
        (chosen, _) => chosen.to_vec(),
    };
    println!("largest batch within {budget}, recomputing at most {:.0}%\n", 100.0 * arguments.overhead);
    println!(
        "{:22}{:>10}{:>10}{:>8}{:>11}{:>14}{:>9}",
        "", "store-all", "remat", "ratio", "overhead", "planned peak", "search"
    );
    let mut found = Vec::new();
    for workload in workloads {
        let start = Instant::now();
        let largest = search(workload, &device, &config, arguments.overhead)?;
        println!(
            "{:22}{:>10}{:>10}{:>7.1}x{:>10.1}%{:>14}{:>7.1} s",
            workload.name,
            largest.store_all_batch,
            largest.batch,
            largest.batch as f64 / largest.store_all_batch.max(1) as f64,
            100.0 * largest.predicted_overhead,
            DisplayBytes(largest.predicted_peak_bytes).to_string(),
            start.elapsed().as_secs_f64()
        );
        if arguments.verify || arguments.quick {
            println!("{}", verified(workload, &device, &largest)?);
        }
        found.push((workload.name, largest));
    }
    if let Some(file) = &arguments.svg {
        draw(&found, budget, file)?;
    }
    Ok(())
}

/// Shows which batch is being tried; most are tried on a device that executes nothing.
fn search(workload: Workload, device: &Device, config: &RematConfig, overhead: f64) -> Outcome<LargestBatch> {
    let bar = ProgressBar::new_spinner().with_message(workload.name);
    bar.enable_steady_tick(Duration::from_millis(100));
    let tries = AtomicU64::new(0);
    let train = |device: &Device, batch: usize| {
        let number = tries.fetch_add(1, Ordering::Relaxed) + 1;
        bar.set_message(format!("{}: try {number}, batch {batch}", workload.name));
        if let Err(error) = workload.train(device, batch, 4, |_| {}) {
            bar.suspend(|| eprintln!("{}, batch {batch}: {error}", workload.name));
        }
    };
    let found = largest_batch(device, config.clone(), overhead, train);
    bar.finish_and_clear();
    found.map_err(|error| format!("{}: {error}", workload.name).into())
}

/// Trains some steps with this batch under its plan, and reports what they held.
fn verified(workload: Workload, device: &Device, largest: &LargestBatch) -> Outcome<String> {
    let batch = largest.batch;
    let report = workload.report_with_plan(&largest.device(device)?, batch)?;
    let fits = report.budget_bytes.is_none_or(|budget| report.peak_bytes <= budget);
    let overhead = report.plan.as_ref().and_then(|plan| plan.measured_overhead);
    Ok(format!(
        "  trained with {batch}: {} ({}), overhead {}",
        if fits { "fits" } else { "does not fit" },
        DisplayBytes(report.peak_bytes),
        overhead.map_or_else(|| "not measured".to_owned(), |share| format!("{:.1}%", 100.0 * share))
    ))
}

fn draw(found: &[(&str, LargestBatch)], budget: &str, file: &Path) -> Outcome {
    let rows: Vec<bars::Row> = found
        .iter()
        .map(|(name, found)| bars::Row {
            name: (*name).to_owned(),
            store_all: found.store_all_batch,
            remat: found.batch,
            overhead: found.predicted_overhead,
        })
        .collect();
    let text = bars::draw(&rows, &format!("largest batch within {budget}"))?;
    std::fs::write(file, text).map_err(|error| format!("--svg {}: {error}", file.display()))?;
    println!("\nthe picture is in {}", file.display());
    Ok(())
}
