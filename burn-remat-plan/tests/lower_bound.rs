//! The lower bounds against brute force: they hold, and the bound from the states is the optimum if it is not cut short.
//!
//! Larger than the rule: `cases`, because its callers take each case apart.

mod brute_force;

use std::time::Duration;

use brute_force::cheapest;
use burn_remat_plan::generate::{RandomGraphOptions, random_graph, random_training_graph};
use burn_remat_plan::lower_bound::{Effort, StateEffort, lower_bound, lower_bound_at, state_bound};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Alternative, Graph, GraphBuilder, Op, minimum};

/// Anything that a graph may hold, small enough for brute force.
fn case(seed: u64) -> Graph {
    let knobs = match seed % 4 {
        0 => RandomGraphOptions { alternative: 0.5, scratch: 0.4, ..RandomGraphOptions::ops(2, 9) },
        1 => RandomGraphOptions {
            once_only: 0.3,
            input: 0.4,
            zero: 0.3,
            most_bytes: 5,
            ..RandomGraphOptions::ops(2, 10)
        },
        2 => RandomGraphOptions {
            multi_output: 0.4,
            alternative: 0.3,
            skip: 0.4,
            most_bytes: 4,
            ..RandomGraphOptions::ops(3, 7)
        },
        _ => RandomGraphOptions { scratch: 0.3, skip: 0.3, ..RandomGraphOptions::plain(4, 11) },
    };
    match seed % 5 {
        0 => random_training_graph(seed, &RandomGraphOptions { least_ops: 2, most_ops: 5, ..knobs }),
        _ => random_graph(seed, &knobs),
    }
}

/// Graphs with a budget between what is certainly needed and the store-all peak, and the optimum.
fn cases(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Graph, u64, f64)> {
    seeds.map(|seed| (seed, case(seed))).filter(|(_, graph)| graph.values().len() <= 13).filter_map(|(seed, graph)| {
        let (least, peak) = (minimum(&graph).achieved, StoreAll::peak(&graph));
        let budget = least + peak.saturating_sub(least) * (seed / 5 % 5) / 8;
        let optimum = cheapest(&graph, budget)?;
        Some((seed, graph, budget, optimum as f64))
    })
}

fn states(states: usize) -> StateEffort {
    StateEffort { states, ..StateEffort::time(Duration::from_secs(600)) }
}

fn iterations(iterations: u64) -> Effort {
    Effort { iterations, ..Effort::time(Duration::from_secs(600)) }
}

/// Run with `cargo test --release -p burn-remat-plan --test lower_bound -- --ignored`.
#[test]
#[ignore = "minutes: thirty thousand brute forces"]
fn no_bound_is_ever_false() {
    for (seed, graph, budget, optimum) in cases(100_000..130_000) {
        assert_eq!(state_bound(&graph, budget, states(1_000_000)), optimum, "seed {seed}, budget {budget}");
        let cut = state_bound(&graph, budget, states((seed % 60) as usize));
        assert!(cut <= optimum, "seed {seed}, budget {budget}: {cut} is above {optimum}");
        let all: Vec<usize> = (0..graph.ops().len()).collect();
        let joint = lower_bound_at(&graph, budget, &all, iterations(500));
        assert!(joint <= optimum, "seed {seed}, budget {budget}: {joint} is above {optimum}");
    }
}

#[test]
fn the_states_of_a_small_graph_give_its_optimum() {
    let mut dearer = 0;
    for (seed, graph, budget, optimum) in cases(0..1500) {
        assert_eq!(state_bound(&graph, budget, states(1_000_000)), optimum, "seed {seed}, budget {budget}");
        dearer += usize::from(optimum > burn_remat_plan::simulate(&graph, &store_all(&graph)).makespan);
    }
    assert!(dearer > 200, "{dearer} of the cases compute something again");
}

fn store_all(graph: &Graph) -> burn_remat_plan::Plan {
    burn_remat_plan::sequence::plan_from_order(graph, &(0..graph.ops().len()).collect::<Vec<_>>())
}

#[test]
fn states_cut_short_at_any_point_never_give_more() {
    for (seed, graph, budget, optimum) in cases(5000..5600) {
        for most in [0, 1, 2, 5, 20, 100] {
            let bound = state_bound(&graph, budget, states(most));
            assert!(bound <= optimum, "seed {seed}, budget {budget}, {most} states: {bound} is above {optimum}");
        }
        let little = StateEffort { bytes: 3000, ..states(1000) };
        assert!(state_bound(&graph, budget, little) <= optimum, "seed {seed}: with little memory");
        for enough in [0.0, optimum - 1.0, optimum, optimum + 1.0] {
            let bound = state_bound(&graph, budget, StateEffort { enough, ..states(1_000_000) });
            assert!(bound <= optimum.max(enough), "seed {seed}: {bound} where {enough} is enough");
            assert!(bound >= optimum.min(enough), "seed {seed}: {bound} where {enough} is asked for");
        }
    }
}

