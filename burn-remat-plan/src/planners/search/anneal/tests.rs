//! Walks against fresh states, the simulation and the checker.

use super::*;
use crate::check::check;
use crate::graph::{Alternative, Graph, GraphBuilder, Op};
use crate::planners::search::problem::Problem;
use crate::sequence::plan_of_choices;
use crate::simulate::simulate;

fn random_graph(random: &mut Random, most_alternatives: usize) -> Graph {
    let mut builder = GraphBuilder::new("random");
    let mut values = vec![builder.value(random.below(9) as u64, "input")];
    for _ in 0..4 + random.below(20) {
        let mut inputs = Vec::new();
        for _ in 0..random.below(4) {
            inputs.push(values[random.below(values.len())]);
        }
        let outputs: Vec<_> = (0..1 + random.below(2)).map(|_| builder.value(random.below(30) as u64, "")).collect();
        let mut op = Op::new("", random.below(10) as f64, inputs, outputs.clone());
        op.scratch_bytes = random.below(5) as u64;
        op.recomputable = random.below(8) > 0;
        for _ in 0..random.below(most_alternatives + 1) {
            op.alternatives.push(Alternative {
                name: String::new(),
                cost: random.below(10) as f64,
                inputs: (0..random.below(4)).map(|_| values[random.below(values.len())]).collect(),
                scratch_bytes: random.below(9) as u64,
            });
        }
        builder.op(op);
        values.extend(outputs);
    }
    let results = (0..1 + random.below(3)).map(|_| values[random.below(values.len())]).collect();
    builder.results(results);
    builder.build().unwrap()
}

/// Walks over graphs and compares with a fresh state and the simulation; returns how many switched computations it saw.
fn compare_with_fresh_states(most_alternatives: usize) -> usize {
    let mut random = Random::new(1);
    let mut switched = 0;
    for seed in 0..60 {
        let graph = random_graph(&mut random, most_alternatives);
        let order: Vec<Choice> = (0..graph.ops().len()).map(Choice::default_of).collect();
        let peak = simulate(&graph, &plan_of_choices(&graph, &order)).peak_bytes;
        let problem = Problem::new(&graph, peak * 3 / 4);
        let mut walk = Walk::new(State::new(&problem, &order), seed);
        if walk.is_stuck() {
            continue;
        }
        for step in 0..200 {
            walk.run(1, 3.0);
            if step % 50 == 49 {
                let (over, cost) = (walk.state.over(), walk.state.cost);
                walk.repack(|_| false, || false);
                assert!(walk.state.over() == over && walk.state.cost <= cost);
            }
            let choices = walk.state.choices();
            let fresh = State::new(&problem, &choices);
            assert_eq!(fresh.memory(), walk.state.memory());
            assert_eq!(fresh.over(), walk.state.over());
            assert!((fresh.cost - walk.state.cost).abs() < 1e-9);
            let highest = *fresh.memory().iter().max().unwrap() as u64;
            let start = graph.inputs().map(|v| graph.bytes(v)).sum();
            let checked = check(&graph, &plan_of_choices(&graph, &choices), peak * 100).unwrap();
            assert_eq!(checked.peak_bytes(), highest.max(start));
            switched += choices.iter().filter(|choice| choice.implementation > 0).count();
        }
    }
    switched
}

#[test]
fn the_memory_profile_equals_one_computed_from_scratch() {
    assert_eq!(compare_with_fresh_states(0), 0);
}

#[test]
fn the_memory_profile_is_right_where_computations_switch_implementations() {
    assert!(compare_with_fresh_states(2) > 10_000);
}

#[test]
fn one_dear_repeat_takes_the_place_of_many_cheap_ones() {
    // Seven bytes have to be evicted in the middle: seven values of one byte and cost 1, or one of seven bytes and cost 6.
    let mut builder = GraphBuilder::new("either or");
    let values: Vec<ValueId> = (0..8).map(|at| builder.value(if at == 0 { 7 } else { 1 }, "")).collect();
    for (at, &value) in values.iter().enumerate() {
        builder.op(Op::new("make", if at == 0 { 6.0 } else { 1.0 }, vec![], vec![value]));
    }
    let middle = builder.value(8, "");
    builder.op(Op::new("middle", 1.0, vec![], vec![middle]));
    for &value in &values {
        let read = builder.value(0, "");
        builder.op(Op::new("read", 1.0, vec![value], vec![read]));
    }
    let graph = builder.build().unwrap();
    let problem = Problem::new(&graph, 15);
    let reads = (0..8).flat_map(|at| [at, at + 9].into_iter().skip(usize::from(at == 0)));
    let order: Vec<Choice> = (0..9).chain(reads).map(Choice::default_of).collect();
    let mut walk = Walk::new(State::new(&problem, &order), 0);
    assert_eq!((walk.state.over(), walk.state.cost), (0, 29.0));
    assert_eq!(walk.repack(|_| false, || false), 8);
    assert_eq!((walk.state.over(), walk.state.cost), (0, 28.0));
    assert_eq!(walk.best.map(|(cost, _)| cost), Some(28.0));
}
