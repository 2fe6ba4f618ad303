//! `remat-plan solve`.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn_remat_plan::format::PlanFile;
use burn_remat_plan::planners::Auto;
use burn_remat_plan::planners::auto::Decision;
use burn_remat_plan::registry::{planner, planners};
use burn_remat_plan::{PlanError, Planner, Status, StopReason};

use crate::budget::{Budget, human};
use crate::exit::{Exit, print, writable, write};
use crate::input::Input;
use crate::limits::Limits;
use crate::progress::with_progress;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// A graph (`remat-graph/1`) or a chain (`remat-chain/1`); `-` for standard input
    file: PathBuf,
    /// Name of the planner; `remat-plan list` shows all
    #[arg(long, value_name = "NAME", default_value = Auto::NAME)]
    planner: String,
    /// The memory budget: bytes, or a share of the store-all peak; `store-all` and `feng-huang` need none
    #[arg(long, value_name = "BYTES|60%", allow_hyphen_values = true)]
    budget: Option<Budget>,
    #[command(flatten)]
    limits: Limits,
    /// Print the plan as JSON on standard output
    #[arg(long)]
    json: bool,
    /// Write the plan as JSON to this file
    #[arg(long, value_name = "PLAN")]
    out: Option<PathBuf>,
}

/// The planner called `name`.
pub fn by_name(name: &str) -> Result<Box<dyn Planner>, Exit> {
    if name == Auto::NAME {
        // A sweep goes from small budgets to large ones: a plan that fits in a small one fits in a larger one.
        return Ok(Box::new(Auto::remembering()));
    }
    planner(name).ok_or_else(|| {
        let known: Vec<&str> = planners().iter().map(|entry| entry.name).collect();
        Exit::usage(format!("there is no planner `{name}`; known: {}", known.join(", ")))
    })
}

/// Solves and writes the plan.
pub fn run(args: &Args) -> Result<(), Exit> {
    let choice = Arc::new(Mutex::new(None::<Decision>));
    let planner: Box<dyn Planner> = if args.planner == Auto::NAME {
        let slot = Arc::clone(&choice);
        Box::new(Auto::default().explained(move |choice| {
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(choice.clone());
            }
        }))
    } else {
        by_name(&args.planner)?
    };
    let input = Input::read(&args.file)?;
    writable(args.out.as_deref())?;
    let peak = input.store_all_peak();
    let budget = match args.budget {
        Some(budget) => budget.bytes(peak).map_err(Exit::usage)?,
        None if ["store-all", "feng-huang"].contains(&planner.name()) => 1 << 63,
        None => return Err(Exit::usage(format!("planner `{}` needs a `--budget`", planner.name()))),
    };
    let request = args.limits.request(budget);
    let (start, time_limit) = (Instant::now(), request.time_limit);
    let answer = with_progress(planner.name(), request, |request| input.solve(&*planner, request));
    match answer {
        Ok(file) => {
            deliver(args, &file)?;
            if file.status == Some(Status::NoSolution) {
                return Err(Exit::infeasible(
                    "no plan was found within the limits, but there may be one: allow more time with `--time-limit`",
                ));
            }
            if args.json || args.out.is_some() {
                return Ok(());
            }
            let mut text = summary(&input, &file, args.budget, budget);
            if let Some(choice) = choice.lock().ok().and_then(|mut slot| slot.take()) {
                text += &tried(&choice);
            }
            print(&text)
        }
        Err(error) => {
            if let Some(mut file) = PlanFile::of_infeasible(planner.name(), &error) {
                let took = start.elapsed();
                file.solve_seconds = Some(took.as_secs_f64());
                if file.status == Some(Status::NoSolution) && took >= time_limit {
                    file.stop_reason = Some(StopReason::TimeLimit);
                }
                deliver(args, &file)?;
            }
            Err(named(&input, error))
        }
    }
}

fn deliver(args: &Args, file: &PlanFile) -> Result<(), Exit> {
    // Print first: if the file turns out not to be writable, the plan is not lost.
    if args.json {
        print(&file.to_json())?;
    }
    args.out.as_ref().map_or(Ok(()), |path| write(path, &file.to_json()))
}

/// The error, with the blocking op's name.
fn named(input: &Input, error: PlanError) -> Exit {
    match error {
        PlanError::Infeasible { budget, minimum, blocking_op, proven } => {
            let found = if proven { "no plan fits in" } else { "found no plan within" };
            let minimum = minimum.map_or_else(String::new, |bytes| {
                format!("; the smallest budget with a known plan is {bytes} ({})", human(bytes))
            });
            let op = blocking_op.map_or_else(String::new, |op| format!(", needed by {}", input.op_text(op)));
            Exit::infeasible(format!("{found} {budget} bytes ({}){minimum}{op}", human(budget)))
        }
        error => error.into(),
    }
}

fn word<T: serde::Serialize>(value: Option<T>) -> String {
    serde_json::to_string(&value).unwrap_or_default().trim_matches('"').replace('_', " ")
}

fn summary(input: &Input, file: &PlanFile, asked: Option<Budget>, budget: u64) -> String {
    let mut text = String::new();
    let peak = input.store_all_peak();
    let share = |bytes: u64| 100.0 * bytes as f64 / peak.max(1) as f64;
    let _ =
        writeln!(text, "planner      {} ({}, stopped by: {})", file.planner, word(file.status), word(file.stop_reason));
    if asked.is_some() {
        let _ = writeln!(text, "budget       {budget} ({}, {:.1}% of store-all)", human(budget), share(budget));
    }
    if let Some(bytes) = file.peak_bytes {
        let _ = writeln!(text, "peak         {bytes} ({}, {:.1}% of store-all)", human(bytes), share(bytes));
    }
    if let (Some(makespan), Some(overhead)) = (file.makespan, file.overhead) {
        let _ = writeln!(text, "makespan     {makespan} (overhead {:.2}%)", 100.0 * overhead);
        if let Some(bound) = file.lower_bound {
            let gap = if makespan > 0.0 { 100.0 * (makespan - bound) / makespan } else { 0.0 };
            let _ = writeln!(text, "lower bound  {bound} (gap {:.2}%)", gap.max(0.0));
        }
    }
    if let (Some(values), Some(bytes)) = (&file.checkpoints, file.checkpoint_bytes) {
        let _ =
            writeln!(text, "checkpoints  {} values; {bytes} ({}) with the largest segment", values.len(), human(bytes));
    }
    let evictions = file.steps.iter().filter(|step| step.starts_with(['-', 'D'])).count();
    let _ = writeln!(text, "steps        {} computations, {evictions} evictions", file.steps.len() - evictions);
    let _ = writeln!(text, "solved in    {:.3} s", file.solve_seconds.unwrap_or(0.0));
    text
}

/// What `auto` tried, cheapest plan first.
fn tried(decision: &Decision) -> String {
    let mut all: Vec<_> = decision.tried.iter().collect();
    let cost = |result: &Result<f64, String>| result.as_ref().map_or(f64::INFINITY, |&makespan| makespan);
    all.sort_by(|a, b| cost(&a.result).total_cmp(&cost(&b.result)));
    let mut text = format!("chosen       {}, the cheapest of\n", decision.winner);
    for tried in all {
        let what = tried.result.as_ref().map_or_else(Clone::clone, f64::to_string);
        let _ = writeln!(text, "  {:14} {what}", tried.planner);
    }
    text
}
