//! Models head to head, trained in several ways: see `head_to_head.rs`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn_remat::DisplayBytes;
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::clock::Others;
use burn_remat_examples::contenders::{Contender, Scale};
use burn_remat_examples::head_to_head::{Contest, Contested};
use burn_remat_examples::paired::Times;
use clap::{Parser, ValueEnum};
use indicatif::ProgressBar;
use peak_alloc::PeakAlloc;
use serde_json::json;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Train each model in several ways side by side on the CPU, and compare memory, time and results: plain Burn, Burn's balanced checkpointing,
/// checkpointing by hand at every block, and remat with the memory of the last two and with half of the smallest.
///
/// The exit code is 2 if a remat device computes different bits than plain Burn, or if one of its steps exceeds its budget once the plan is in force.
#[derive(Parser)]
struct Arguments {
    /// A model; may be given several times. Default: all seven.
    #[arg(long, value_enum)]
    model: Vec<Contender>,
    /// Measured steps of each way. Default: 10, or 3 with `--quick` and `--full`.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Small models, to check that everything works: a few seconds each. Without it, models whose step should take about half a
    /// second on two cores.
    #[arg(long)]
    quick: bool,
    /// Models in realistic sizes, such as ResNet-50 on 16 images of 224 pixels and a GPT-2 of 124 million parameters on 4 texts of 256
    /// symbols. Slow: some seventy steps each, of up to a minute on two cores, and several GiB of memory.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// A further budget: what plain Burn holds between two steps, plus this percentage of what a step holds in addition to that.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    activations: Option<u64>,
    /// Seconds for planning. Default: 10, or 1 with `--quick`.
    #[arg(long)]
    time_limit: Option<u64>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Arguments {
    fn scale(&self) -> Scale {
        match (self.quick, self.full) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Full,
            _ => Scale::Moderate,
        }
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick || self.full { 3 } else { 10 }) as usize
    }

    fn time_limit(&self) -> Duration {
        self.time_limit.map_or_else(|| cli::plan_time(self.quick), Duration::from_secs)
    }
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let models = if arguments.model.is_empty() { Contender::value_variants() } else { &arguments.model };
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    for &model in models {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        let contest = Contest {
            model,
            scale: arguments.scale(),
            rounds: arguments.rounds(),
            time_limit: arguments.time_limit(),
            activations: arguments.activations,
            say: &|what| say(&bar, &format!("{}: {what}", model.name())),
        };
        let result = contest.run()?;
        bar.finish_and_clear();
        print(&result, model);
        failed.extend(
            result.rows.iter().filter_map(|row| Some(format!("{}, {}: {}", model.name(), row.name, row.fault()?))),
        );
        results.push(result.to_json(model));
        // Written after every model: what has been measured stays if a later one ends the process.
        if let Some(file) = &arguments.json {
            let setup = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "scale": format!("{:?}", arguments.scale()).to_lowercase(),
                "rounds": arguments.rounds(),
                "time_limit_seconds": arguments.time_limit().as_secs(),
            });
            cli::save_json(file, &json!({ "setup": setup, "results": results }))?;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

fn say(bar: &ProgressBar, message: &str) {
    // A bar is shown only in a terminal.
    if bar.is_hidden() {
        eprintln!("{message}");
    }
    bar.set_message(message.to_owned());
}

fn print(contested: &Contested, model: Contender) {
    println!("\n{}, smallest budget {}", model.name(), DisplayBytes(contested.minimum));
    println!("{}", Others::warning(contested.busy));
    println!("  {:32}{:>12}{:>12}{}{:>12}{:>6}", "", "tensors", "heap", Times::head(), "bits", "over");
    for row in &contested.rows {
        let [tensors, heap] = [row.tensors, row.heap].map(|bytes| DisplayBytes(bytes).to_string());
        let over = row.report.as_ref().map_or_else(String::new, |report| report.steps_over_budget.to_string());
        println!("  {:32}{tensors:>12}{heap:>12}{}{:>12}{over:>6}", row.name, row.times.columns(), row.bits());
    }
}
