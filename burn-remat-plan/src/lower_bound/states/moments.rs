//! The first computations that are worth searching from first.
//!
//! A search gets far if only few sets of values can be resident. So it is tried from first computations that leave less
//! room than those around them, and from all that leave next to no choice.

use std::cmp::Reverse;

use super::model::{Model, Way};
use crate::graph::OpId;

/// The moments to search from, in execution order.
pub(super) fn narrow<const W: usize>(model: &Model<W>, budget: u64) -> Vec<OpId> {
    let count = model.outputs.len();
    let room: Vec<u64> = (0..count).map(|op| room(model, budget, op)).collect();
    let rank = |op: usize| (room[op], Reverse(op));
    let about = (count / 200).max(2);
    let is_narrowest = |op: usize| {
        let (from, to) = (op.saturating_sub(about), (op + about + 1).min(count));
        (from..to).all(|other| rank(op) <= rank(other))
    };
    let mut found: Vec<OpId> = Vec::new();
    for op in 0..count {
        let is_apart = || found.last().is_none_or(|&last| op - last > count / 100);
        if is_narrowest(op) || is_apart() && model.ways_of(op).iter().all(|way| has_few_choices(model, budget, way)) {
            found.push(op);
        }
    }
    found
}

fn room<const W: usize>(model: &Model<W>, budget: u64, op: OpId) -> u64 {
    let need = |way: &Way<W>| way.extra + model.weigh(&way.inputs.union(&model.outputs[op]));
    let least = model.ways_of(op).iter().map(need).min().unwrap_or(0);
    budget.saturating_sub(model.held[op] + model.fresh_roots[op] + least)
}

/// How many steps may be spent on finding out what can stay.
const FEW: usize = 1_000;

/// Whether only few sets can be resident when `way` is a first computation.
fn has_few_choices<const W: usize>(model: &Model<W>, budget: u64, way: &Way<W>) -> bool {
    let op = way.op;
    let needed = way.inputs.union(&model.outputs[op]);
    let all = model.useful[op].union(&needed);
    let need = way.extra + model.held[op] + model.fresh_roots[op] + model.weigh(&all);
    let mut weights: Vec<u64> = all.minus(&needed).members().map(|group| model.weights[group]).collect();
    weights.sort_unstable_by_key(|&weight| Reverse(weight));
    let mut rest = vec![0; weights.len() + 1];
    for (at, weight) in weights.iter().enumerate().rev() {
        rest[at] = rest[at + 1] + weight;
    }
    let mut stack = vec![(0, need.saturating_sub(budget))];
    let mut visited = 0;
    while let Some((at, over)) = stack.pop() {
        visited += 1;
        if visited > FEW {
            return false;
        }
        if over > 0 && over <= rest[at] {
            stack.push((at + 1, over));
            stack.push((at + 1, over.saturating_sub(weights[at])));
        }
    }
    true
}
