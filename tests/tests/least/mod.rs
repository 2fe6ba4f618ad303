//! What no schedule of a step can do without, found from its graph alone.

use burn_remat::planner::{Graph, OpId, ValueId};

/// Bytes that every schedule holds while some op runs: its inputs and outputs by the implementation that takes least, and what cannot be computed
/// again and is still needed. Complexity: O(ops x (ops + uses)).
pub fn least(graph: &Graph) -> u64 {
    (0..graph.ops().len()).map(|op| while_running(graph, op)).max().unwrap_or(0)
}

fn while_running(graph: &Graph, op: OpId) -> u64 {
    let is_there = |value: ValueId| graph.producer(value).is_none_or(|maker| maker < op);
    let is_needed = |value: ValueId| graph.is_result(value) || reads(graph, op..graph.ops().len(), value);
    let stays = |value: &ValueId| graph.is_root(*value) && is_there(*value) && is_needed(*value);
    let roots: Vec<ValueId> = (0..graph.values().len()).filter(stays).collect();
    let this = &graph.ops()[op];
    let others = this.alternatives.iter().map(|other| (&other.inputs, other.scratch_bytes));
    let held = others.chain([(&this.inputs, this.scratch_bytes)]).map(|(inputs, scratch)| {
        let mut values: Vec<ValueId> = roots.iter().chain(inputs).chain(&this.outputs).copied().collect();
        values.sort_unstable();
        values.dedup();
        graph.bytes_of(&values) + scratch
    });
    graph.constant_bytes() + held.min().unwrap_or(0)
}

/// Whether every implementation of some of these ops reads `value`.
fn reads(graph: &Graph, mut ops: std::ops::Range<OpId>, value: ValueId) -> bool {
    ops.any(|op| {
        let op = &graph.ops()[op];
        op.inputs.contains(&value) && op.alternatives.iter().all(|other| other.inputs.contains(&value))
    })
}
