//! Tables of how `search` does, in Markdown.
//!
//! `cargo run --release -p burn-remat-plan --example search_tables -- known FOLDER [SECONDS] [PLANNER]`: graphs with known results;
//! `.. -- memory FOLDER [SECONDS]`: the least memory in which a graph with known results takes at most 10% longer, as MONeT's table 1 has it;
//! `.. -- generated [SECONDS] [NETWORK]`: six networks at six
//! budgets, beside the cheapest plan of all other planners that take no solver; `.. -- large [SECONDS]`: thousands of ops;
//! `.. -- ablation FOLDER [MOVES]`: what each part contributes, at equal numbers of moves, over three seeds; `.. --features highs .. -- joint
//! [SECONDS] [NETWORK]`: graphs whose ops have alternatives, without these, with cheaper ones put in afterwards, and with
//! them by `monet` and by `auto`.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use burn_remat_plan::generate::{Implementations, Options, by_name};
use burn_remat_plan::planners::search::{Part, Search};
use burn_remat_plan::registry::planner;
use burn_remat_plan::sequence::plan_from_order;
use burn_remat_plan::views::without_alternatives;
use burn_remat_plan::{Graph, Outcome, Plan, Planner, Request, Step, minimum, simulate, solve};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn run(search: &dyn Planner, graph: &Graph, budget: u64, seconds: f64) -> Result<Outcome> {
    let mut request = Request::new(budget);
    request.time_limit = Duration::from_secs_f64(seconds);
    Ok(solve(search, graph, &request)?.outcome)
}

fn gap(outcome: &Outcome) -> f64 {
    100.0 * (outcome.makespan / outcome.lower_bound.unwrap_or(0.0) - 1.0)
}

/// Budget, Gurobi's cost and the best known cost.
type Case = (u64, f64, f64);

/// A network and its cases.
fn cases(folder: &str, name: &str) -> Result<(Graph, Vec<Case>)> {
    let graph = Graph::read(Path::new(folder).join(format!("{name}.graph.json")))?;
    let text = std::fs::read_to_string(Path::new(folder).join(format!("{name}.reference.json")))?;
    let reference: serde_json::Value = serde_json::from_str(&text)?;
    let mut cases = Vec::new();
    for case in reference["cases"].as_array().ok_or("no cases")? {
        let cost = |key: &str| case[key].as_f64().ok_or("no cost");
        cases.push((case["budget_bytes"].as_u64().ok_or("no budget")?, cost("gurobi_cost")?, cost("best_known_cost")?));
    }
    Ok((graph, cases))
}

const KNOWN: [&str; 4] = ["vgg16", "unet", "mobilenet_v2", "resnet50"];

