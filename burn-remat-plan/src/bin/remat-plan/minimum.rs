//! `remat-plan minimum`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn_remat_plan::planners::Search;
use burn_remat_plan::{Graph, Minimum, PlanError, Request, SetBy, minimum, solve};

use crate::budget::human;
use crate::exit::{Exit, print};
use crate::input::Input;
use crate::limits::Limits;
use crate::solve::by_name;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// A graph or a chain; `-` for standard input
    file: PathBuf,
}

/// The smallest budget known to be feasible, with the op (or stage) that needs it.
pub fn of(input: &Input, limits: Option<&Limits>) -> Option<(u64, Option<usize>)> {
    match input {
        Input::Graph(graph) => {
            let minimum = minimum(graph);
            Some((minimum.achieved, minimum.op()))
        }
        Input::Chain(_) => {
            let planner = by_name("chain-dp").ok()?;
            let request = limits.map_or_else(|| Request::new(1), |limits| limits.request(1));
            match input.solve(&*planner, &request) {
                Err(PlanError::Infeasible { minimum: Some(bytes), blocking_op, .. }) => Some((bytes, blocking_op)),
                _ => None,
            }
        }
    }
}

/// Prints the minimum and what sets it.
pub fn run(args: &Args) -> Result<(), Exit> {
    let input = Input::read(&args.file)?;
    match &input {
        Input::Graph(graph) => print(&of_graph(&input, graph)),
        Input::Chain(_) => {
            let (bytes, op) = of(&input, None).ok_or_else(|| Exit::usage("no minimum is known for this chain"))?;
            let set_by = op.map_or_else(String::new, |op| format!(", set by {}", input.op_text(op)));
            print(&format!("{bytes} ({}){set_by}\n", human(bytes)))
        }
    }
}

/// Most ops for which `search` is asked too.
const MOST_SEARCHED_OPS: usize = 4000;
/// Time of one search.
const ONE_SEARCH: Duration = Duration::from_millis(250);
/// After so long no other is begun.
const ALL_SEARCHES: Duration = Duration::from_millis(1200);

/// The smallest budget at which `search` finds a plan in short, between the halves of `minimum`.
fn searched(graph: &Graph, minimum: &Minimum, took: Duration) -> Option<u64> {
    let start = Instant::now();
    // A search that fails finds the minimum again.
    let left = ALL_SEARCHES.saturating_sub(2 * took);
    let (mut low, mut high) = (minimum.lower_bound, minimum.achieved);
    while low < high && graph.ops().len() <= MOST_SEARCHED_OPS && start.elapsed() < left {
        let budget = low + (high - low) / 2;
        let request = Request { time_limit: ONE_SEARCH, ..Request::new(budget) };
        match solve(&Search::default(), graph, &request) {
            Ok(solved) => high = solved.outcome.peak_bytes,
            Err(_) => low = budget + 1,
        }
    }
    (high < minimum.achieved).then_some(high)
}

fn of_graph(input: &Input, graph: &Graph) -> String {
    let start = Instant::now();
    let minimum = minimum(graph);
    let achieved = searched(graph, &minimum, start.elapsed()).unwrap_or(minimum.achieved);
    let bound = minimum.lower_bound;
    let listed = minimum.bytes_together(graph);
    let op = minimum.op().map_or_else(String::new, |op| input.op_text(op));
    let (set_by, when) = match minimum.set_by {
        SetBy::Start => ("the inputs".to_owned(), "at the start".to_owned()),
        SetBy::End => ("the results".to_owned(), "at the end".to_owned()),
        SetBy::Op(_) => (op.clone(), format!("while {op} runs")),
        SetBy::Exhaustion(_) => {
            ("an exhaustive search".to_owned(), format!("at the peak of its plan, while {op} runs"))
        }
    };
    let set_by = if listed == bound { set_by } else { "an exhaustive search".to_owned() };
    let mut text = format!("{achieved} ({})", human(achieved));
    if achieved == bound {
        let _ = writeln!(text, ", exact: set by {set_by}");
    } else {
        let _ = writeln!(
            text,
            ", the smallest known; no plan fits in less than {bound} ({}), set by {set_by}",
            human(bound)
        );
    }
    let part = if listed == bound { String::new() } else { format!("{listed} of them are ") };
    let _ = writeln!(text, "{part}resident together {when}:");
    if graph.constant_bytes() > 0 {
        let _ = writeln!(text, "  {:>20}  constant bytes", graph.constant_bytes());
    }
    if minimum.scratch_bytes > 0 {
        let _ = writeln!(text, "  {:>20}  scratch", minimum.scratch_bytes);
    }
    let mut together = minimum.together;
    together.sort_by_key(|&value| (std::cmp::Reverse(graph.bytes(value)), value));
    for &value in together.iter().take(20) {
        let _ = writeln!(text, "  {:>20}  value {value} {}", graph.bytes(value), graph.values()[value].name);
    }
    if together.len() > 20 {
        let rest = &together[20..];
        let _ = writeln!(text, "  {:>20}  {} more values", graph.bytes_of(rest), rest.len());
    }
    text
}
