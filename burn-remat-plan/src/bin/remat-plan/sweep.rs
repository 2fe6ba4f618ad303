//! `remat-plan sweep`: every planner at every budget.

use std::fmt::Write;
use std::path::PathBuf;

use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{PlanError, Planner, Status};

use crate::exit::{Exit, print, writable, write};
use crate::input::Input;
use crate::limits::Limits;
use crate::points::{Point, Sweep};
use crate::progress::with_progress;
use crate::solve::by_name;
use crate::{minimum, plot};

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// A graph or a chain; `-` for standard input
    file: PathBuf,
    /// Names of planners, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_name = "NAMES")]
    planners: Vec<String>,
    /// How many budgets, evenly spaced from the smallest feasible one to the store-all peak
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(2..=1000))]
    points: u16,
    /// Write the table to this file; default: standard output, unless `--svg` is given
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Write a plot of overhead against budget to this file
    #[arg(long)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    limits: Limits,
}

/// Runs the sweep and writes the table and the plot.
pub fn run(args: &Args) -> Result<(), Exit> {
    let planners: Vec<Box<dyn Planner>> =
        args.planners.iter().map(|name| by_name(name.trim())).collect::<Result<_, _>>()?;
    for planner in &planners {
        if let Some(feature) = planner.missing_feature() {
            return Err(PlanError::FeatureMissing { planner: planner.name(), feature }.into());
        }
    }
    let input = Input::read(&args.file)?;
    writable(args.csv.as_deref())?;
    writable(args.svg.as_deref())?;
    let store_all_peak = input.store_all_peak();
    let minimum = minimum::of(&input);
    let budgets = budgets(minimum, store_all_peak, u64::from(args.points));
    let mut points = Vec::new();
    for planner in &planners {
        for &budget in &budgets {
            points.push(point(args, &input, &**planner, budget)?);
            if points.last().is_some_and(|point| point.status == "unsupported") {
                break;
            }
        }
    }
    let title = match &input {
        Input::Graph(graph) => format!("{} ({} ops)", graph.name(), graph.ops().len()),
        Input::Chain(chain) => format!("{} ({} stages)", chain.name(), chain.stages().len()),
    };
    let sweep = Sweep { title, minimum, store_all_peak, points };
    if let Some(path) = &args.csv {
        write(path, &csv(&sweep))?;
    }
    if let Some(path) = &args.svg {
        let svg = plot::svg(&sweep).map_err(|error| Exit::usage(format!("{}: {error}", path.display())))?;
        write(path, &svg)?;
    }
    if args.csv.is_none() && args.svg.is_none() { print(&csv(&sweep)) } else { Ok(()) }
}

/// Evenly spaced budgets, ascending, without repeats, including both ends.
pub fn budgets(least: u64, most: u64, count: u64) -> Vec<u64> {
    let span = u128::from(most.saturating_sub(least));
    let at = |i: u64| least + (span * u128::from(i) / u128::from(count - 1)) as u64;
    let mut budgets: Vec<u64> = (0..count).map(at).collect();
    budgets.dedup();
    budgets
}

fn point(args: &Args, input: &Input, planner: &dyn Planner, budget: u64) -> Result<Point, Exit> {
    let title = format!("{} at {budget}", planner.name());
    let answer = with_progress(&title, args.limits.request(budget), |request| input.solve(planner, request));
    let name = planner.name();
    let (status, file) = match answer {
        Ok(file) => match file.status {
            Some(Status::Optimal) => ("optimal", Some(file)),
            Some(Status::NoSolution) => ("no_solution", None),
            _ => ("feasible", Some(file)),
        },
        Err(error @ PlanError::Infeasible { proven, .. }) => {
            (if proven { "infeasible" } else { "no_solution" }, PlanFile::of_infeasible(name, &error))
        }
        Err(error @ PlanError::Unsupported { .. }) => {
            log::warn!("{error}");
            ("unsupported", None)
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Point { planner: name.to_owned(), budget, status, file })
}

fn csv(sweep: &Sweep) -> String {
    let mut text = String::from(
        "planner,budget_bytes,budget_share,status,makespan,overhead,peak_bytes,lower_bound,solve_seconds,minimum_budget\n",
    );
    for point in &sweep.points {
        let share = point.budget as f64 / sweep.store_all_peak.max(1) as f64;
        let field = |pick: fn(&PlanFile) -> Option<String>| point.file.as_ref().and_then(pick).unwrap_or_default();
        let _ = writeln!(
            text,
            "{},{},{share:.6},{},{},{},{},{},{},{}",
            point.planner,
            point.budget,
            point.status,
            field(|file| file.makespan.map(|n| n.to_string())),
            field(|file| file.overhead.map(|n| format!("{n:.6}"))),
            field(|file| file.peak_bytes.map(|n| n.to_string())),
            field(|file| file.lower_bound.map(|n| n.to_string())),
            field(|file| file.solve_seconds.map(|n| format!("{n:.4}"))),
            field(|file| file.minimum_budget.map(|n| n.to_string())),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_hold_both_ends_and_no_repeats() {
        assert_eq!(budgets(10, 20, 3), [10, 15, 20]);
        assert_eq!(budgets(10, 12, 12), [10, 11, 12]);
        assert_eq!(budgets(20, 20, 5), [20]);
        assert_eq!(budgets(0, i64::MAX as u64, 2), [0, i64::MAX as u64]);
    }
}
