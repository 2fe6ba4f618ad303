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
    /// Most bytes at once, or a share of the store-all peak
    #[arg(long, value_name = "BYTES|60%", allow_hyphen_values = true)]
    budget: Budget,
    /// Print all violations, not only the first ones
    #[arg(long)]
    all: bool,
}

/// Violations that a person reads.
const FIRST_VIOLATIONS: usize = 20;

/// Prints violations, or what the plan measures.
pub fn run(args: &Args) -> Result<(), Exit> {
    if [&args.file, &args.plan].into_iter().all(|path| path == Path::new("-")) {
        return Err(Exit::usage("the graph and the plan cannot both be standard input: name a file for one of them"));
    }
    let input = Input::read(&args.file)?;
    let file = read_plan(&args.plan)?;
    if let Some(Status::Infeasible | Status::NoSolution) = file.status.filter(|_| file.steps.is_empty()) {
        return Err(Exit::check(format!("{} holds no plan: no planner found one", args.plan.display())));
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
        print(&format!("and {} more, which `--all` prints\n", count - printed))?;
    }
    Err(Exit::check(format!("{count} violation{}", if count == 1 { "" } else { "s" })))
}

/// What the file says of the plan and the plan does not keep.
fn false_claims(peak: Option<u64>, makespan: Option<f64>, measured: &Measured) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(claimed) = peak.filter(|&claimed| claimed != measured.peak_bytes) {
        wrong.push(format!("`peak_bytes` is {claimed}, but the plan holds {}", measured.peak_bytes));
    }
    // Another program may add the costs up in another order.
    let rounding = 1e-9 * measured.makespan.abs();
    if let Some(claimed) = makespan.filter(|&claimed| (claimed - measured.makespan).abs() > rounding) {
        wrong.push(format!("`makespan` is {claimed}, but the plan costs {}", measured.makespan));
    }
    wrong
}
