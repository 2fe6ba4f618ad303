//! Measures planners on training graphs and prints tables for BENCHMARKS.md.
//!
//! ```text
//! cargo run --release -p burn-remat-plan --features highs --example planner_tables -- solve GRAPH PLANNER BUDGET [SECONDS]
//! cargo run --release -p burn-remat-plan --features highs --example planner_tables -- tables [SECONDS]
//! ```
//!
//! `GRAPH` is a file or a generator's name with a batch (`vgg16:32`), `BUDGET` bytes or a share of the store-all peak
//! (`50%`).

use std::time::Duration;

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, Request, registry, simulate, solve};

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

fn main() -> Result<(), AnyError> {
    log::set_logger(&LOGGER).map_err(|error| error.to_string())?;
    log::set_max_level(std::env::var("LOG").map_or(log::LevelFilter::Warn, |_| log::LevelFilter::Debug));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((mode, rest)) if mode == "solve" => one(rest),
        _ => Err("modes: solve, tables; see the head of this file".into()),
    }
}
