//! Against brute force over all schedules of the class, and on graphs with known answers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::check::check;
use crate::generate::{Options, RandomGraphOptions, by_name, random_graph, random_training_graph};
use crate::graph::{Alternative, GraphBuilder, Op, Phase};
use crate::plan::Step;
use crate::planners::StoreAll;
use crate::simulate::simulate;

/// The least cost within `budget`, by dynamic programming over all sets of resident values. Bit v of a set is value v.
fn brute_force(graph: &Graph, budget: u64) -> Option<f64> {
    let bits = |values: &[usize]| values.iter().fold(0u32, |set, &value| set | 1 << value);
    let bytes = |set: u32| -> u64 {
        let resident = (0..graph.values().len()).filter(|value| set >> value & 1 == 1);
        graph.constant_bytes() + resident.map(|value| graph.bytes(value)).sum::<u64>()
    };
    let inputs: Vec<usize> = graph.inputs().collect();
    if bytes(bits(&inputs)) > budget {
        return None;
    }
    let forward = graph.ops().iter().take_while(|op| op.phase == Some(Phase::Forward)).count();
    let mut turns: Vec<(usize, bool)> = (0..forward).map(|op| (op, true)).collect();
    for op in forward..graph.ops().len() {
        let again = if forward > 0 { 0..forward } else { 0..op };
        turns.extend(again.filter(|&op| graph.ops()[op].recomputable).map(|op| (op, false)));
        turns.push((op, true));
    }
    let mut states = BTreeMap::from([(bits(&inputs), 0.0f64)]);
    for (op, forced) in turns {
        let mut next: BTreeMap<u32, f64> = BTreeMap::new();
        let mut reach = |set: u32, cost: f64| {
            let known = next.entry(set).or_insert(f64::INFINITY);
            *known = known.min(cost);
        };
        for (&set, &cost) in &states {
            // Every way to evict before the turn.
            let mut left = set;
            loop {
                if !forced {
                    reach(left, cost);
                }
                let node = &graph.ops()[op];
                let ways = std::iter::once((&node.inputs, node.cost, node.scratch_bytes))
                    .chain(node.alternatives.iter().map(|other| (&other.inputs, other.cost, other.scratch_bytes)));
                for (inputs, price, scratch) in ways {
                    let after = left | bits(&node.outputs);
                    if left & bits(inputs) == bits(inputs) && bytes(after) + scratch <= budget {
                        reach(after, cost + price);
                    }
                }
                if left == 0 {
                    break;
                }
                left = (left - 1) & set;
            }
        }
        states = next;
    }
    let results = bits(graph.results());
    states.into_iter().filter(|(set, _)| set & results == results).map(|(_, cost)| cost).reduce(f64::min)
}

/// `graph` with its first `forward` ops as the forward pass and the others after it.
fn with_phases(graph: &Graph, forward: usize) -> Graph {
    let phase = |id| Some(if id < forward { Phase::Forward } else { Phase::Backward });
    graph.with_ops(|(id, op)| Op { phase: phase(id), ..op.clone() }).unwrap()
}

fn one_thread(budget: u64) -> Request {
    Request { threads: 1, ..Request::new(budget) }
}

/// A sample of the budgets at which something may change.
fn budgets(graph: &Graph) -> Vec<u64> {
    let peak = simulate(graph, &StoreAll::plan(graph)).peak_bytes;
    vec![peak, peak.saturating_sub(1), peak * 4 / 5, peak * 3 / 5, peak / 2, 0]
}

/// Compares and returns how many budgets could be met below the store-all peak.
fn agrees(graph: &Graph) -> usize {
    let mut tight = 0;
    for budget in budgets(graph) {
        let expected = brute_force(graph, budget);
        let context = || format!("{graph:#?}\nbudget {budget}");
        match (Monet.solve(graph, &one_thread(budget)), expected) {
            (Ok(outcome), Some(expected)) => {
                assert_eq!(outcome.makespan, expected, "{}", context());
                assert_eq!(outcome.status, Status::Optimal, "{}", context());
                assert!(outcome.lower_bound.unwrap() <= expected + 1e-6, "{}", context());
                check(graph, outcome.plan.as_ref().unwrap(), budget).unwrap();
                tight += usize::from(expected > StoreAll.solve(graph, &Request::new(u64::MAX)).unwrap().makespan);
            }
            (Err(PlanError::Infeasible { minimum, .. }), None) => {
                assert!(minimum.is_none_or(|minimum| minimum > budget));
                if let Some(minimum) = minimum {
                    assert!(brute_force(graph, minimum).is_some(), "{}", context());
                }
            }
            (found, expected) => panic!("{found:?} where {expected:?} is right\n{}", context()),
        }
    }
    tight
}

fn agrees_on(seeds: std::ops::Range<u64>) {
    let knobs =
        RandomGraphOptions { alternative: 0.5, scratch: 0.3, multi_output: 0.1, ..RandomGraphOptions::ops(2, 6) };
    let small = |graph: &Graph| graph.values().len() <= 9 && graph.ops().len() <= 8;
    let mut tight = 0;
    for seed in seeds {
        let graph = match seed % 3 {
            0 => random_graph(seed, &knobs),
            1 => {
                let graph = random_graph(seed, &knobs);
                with_phases(&graph, graph.ops().len().div_ceil(2))
            }
            _ => random_training_graph(seed, &RandomGraphOptions { most_ops: 3, ..knobs }),
        };
        if small(&graph) {
            tight += agrees(&graph);
        }
    }
    assert!(tight > 0, "no case that needs recomputation");
}

