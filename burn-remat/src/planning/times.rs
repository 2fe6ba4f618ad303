//! How long the steps of a plan take on the device.
//!
//! In the graph, an op costs the time to make its large results again, and the last op has the rest. Here every op takes as long as its operations do
//! when they first run. Complexity: O(operations + steps).

use std::ops::Range;

use burn_remat_core::Position;
use burn_remat_plan::{OpId, Plan, Step};

use super::lowering::Lowered;
use super::schedule::Schedule;

/// Time of every step of a plan.
pub(super) fn times(schedule: &Schedule, plan: &Plan) -> Vec<f64> {
    let lowered = &schedule.lowered;
    let firsts = firsts(lowered, plan);
    let alone = times_alone(schedule);
    let time = |(&step, &is_first): (&Step, &bool)| match step.op() {
        Some(op) if is_first => (alone[op] + lowered.cost_of(step) - lowered.cost_of(Step::Compute(op))).max(0.0),
        _ => lowered.cost_of(step),
    };
    plan.steps.iter().zip(&firsts).map(time).collect()
}

/// Which steps run an op for the first time.
pub(super) fn firsts(lowered: &Lowered, plan: &Plan) -> Vec<bool> {
    let mut seen = vec![false; lowered.graph.ops().len()];
    let mut is_first = |op: OpId| !std::mem::replace(&mut seen[op], true);
    plan.steps.iter().map(|step| step.op().is_some_and(&mut is_first)).collect()
}

/// Time of each op when it first runs by its default implementation.
fn times_alone(schedule: &Schedule) -> Vec<f64> {
    let lowered = &schedule.lowered;
    let ops = &schedule.trace.ops;
    let of_range = |range: &Range<Position>| {
        ops[range.start as usize..range.end as usize].iter().map(|op| op.cost_ns as f64).sum::<f64>()
    };
    let mut times: Vec<f64> = lowered.ranges.iter().map(of_range).collect();
    for op in 0..times.len() {
        if lowered.again[op] {
            times[op] = lowered.cost_of(Step::Compute(op));
        } else if lowered.forms.unpacks.contains(&op) {
            // Together with the op before it, which makes the form, it takes as long as the operations.
            times[op] = lowered.cost_of(Step::Compute(op));
            times[op - 1] -= times[op];
        }
    }
    times
}
