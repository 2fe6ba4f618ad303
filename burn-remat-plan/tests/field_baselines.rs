//! The heuristics that frameworks use, on generated networks: plans are valid and within the budget, and if there is
//! none, the smallest peak that is named can be reached.

use std::time::Duration;

use burn_remat_plan::generate::{NAMES, Options, by_name};
use burn_remat_plan::planners::{EveryNthBlock, HloRemat, MinCut, StoreAll};
use burn_remat_plan::{Graph, PlanError, Planner, Request, solve};

const BASELINES: [&dyn Planner; 3] = [&MinCut, &HloRemat, &EveryNthBlock];

/// Overhead of `planner` at a share of the store-all peak in percent, or the smallest peak that it reaches.
fn overhead(planner: &dyn Planner, graph: &Graph, budget: u64) -> Result<f64, u64> {
    // They end by themselves, sooner than this even on the busiest machine.
    let request = Request { time_limit: Duration::from_secs(600), ..Request::new(budget) };
    match solve(planner, graph, &request) {
        Ok(solved) => {
            assert!(solved.checked.is_some() && solved.outcome.peak_bytes <= budget);
            Ok(solved.outcome.makespan / StoreAll::makespan(graph) - 1.0)
        }
        Err(PlanError::Infeasible { minimum: Some(minimum), .. }) => Err(minimum),
        Err(error) => panic!("{}: {error}", planner.name()),
    }
}

#[test]
fn every_network_gets_a_plan_or_the_smallest_peak_that_can_be_had() {
    let mut plans = [0; 3];
    for (name, _) in NAMES {
        let graph = by_name(name, &Options { depth: 2, batch: 4, ..Options::default() }).unwrap();
        let peak = StoreAll::peak(&graph);
        for (at, planner) in BASELINES.into_iter().enumerate() {
            for share in [90, 50] {
                match overhead(planner, &graph, peak / 100 * share) {
                    Ok(_) => plans[at] += 1,
                    Err(minimum) => assert!(overhead(planner, &graph, minimum).is_ok(), "{name}: {}", planner.name()),
                }
            }
        }
    }
    assert!(plans.iter().all(|&plans| plans >= 8), "{plans:?}");
}

#[test]
fn a_transformer_costs_each_what_its_method_says() {
    let graph = by_name("gpt", &Options { depth: 12, ..Options::default() }).unwrap();
    let budget = StoreAll::peak(&graph) / 100 * 60;
    let [cut, walk, blocks] = BASELINES.map(|planner| overhead(planner, &graph, budget));
    // Scores, masks and norms are recomputed at next to no cost; whole layers cost a forward pass each.
    assert!(cut.is_ok_and(|cost| cost < 0.03), "{cut:?}");
    assert!(walk.is_ok_and(|cost| cost < 0.06), "{walk:?}");
    assert!(blocks.is_ok_and(|cost| cost > 0.1 && cost < 0.34), "{blocks:?}");
}
