//! What each part of `search` contributes, as a table in Markdown: by how much its plans for the published graphs cost more than the best
//! known, at equal numbers of moves, averaged over three seeds.
//!
//! `cargo run --release -p burn-remat-plan --example ablation -- FOLDER [MOVES]`, with `NAME.graph.json` and `NAME.reference.json` in the folder.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use burn_remat_plan::planners::search::{Part, Search};
use burn_remat_plan::{Graph, Request, solve};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const KNOWN: [&str; 4] = ["vgg16", "unet", "mobilenet_v2", "resnet50"];
/// The means are taken over this many seeds.
const SEEDS: u64 = 3;

/// A network, with its budgets and the best known cost for each.
fn cases(folder: &str, name: &str) -> Result<(Graph, Vec<(u64, f64)>)> {
    let graph = Graph::read(Path::new(folder).join(format!("{name}.graph.json")))?;
    let text = std::fs::read_to_string(Path::new(folder).join(format!("{name}.reference.json")))?;
    let reference: serde_json::Value = serde_json::from_str(&text)?;
    let case = |case: &serde_json::Value| {
        let cost = case["best_known_cost"].as_f64().ok_or("no cost")?;
        Ok((case["budget_bytes"].as_u64().ok_or("no budget")?, cost))
    };
    let cases = reference["cases"].as_array().ok_or("no cases")?.iter().map(case);
    Ok((graph, cases.collect::<Result<_>>()?))
}

fn ablation(folder: &str, moves: u64) -> Result<()> {
    let search = Search::default().with_iterations(moves);
    let variants = [
        ("all parts", search.clone()),
        ("without hints", search.clone().without(Part::Hints)),
        ("without swaps", search.clone().without(Part::Swaps)),
        ("without shifts", search.clone().without(Part::Shifts)),
        ("without postponing", search.clone().without(Part::Postponing)),
        ("without merges", search.clone().without(Part::Merges)),
        ("without repacking", search.clone().without(Part::Repacking)),
        ("without the ladder of temperatures", search.without(Part::Ladder)),
    ];
    println!("| variant | {} |", KNOWN.join(" | "));
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (label, search) in variants {
        print!("| {label} |");
        for name in KNOWN {
            let (graph, cases) = cases(folder, name)?;
            let mut excess = 0.0;
            for &(budget, known) in &cases {
                for seed in 0..SEEDS {
                    let request = Request { seed, time_limit: Duration::from_secs(3600), ..Request::new(budget) };
                    excess += solve(&search, &graph, &request)?.outcome.makespan / known - 1.0;
                }
            }
            print!(" {:+.3}% |", 100.0 * excess / (cases.len() * SEEDS as usize) as f64);
        }
        println!();
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("usage: ablation FOLDER [MOVES]")?;
    ablation(folder, arguments.get(1).map_or(Ok(300_000), |moves| moves.parse())?)
}
