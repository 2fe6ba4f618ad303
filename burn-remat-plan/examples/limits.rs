//! How well planners keep to their limits on graphs designed to be difficult.
//!
//! `cargo run --release -p burn-remat-plan --example limits -- SIZES SECONDS [PLANNERS] [KINDS]`, with lists separated by commas: runs every planner
//! (or those named) on every kind of graph of every size, at three budgets. Prints the solves that took more than a tenth longer than their
//! limit, with the processor time of all threads, and those that ended with an internal error; then the worst overrun and the most memory that the process took.

#[path = "../tests/hostile/mod.rs"]
mod hostile;

use std::error::Error;
use std::time::{Duration, Instant};

use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::planners;
use burn_remat_plan::{PlanError, Request, minimum_within, solve};

/// How far a solve may exceed its limit, in addition to a tenth: the time that a busy machine takes to wake a thread.
const SLACK: Duration = Duration::from_millis(20);

/// The processor time of this process so far: on a busy machine, a solve that works less than its limit may take longer. Zero if the system
/// does not report it; its clock ticks a hundred times a second.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = behind_name.split_whitespace().skip(11).take(2).filter_map(|text| text.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = |at: usize| arguments.get(at).map(|text| text.split(',').collect::<Vec<_>>());
    let usage = "usage: limits SIZES SECONDS [PLANNERS] [KINDS]";
    let sizes = list(0).ok_or(usage)?.into_iter().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let limit = Duration::from_secs_f64(arguments.get(1).ok_or(usage)?.parse()?);
    let (names, kinds) = (list(2).filter(|names| names != &["all"]), list(3).unwrap_or(hostile::KINDS.to_vec()));
    let (mut solves, mut worst) = (0, (0.0, String::new()));
    let mut note = |what: String, (start, worked): (Instant, Duration)| {
        let (took, worked) = (start.elapsed(), processor_time().saturating_sub(worked));
        solves += 1;
        if took > limit.mul_f64(1.1) + SLACK {
            println!("{what}: {took:.2?} of {limit:.2?}, {worked:.2?} of processor time");
        }
        let ratio = took.as_secs_f64() / limit.as_secs_f64();
        if ratio > worst.0 {
            worst = (ratio, what);
        }
    };
    for (kind, &size) in kinds.iter().flat_map(|kind| sizes.iter().map(move |size| (kind, size))) {
        let graph = hostile::graph(kind, size, 1);
        let start = (Instant::now(), processor_time());
        let least = minimum_within(&graph, &Request { time_limit: limit, ..Request::new(0) });
        note(format!("minimum of {}", graph.name()), start);
        let most = StoreAll::peak(&graph);
        let budgets = [
            least.lower_bound.saturating_sub(1),
            least.achieved,
            least.achieved + most.saturating_sub(least.achieved) / 4,
        ];
        let wanted = |name: &str| names.as_ref().is_none_or(|names| names.contains(&name));
        for entry in planners().iter().filter(|entry| wanted(entry.name)) {
            for budget in budgets {
                let start = (Instant::now(), processor_time());
                let found = solve(&*entry.planner(), &graph, &Request { time_limit: limit, ..Request::new(budget) });
                let what = format!("{} on {} at {budget}", entry.name, graph.name());
                if let Err(error @ PlanError::Internal { .. }) = found {
                    println!("{what}: {error}");
                }
                note(what, start);
            }
        }
    }
    println!("{solves} solves; at worst {:.2} times the limit: {}", worst.0, worst.1);
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        status.lines().filter(|line| line.starts_with("VmHWM")).for_each(|line| println!("{line}"));
    }
    Ok(())
}
