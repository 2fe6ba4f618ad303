//! Trains a model three times on the same data and compares: plain Burn, a remat device without a limit (store-all), and
//! a remat device under the budget.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{Alternatives, Budget, DisplayBytes, PlanReport, RandomPolicy, RematConfig, RematExt, RematReport};
use burn_remat_examples::data::{Images, Text};
use burn_remat_examples::device;
use burn_remat_examples::heap::Heap;
use burn_remat_examples::training::{Job, ModelKind, Run, Source, adds_by_chance};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use peak_alloc::PeakAlloc;

/// The largest share of a loss by which a run with other kernels may differ before that is a failure.
const SMALL_DIFFERENCE: f64 = 0.01;

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
    /// A folder of your own images, one folder per class. Default: the digits of the repository.
    #[arg(long, conflicts_with = "text")]
    images: Option<PathBuf>,
    /// A text file for the transformer. Default: the repository's own documents.
    #[arg(long)]
    text: Option<PathBuf>,
    /// Draw dropout masks again rather than keep them: less memory, another random stream than plain Burn.
    #[arg(long)]
    reseed: bool,
    /// Other forms in which tensors may be kept: none, exact, all, or names joined by commas (mask-bits, small-indices,
    /// bool-bits, sign-bits, shape-only, offload, bf16).
    #[arg(long, default_value = "exact")]
    alternatives: Alternatives,
    /// End with an error where the budget is below the floor.
    #[arg(long)]
    strict: bool,
    /// Count what kernels allocate beside tensors against the budget.
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
    /// Neither use nor keep plans on disk.
    #[arg(long)]
    no_cache: bool,
    /// Steps before the ones that are timed. At their end the run waits for the planner.
    #[arg(long, default_value_t = 6)]
    warmup: u32,
    /// Write the planned graph, the plan, a page that shows it and two pictures into this folder; or, if this is named `.html`, the page alone
    /// into this file.
    #[arg(long)]
    plan_report: Option<PathBuf>,
    /// At the end, plan the step with none of the `--alternatives`, with each alone, with the exact ones and with all, and print what each would
    /// cost.
    #[arg(long)]
    compare_alternatives: bool,
    /// Write the result as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds.is_finite() && seconds > 0.0 { Ok(seconds) } else { Err("give more than 0 seconds".to_owned()) }
}

/// A finished run and what its device held.
struct Measured {
    run: Run,
    report: Option<RematReport>,
    /// Heap of the process at the peak of the timed steps, less the heap before the run.
    heap_peak_bytes: u64,
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

    let measure = |device: &Device, name| measure(&job, device, name, arguments.warmup as usize, arguments.time_limit);
    let plain = measure(&device, "plain Burn")?;
    let store_all = measure(&remat(&device, configured(arguments, Budget::Unlimited))?, "store-all")?;
    let store_all_peak = store_all.report.as_ref().map_or(0, |report| report.peak_bytes);
    let budget = match budget {
        Budget::Share(share) => Budget::Bytes(((store_all_peak as f64 * share) as u64).max(1)),
        other => other,
    };
    let under = configured(arguments, budget);
    let under = if arguments.strict { under.strict() } else { under };
    let budgeted = measure(&remat(&device, under)?, "under the budget")?;

