//! The optimum over all schedules of a small graph.

#![allow(dead_code, reason = "each test file uses its part")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use burn_remat_plan::{Graph, Outcome, Status};

/// The least makespan of all schedules within `budget`, with any implementation at any computation: Dijkstra over (first
/// computations done, resident set), with single evictions and computations as moves. Costs must be whole numbers.
pub fn cheapest(graph: &Graph, budget: u64) -> Option<u64> {
    let ops = graph.ops();
    let mask = |values: &[usize]| values.iter().fold(0u64, |mask, &v| mask | 1 << v);
    let held = |set: u64| {
        graph.constant_bytes()
            + (0..graph.values().len()).filter(|&v| set >> v & 1 == 1).map(|v| graph.bytes(v)).sum::<u64>()
    };
    let start = (0usize, mask(&graph.inputs().collect::<Vec<_>>()));
    if held(start.1) > budget {
        return None;
    }
    let results = mask(graph.results());
    let mut best = HashMap::from([(start, 0u64)]);
    let mut heap = BinaryHeap::from([Reverse((0u64, start))]);
    while let Some(Reverse((cost, (done, set)))) = heap.pop() {
        if best[&(done, set)] < cost {
            continue;
        }
        if done == ops.len() && results & !set == 0 {
            return Some(cost);
        }
        let mut reach = |cost: u64, state: (usize, u64)| {
            if best.get(&state).is_none_or(|&known| cost < known) {
                best.insert(state, cost);
                heap.push(Reverse((cost, state)));
            }
        };
        for v in 0..graph.values().len() {
            if set >> v & 1 == 1 {
                reach(cost, (done, set & !(1 << v)));
            }
        }
        for (id, op) in ops.iter().enumerate().take(done + 1) {
            if id < done && !op.recomputable {
                continue;
            }
            let after = set | mask(&op.outputs);
            let others = op.alternatives.iter().map(|other| (&other.inputs, other.cost, other.scratch_bytes));
            for (inputs, price, scratch) in others.chain([(&op.inputs, op.cost, op.scratch_bytes)]) {
                if mask(inputs) & !set == 0 && held(after) + scratch <= budget {
                    reach(cost + price as u64, (done + usize::from(id == done), after));
                }
            }
        }
    }
    None
}

/// An outcome claims no more than brute force allows.
pub fn assert_honest(outcome: &Outcome, optimum: u64, seed: u64) {
    let optimum = optimum as f64;
    assert!(outcome.makespan >= optimum, "seed {seed}: cheaper than the optimum");
    assert!(outcome.lower_bound.unwrap_or(0.0) <= optimum, "seed {seed}: a false bound");
    if outcome.status == Status::Optimal {
        assert_eq!(outcome.makespan, optimum, "seed {seed}: a false proof");
    }
}
