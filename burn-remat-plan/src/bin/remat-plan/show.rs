//! `remat-plan show`.

use std::fmt::Write;
use std::path::PathBuf;

use burn_remat_plan::{Chain, Graph, Phase};

use crate::budget::human;
use crate::exit::{Exit, print};
use crate::input::Input;

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub struct Args {
    /// A graph or a chain; `-` for standard input
    file: PathBuf,
}

/// How many of the largest values are shown.
const LARGEST: usize = 10;

/// Prints the summary.
pub fn run(args: &Args) -> Result<(), Exit> {
    let input = Input::read(&args.file)?;
    let mut text = match &input {
        Input::Graph(graph) => of_graph(graph),
        Input::Chain(chain) => of_chain(chain),
    };
    let peak = input.store_all_peak();
    let _ = writeln!(text, "store-all     peak {peak} ({}), makespan {}", human(peak), input.store_all_makespan());
    if let Input::Graph(graph) = &input {
        text += &largest(graph);
    }
    print(&text)
}

fn of_graph(graph: &Graph) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "graph         {}", graph.name());
    let ops = graph.ops();
    let phase = |phase: Phase| ops.iter().filter(|op| op.phase == Some(phase)).count();
    let _ = writeln!(
        text,
        "ops           {}: {} forward, {} backward, {} update; {} not recomputable, {} with alternatives",
        ops.len(),
        phase(Phase::Forward),
        phase(Phase::Backward),
        phase(Phase::Update),
        ops.iter().filter(|op| !op.recomputable).count(),
        ops.iter().filter(|op| !op.alternatives.is_empty()).count(),
    );
    let all: u64 = graph.values().iter().map(|value| value.bytes).sum();
    let inputs: Vec<usize> = graph.inputs().collect();
    let _ = writeln!(
        text,
        "values        {} of {all} bytes ({}); {} inputs of {}, {} results",
        graph.values().len(),
        human(all),
        inputs.len(),
        human(graph.bytes_of(&inputs)),
        graph.results().len(),
    );
    let _ = writeln!(text, "constant      {} ({})", graph.constant_bytes(), human(graph.constant_bytes()));
    text
}

fn of_chain(chain: &Chain) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "chain         {}", chain.name());
    let forward: f64 = chain.stages().iter().map(|stage| stage.forward_cost).sum();
    let backward: f64 = chain.stages().iter().map(|stage| stage.backward_cost).sum();
    let _ = writeln!(text, "stages        {}; forward cost {forward}, backward cost {backward}", chain.stages().len());
    let saved: u64 = chain.stages().iter().map(|stage| stage.saved_bytes).sum();
    let bare: u64 = chain.stages().iter().map(|stage| stage.activation_bytes).sum();
    let _ = writeln!(text, "saved         {saved} ({}) in all, activations {bare} ({})", human(saved), human(bare));
    let _ = writeln!(text, "input         {} ({})", chain.input_bytes(), human(chain.input_bytes()));
    text
}

fn largest(graph: &Graph) -> String {
    let mut values: Vec<usize> = (0..graph.values().len()).collect();
    values.sort_by_key(|&value| (std::cmp::Reverse(graph.bytes(value)), value));
    let mut text = String::from("largest values\n");
    for &value in values.iter().take(LARGEST) {
        let uses = graph.consumers(value).len();
        let made = graph.producer(value).map_or_else(|| "an input".to_owned(), |op| format!("made by op {op}"));
        let _ = writeln!(
            text,
            "  {:>20}  value {value} {}: {made}, {uses} use{}",
            graph.bytes(value),
            graph.values()[value].name,
            if uses == 1 { "" } else { "s" }
        );
    }
    text
}
