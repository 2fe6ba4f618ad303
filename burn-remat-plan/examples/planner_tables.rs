//! Measures planners on training graphs and prints tables for BENCHMARKS.md.
//!
//! ```text
//! cargo run --release -p burn-remat-plan --features highs --example planner_tables -- solve GRAPH PLANNER BUDGET [SECONDS]
//! cargo run --release -p burn-remat-plan --features highs --example planner_tables -- tables [SECONDS [GRAPH..]]
//! ```
//!
//! `GRAPH` is a file or a generator's name with a batch (`vgg16:32`), `BUDGET` bytes or a share of the store-all peak
//! (`50%`). In the tables `~` marks what is not proved optimal in the planner's class, `-` what fits no plan of the
//! planner, and the ratio is the geometric mean over the budgets at which both have a plan.

use std::time::Duration;

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, PlanError, Request, Status, registry, simulate, solve};

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_remat_plan")
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("[{}] {}", record.level(), record.args());
        }
    }
    fn flush(&self) {}
}

static LOGGER: Logger = Logger;

type AnyError = Box<dyn std::error::Error>;

fn graph(name: &str) -> Result<Graph, AnyError> {
    if name.ends_with(".json") {
        return Ok(Graph::read(name)?);
    }
    let (name, batch) = name.split_once(':').unwrap_or((name, "32"));
    Ok(by_name(name, &Options { batch: batch.parse()?, ..Options::default() })?)
}

fn store_all(graph: &Graph) -> (f64, u64) {
    let timeline = simulate(graph, &StoreAll::plan(graph));
    (timeline.makespan, timeline.peak_bytes)
}

fn budget(text: &str, peak: u64) -> Result<u64, AnyError> {
    Ok(match text.strip_suffix('%') {
        Some(share) => (peak as f64 * share.parse::<f64>()? / 100.0) as u64,
        None => text.parse()?,
    })
}

fn one(arguments: &[String]) -> Result<(), AnyError> {
    let [name, planner, limit, rest @ ..] = arguments else {
        return Err("solve GRAPH PLANNER BUDGET [SECONDS]".into());
    };
    let graph = graph(name)?;
    let (makespan, peak) = store_all(&graph);
    let mut request = Request::new(budget(limit, peak)?);
    request.time_limit = Duration::from_secs_f64(rest.first().map_or(Ok(60.0), |s| s.parse())?);
    let planner = registry::planner(planner).ok_or("no such planner")?;
    println!("{name}: {} ops, store-all {makespan} at {peak} bytes, budget {}", graph.ops().len(), request.budget);
    match solve(planner.as_ref(), &graph, &request) {
        Ok(solved) => {
            let outcome = solved.outcome;
            println!(
                "{:?} {:?} makespan {} overhead {:.3}% bound {:?} peak {} in {:?}",
                outcome.status,
                outcome.stop_reason,
                outcome.makespan,
                100.0 * (outcome.makespan / makespan - 1.0),
                outcome.lower_bound,
                outcome.peak_bytes,
                outcome.solve_time
            );
        }
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// The networks of the paper's figure 5 and table 2, with a batch at which activations outweigh parameters.
const NETWORKS: [&str; 5] = ["vgg16:256", "mobilenet:256", "unet416x608:32", "vgg19:256", "resnet50:256"];

/// Shares of the way from what the hungriest op needs to the store-all peak, in percent.
const SHARES: [u64; 4] = [20, 40, 60, 80];

/// What the hungriest op needs: no plan fits below.
fn floor(graph: &Graph) -> u64 {
    let need = |op: &burn_remat_plan::Op| {
        graph.bytes_of(&op.inputs) + graph.bytes_of(&op.outputs) + op.scratch_bytes + graph.constant_bytes()
    };
    graph.ops().iter().map(need).max().unwrap_or(0)
}

/// Overhead of every planner on every network at four budgets, and the geometric mean of cost over checkmate's.
fn tables(arguments: &[String]) -> Result<(), AnyError> {
    let seconds = arguments.first().map_or(Ok(60.0), |s| s.parse())?;
    let chosen = &arguments[arguments.len().min(1)..];
    let chosen = chosen.iter().map(String::as_str);
    let all = if chosen.len() == 0 { &NETWORKS[..] } else { &[] };
    for name in chosen.chain(all.iter().copied()) {
        let graph = graph(name)?;
        let (makespan, peak) = store_all(&graph);
        let least = floor(&graph);
        let budgets = SHARES.map(|share| least + (peak - least) / 100 * share);
        println!("\n### {name}: {} ops, store-all peak {:.2} GiB\n", graph.ops().len(), gib(peak));
        let heads: Vec<String> = budgets
            .iter()
            .map(|&b| format!("{:.2} GiB ({}%)", gib(b), (100.0 * b as f64 / peak as f64).round()))
            .collect();
        println!(
            "| planner | {} | cost / checkmate | slowest |\n| --- | --- | --- | --- | --- | --- | --- |",
            heads.join(" | ")
        );
        let mut optimal = [None; 4];
        let mut entries: Vec<_> =
            registry::planners().iter().filter(|entry| !["store-all", "feng-huang"].contains(&entry.name)).collect();
        entries.sort_by_key(|entry| entry.name != "checkmate");
        for entry in entries {
            let mut cells = Vec::new();
            let mut ratios = Vec::new();
            let mut slowest = Duration::ZERO;
            for (at, &budget) in budgets.iter().enumerate() {
                let request =
                    Request { time_limit: Duration::from_secs_f64(seconds), threads: 2, ..Request::new(budget) };
                let start = std::time::Instant::now();
                let solved = solve(entry.planner().as_ref(), &graph, &request);
                slowest = slowest.max(start.elapsed());
                cells.push(match solved {
                    Ok(solved) if solved.checked.is_some() => {
                        let outcome = solved.outcome;
                        if entry.name == "checkmate" {
                            optimal[at] = Some(outcome.makespan);
                        }
                        ratios.extend(optimal[at].map(|best: f64| (outcome.makespan / best).ln()));
                        let overhead = 100.0 * (outcome.makespan / makespan - 1.0);
                        let mark = if outcome.status == Status::Optimal { "" } else { "~" };
                        format!("{mark}{overhead:.2}%")
                    }
                    Ok(_) => "none in time".to_owned(),
                    Err(PlanError::Infeasible { .. }) => "-".to_owned(),
                    Err(PlanError::Unsupported { .. }) => "n/a".to_owned(),
                    Err(error) => error.to_string(),
                });
            }
            let mean = match ratios.len() {
                0 => "-".to_owned(),
                count => format!("{:.3}x", (ratios.iter().sum::<f64>() / count as f64).exp()),
            };
            println!("| {} | {} | {mean} | {:.3} s |", entry.name, cells.join(" | "), slowest.as_secs_f64());
        }
    }
    Ok(())
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn main() -> Result<(), AnyError> {
    log::set_logger(&LOGGER).map_err(|error| error.to_string())?;
    log::set_max_level(std::env::var("LOG").map_or(log::LevelFilter::Warn, |_| log::LevelFilter::Debug));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((mode, rest)) if mode == "solve" => one(rest),
        Some((mode, rest)) if mode == "tables" => tables(rest),
        _ => Err("modes: solve, tables; see the head of this file".into()),
    }
}
