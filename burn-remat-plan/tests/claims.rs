//! What planners claim to have proved, against brute force.

mod brute_force;

use std::time::Duration;

use brute_force::cheapest;
use burn_remat_plan::generate::{Options, RandomGraphOptions, by_name, random_graph};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::{planner, planners};
use burn_remat_plan::{Graph, GraphBuilder, Op, PlanError, Request, Status, minimum, solve};

/// Nothing here takes this long on an idle machine; on a busy one, a planner gets little of each second.
fn request(budget: u64) -> Request {
    Request { time_limit: Duration::from_secs(2), threads: 1, ..Request::new(budget) }
}

/// Small graphs, with alternatives on about half of their ops.
fn small_graphs(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Graph)> {
    let knobs = RandomGraphOptions { alternative: 0.5, scratch: 0.4, ..RandomGraphOptions::ops(2, 8) };
    seeds.map(move |seed| (seed, random_graph(seed, &knobs))).filter(|(_, graph)| graph.values().len() <= 14)
}

#[test]
fn a_lower_bound_holds_for_every_choice_of_implementations() {
    for (seed, graph) in small_graphs(0..60) {
        let (least, peak) = (minimum(&graph).achieved, StoreAll::peak(&graph));
        for budget in [least, least + peak.saturating_sub(least) / 2, peak] {
            let Some(optimum) = cheapest(&graph, budget) else { panic!("seed {seed}: no plan at {budget}") };
            // `monet` proves its bounds for its own class: each op at most once between two first computations.
            for entry in planners().iter().filter(|entry| entry.name != "monet") {
                let Ok(solved) = solve(&*entry.planner(), &graph, &request(budget)) else { continue };
                let case = format!("{}, seed {seed}, budget {budget}", entry.name);
                let bound = solved.outcome.lower_bound.unwrap_or(0.0);
                // `checkmate` and the like prove bounds for their own class if no op has a choice.
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
        let planner = planner(name).unwrap();
        let Ok(solved) = solve(&*planner, &graph, &request(16)) else { continue };
        let outcome = solved.outcome;
        assert_eq!(
            (outcome.makespan, outcome.status, outcome.lower_bound),
            (6.0, Status::Feasible, Some(5.0)),
            "{name}"
        );
    }
}

#[test]
fn what_is_called_infeasible_is_so() {
    for (seed, graph) in small_graphs(100..160) {
        let (low, peak) = (minimum(&graph).lower_bound, StoreAll::peak(&graph));
        for budget in [low.saturating_sub(1), low, low + peak.saturating_sub(low) / 3] {
            let optimum = cheapest(&graph, budget);
            for entry in planners() {
                let result = solve(&*entry.planner(), &graph, &request(budget));
                let Err(PlanError::Infeasible { proven, .. }) = result else { continue };
                let case = format!("{}, seed {seed}, budget {budget}", entry.name);
                assert!(!proven || optimum.is_none(), "{case}: there is a plan");
                // The exact search decides graphs of this size.
                assert!(optimum.is_none() || !["search", "auto"].contains(&entry.name), "{case}: none found");
                assert!(proven || !["search", "auto"].contains(&entry.name), "{case}: not proved");
            }
        }
    }
}

#[test]
fn search_and_auto_find_a_plan_wherever_a_quick_planner_does() {
    for (family, depth, seed) in [("random", 20, 1), ("random", 8, 0), ("unet", 4, 0), ("residual", 8, 0)] {
        let graph = by_name(family, &Options { depth, seed, ..Options::default() }).unwrap();
        for quick in ["revolve", "chain-dp", "online"] {
            let planner_of = |name: &str| planner(name).unwrap();
            let Err(PlanError::Infeasible { minimum: Some(budget), .. }) =
                planner_of(quick).solve(&graph, &Request::new(1))
            else {
                panic!("one byte is too little")
            };
            let fits = solve(&*planner_of(quick), &graph, &request(budget)).is_ok();
            for name in ["search", "auto"].into_iter().filter(|_| fits) {
                let found = solve(&*planner_of(name), &graph, &request(budget));
                assert!(found.is_ok(), "{family} {depth}: {name} at the budget {budget} of {quick}");
            }
        }
    }
}

/// Eight times nine ops that need a clever order of recomputation, one group after the other.
fn eight_groups() -> Graph {
    let bytes = [19, 17, 11, 12, 18, 10, 20, 2, 4];
    let inputs: [&[usize]; 9] = [&[], &[0], &[1], &[1, 2], &[0, 1, 3], &[3, 4], &[], &[0, 2, 6], &[2, 4, 7]];
    let mut builder = GraphBuilder::new("eight groups");
    for group in 0..8 {
        for (op, inputs) in inputs.iter().enumerate() {
            let inputs = inputs.iter().map(|&input| group * 9 + input).collect();
            let value = builder.value(bytes[op], "");
            let scratch_bytes = if op == 6 { 6 } else { 0 };
            builder.op(Op { scratch_bytes, ..Op::new("", 1.0, inputs, vec![value]) });
        }
    }
    builder.build().unwrap()
}

#[test]
fn where_none_is_found_nothing_is_called_proved() {
    let graph = eight_groups();
    let least = minimum(&graph);
    for name in ["search", "auto", "online", "revolve", "ap-greedy"] {
        for budget in least.lower_bound..least.achieved {
            match solve(&*planner(name).unwrap(), &graph, &request(budget)) {
                Err(PlanError::Infeasible { proven, .. }) => assert!(!proven, "{name} at {budget}"),
                Err(error) => assert!(matches!(error, PlanError::Unsupported { .. }), "{name} at {budget}: {error}"),
                Ok(_) => {}
            }
        }
        let error = solve(&*planner(name).unwrap(), &graph, &request(least.lower_bound - 1)).unwrap_err();
        let is_proven = matches!(error, PlanError::Infeasible { proven: true, .. } | PlanError::Unsupported { .. });
        assert!(is_proven, "{name}: {error}");
    }
}
