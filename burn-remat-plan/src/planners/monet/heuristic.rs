//! Schedules to start from: a set of values to keep, everything else computed again, and an implementation for each computation.

use super::stages::{Candidate, Stages, sequence};
use crate::choice::{Choice, implementation, useful_implementations};
use crate::deadline::Deadline;
use crate::graph::{Graph, ValueId};
use crate::planner::{Planner, Request};
use crate::planners::FengHuang;

/// Steps that the greedy search may spend on simulation.
const EFFORT: usize = 30_000_000;

/// The best schedule found for the budget, and the smallest peak seen on the way.
pub(super) struct Start {
    pub best: Option<Candidate>,
    pub smallest: Candidate,
}

impl Start {
    pub fn offer(&mut self, candidate: Candidate, budget: u64) -> bool {
        let (peak, cost) = (candidate.timeline.peak_bytes, candidate.timeline.makespan);
        if peak < self.smallest.timeline.peak_bytes {
            self.smallest = candidate.clone();
        }
        let better = peak <= budget && self.best.as_ref().is_none_or(|best| cost < best.timeline.makespan);
        if better {
            self.best = Some(candidate);
        }
        better
    }
}

/// Store-all alone, in the lightest and in cheaper implementations.
pub(super) fn store_all(graph: &Graph, stages: &Stages, budget: u64) -> Start {
    let store_all = light(graph, sequence(graph, stages, &vec![true; graph.values().len()]));
    let mut start = Start { best: None, smallest: store_all.clone() };
    for candidate in [improve(graph, &store_all, budget), store_all] {
        start.offer(candidate, budget);
    }
    start
}

/// Store-all, the checkpoints of `feng-huang`, and the result of a greedy search that starts by keeping nothing.
pub(super) fn start(graph: &Graph, stages: &Stages, request: &Request, deadline: Deadline) -> Start {
    let budget = request.budget;
    let values = graph.values().len();
    let late = || deadline.passed();
    let mut start = store_all(graph, stages, budget);
    if start.best.is_some() {
        return start;
    }
    let nothing = vec![false; values];
    let mut sets = vec![nothing.clone()];
    let time_limit = deadline.left() / 4;
    let unlimited = Request { budget: u64::MAX, time_limit, progress: None, ..request.clone() };
    if let Ok(Some(found)) = FengHuang.solve(graph, &unlimited).map(|outcome| outcome.checkpoints) {
        let mut keep = nothing;
        found.values.into_iter().for_each(|value| keep[value] = true);
        sets.push(keep);
    }
    for mut keep in sets {
        let mut candidate = light(graph, sequence(graph, stages, &keep));
        let mut effort = 0;
        for value in by_worth(graph) {
            if late() || effort > EFFORT {
                break;
            }
            if keep[value] {
                continue;
            }
            keep[value] = true;
            let next = light(graph, sequence(graph, stages, &keep));
            effort += next.choices.len() + values;
            let (peak, before) = (next.timeline.peak_bytes, candidate.timeline.peak_bytes);
            let cheaper = next.timeline.makespan <= candidate.timeline.makespan;
            if peak <= before.max(budget) && cheaper {
                candidate = next;
            } else {
                keep[value] = false;
            }
        }
        if !late() {
            start.offer(improve(graph, &candidate, budget), budget);
        }
        start.offer(candidate, budget);
    }
    start
}

/// Values by the cost of making them per byte, the most expensive first; values of no size come before all others.
fn by_worth(graph: &Graph) -> Vec<ValueId> {
    let cost = |value: ValueId| graph.producer(value).map_or(0.0, |op| graph.ops()[op].cost);
    let worth = |value: ValueId| (cost(value) + f64::MIN_POSITIVE) / graph.bytes(value) as f64;
    let mut order: Vec<ValueId> = (0..graph.values().len()).collect();
    order.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)));
    order
}

/// Every op in the lightest implementation that reads nothing beyond what the op itself reads.
fn light(graph: &Graph, order: Vec<usize>) -> Candidate {
    let choose = |op: usize| {
        let node = &graph.ops()[op];
        let within =
            |&k: &usize| implementation(node, k).0.iter().all(|value| node.inputs.binary_search(value).is_ok());
        let implementation = useful_implementations(node)
            .into_iter()
            .filter(within)
            .min_by(|&a, &b| {
                let ((_, cost, scratch), (_, other, more)) = (implementation(node, a), implementation(node, b));
                scratch.cmp(&more).then(cost.total_cmp(&other))
            })
            .unwrap_or(0);
        Choice { op, implementation }
    };
    Candidate::new(graph, order.into_iter().map(choose).collect())
}

/// Uses cheaper implementations that read no more, wherever the peak stays within the budget.
pub(super) fn improve(graph: &Graph, candidate: &Candidate, budget: u64) -> Candidate {
    let mut best = candidate.clone();
    let mut effort = 0;
    for at in 0..best.choices.len() {
        let Choice { op, implementation: current } = best.choices[at];
        let node = &graph.ops()[op];
        for other in useful_implementations(node) {
            let (inputs, cost, _) = implementation(node, other);
            let readable = inputs.iter().all(|value| node.inputs.binary_search(value).is_ok());
            if effort > EFFORT || !readable || cost >= implementation(node, current).1 {
                continue;
            }
            let mut choices = best.choices.clone();
            choices[at].implementation = other;
            effort += choices.len();
            let next = Candidate::new(graph, choices);
            if next.timeline.makespan < best.timeline.makespan && next.timeline.peak_bytes <= budget {
                best = next;
            }
        }
    }
    best
}
