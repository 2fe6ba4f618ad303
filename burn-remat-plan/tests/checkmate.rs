//! `checkmate` and `lp-rounding` against brute force for problem (9), and on odd inputs.

#![cfg(feature = "highs")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use burn_remat_plan::generate::{RandomGraphOptions, random_graph, random_training_graph};
use burn_remat_plan::planners::{Checkmate, LpRounding, StoreAll};
use burn_remat_plan::{
    Graph, GraphBuilder, Op, Outcome, PlanError, Planner, Request, Status, StopReason, simulate, solve,
};

/// The most states of one stage that the brute force may meet.
const MOST_STATES: usize = 3000;

/// One stage of problem (9): with `held` at its start and `wanted` at its end, the ops it must compute, their cost and
/// its peak; `None` if it is impossible.
fn stage(graph: &Graph, stage: usize, held: u32, wanted: u32) -> Option<(f64, u64)> {
    let has = |set: u32, value: usize| set >> value & 1 == 1;
    let mut row = BTreeSet::from([stage]);
    let values = graph.values().len();
    let mut open: Vec<usize> = vec![stage];
    for value in (0..values).filter(|&value| has(wanted, value) && !has(held, value)) {
        open.push(graph.producer(value)?);
    }
    while let Some(op) = open.pop() {
        if op > stage || (op < stage && !graph.ops()[op].recomputable) {
            return None;
        }
        row.insert(op);
        for &value in graph.ops()[op].inputs.iter().filter(|&&value| !has(held, value)) {
            let producer = graph.producer(value)?;
            if !row.contains(&producer) {
                open.push(producer);
            }
        }
    }
    // Resident when op k runs: made or held, and needed by k, by a later op of the row, or at the end.
    let mut peak = 0;
    for &k in &row {
        let resident = (0..values).filter(|&value| {
            let there = has(held, value) || graph.producer(value).is_some_and(|op| op < k && row.contains(&op));
            let needed = has(wanted, value) || graph.consumers(value).iter().any(|op| *op >= k && row.contains(op));
            let made = graph.ops()[k].outputs.contains(&value);
            made || (there && needed)
        });
        let bytes: u64 = resident.map(|value| graph.bytes(value)).sum();
        peak = peak.max(bytes + graph.constant_bytes() + graph.ops()[k].scratch_bytes);
    }
    Some((row.iter().map(|&op| graph.ops()[op].cost).sum(), peak))
}

/// The optimum of problem (9) by dynamic programming over all sets of retained values. `Err` if it is too large.
fn brute_force(graph: &Graph, budget: u64) -> Result<Option<f64>, ()> {
    let count = graph.ops().len();
    let inputs = graph.inputs().fold(0u32, |set, value| set | 1 << value);
    if graph.constant_bytes() + graph.inputs().map(|value| graph.bytes(value)).sum::<u64>() > budget {
        return Ok(None);
    }
    let results = graph.results().iter().fold(0u32, |set, &value| set | 1 << value);
    let mut states = BTreeMap::from([(inputs, 0.0f64)]);
    for t in 0..count {
        let exists = (0..graph.values().len()).filter(|&value| graph.producer(value).is_none_or(|op| op <= t));
        let all = exists.fold(0u32, |set, value| set | 1 << value);
        let mut next: BTreeMap<u32, f64> = BTreeMap::new();
        for (&held, &cost) in &states {
            let mut wanted = all;
            loop {
                let is_target = t + 1 < count || wanted == results & all;
                if is_target
                    && let Some((more, peak)) = stage(graph, t, held, wanted)
                    && peak <= budget
                {
                    let best = next.entry(wanted).or_insert(f64::INFINITY);
                    *best = best.min(cost + more);
                }
                if wanted == 0 {
                    break;
                }
                wanted = (wanted - 1) & all;
            }
        }
        if next.len() > MOST_STATES {
            return Err(());
        }
        states = next;
    }
    Ok(states.get(&results).copied())
}

fn store_all_peak(graph: &Graph) -> u64 {
    simulate(graph, &StoreAll::plan(graph)).peak_bytes
}

