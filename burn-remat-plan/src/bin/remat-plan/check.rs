//! `remat-plan check`.

use std::path::{Path, PathBuf};

use burn_remat_plan::Status;

use crate::budget::{Budget, human};
use crate::exit::{Exit, print};
use crate::input::{Input, Measured, read_plan};

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// The graph or the chain
    file: PathBuf,
    /// The plan (`remat-plan/1`)
    plan: PathBuf,
    /// The memory budget: bytes, or a share of the store-all peak
    #[arg(long, value_name = "BYTES|60%", allow_hyphen_values = true)]
    budget: Budget,
    /// Print all violations, not only the first 20
    #[arg(long)]
    all: bool,
}

/// How many violations are printed without `--all`.
const FIRST_VIOLATIONS: usize = 20;

/// Prints the violations, or the plan's peak and makespan.
pub fn run(args: &Args) -> Result<(), Exit> {
    if [&args.file, &args.plan].into_iter().all(|path| path == Path::new("-")) {
        return Err(Exit::usage("the graph and the plan cannot both be standard input: name a file for one of them"));
    }
    let input = Input::read(&args.file)?;
    let file = read_plan(&args.plan)?;
    if let Some(Status::Infeasible | Status::NoSolution) = file.status.filter(|_| file.steps.is_empty()) {
        return Err(Exit::check(format!("{} contains no plan: the planner found none", args.plan.display())));
    }
    let budget = args.budget.bytes(input.store_all_peak()).map_err(Exit::usage)?;
    let checked =
        input.check(&file, budget).map_err(|error| Exit::usage(format!("{}: {error}", args.plan.display())))?;
    match checked {
        Ok(measured) => {
            let wrong = false_claims(file.peak_bytes, file.makespan, &measured);
            if wrong.is_empty() {
                let Measured { peak_bytes, makespan } = measured;
                return print(&format!(
                    "valid: peak {peak_bytes} ({}) within {budget} ({}), makespan {makespan}\n",
                    human(peak_bytes),
                    human(budget)
                ));
            }
            fail(&wrong, args.all)
        }
        Err(violations) => fail(&violations, args.all),
    }
}

fn fail(violations: &[String], all: bool) -> Result<(), Exit> {
    let count = violations.len();
    let printed = if all { count } else { count.min(FIRST_VIOLATIONS) };
    print(&(violations[..printed].join("\n") + "\n"))?;
    if printed < count {
        print(&format!("and {} more: use `--all` to print them\n", count - printed))?;
    }
    Err(Exit::check(format!("{count} violation{}", if count == 1 { "" } else { "s" })))
}

/// Claims in the file that are not true of the plan.
fn false_claims(peak: Option<u64>, makespan: Option<f64>, measured: &Measured) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(claimed) = peak.filter(|&claimed| claimed != measured.peak_bytes) {
        wrong.push(format!("`peak_bytes` is {claimed}, but the plan's peak is {}", measured.peak_bytes));
    }
    // Another program may add up the costs in a different order.
    let rounding = 1e-9 * measured.makespan.abs();
    if let Some(claimed) = makespan.filter(|&claimed| (claimed - measured.makespan).abs() > rounding) {
        wrong.push(format!("`makespan` is {claimed}, but the plan's makespan is {}", measured.makespan));
    }
    wrong
}
