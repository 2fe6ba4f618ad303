//! What planners claim to have proved, against brute force.

mod brute_force;

use std::time::Duration;

use brute_force::cheapest;
use burn_remat_plan::generate::{Knobs, random_graph};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::planners;
use burn_remat_plan::{Graph, Request, Status, minimum, solve};

fn request(budget: u64) -> Request {
    Request { time_limit: Duration::from_millis(200), threads: 1, ..Request::new(budget) }
}

/// Small graphs, with alternatives on about half of their ops.
fn small_graphs(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Graph)> {
    let knobs = Knobs { alternative: 0.5, scratch: 0.4, ..Knobs::ops(2, 8) };
    seeds.map(move |seed| (seed, random_graph(seed, &knobs))).filter(|(_, graph)| graph.values().len() <= 14)
}

#[test]
fn a_lower_bound_holds_for_every_choice_of_implementations() {
    for (seed, graph) in small_graphs(0..60) {
        let (least, peak) = (minimum(&graph).achieved, StoreAll::peak(&graph));
        for budget in [least, least + peak.saturating_sub(least) / 2, peak] {
            let Some(optimum) = cheapest(&graph, budget) else { panic!("seed {seed}: no plan at {budget}") };
            for entry in planners() {
                let Ok(solved) = solve(&*entry.planner(), &graph, &request(budget)) else { continue };
                let case = format!("{}, seed {seed}, budget {budget}", entry.name);
                let bound = solved.outcome.lower_bound.unwrap_or(0.0);
                // `checkmate` and its kin prove things of their own class where no op has a choice.
                if graph.ops().iter().any(|op| !op.alternatives.is_empty()) {
                    assert!(bound <= optimum as f64, "{case}: {bound} is above the optimum, {optimum}");
                    if solved.outcome.status == Status::Optimal {
                        assert_eq!(solved.outcome.makespan, optimum as f64, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_plan_beside_a_cheaper_implementation_is_not_called_optimal() {
    let text = r#"{"format": "remat-graph/1", "values": [{"bytes": 10}, {"bytes": 4}, {"bytes": 2}], "ops": [
        {"cost": 1, "inputs": [], "outputs": [0]},
        {"cost": 2, "inputs": [0], "outputs": [1], "alternatives": [{"cost": 1, "inputs": []}]},
        {"cost": 3, "inputs": [0, 1], "outputs": [2], "recomputable": false}]}"#;
    let graph = Graph::from_json(text).unwrap();
    for name in ["store-all", "chen-sqrt", "ap-sqrt", "linear-greedy", "revolve", "chain-dp"] {
        let planner = burn_remat_plan::registry::planner(name).unwrap();
        let Ok(solved) = solve(&*planner, &graph, &request(16)) else { continue };
        let outcome = solved.outcome;
        assert_eq!(
            (outcome.makespan, outcome.status, outcome.lower_bound),
            (6.0, Status::Feasible, Some(5.0)),
            "{name}"
        );
    }
}