fn planned(planner: &dyn Planner, graph: &Graph, budget: u64) -> Option<Outcome> {
    match solve(planner, graph, &Request::new(budget)) {
        Ok(solved) => Some(solved.outcome),
        Err(PlanError::Infeasible { minimum, .. }) => {
            assert!(minimum.is_none_or(|minimum| minimum > budget));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// One graph and budget; returns whether the optimum computes an op twice, or `None` if brute force takes too long.
fn compare(seed: u64, graph: &Graph, budget: u64) -> Option<bool> {
    let expected = brute_force(graph, budget).ok()?;
    let outcome = planned(&Checkmate, graph, budget);
    let slack = 1e-6 * expected.unwrap_or(0.0) + 1e-9;
    match (&outcome, expected) {
        (Some(outcome), Some(cost)) => {
            // If ops have alternatives, it proves nothing about schedules that use them.
            let has_choice = graph.ops().iter().any(|op| !op.alternatives.is_empty());
            assert!(outcome.status == Status::Optimal || has_choice, "seed {seed}");
            assert!((outcome.makespan - cost).abs() <= slack, "seed {seed}: {} not {cost}", outcome.makespan);
            assert!(outcome.lower_bound.unwrap() <= cost + slack, "seed {seed}");
        }
        (None, None) => {}
        _ => panic!("seed {seed}: planned {outcome:?}, brute force {expected:?}"),
    }
    if let Some(rounded) = planned(&LpRounding, graph, budget) {
        let cost = expected.expect("a rounding is a schedule of (9)");
        assert!(rounded.makespan >= cost - slack, "seed {seed}");
        assert!(rounded.lower_bound.unwrap() <= cost + slack, "seed {seed}");
    }
    Some(expected.is_some_and(|cost| cost > graph.ops().iter().map(|op| op.cost).sum::<f64>() + slack))
}

/// Compares on `graphs` random graphs of 2 to `most` ops, each with budgets from just below its store-all peak down.
fn compare_with_brute_force(graphs: usize, most: usize) {
    let (mut compared, mut recomputing, mut seed) = (0, 0, 0);
    while compared < graphs {
        seed += 1;
        let knobs = RandomGraphOptions { once_only: 0.05, zero: 0.05, ..RandomGraphOptions::ops(most / 2, most) };
        let graph = match seed % 2 {
            0 => random_graph(seed, &knobs),
            _ => random_training_graph(seed, &knobs),
        };
        if graph.values().len() > 11 || graph.ops().len() > most {
            continue;
        }
        let peak = store_all_peak(&graph);
        let budgets = BTreeSet::from([1, 2, 4, 6].map(|part| peak - (peak * part / 16).max(u64::from(peak > 0))));
        let results: Option<Vec<bool>> = budgets.into_iter().map(|budget| compare(seed, &graph, budget)).collect();
        let Some(results) = results else { continue };
        compared += 1;
        recomputing += usize::from(results.contains(&true));
    }
    println!("{compared} graphs compared, {recomputing} of them with recomputation");
    assert!(recomputing * 10 > compared);
}

#[test]
fn checkmate_equals_brute_force_on_small_graphs() {
    compare_with_brute_force(40, 7);
}

/// The full count: `cargo test --release --features highs --test checkmate -- --ignored`.
#[test]
#[ignore = "minutes; the full count"]
fn checkmate_equals_brute_force_on_500_graphs_to_10_ops() {
    compare_with_brute_force(500, 10);
}

/// A training step of a path of equal ops: forward, then one gradient per op.
fn path(depth: usize) -> Graph {
    let mut builder = GraphBuilder::new("path");
    let values: Vec<_> = (0..2 * depth).map(|_| builder.value(1 << 30, "")).collect();
    for i in 0..depth {
        let inputs = if i == 0 { vec![] } else { vec![values[i - 1]] };
        builder.op(Op::new(format!("f{i}"), 1.0, inputs, vec![values[i]]));
    }
    for i in (0..depth).rev() {
        let at = 2 * depth - 1 - i;
        let mut inputs = vec![values[i], values[at - 1]];
        inputs.extend((i > 0).then(|| values[i - 1]));
        builder.op(Op::new(format!("b{i}"), 1.0, inputs, vec![values[at]]));
    }
    builder.build().unwrap()
}

#[test]
fn without_time_there_may_be_no_plan_and_with_some_there_is_the_heuristics() {
    let graph = path(12);
    // At 4 values no segment heuristic fits, but what `search` starts from does.
    for budget in [8 << 30, 4 << 30] {
        let request = |time_limit: Duration| Request { time_limit, ..Request::new(budget) };
        let outcome = solve(&Checkmate, &graph, &request(Duration::ZERO)).unwrap().outcome;
        assert!([Status::Feasible, Status::NoSolution].contains(&outcome.status));
        assert_eq!(outcome.stop_reason, StopReason::TimeLimit);
        assert!(solve(&Checkmate, &graph, &request(Duration::from_secs(5))).unwrap().outcome.plan.is_some());
    }
}

#[test]
fn a_wide_gap_stops_early_and_says_so() {
    let graph = path(10);
    let mut request = Request::new(6 << 30);
    let exact = solve(&Checkmate, &graph, &request).unwrap().outcome;
    request.gap = 0.5;
    let rough = solve(&Checkmate, &graph, &request).unwrap().outcome;
    assert_eq!((exact.status, exact.stop_reason), (Status::Optimal, StopReason::Proved));
    assert_eq!(rough.status, Status::Optimal);
    assert!(rough.makespan >= exact.makespan && rough.makespan <= exact.makespan * 1.5);
}

#[test]
fn more_budget_never_costs_more_and_the_least_budget_is_found_to_be_so() {
    let graph = path(7);
    let mut last = f64::INFINITY;
    for budget in 0..=16u64 {
        match planned(&Checkmate, &graph, budget << 30) {
            Some(outcome) => {
                assert!(outcome.makespan <= last);
                last = outcome.makespan;
            }
            None => assert!(last.is_infinite(), "infeasible above a feasible budget"),
        }
    }
    assert_eq!(last, 14.0);
}

#[test]
fn extreme_budgets_and_weightless_graphs_are_no_trouble() {
    for (cost, bytes) in [(0.0, 1), (1.0, 0), (0.0, 0), (1e300, 1), (1e-300, 1), (1.0, i64::MAX as u64 / 4)] {
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = (0..4).map(|_| builder.value(bytes, "")).collect();
        builder.op(Op::new("a", cost, vec![], vec![v[0]]));
        builder.op(Op::new("b", cost, vec![v[0]], vec![v[1]]));
        builder.op(Op::new("c", cost, vec![v[1]], vec![v[2]]));
        builder.op(Op::new("d", cost, vec![v[0], v[2]], vec![v[3]]));
        let graph = builder.build().unwrap();
        for planner in [&Checkmate as &dyn Planner, &LpRounding] {
            for budget in [0, 1, 2, 3, 4, bytes.saturating_mul(3), u64::MAX] {
                if let Some(outcome) = planned(planner, &graph, budget) {
                    assert!(outcome.peak_bytes <= budget);
                } else {
                    assert!(budget < 3 * bytes);
                }
            }
        }
    }
}
