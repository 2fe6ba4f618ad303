//! `remat-plan minimum`.

use std::fmt::Write;
use std::path::PathBuf;

use burn_remat_plan::{Graph, PlanError, minimum};

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
            Some((minimum.achieved, Some(minimum.blocking_op)))
        }
        Input::Chain(_) => {
            let planner = by_name("chain-dp").ok()?;
            let request = limits.map_or_else(|| burn_remat_plan::Request::new(1), |limits| limits.request(1));
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
