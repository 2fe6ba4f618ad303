//! `remat-plan plot`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn_remat_plan::page::{CostUnit, Page, Run};
use burn_remat_plan::{Graph, PlanError, Planner, Request, check, minimum_within, solve};
use clap::ValueEnum;

use crate::budget::Budget;
use crate::exit::{Exit, writable, write};
use crate::input::{Input, read_plan};
use crate::limits::seconds;
use crate::progress::with_progress;
use crate::solve::by_name;
use crate::sweep::budgets;

/// Least time limit for finding the smallest budget: the choice of all others depends on it.
const LEAST_TIME: Duration = Duration::from_secs(5);

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// The graph; `-` for standard input
    file: PathBuf,
    /// The plan (`remat-plan/1`); default: a new plan for the budget, if one is given
    plan: Option<PathBuf>,
    /// The HTML page to write
    #[arg(long, value_name = "HTML")]
    out: PathBuf,
    /// The plan's budget: bytes, or a share of the store-all peak
    #[arg(long, value_name = "BYTES|60%", allow_hyphen_values = true)]
    budget: Option<Budget>,
    /// How many other budgets to plan for, evenly spaced from the smallest feasible one to the store-all peak
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(2..=12))]
    points: u16,
    /// Time limit for the plan of one budget
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    time_limit: Duration,
    /// Unit of the graph's costs
    #[arg(long, value_enum, default_value = "ns")]
    cost_unit: Unit,
}

#[derive(Clone, Copy, ValueEnum)]
enum Unit {
    /// Nanoseconds, as in graphs of measured steps
    Ns,
    /// Something else
    Other,
}

/// Writes the page.
pub fn run(args: &Args) -> Result<(), Exit> {
    if args.file == Path::new("-") && args.plan.as_deref() == Some(Path::new("-")) {
        return Err(Exit::usage("the graph and the plan cannot both be standard input: name a file for one of them"));
    }
    let input = Input::read(&args.file)?;
    writable(Some(&args.out))?;
    let Input::Graph(graph) = &input else {
        return Err(Exit::usage(format!("{}: a page can only show a graph, but this is a chain", args.file.display())));
    };
    let store_all = input.store_all_peak();
    let budget = args.budget.map(|budget| budget.bytes(store_all)).transpose().map_err(Exit::usage)?;
    let unit = match args.cost_unit {
        Unit::Ns => CostUnit::Nanoseconds,
        Unit::Other => CostUnit::Other,
    };
    let mut page = Page::new(graph).unit(unit);
    if let Some(run) = given(args, graph, budget)? {
        page = page.plan(run, budget);
    }
    let time_limit = args.time_limit.max(LEAST_TIME);
    let least = minimum_within(graph, &Request { time_limit, ..Request::new(0) });
    let all = budgets(least.achieved, store_all, u64::from(args.points));
    page = page.budget(least.achieved, Run::new(graph, "minimum", least.plan));
    let planner = by_name("auto")?;
    for budget in all {
        match planned(args, graph, &*planner, budget) {
            Ok(run) => page = run.into_iter().fold(page, |page, run| page.budget(budget, run)),
            // The plan with the smallest peak fits this budget too.
            Err(PlanError::Infeasible { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    write(&args.out, &page.html())
}

/// The plan that the page explains: the one in the file, or a new one for the budget.
fn given(args: &Args, graph: &Graph, budget: Option<u64>) -> Result<Option<Run>, Exit> {
    let Some(path) = &args.plan else {
        let planner = by_name("auto")?;
        return Ok(budget.map(|budget| planned(args, graph, &*planner, budget)).transpose()?.flatten());
    };
    let file = read_plan(path)?;
    if file.steps.is_empty() {
        return Err(Exit::check(format!("{} contains no plan: the planner found none", path.display())));
    }
    let plan = file.plan().map_err(|error| Exit::usage(format!("{}: {error}", path.display())))?;
    check(graph, &plan, budget.unwrap_or(u64::MAX))
        .map_err(|found| Exit::check(format!("{}: {}", path.display(), found.all()[0])))?;
    Ok(Some(Run::new(graph, &file.planner, plan)))
}

fn planned(args: &Args, graph: &Graph, planner: &dyn Planner, budget: u64) -> Result<Option<Run>, PlanError> {
    let request = Request { time_limit: args.time_limit, ..Request::new(budget) };
    let found = with_progress(&format!("plan for {budget} bytes"), request, |request| solve(planner, graph, request))?;
    Ok(found.outcome.plan.map(|plan| Run::new(graph, &found.outcome.planner, plan)))
}