fn known(folder: &str, seconds: f64, name: &str) -> Result<()> {
    println!("| graph | budget | Gurobi | best known | {name} | difference | lower bound | gap |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let planner = planner(name).ok_or("no such planner")?;
    let (mut worst, mut sum, mut count) = (0.0f64, 0.0, 0);
    for name in KNOWN {
        let (graph, cases) = cases(folder, name)?;
        for (budget, gurobi, known) in cases {
            let outcome = run(&*planner, &graph, budget, seconds)?;
            let (makespan, bound) = (outcome.makespan, outcome.lower_bound.unwrap_or(0.0));
            println!(
                "| {name} | {budget} | {gurobi} | {known} | {makespan} | {:+} | {bound:.0} | {:.2}% |",
                makespan - known,
                gap(&outcome)
            );
            let excess = 100.0 * (makespan / known - 1.0);
            (worst, sum, count) = (worst.max(excess), sum + excess, count + 1);
        }
    }
    println!("\nDearer than the best known by {worst:.2}% at most, by {:.3}% on average.", sum / f64::from(count));
    Ok(())
}

/// The least memory in which a plan of `search` takes at most a tenth longer than the step without evictions.
///
/// Method: halving between the smallest budget and the peak, to a thousandth of the peak. Plans for larger budgets are no dearer, but for what a search of
/// some seconds misses.
fn memory(folder: &str, seconds: f64) -> Result<()> {
    const MOST: f64 = 1.1;
    println!("| graph | without evictions | at 10% | share | MONeT |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    // Activations and parameters in GB at 10%, and of PyTorch: table 1.
    for (name, [at, of]) in KNOWN.into_iter().zip([[5.5, 14.1], [5.2, 14.3], [4.8, 14.5], [5.7, 15.1]]) {
        let (graph, _) = cases(folder, name)?;
        let (peak, makespan) = store_all(&graph);
        let (mut low, mut high) = (minimum(&graph).achieved, peak);
        while high - low > peak / 1000 {
            let middle = low + (high - low) / 2;
            let fits = run(&Search::default(), &graph, middle, seconds).is_ok_and(|of| of.makespan <= MOST * makespan);
            if fits { high = middle } else { low = middle }
        }
        let (share, theirs) = (100.0 * high as f64 / peak as f64, 100.0 * at / of);
        println!("| {name} | {peak} | {high} | {share:.1}% | {at} of {of} GB, {theirs:.0}% |");
    }
    Ok(())
}

fn store_all(graph: &Graph) -> (u64, f64) {
    let timeline = simulate(graph, &plan_from_order(graph, &(0..graph.ops().len()).collect::<Vec<_>>()));
    (timeline.peak_bytes, timeline.makespan)
}

/// Planners without a solver of their own, to be compared with.
const OTHERS: [&str; 8] =
    ["online", "chen-sqrt", "chen-greedy", "ap-greedy", "linear-greedy", "revolve", "chain-dp", "linear-sqrt"];

/// The cheapest plan of the other planners, with the name of its planner.
fn best_of_others(graph: &Graph, budget: u64, seconds: f64) -> Option<(f64, &'static str)> {
    let mut request = Request::new(budget);
    request.time_limit = Duration::from_secs_f64(seconds);
    let cost = |name: &str| Some(solve(&*planner(name)?, graph, &request).ok()?.checked?.makespan());
    OTHERS.into_iter().filter_map(|name| Some((cost(name)?, name))).min_by(|a, b| a.0.total_cmp(&b.0))
}

fn generated(seconds: f64, only: Option<&str>) -> Result<()> {
    println!("| graph | ops | budget, % of store-all | overhead | gap to bound | cheapest other plan |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for name in ["vgg16", "vgg19", "unet416x608", "mobilenet", "resnet50", "densenet161"] {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let graph = by_name(name, &Options { batch: 32, ..Options::default() })?;
        let (peak, makespan) = store_all(&graph);
        let least = minimum(&graph);
        for step in 0..6 {
            let budget = if step == 5 { peak } else { least.achieved + (peak - least.achieved) / 5 * step };
            let outcome = run(&Search::default(), &graph, budget, seconds)?;
            let part = 100.0 * budget as f64 / peak as f64;
            let overhead = |cost: f64| 100.0 * (cost / makespan - 1.0);
            let other = best_of_others(&graph, budget, seconds)
                .map_or("none".to_owned(), |(cost, name)| format!("{:.2}% ({name})", overhead(cost)));
            let (found, gap) = (overhead(outcome.makespan), gap(&outcome));
            println!("| {name} | {} | {part:.1} | {found:.2}% | {gap:.2}% | {other} |", graph.ops().len());
        }
    }
    Ok(())
}

fn large(seconds: f64) -> Result<()> {
    println!("| ops | minimum found in | budget, % of store-all | overhead | gap to bound | time |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for depth in [250, 1000] {
        let graph = by_name("residual", &Options { depth, ..Options::default() })?;
        let (peak, makespan) = store_all(&graph);
        let start = Instant::now();
        let least = minimum(&graph);
        let minimum_took = start.elapsed();
        let budget = least.achieved + (peak - least.achieved) / 3;
        let start = Instant::now();
        let outcome = run(&Search::default(), &graph, budget, seconds)?;
        println!(
            "| {} | {minimum_took:.1?} | {:.1} | {:.2}% | {:.2}% | {:.1?} |",
            graph.ops().len(),
            100.0 * budget as f64 / peak as f64,
            100.0 * (outcome.makespan / makespan - 1.0),
            gap(&outcome),
            start.elapsed()
        );
    }
    Ok(())
}

/// Over so many seeds the ablation takes its means.
const SEEDS: u64 = 3;

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
            for &(budget, _, known) in &cases {
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

/// Puts the cheapest implementation that reads no more and leaves the plan within the budget into each step.
fn cheaper_afterwards(graph: &Graph, plan: &Plan, budget: u64) -> f64 {
    let mut plan = plan.clone();
    for at in 0..plan.steps.len() {
        let Step::Compute(id) = plan.steps[at] else { continue };
        let op = &graph.ops()[id];
        let reads_no_more = |k: usize| op.alternatives[k].inputs.iter().all(|value| op.inputs.contains(value));
        let mut others: Vec<usize> = (0..op.alternatives.len()).filter(|&k| reads_no_more(k)).collect();
        others.sort_by(|&a, &b| op.alternatives[a].cost.total_cmp(&op.alternatives[b].cost));
        for k in others.into_iter().filter(|&k| op.alternatives[k].cost < op.cost) {
            plan.steps[at] = Step::ComputeAlternative(id, k);
            if simulate(graph, &plan).peak_bytes <= budget {
                break;
            }
            plan.steps[at] = Step::Compute(id);
        }
    }
    simulate(graph, &plan).makespan
}

fn joint(seconds: f64, only: Option<&str>) -> Result<()> {
    println!("| graph (ops, of these with a choice) | budget | without | afterwards | monet | auto | gap to bound |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for name in ["mobilenet", "resnet50", "densenet161"] {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let implementations = Implementations::Several;
        let graph = by_name(name, &Options { batch: 32, implementations, ..Options::default() })?;
        let plain = without_alternatives(&graph);
        let (peak, store_all) = store_all(&plain);
        let overhead = |makespan: f64| format!("{:.2}%", 100.0 * (makespan / store_all - 1.0));
        let (ops, choices) = (graph.ops().len(), graph.ops().iter().filter(|op| !op.alternatives.is_empty()).count());
        for percent in [100, 80, 60, 50, 40] {
            let budget = peak / 100 * percent;
            let solved = |name: &str, graph: &Graph| run(&*planner(name)?, graph, budget, seconds).ok();
            let none = || "-".to_owned();
            let before = solved("auto", &plain);
            let (monet, found) = (solved("monet", &graph), solved("auto", &graph));
            let afterwards = before.as_ref().and_then(|before| before.plan.as_ref());
            println!(
                "| {name} ({ops}, {choices}) | {percent}% | {} | {} | {} | {} | {} |",
                before.as_ref().map_or_else(none, |before| overhead(before.makespan)),
                afterwards.map_or_else(none, |plan| overhead(cheaper_afterwards(&graph, plan, budget))),
                monet.map_or_else(none, |monet| overhead(monet.makespan)),
                found.as_ref().map_or_else(none, |found| overhead(found.makespan)),
                found.as_ref().map_or_else(none, |found| format!("{:.2}%", gap(found))),
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| arguments.get(at).map_or(Ok(default), |text| text.parse::<f64>());
    let usage = "usage: search_tables known|memory|generated|large|ablation|joint [FOLDER] [SECONDS or MOVES]";
    match arguments.first().map(String::as_str) {
        Some("known") => {
            known(arguments.get(1).ok_or(usage)?, number(2, 10.0)?, arguments.get(3).map_or("search", String::as_str))
        }
        Some("memory") => memory(arguments.get(1).ok_or(usage)?, number(2, 2.0)?),
        Some("generated") => generated(number(1, 10.0)?, arguments.get(2).map(String::as_str)),
        Some("joint") => joint(number(1, 10.0)?, arguments.get(2).map(String::as_str)),
        Some("large") => large(number(1, 10.0)?),
        Some("ablation") => ablation(arguments.get(1).ok_or(usage)?, number(2, 300_000.0)? as u64),
        _ => Err(usage.into()),
    }
}
