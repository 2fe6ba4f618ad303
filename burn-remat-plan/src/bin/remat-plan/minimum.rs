//! `remat-plan minimum`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn_remat_plan::planners::Search;
use burn_remat_plan::{Chain, Graph, Minimum, Request, SetBy, StopReason, chain, minimum, minimum_within, solve};

use crate::budget::human;
use crate::exit::{Exit, print};
use crate::input::Input;
use crate::limits::seconds;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// A graph or a chain; `-` for standard input
    file: PathBuf,
    /// Time limit: the bounds known by then are printed
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    time_limit: Duration,
}

/// The smallest budget known to be feasible.
pub fn of(input: &Input) -> u64 {
    match input {
        Input::Graph(graph) => minimum(graph).achieved,
        Input::Chain(chain) => chain::minimum(chain).achieved,
    }
}

/// Prints the minimum and what sets it.
pub fn run(args: &Args) -> Result<(), Exit> {
    let input = Input::read(&args.file)?;
    match &input {
        Input::Graph(graph) => print(&of_graph(&input, graph, args.time_limit)),
        Input::Chain(chain) => print(&of_chain(&input, chain, args.time_limit)),
    }
}

fn of_chain(input: &Input, chain: &Chain, time_limit: Duration) -> String {
    let minimum = chain::minimum_within(chain, &Request { time_limit, ..Request::new(0) });
    let (bytes, stage) = (minimum.achieved, input.op_text(minimum.peak_stage));
    if minimum.is_exact() {
        return format!("{bytes} ({}), exact: set by {stage}\n", human(bytes));
    }
    let bound = minimum.lower_bound;
    format!(
        "{bytes} ({}), the smallest known, set by {stage}; no plan fits in less than {bound} ({})\n",
        human(bytes),
        human(bound)
    )
}

/// Graphs with more ops are not searched with `search`.
const MOST_SEARCHED_OPS: usize = 4000;
/// Time limit of one search.
const ONE_SEARCH: Duration = Duration::from_millis(250);
/// No new search starts after this much time.
const ALL_SEARCHES: Duration = Duration::from_millis(1200);

/// The smallest budget at which `search` finds a plan quickly, by bisection between the two bounds of `minimum`.
fn searched(graph: &Graph, minimum: &Minimum, took: Duration, limit: Duration) -> Option<u64> {
    let start = Instant::now();
    // A search that fails computes the minimum again.
    let left = ALL_SEARCHES.saturating_sub(2 * took).min(limit.saturating_sub(took + ONE_SEARCH));
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

fn of_graph(input: &Input, graph: &Graph, time_limit: Duration) -> String {
    let start = Instant::now();
    let minimum = minimum_within(graph, &Request { time_limit, ..Request::new(0) });
    let achieved = searched(graph, &minimum, start.elapsed(), time_limit).unwrap_or(minimum.achieved);
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
    if achieved > bound && minimum.stop_reason == StopReason::TimeLimit {
        text += "the search stopped at its time limit: a smaller budget may be feasible\n";
    }
    let part = if listed == bound { String::new() } else { format!("{listed} of these bytes are ") };
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
