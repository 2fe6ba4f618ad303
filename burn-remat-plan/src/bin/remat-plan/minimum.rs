//! `remat-plan minimum`.

use std::fmt::Write;
use std::path::PathBuf;

use burn_remat_plan::{Chain, Graph, chain, minimum};

use crate::budget::human;
use crate::exit::{Exit, print};
use crate::input::Input;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// A graph or a chain; `-` for standard input
    file: PathBuf,
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
        Input::Graph(graph) => print(&of_graph(&input, graph)),
        Input::Chain(chain) => print(&of_chain(&input, chain)),
    }
}

fn of_chain(input: &Input, chain: &Chain) -> String {
    let minimum = chain::minimum(chain);
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

fn of_graph(input: &Input, graph: &Graph) -> String {
    let minimum = minimum(graph);
    let mut text = format!("{} ({})", minimum.achieved, human(minimum.achieved));
    let op = input.op_text(minimum.blocking_op);
    if minimum.is_exact() {
        let _ = writeln!(text, ", exact: set by {op}");
    } else {
        let bound = minimum.lower_bound;
        let _ =
            writeln!(text, ", the smallest known; no plan fits in less than {bound} ({}), set by {op}", human(bound));
    }
    let _ = writeln!(text, "resident together while {op} runs:");
    if graph.constant_bytes() > 0 {
        let _ = writeln!(text, "  {:>20}  constant bytes", graph.constant_bytes());
    }
    let scratch = graph.ops()[minimum.blocking_op].scratch_bytes;
    if scratch > 0 {
        let _ = writeln!(text, "  {scratch:>20}  scratch");
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