#[test]
fn the_relaxation_holds_at_any_moments() {
    for (seed, graph, budget, optimum) in cases(10_000..10_800) {
        let all: Vec<usize> = (0..graph.ops().len()).collect();
        let some: Vec<usize> = all.iter().copied().filter(|op| (seed >> (op % 8)) & 1 == 1).collect();
        for moments in [&all, &some].into_iter().filter(|moments| !moments.is_empty()) {
            let bound = lower_bound_at(&graph, budget, moments, iterations(2000));
            assert!(bound <= optimum, "seed {seed}, budget {budget}, {moments:?}: {bound} is above {optimum}");
        }
    }
}

/// The same graph several times over, one after the other, each with its own values; results are not needed.
fn in_series(graph: &Graph, times: usize) -> Graph {
    let mut builder = GraphBuilder::new("in series");
    builder.constant_bytes(graph.constant_bytes());
    let count = graph.values().len();
    for _ in 0..times {
        for value in graph.values() {
            builder.value(value.bytes, "");
        }
    }
    for copy in 0..times {
        let shift = |values: &[usize]| values.iter().map(|&value| value + copy * count).collect::<Vec<_>>();
        for op in graph.ops() {
            let alternatives = op.alternatives.iter().map(|a| Alternative { inputs: shift(&a.inputs), ..a.clone() });
            builder.op(Op {
                inputs: shift(&op.inputs),
                outputs: shift(&op.outputs),
                alternatives: alternatives.collect(),
                ..op.clone()
            });
        }
    }
    builder.results(Vec::new());
    builder.build().unwrap()
}

#[test]
fn bounds_hold_beyond_81_moments() {
    let knobs = RandomGraphOptions { input: 0.0, ..RandomGraphOptions::ops(7, 10) };
    let mut tight = 0;
    for seed in 0..40 {
        let one = in_series(&random_graph(seed, &knobs), 1);
        if one.values().len() > 14 || one.inputs().count() > 0 {
            continue;
        }
        let budget = minimum(&one).achieved;
        let optimum = 12.0 * cheapest(&one, budget).unwrap() as f64;
        let many = in_series(&one, 12);
        let all: Vec<usize> = (0..many.ops().len()).collect();
        let (joint, searched) =
            (lower_bound_at(&many, budget, &all, iterations(1500)), state_bound(&many, budget, states(20_000)));
        assert!(joint <= optimum, "seed {seed}: {joint} is above {optimum}, {} moments", all.len());
        assert!(searched <= optimum, "seed {seed}: {searched} is above {optimum}");
        tight += usize::from(searched == optimum);
    }
    assert!(tight > 10, "{tight} optima");
}

/// The same graph with sizes `factor` times as large.
fn scaled(graph: &Graph, factor: u64) -> Graph {
    let mut builder = GraphBuilder::new("scaled");
    builder.constant_bytes(graph.constant_bytes() * factor);
    for value in graph.values() {
        builder.value(value.bytes * factor, "");
    }
    for op in graph.ops() {
        let mut op = op.clone();
        op.scratch_bytes *= factor;
        op.alternatives.iter_mut().for_each(|other| other.scratch_bytes *= factor);
        builder.op(op);
    }
    builder.results(graph.results().to_vec());
    builder.build().unwrap()
}

#[test]
fn a_byte_counts_where_sizes_have_63_bits() {
    for (seed, graph, budget, optimum) in cases(20_000..20_400) {
        let scratch = |op: &Op| op.alternatives.iter().map(|a| a.scratch_bytes).fold(op.scratch_bytes, u64::max);
        let total = graph.constant_bytes()
            + graph.values().iter().map(|value| value.bytes).sum::<u64>()
            + graph.ops().iter().map(scratch).max().unwrap_or(0);
        let factor = i64::MAX as u64 / total.max(1);
        let large = scaled(&graph, factor);
        // Exactly the scaled budget, and the largest one that allows no more.
        for budget in [budget * factor, budget * factor + (factor - 1).min(1)] {
            let bound = state_bound(&large, budget, states(1_000_000));
            assert_eq!(bound, optimum, "seed {seed}, budget {budget}");
            let bound = lower_bound(&large, budget, iterations(1000));
            assert!(bound <= optimum, "seed {seed}, budget {budget}: {bound} is above {optimum}");
        }
    }
}

#[test]
fn many_equal_values_take_no_more_than_the_memory_given() {
    let mut builder = GraphBuilder::new("sixty");
    let small: Vec<usize> = (0..60).map(|_| builder.value(1, "")).collect();
    let (wide, end) = (builder.value(30, ""), builder.value(0, ""));
    for &value in &small {
        builder.op(Op::new("", 1.0, vec![], vec![value]));
    }
    builder.op(Op::new("wide", 1.0, vec![], vec![wide]));
    builder.op(Op::new("all", 1.0, small, vec![end]));
    let graph = builder.build().unwrap();
    let bound = state_bound(&graph, 60, StateEffort { bytes: 1 << 22, ..states(2_000) });
    // Thirty of the sixty are evicted before the wide one and computed again.
    assert!((62.0..=92.0).contains(&bound), "{bound}");
}
