//! An op and the implementation that it runs with.
//!
//! An op has [`implementations`] implementations: number 0 is the op itself, k + 1 its `alternatives[k]`. Plans name
//! them with [`Step`]; the planners that choose among them share this file.

use crate::graph::{Graph, Op, OpId, ValueId};
use crate::plan::Step;

/// One computation of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    pub op: OpId,
    /// 0 is the op itself, k + 1 its alternative k.
    pub implementation: usize,
}

impl Choice {
    /// The op itself.
    pub fn default_of(op: OpId) -> Self {
        Self { op, implementation: 0 }
    }

    /// What a step computes; `None` for an eviction.
    pub fn of_step(step: Step) -> Option<Self> {
        match step {
            Step::Compute(op) => Some(Self::default_of(op)),
            Step::ComputeAlternative(op, k) => Some(Self { op, implementation: k + 1 }),
            Step::Evict(_) => None,
        }
    }

    pub fn step(self) -> Step {
        match self.implementation {
            0 => Step::Compute(self.op),
            k => Step::ComputeAlternative(self.op, k - 1),
        }
    }

    /// The values that it reads.
    pub fn inputs(self, graph: &Graph) -> &[ValueId] {
        implementation(&graph.ops()[self.op], self.implementation).0
    }

    pub fn scratch(self, graph: &Graph) -> u64 {
        implementation(&graph.ops()[self.op], self.implementation).2
    }

    pub fn cost(self, graph: &Graph) -> f64 {
        implementation(&graph.ops()[self.op], self.implementation).1
    }
}

/// How many implementations `op` has.
pub(crate) fn implementations(op: &Op) -> usize {
    1 + op.alternatives.len()
}

/// Inputs, cost and scratch of an implementation.
pub(crate) fn implementation(op: &Op, index: usize) -> (&[ValueId], f64, u64) {
    match index.checked_sub(1).and_then(|k| op.alternatives.get(k)) {
        Some(other) => (&other.inputs, other.cost, other.scratch_bytes),
        None => (&op.inputs, op.cost, op.scratch_bytes),
    }
}

/// With more implementations, none is compared with all others.
const MOST_COMPARED: usize = 500;

/// Implementations worth considering: those that no other one [`beats`].
pub(crate) fn useful_implementations(op: &Op) -> Vec<usize> {
    let all = 0..implementations(op);
    if all.len() > MOST_COMPARED {
        return all.collect();
    }
    all.clone().filter(|&b| !all.clone().any(|a| a != b && beats(op, a, b))).collect()
}

/// Whether implementation `a` is at least as good as `b` in inputs, cost and scratch; of two equals, the first wins.
pub(crate) fn beats(op: &Op, a: usize, b: usize) -> bool {
    let ((inputs, cost, scratch), (others, other_cost, other_scratch)) = (implementation(op, a), implementation(op, b));
    let no_worse = cost <= other_cost
        && scratch <= other_scratch
        && inputs.iter().all(|value| others.binary_search(value).is_ok());
    no_worse && (a < b || cost < other_cost || scratch < other_scratch || inputs.len() < others.len())
}

/// The cost of the cheapest implementation.
pub(crate) fn least_cost(op: &Op) -> f64 {
    op.alternatives.iter().map(|other| other.cost).fold(op.cost, f64::min)
}

/// Every op once, in its cheapest implementation: no schedule costs less.
pub(crate) fn least_makespan(graph: &Graph) -> f64 {
    graph.ops().iter().map(least_cost).sum()
}

/// Whether some op has several implementations.
pub(crate) fn has_alternatives(graph: &Graph) -> bool {
    graph.ops().iter().any(|op| !op.alternatives.is_empty())
}
