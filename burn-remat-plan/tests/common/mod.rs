//! Random graphs and a naive validity check for the tests of single planners.

#![allow(dead_code, reason = "each test file uses its part")]

use burn_remat_plan::{Graph, GraphBuilder, Op, Phase, Plan, Step};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct RawOp {
    cost: u8,
    outputs: Vec<u8>,
    /// Inputs as distances back from the newest value.
    inputs: Vec<usize>,
    scratch: u8,
    root: bool,
}

fn raw_op() -> impl Strategy<Value = RawOp> {
    (
        0..8u8,
        prop_oneof![6 => proptest::collection::vec(0..8u8, 1), 1 => proptest::collection::vec(0..8u8, 0..4)],
        proptest::collection::vec(prop_oneof![3 => 0..3usize, 1 => 0..30usize], 0..4),
        prop_oneof![4 => Just(0u8), 1 => 1..6u8],
        proptest::bool::weighted(0.08),
    )
        .prop_map(|(cost, outputs, inputs, scratch, root)| RawOp { cost, outputs, inputs, scratch, root })
}

/// Graphs of up to `most` ops: several outputs, graph inputs, scratch, ops that run once, zero sizes and costs, and
/// phases that are given in half of the cases.
pub fn random_graph(most: usize) -> impl Strategy<Value = Graph> {
    let inputs = proptest::collection::vec(0..6u8, 0..3);
    let ops = proptest::collection::vec(raw_op(), 1..=most);
    (inputs, ops, 0..5u8, proptest::option::of(0.2..0.8f64), proptest::option::of(0..40usize)).prop_map(
        |(inputs, raw, constant, boundary, result)| {
            let mut builder = GraphBuilder::new("random");
            builder.constant_bytes(u64::from(constant));
            let mut values: Vec<usize> = inputs.iter().map(|&bytes| builder.value(u64::from(bytes), "")).collect();
            let count = raw.len();
            for (i, raw) in raw.iter().enumerate() {
                let inputs = raw.inputs.iter().filter_map(|&back| values.iter().rev().nth(back).copied()).collect();
                let outputs: Vec<_> = raw.outputs.iter().map(|&bytes| builder.value(u64::from(bytes), "")).collect();
                let phase = boundary
                    .map(|share| if (i as f64) < share * count as f64 { Phase::Forward } else { Phase::Backward });
                builder.op(Op {
                    scratch_bytes: u64::from(raw.scratch),
                    recomputable: !raw.root,
                    phase,
                    ..Op::new(format!("op{i}"), f64::from(raw.cost), inputs, outputs.clone())
                });
                values.extend(outputs);
            }
            if let Some(result) = result.filter(|_| !values.is_empty()) {
                builder.results(vec![values[result % values.len()], *values.last().expect("not empty")]);
            }
            builder.build().expect("the generator makes valid graphs")
        },
    )
}

/// What is wrong with a plan, strictly by the definition in `plan.rs`.
pub fn violations(graph: &Graph, plan: &Plan, budget: u64) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut resident: std::collections::BTreeSet<usize> = graph.inputs().collect();
    let mut computed = vec![0usize; graph.ops().len()];
    let mut frontier = 0;
    let held = |resident: &std::collections::BTreeSet<usize>| {
        graph.constant_bytes() + resident.iter().map(|&value| graph.bytes(value)).sum::<u64>()
    };
    if held(&resident) > budget {
        wrong.push("the inputs alone exceed the budget".to_owned());
    }
    for (at, &step) in plan.steps.iter().enumerate() {
        match step {
            Step::Compute(op) => {
                let node = &graph.ops()[op];
                for value in node.inputs.iter().filter(|value| !resident.contains(value)) {
                    wrong.push(format!("step {at}: op {op} lacks value {value}"));
                }
                if computed[op] == 0 {
                    if op != frontier {
                        wrong.push(format!("step {at}: op {op} first computed out of order"));
                    }
                    frontier += 1;
                } else if !node.recomputable {
                    wrong.push(format!("step {at}: op {op} may not run again"));
                }
                computed[op] += 1;
                resident.extend(&node.outputs);
                if held(&resident) + node.scratch_bytes > budget {
                    wrong.push(format!("step {at}: over budget"));
                }
            }
            Step::Evict(value) => {
                if !resident.remove(&value) {
                    wrong.push(format!("step {at}: value {value} is not resident"));
                }
            }
            Step::ComputeAlternative(..) => wrong.push(format!("step {at}: an alternative")),
        }
    }
    if computed.contains(&0) {
        wrong.push("an op is never computed".to_owned());
    }
    if graph.results().iter().any(|value| !resident.contains(value)) {
        wrong.push("a result is missing at the end".to_owned());
    }
    wrong
}
