//! What a plan costs: memory at every step, peak and makespan.
//!
//! One pass over the steps with a set of resident values: O(steps + uses). It expects a valid plan and does not
//! check validity; that is the work of the checker, which shares no code with this file.

use crate::graph::Graph;
use crate::plan::{Plan, Step};

/// Memory over the steps of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Bytes held during each step: for a computation, with outputs and scratch; for an eviction, what remains after it.
    pub bytes: Vec<u64>,
    /// The most bytes held at any step or at the start.
    pub peak_bytes: u64,
    /// Sum of the costs of all computations, in the unit of the graph.
    pub makespan: f64,
}

/// Runs through `plan` and records memory and cost.
pub fn simulate(graph: &Graph, plan: &Plan) -> Timeline {
    let mut resident = vec![false; graph.values().len()];
    let mut held = graph.constant_bytes();
    for value in graph.inputs() {
        resident[value] = true;
        held += graph.bytes(value);
    }
    let mut timeline = Timeline { bytes: Vec::with_capacity(plan.steps.len()), peak_bytes: held, makespan: 0.0 };
    for &step in &plan.steps {
        let during = match step {
            Step::Evict(value) => {
                if std::mem::replace(&mut resident[value], false) {
                    held -= graph.bytes(value);
                }
                held
            }
            Step::Compute(id) | Step::ComputeAlternative(id, _) => {
                let op = &graph.ops()[id];
                let (cost, scratch) = match step {
                    Step::ComputeAlternative(_, k) => (op.alternatives[k].cost, op.alternatives[k].scratch_bytes),
                    _ => (op.cost, op.scratch_bytes),
                };
                timeline.makespan += cost;
                for &value in &op.outputs {
                    if !std::mem::replace(&mut resident[value], true) {
                        held += graph.bytes(value);
                    }
                }
                held + scratch
            }
        };
        timeline.peak_bytes = timeline.peak_bytes.max(during);
        timeline.bytes.push(during);
    }
    timeline
}