    print_table(&job, arguments.warmup as usize, &plain, &store_all, &budgeted);
    // Reseeded masks are another random stream than plain Burn's, and fused kernels are others than those of single operations:
    // then store-all is what must be met.
    let plain_is_other = arguments.reseed || device::runs_other_kernels(&device, arguments.fusion);
    let reference = if plain_is_other { &store_all } else { &plain };
    let identical = reference.run.is_identical(&budgeted.run) && store_all.run.is_identical(&budgeted.run);
    let difference = reference.run.loss_difference(&budgeted.run);
    if let Some(report) = &budgeted.report {
        let warmup = arguments.warmup as usize;
        let same_as = if plain_is_other { "store-all" } else { "plain Burn" };
        print_verdict(
            report,
            identical.then_some(same_as),
            difference,
            budgeted.run.median_ms(warmup) / store_all.run.median_ms(warmup),
        );
        println!("\n{report}");
    }
    if arguments.compare_alternatives || arguments.plan_report.is_some() {
        tell_of_plan(arguments, budgeted.report.as_ref().and_then(|report| report.plan.as_ref()))?;
    }
    if let Some(file) = &arguments.json {
        let json = to_json(arguments, budget, &plain, &store_all, &budgeted, identical);
        std::fs::write(file, json).map_err(|error| format!("--json {}: {error}", file.display()))?;
    }
    let may_differ =
        |report| is_rounded(report) || ((report.fused || adds_by_chance(report)) && difference <= SMALL_DIFFERENCE);
    let as_asked = identical || budgeted.report.as_ref().is_some_and(may_differ);
    Ok(if as_asked { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn configured(arguments: &Arguments, budget: Budget) -> RematConfig {
    let random = if arguments.reseed { RandomPolicy::Reseed } else { RandomPolicy::Keep };
    let config = RematConfig::new(budget)
        .with_random(random)
        .with_alternatives(arguments.alternatives)
        .with_memory_probe(Heap)
        .with_planner(&arguments.planner)
        .with_time_limit(Duration::from_secs_f64(arguments.time_limit));
    let config = if arguments.count_workspaces { config.counting_workspaces() } else { config };
    let config = if arguments.fusion { config.with_fusion() } else { config };
    let config = if arguments.no_planning { config.without_planning() } else { config };
    if arguments.no_cache { config.without_cache() } else { config }
}

fn remat(device: &Device, config: RematConfig) -> Result<Device, String> {
    device.remat(config).map_err(|error| error.to_string())
}

fn measure(job: &Job, device: &Device, name: &'static str, warmup: usize, time_limit: f64) -> Result<Measured, String> {
    let style = ProgressStyle::with_template("{msg:18} {bar:30} step {pos}/{len}  {elapsed}")
        .map_err(|error| error.to_string())?;
    let bar = ProgressBar::new(job.steps as u64).with_style(style).with_message(name);
    let before = Heap::start();
    let run = job.run(device, |step, _| {
        bar.set_position(step as u64 + 1);
        if step + 1 == warmup && step + 1 < job.steps {
            wait_for_plan(device, &bar, name, time_limit);
            // From here on the planner's own memory is gone.
            Heap::start();
        }
    });
    let heap_peak_bytes = Heap::most().saturating_sub(before) as u64;
    bar.finish_and_clear();
    let report = device.remat_report().ok();
    let run = run.map_err(|error| match &report {
        Some(report) => format!("{name}: {error}\n\n{report}"),
        None => format!("{name}: {error}"),
    })?;
    Ok(Measured { run, report, heap_peak_bytes })
}

/// Waits until the planner is done, and says what it is at.
fn wait_for_plan(device: &Device, bar: &ProgressBar, name: &'static str, time_limit: f64) {
    let start = Instant::now();
    // A planner may take a moment more than its limit.
    while start.elapsed().as_secs_f64() < time_limit + 5.0 {
        match device.remat_wait_for_plan(Duration::from_millis(200)) {
            Ok(false) => bar.set_message(format!("{name}, planning")),
            _ => break,
        }
        bar.tick();
    }
    bar.set_message(name);
}

fn print_table(job: &Job, warmup: usize, plain: &Measured, store_all: &Measured, budgeted: &Measured) {
    println!(
        "{} at batch size {}, {} steps\n\n{:18}{:>12}{:>12}{:>14}{:>14}{:>14}{:>12}{:>12}",
        job.model.name(),
        job.batch_size,
        job.steps,
        "",
        "first loss",
        "last loss",
        "peak",
        "budget",
        "heap peak",
        "ms/step",
        "run again"
    );
    for (name, measured) in [("plain Burn", plain), ("store-all", store_all), ("under the budget", budgeted)] {
        let report = measured.report.as_ref();
        let dash = || "-".to_owned();
        println!(
            "{name:18}{:>12.6}{:>12.6}{:>14}{:>14}{:>14}{:>12.2}{:>12}",
            measured.run.losses.first().copied().unwrap_or(f32::NAN),
            measured.run.losses.last().copied().unwrap_or(f32::NAN),
            report.map_or_else(dash, |report| DisplayBytes(report.peak_bytes).to_string()),
            report.and_then(|report| report.budget_bytes).map_or_else(dash, |bytes| DisplayBytes(bytes).to_string()),
            DisplayBytes(measured.heap_peak_bytes).to_string(),
            measured.run.median_ms(warmup),
            report.map_or_else(dash, |report| report.recomputed_operations.to_string()),
        );
    }
}

/// What was asked for about the plan.
fn tell_of_plan(arguments: &Arguments, plan: Option<&PlanReport>) -> Result<(), String> {
    let Some(plan) = plan else {
        println!("nothing was planned, so there is nothing to compare or to write");
        return Ok(());
    };
    if arguments.compare_alternatives {
        compare_alternatives(plan, arguments.time_limit);
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

fn compare_alternatives(plan: &PlanReport, time_limit: f64) {
    println!("\n{:>16}{:>16}{:>14}  alternatives allowed", "planned overhead", "lower bound", "floor");
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.2}%", 100.0 * share));
    for row in plan.compare_alternatives(Duration::from_secs_f64(time_limit)) {
        let overhead = row.predicted_overhead.map_or("no plan".to_owned(), |share| percent(Some(share)));
        let floor = DisplayBytes(row.floor_bytes).to_string();
        println!("{overhead:>16}{:>16}{floor:>14}  {}", percent(row.lower_bound), row.allowed);
    }
}

/// Whether tensors came back from fewer bits than they had, which was asked for.
fn is_rounded(report: &RematReport) -> bool {
    report.alternatives.iter().any(|form| form.largest_error.is_some())
}

fn print_verdict(report: &RematReport, same_as: Option<&str>, difference: f64, slowdown: f64) {
    println!();
    if let Some(reference) = same_as {
        println!("losses, gradients and parameters: identical to {reference}'s, to the last bit");
    } else if is_rounded(report) {
        println!("losses, gradients and parameters: close; some tensors came back rounded, as `--alternatives` allows");
    } else if report.fused && difference <= SMALL_DIFFERENCE {
        println!(
            "losses, gradients and parameters: not identical, losses by up to {difference:.1e} of theirs; with fusion, kernels are joined otherwise when they run again"
        );
    } else if adds_by_chance(report) && difference <= SMALL_DIFFERENCE {
        println!(
            "losses, gradients and parameters: not identical, losses by up to {difference:.1e} of theirs; this device adds up in an order left to chance (`not repeated` below), and two runs of plain Burn differ too"
        );
    } else {
        println!("losses, gradients and parameters: NOT IDENTICAL. Please report this.");
    }
    match report.budget_bytes {
        Some(budget) if report.peak_bytes <= budget => {
            println!("memory: within the budget ({} of {budget} bytes)", report.peak_bytes);
        }
        Some(budget) => println!(
            "memory: over the budget ({} of {budget} bytes). The floor is {} bytes{}: set that, or a smaller batch.",
            report.peak_bytes,
            report.floor_bytes,
            report.floor_op.as_ref().map_or_else(String::new, |op| format!(", set by {op}"))
        ),
        None => println!("memory: no limit ({} bytes)", report.peak_bytes),
    }
    println!("time: {slowdown:.2}x store-all");
}

fn to_json(
    arguments: &Arguments,
    budget: Budget,
    plain: &Measured,
    store_all: &Measured,
    budgeted: &Measured,
    identical: bool,
) -> String {
    let report = budgeted.report.as_ref();
    let plan = report.and_then(|report| report.plan.as_ref());
    let warmup = arguments.warmup as usize;
    let value = serde_json::json!({
        "model": arguments.model.name(),
        "device": arguments.device,
        "batch_size": arguments.batch_size,
        "steps": arguments.steps,
        "budget_bytes": match budget { Budget::Bytes(bytes) => Some(bytes), _ => None },
        "floor_bytes": report.map(|report| report.floor_bytes),
        "floor_op": report.and_then(|report| report.floor_op.clone()),
        "peak_bytes": report.map(|report| report.peak_bytes),
        "pool_peak_bytes": report.and_then(|report| report.device_peak_bytes),
        "store_all_peak_bytes": store_all.report.as_ref().map(|report| report.peak_bytes),
        "heap_peak_bytes": budgeted.heap_peak_bytes,
        "store_all_heap_peak_bytes": store_all.heap_peak_bytes,
        "plain_burn_heap_peak_bytes": plain.heap_peak_bytes,
        "step_ms": budgeted.run.median_ms(warmup),
        "store_all_step_ms": store_all.run.median_ms(warmup),
        "plain_burn_step_ms": plain.run.median_ms(warmup),
        "ops": report.map(|report| report.operations),
        "recomputed_ops": report.map(|report| report.recomputed_operations),
        "predicted_overhead": plan.map(|plan| plan.predicted_overhead),
        "measured_overhead": plan.and_then(|plan| plan.measured_overhead),
        "predicted_peak_bytes": plan.map(|plan| plan.predicted_peak_bytes),
        "planned_floor_bytes": plan.and_then(|plan| plan.floor_bytes),
        "alternatives": report.map(|report| &report.alternatives),
        "lower_bound": plan.and_then(|plan| plan.lower_bound),
        "planner": plan.map(|plan| plan.planner.clone()),
        "plan_seconds": plan.map(|plan| plan.plan_seconds),
        "plan_from_cache": plan.map(|plan| plan.from_cache),
        "planned_steps": plan.map(|plan| plan.steps_followed),
        "deviation_bytes": plan.map(|plan| plan.deviation_bytes),
        "steps_over_budget": report.map(|report| report.steps_over_budget),
        "losses": budgeted.run.losses,
        "losses_identical": identical,
    });
    format!("{value:#}\n")
}
