//! What every schedule must hold at some moment: no smaller budget is feasible.
//!
//! While op k runs for the first time, its inputs, outputs and scratch are resident (at least those of
//! its lightest implementation), and so is every value that a later first computation (or the end) is sure to use and that
//! cannot be computed again: a [root](Graph::is_root). The largest such sum over all k bounds every schedule; the op and
//! those values are the certificate. All inputs are resident at the start and all results at the end: two more bounds.
//!
//! Complexity: O(values + uses).

use crate::choice::{implementation, implementations};
use crate::graph::{Graph, OpId, ValueId};

/// What sets the smallest feasible budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The inputs of the graph: all are resident at the start.
    Start,
    /// What every schedule holds while this op runs for the first time.
    Op(OpId),
    /// The results: all are resident at the end.
    End,
    /// No single moment: all schedules were tried. The values given are those that the plan holds at its peak, while this op runs.
    Exhaustion(OpId),
}

/// The values that an op reads whatever implementation is chosen.
fn certain_inputs(graph: &Graph, op: OpId) -> Vec<ValueId> {
    let op = &graph.ops()[op];
    op.inputs.iter().copied().filter(|v| op.alternatives.iter().all(|a| a.inputs.binary_search(v).is_ok())).collect()
}

/// The last op whose first computation is sure to use each value, `ops().len()` for results.
fn last_certain_uses(graph: &Graph) -> Vec<Option<OpId>> {
    let mut last = vec![None; graph.values().len()];
    for op in 0..graph.ops().len() {
        for value in certain_inputs(graph, op) {
            last[value] = Some(op);
        }
    }
    for &value in graph.results() {
        last[value] = Some(graph.ops().len());
    }
    last
}

/// The values that are resident in every schedule at a moment, and the scratch then.
pub(crate) fn together(graph: &Graph, set_by: SetBy) -> (Vec<ValueId>, u64) {
    let op = match set_by {
        SetBy::Start => return (graph.inputs().collect(), 0),
        SetBy::End => return (graph.results().to_vec(), 0),
        SetBy::Op(op) | SetBy::Exhaustion(op) => op,
    };
    let last = last_certain_uses(graph);
    let mut values: Vec<ValueId> = (0..graph.values().len())
        .filter(|&v| {
            let produced = graph.producer(v).is_none_or(|p| p < op);
            produced && graph.is_root(v) && last[v].is_some_and(|last| last > op)
        })
        .collect();
    let lightest = lightest_inputs(graph, op, &last);
    values.extend(lightest.inputs);
    values.extend_from_slice(&graph.ops()[op].outputs);
    values.sort_unstable();
    values.dedup();
    (values, lightest.scratch)
}

/// What an implementation needs in addition to the roots that are used later.
struct Needs {
    inputs: Vec<ValueId>,
    scratch: u64,
    /// Bytes of both.
    bytes: u64,
}

/// The implementation of `op` that needs the least in addition to the roots used later.
fn lightest_inputs(graph: &Graph, op: OpId, last: &[Option<OpId>]) -> Needs {
    let is_held = |v: ValueId| graph.is_root(v) && last[v].is_some_and(|last| last > op);
    let weigh = |k: usize| {
        let (inputs, _, scratch) = implementation(&graph.ops()[op], k);
        let inputs: Vec<ValueId> = inputs.iter().copied().filter(|&v| !is_held(v)).collect();
        let bytes = graph.bytes_of(&inputs) + scratch;
        Needs { inputs, scratch, bytes }
    };
    (1..implementations(&graph.ops()[op]))
        .map(weigh)
        .fold(weigh(0), |least, way| if way.bytes < least.bytes { way } else { least })
}

/// The bytes that some moment of every schedule holds, and that moment.
pub(crate) fn largest(graph: &Graph) -> (u64, SetBy) {
    let start = graph.constant_bytes() + graph.inputs().map(|v| graph.bytes(v)).sum::<u64>();
    let end = graph.constant_bytes() + graph.bytes_of(graph.results());
    let ops = needs(graph).into_iter().enumerate().map(|(op, need)| (need, SetBy::Op(op)));
    // Among equals, the first op wins, then the start.
    let moments = ops.chain([(start, SetBy::Start), (end, SetBy::End)]);
    moments.fold((0, SetBy::Op(0)), |most, moment| if moment.0 > most.0 { moment } else { most })
}

/// Whether it is certain that no schedule fits in `budget`.
pub(crate) fn is_too_little(graph: &Graph, budget: u64) -> bool {
    budget < largest(graph).0
}

/// The bytes that are resident in every schedule while each op runs for the first time.
pub(crate) fn needs(graph: &Graph) -> Vec<u64> {
    let last = last_certain_uses(graph);
    let end = graph.ops().len();
    // Bytes of the roots that are needed after each op, found in one sweep; `leaving` has the ops at which they stop counting.
    let mut leaving = vec![0u64; end + 1];
    let mut held = graph.constant_bytes();
    for value in graph.inputs() {
        if let Some(at) = last[value] {
            held += graph.bytes(value);
            leaving[at] += graph.bytes(value);
        }
    }
    let mut needs = Vec::with_capacity(end);
    for id in 0..end {
        // Roots whose last use is this very op stop counting here and come back among its inputs.
        held -= leaving[id];
        let op = &graph.ops()[id];
        needs.push(held + lightest_inputs(graph, id, &last).bytes + graph.bytes_of(&op.outputs));
        if !op.recomputable {
            for &value in &op.outputs {
                if let Some(at) = last[value].filter(|&at| at > id) {
                    held += graph.bytes(value);
                    leaving[at] += graph.bytes(value);
                }
            }
        }
    }
    needs
}