#[test]
fn plans_equal_brute_force_on_graphs_of_up_to_six_ops_with_alternatives() {
    agrees_on(0..150);
}

#[test]
#[ignore = "1,500 graphs: about two minutes in dev"]
fn plans_equal_brute_force_on_many_graphs() {
    agrees_on(150..1650);
}

/// conv reads x, relu reads conv, and its alternative computes both in one buffer; the backward ops read only relu.
fn conv_relu(in_place: bool) -> Graph {
    let mut builder = GraphBuilder::new("conv-relu");
    let [x, conv, relu, y, dy, dx] =
        [("x", 2), ("conv", 10), ("relu", 10), ("y", 4), ("dy", 14), ("dx", 4)].map(|(name, b)| builder.value(b, name));
    let phased = |phase, op: Op| Op { phase: Some(phase), ..op };
    builder.op(phased(Phase::Forward, Op::new("conv", 5.0, vec![x], vec![conv])));
    let mut op = phased(Phase::Forward, Op::new("relu", 1.0, vec![conv], vec![relu]));
    if in_place {
        op.alternatives.push(Alternative { name: "in place".into(), cost: 6.0, inputs: vec![x], scratch_bytes: 0 });
    }
    builder.op(op);
    builder.op(phased(Phase::Forward, Op::new("head", 1.0, vec![relu], vec![y])));
    let mut big = phased(Phase::Backward, Op::new("head.grad", 1.0, vec![y], vec![dy]));
    big.scratch_bytes = 10;
    builder.op(big);
    builder.op(phased(Phase::Backward, Op::new("conv.grad", 1.0, vec![relu, dy], vec![dx])));
    builder.build().unwrap()
}

#[test]
fn an_op_in_place_is_an_alternative_that_reads_what_its_producer_reads() {
    // After the head, relu is needed again beside 14 bytes: 34 with a separate conv, 26 without.
    let (apart, fused) = (conv_relu(false), conv_relu(true));
    assert!(matches!(Monet.solve(&apart, &one_thread(30)), Err(PlanError::Infeasible { .. })));
    let outcome = Monet.solve(&fused, &one_thread(30)).unwrap();
    assert_eq!(outcome.makespan, 15.0);
    assert!(outcome.plan.unwrap().steps.contains(&Step::ComputeAlternative(1, 0)));
}

#[test]
fn a_backward_op_may_read_the_output_in_place_of_the_input() {
    let mut builder = GraphBuilder::new("output-activated");
    let [a, b, g] = [10, 10, 10].map(|bytes| builder.value(bytes, ""));
    builder.op(Op { phase: Some(Phase::Forward), ..Op::new("a", 5.0, vec![], vec![a]) });
    builder.op(Op { phase: Some(Phase::Forward), ..Op::new("b", 1.0, vec![a], vec![b]) });
    let mut grad = Op { phase: Some(Phase::Backward), ..Op::new("b.grad", 1.0, vec![a, b], vec![g]) };
    grad.alternatives.push(Alternative { name: "by output".into(), cost: 2.0, inputs: vec![b], scratch_bytes: 0 });
    builder.op(grad);
    let graph = builder.build().unwrap();
    assert_eq!(Monet.solve(&graph, &one_thread(30)).unwrap().makespan, 7.0);
    assert_eq!(Monet.solve(&graph, &one_thread(29)).unwrap().makespan, 8.0);
    assert!(matches!(Monet.solve(&graph, &one_thread(19)), Err(PlanError::Infeasible { .. })));
}

#[test]
fn no_time_at_all_gives_a_plan_or_says_that_there_is_none_yet() {
    for name in ["linear", "residual", "unet"] {
        let graph = by_name(name, &Options { depth: 4, ..Options::default() }).unwrap();
        let peak = simulate(&graph, &StoreAll::plan(&graph)).peak_bytes;
        let request = Request { time_limit: Duration::ZERO, ..one_thread(peak * 3 / 4) };
        // A single op may need more than that: then there is no plan at all.
        let Ok(outcome) = Monet.solve(&graph, &request) else { continue };
        match outcome.plan {
            Some(plan) => assert!(check(&graph, &plan, request.budget).is_ok()),
            None => assert_eq!(outcome.status, Status::NoSolution),
        }
    }
}

#[test]
fn more_budget_never_makes_it_dearer_and_the_bound_holds() {
    // Small enough for a proof at every budget even on a busy machine.
    let graph = by_name("residual", &Options { depth: 2, ..Options::default() }).unwrap();
    let plain = simulate(&graph, &StoreAll::plan(&graph));
    let mut before = f64::INFINITY;
    for tenths in 5..=10 {
        let request = Request { time_limit: Duration::from_secs(20), ..one_thread(plain.peak_bytes / 10 * tenths) };
        let Ok(outcome) = Monet.solve(&graph, &request) else { continue };
        check(&graph, outcome.plan.as_ref().unwrap(), request.budget).unwrap();
        assert_eq!(outcome.status, Status::Optimal);
        assert!(outcome.makespan <= before);
        before = outcome.makespan;
    }
    assert!(before.is_finite());
}
