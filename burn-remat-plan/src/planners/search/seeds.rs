//! Orders to start from.

use std::time::Instant;

use super::construct::{Policy, construct};
use crate::graph::{Graph, OpId};
use crate::lower_bound::Hint;
use crate::minimum::minimum;
use crate::sequence::order_of;

/// An order that keeps at the moment of `hint` what it says, and recomputes the rest when it is needed.
pub(super) fn follow(graph: &Graph, hint: &Hint) -> Vec<OpId> {
    let ops = graph.ops();
    let mut order: Vec<OpId> = (0..=hint.moment).collect();
    let root = |v: usize| graph.producer(v).is_none_or(|op| !ops[op].recomputable);
    let mut resident: Vec<bool> = (0..graph.values().len()).map(|v| hint.kept[v] >= 0.5 || root(v)).collect();
    for &value in ops[hint.moment].outputs.iter().chain(&ops[hint.moment].inputs) {
        resident[value] = true;
    }
    for id in hint.moment + 1..=ops.len() {
        let targets = ops.get(id).map_or(graph.results(), |op| &op.inputs);
        let mut missing: Vec<usize> = targets.iter().copied().filter(|&v| !resident[v]).collect();
        let mut work = Vec::new();
        while let Some(value) = missing.pop() {
            if std::mem::replace(&mut resident[value], true) {
                continue;
            }
            if let Some(op) = graph.producer(value) {
                work.push(op);
                missing.extend(ops[op].inputs.iter().copied().filter(|&v| !resident[v]));
            }
        }
        work.sort_unstable();
        work.dedup();
        order.extend(work);
        if id < ops.len() {
            order.push(id);
            for &value in &ops[id].outputs {
                resident[value] = true;
            }
        }
    }
    order
}

/// An order that fits in the budget, the cheapest of several constructive passes; failing those, the plan of
/// [`minimum`]. After `deadline` no further pass is made.
pub(super) fn feasible(graph: &Graph, budget: u64, deadline: Instant) -> Option<Vec<OpId>> {
    let step_limit = 40 * graph.ops().len() + 20_000;
    let mut best: Option<(f64, Vec<OpId>)> = None;
    for (cost, distance) in [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (1.0, 2.0), (0.0, 1.0), (2.0, 1.0)] {
        if let Some(order) = construct(graph, budget, Policy { cost, distance, step_limit }) {
            let total = order.iter().map(|&op| graph.ops()[op].cost).sum();
            if best.as_ref().is_none_or(|&(least, _)| total < least) {
                best = Some((total, order));
            }
        }
        if Instant::now() > deadline {
            break;
        }
    }
    let least = || Some(minimum(graph)).filter(|least| least.achieved <= budget).map(|least| order_of(&least.plan));
    best.map(|(_, order)| order).or_else(least)
}
