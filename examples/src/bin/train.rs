//! Trains a model three times on the same data and compares: on plain Burn, on a remat device without a limit (store-all), and on
//! a remat device under the budget.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{Budget, Compression, DisplayBytes, PlanReport, RandomPolicy, RematConfig, RematExt};
use burn_remat_examples::cli;
use burn_remat_examples::comparison::{Comparison, Protocol};
use burn_remat_examples::data::{Images, Text};
use burn_remat_examples::device;
use burn_remat_examples::heap::Heap;
use burn_remat_examples::training::{Job, ModelKind, Source};
use clap::Parser;
use peak_alloc::PeakAlloc;

/// Counts the heap, so that the budget can be compared with what the process really held.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Train a model inside a memory budget and compare with plain Burn.
#[derive(Parser)]
struct Arguments {
    /// The model.
    #[arg(long, value_enum, default_value = "cnn")]
    model: ModelKind,
    /// Images or sequences per step.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// Optimizer steps.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Memory budget: `512 MiB`, `8GB`, bytes, a share of the store-all peak such as `60%`, a share of the device's free
    /// memory such as `80% free`, or `unlimited`.
    #[arg(long, default_value = "60%", allow_hyphen_values = true)]
    budget: String,
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Seed of initial parameters and dropout.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A folder of your own images, with one folder per class. Default: the digits in the repository.
    #[arg(long, conflicts_with = "text")]
    images: Option<PathBuf>,
    /// A text file for the transformer. Default: the repository's own documents.
    #[arg(long)]
    text: Option<PathBuf>,
    /// Draw dropout masks again rather than keep them: less memory, but another random stream than plain Burn.
    #[arg(long)]
    reseed: bool,
    /// How evicted tensors may be compressed or offloaded: none, exact, all, or names joined by commas (mask-bits, small-indices,
    /// bool-bits, sign-bits, shape-only, offload, bf16).
    #[arg(long, alias = "alternatives", default_value = "exact")]
    compression: Compression,
    /// End with an error if the budget is below the floor.
    #[arg(long)]
    strict: bool,
    /// Count what kernels allocate in addition to tensors against the budget.
    #[arg(long)]
    count_workspaces: bool,
    /// Run the remat devices' operations through Burn's kernel fusion (on a GPU, in a build with the feature `fusion`).
    #[arg(long)]
    fusion: bool,
    /// The planner: see `remat-plan list`.
    #[arg(long, default_value = "auto")]
    planner: String,
    /// Decide at each operation what to evict, without a plan.
    #[arg(long)]
    no_planning: bool,
    /// Seconds for planning, in the background.
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    time_limit: f64,
    /// Neither read nor write plans on disk.
    #[arg(long)]
    no_cache: bool,
    /// Steps before the timed ones. At their end the run waits for the planner.
    #[arg(long, default_value_t = 6)]
    warmup: u32,
    /// Write the planned graph, the plan, a page that shows it and two pictures into this folder; or, if the name ends with `.html`, only the page
    /// into this file.
    #[arg(long)]
    plan_report: Option<PathBuf>,
    /// At the end, plan the step without compression, with each kind that `--compression` allows alone, with the exact ones and with all, and print the costs.
    #[arg(long, alias = "compare-alternatives")]
    compare_compression: bool,
    /// Write the result as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds.is_finite() && seconds > 0.0 { Ok(seconds) } else { Err("must be above 0 seconds".to_owned()) }
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn,highs=error")).init();
    match train(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn train(arguments: &Arguments) -> Result<ExitCode, String> {
    let budget: Budget = arguments.budget.parse().map_err(|error| format!("--budget: {error}"))?;
    let device = device::by_name(&arguments.device)?;
    let (batch_size, steps) = (arguments.batch_size as usize, arguments.steps as usize);
    let mut job = Job::standard(arguments.model, batch_size, steps, arguments.seed)?;
    match (arguments.model, &arguments.text, &arguments.images) {
        (ModelKind::Transformer, Some(file), _) => job.source = Source::Text(Text::open(Some(file))?),
        (ModelKind::Transformer, None, _) | (_, _, None) => {}
        (_, _, Some(folder)) => job.source = Source::Images(Images::folder(folder)?),
    }

    let protocol = Protocol {
        steps,
        warmup: arguments.warmup as usize,
        time_limit: Duration::from_secs_f64(arguments.time_limit),
    };
    let measure = |device: &Device, name| protocol.measure(device, name, |device, seen| job.run(device, seen));
    let plain = measure(&device, "plain Burn")?;
    let store_all = measure(&remat(&device, configured(arguments, Budget::Unlimited))?, "store-all")?;
    let budget = Comparison::resolved(budget, &store_all);
    let under = configured(arguments, budget);
    let under = if arguments.strict { under.strict() } else { under };
    let budgeted = measure(&remat(&device, under)?, "under the budget")?;
    // Reseeded masks are another random stream than plain Burn's, and fused kernels differ from those of single operations.
    let plain_is_other = arguments.reseed || device::runs_other_kernels(&device, arguments.fusion);
    let comparison = Comparison { plain, store_all, budgeted, plain_is_other, warmup: protocol.warmup };

    comparison.print_table(&format!("{} at batch size {batch_size}, {steps} steps", job.model.name()));
    comparison.print_verdict();
    if let Some(report) = &comparison.budgeted.report {
        println!("\n{report}");
    }
    if arguments.compare_compression || arguments.plan_report.is_some() {
        tell_of_plan(arguments, comparison.budgeted.plan())?;
    }
    if let Some(file) = &arguments.json {
        cli::save_json(file, &to_json(arguments, budget, &comparison))?;
    }
    Ok(if comparison.is_as_asked() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn configured(arguments: &Arguments, budget: Budget) -> RematConfig {
    let random = if arguments.reseed { RandomPolicy::Reseed } else { RandomPolicy::Keep };
    let config = RematConfig::new(budget)
        .with_random(random)
        .with_planner(&arguments.planner)
        .with_time_limit(Duration::from_secs_f64(arguments.time_limit));
    let config = if arguments.no_cache { config.without_cache() } else { config };
    config.advanced(|advanced| {
        let advanced = advanced.with_compression(arguments.compression).with_memory_probe(Heap);
        let advanced = if arguments.count_workspaces { advanced.with_workspace_in_budget() } else { advanced };
        let advanced = if arguments.fusion { advanced.with_fusion() } else { advanced };
        if arguments.no_planning { advanced.without_planning() } else { advanced }
    })
}

fn remat(device: &Device, config: RematConfig) -> Result<Device, String> {
    device.remat(config).map_err(|error| error.to_string())
}

/// Prints or writes what was requested about the plan.
fn tell_of_plan(arguments: &Arguments, plan: Option<&PlanReport>) -> Result<(), String> {
    let Some(plan) = plan else {
        println!("no plan was made, so there is nothing to compare or to write");
        return Ok(());
    };
    if arguments.compare_compression {
        compare_compression(plan, arguments.time_limit);
    }
    if let Some(path) = &arguments.plan_report {
        let is_page = path.extension().is_some_and(|extension| extension == "html");
        let saved = if is_page { plan.save_html(path) } else { plan.save(path) };
        saved.map_err(|error| format!("--plan-report {}: {error}", path.display()))?;
        let what = if is_page { "the plan is shown in" } else { "graph, plan and pictures are in" };
        println!("{what} {}", path.display());
    }
    Ok(())
}

fn compare_compression(plan: &PlanReport, time_limit: f64) {
    println!("\n{:>16}{:>16}{:>14}  compression allowed", "planned overhead", "lower bound", "floor");
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.2}%", 100.0 * share));
    for row in plan.compare_compression(Duration::from_secs_f64(time_limit)) {
        let overhead = row.predicted_overhead.map_or("no plan".to_owned(), |share| percent(Some(share)));
        let floor = DisplayBytes(row.floor_bytes).to_string();
        println!("{overhead:>16}{:>16}{floor:>14}  {}", percent(row.lower_bound), row.allowed);
    }
}

fn to_json(arguments: &Arguments, budget: Budget, comparison: &Comparison) -> serde_json::Value {
    let Comparison { plain, store_all, budgeted, .. } = comparison;
    let (report, plan) = (budgeted.report.as_ref(), budgeted.plan());
    let warmup = arguments.warmup as usize;
    serde_json::json!({
        "model": arguments.model.name(),
        "device": arguments.device,
        "batch_size": arguments.batch_size,
        "steps": arguments.steps,
        "budget_bytes": match budget { Budget::Bytes(bytes) => Some(bytes), _ => None },
        "floor_bytes": report.map(|report| report.floor_bytes),
        "floor_op": report.and_then(|report| report.floor_op.clone()),
        "peak_bytes": report.map(|report| report.peak_bytes),
        "pool_peak_bytes": report.and_then(|report| report.device_peak_bytes),
        "store_all_peak_bytes": store_all.peak_bytes(),
        "heap_peak_bytes": budgeted.heap.peak_bytes,
        "store_all_heap_peak_bytes": store_all.heap.peak_bytes,
        "plain_burn_heap_peak_bytes": plain.heap.peak_bytes,
        "step_ms": budgeted.run.median_ms(warmup),
        "store_all_step_ms": store_all.run.median_ms(warmup),
        "plain_burn_step_ms": plain.run.median_ms(warmup),
        "ops": report.map(|report| report.operations),
        "recomputed_ops": report.map(|report| report.recomputed_operations),
        "predicted_overhead": plan.map(|plan| plan.predicted_overhead),
        "measured_overhead": plan.and_then(|plan| plan.measured_overhead),
        "predicted_peak_bytes": plan.map(|plan| plan.predicted_peak_bytes),
        "planned_floor_bytes": plan.and_then(|plan| plan.floor_bytes),
        "alternatives": report.map(|report| &report.compression),
        "lower_bound": plan.and_then(|plan| plan.lower_bound),
        "planner": plan.map(|plan| plan.planner.clone()),
        "plan_seconds": plan.map(|plan| plan.plan_seconds),
        "plan_from_cache": plan.map(|plan| plan.from_cache),
        "planned_steps": plan.map(|plan| plan.steps_followed),
        "deviation_bytes": plan.map(|plan| plan.deviation_bytes),
        "steps_over_budget": report.map(|report| report.steps_over_budget),
        "losses": budgeted.run.losses,
        "losses_identical": comparison.is_identical(),
    })
}
