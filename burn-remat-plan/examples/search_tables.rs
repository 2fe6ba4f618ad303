//! Prints how `search` does on graphs with known results.
//!
//! `cargo run --release -p burn-remat-plan --example search_tables -- FOLDER [SECONDS] [NAME]`

use std::path::Path;
use std::time::Duration;

use burn_remat_plan::planners::search::Search;
use burn_remat_plan::{Graph, Request, minimum, solve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: search_tables FOLDER [SECONDS] [NAME]")?;
    let seconds: f64 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let only = arguments.next();
    println!("| graph | budget | Gurobi | best known | search | difference | lower bound | gap |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for name in ["vgg16", "unet", "mobilenet_v2", "resnet50"] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let graph = Graph::read(Path::new(&folder).join(format!("{name}.graph.json")))?;
        let text = std::fs::read_to_string(Path::new(&folder).join(format!("{name}.reference.json")))?;
        let reference: serde_json::Value = serde_json::from_str(&text)?;
        let start = std::time::Instant::now();
        let least = minimum(&graph);
        eprintln!("{name}: minimum {} to {} in {:?}", least.lower_bound, least.achieved, start.elapsed());
        for case in reference["cases"].as_array().ok_or("no cases")? {
            let budget = case["budget_bytes"].as_u64().ok_or("no budget")?;
            let known = case["best_known_cost"].as_f64().ok_or("no cost")?;
            let gurobi = case["gurobi_cost"].as_f64().ok_or("no cost")?;
            let mut request = Request::new(budget);
            request.time_limit = Duration::from_secs_f64(seconds);
            let outcome = solve(&Search::default(), &graph, &request)?.outcome;
            let bound = outcome.lower_bound.unwrap_or(0.0);
            println!(
                "| {name} | {budget} | {gurobi} | {known} | {} | {:+} | {bound:.0} | {:.2}% |",
                outcome.makespan,
                outcome.makespan - known,
                100.0 * (outcome.makespan / bound - 1.0)
            );
        }
    }
    Ok(())
}
