//! The smallest feasible budget, with its certificate.
//!
//! *Lower half.* While op k runs for the first time, its inputs, outputs and scratch are resident (those of its lightest
//! implementation at least), and so is every value that a later first computation (or the end) uses in any case and that
//! cannot be computed again: an input of the graph or an output of an op that may run only once. The largest such sum over all k bounds every schedule; the op and those
//! values are the certificate. At the start all inputs are resident, which bounds too.
//!
//! At the end all results are resident, which bounds too.
//!
//! *Upper half.* The smallest peak of the plans that several methods find (`upper.rs`).
//!
//! On small graphs an exhaustive search closes what is left between the halves, as far as it gets (`exhaust.rs`).
//!
//! Where the halves meet, [`Minimum::is_exact`]. Between them lies the question whether *unlimited* recomputation
//! helps, a pebbling problem (PSPACE-hard in general).
//!
//! Complexity: O(n + uses) for the lower half; for the upper one see there.

mod exhaust;
mod upper;

use crate::choice::{Choice, has_alternatives, implementation, implementations};
use crate::graph::{Graph, OpId, ValueId};
use crate::plan::{Plan, Step};
use crate::simulate::simulate;
use upper::Best;

/// The smallest feasible budget of a graph: see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Minimum {
    /// No schedule at all fits in less.
    pub lower_bound: u64,
    /// The smallest budget for which a plan is known: the peak of [`plan`](Self::plan).
    pub achieved: u64,
    /// A plan with that peak.
    pub plan: Plan,
    /// The op that needs it, as [`set_by`](Self::set_by) says: for the start the first op, for the end the last.
    pub blocking_op: OpId,
    /// The moment at which `together` are resident.
    pub set_by: SetBy,
    /// The values that must be resident together at that moment, ascending: with the constant bytes and `scratch_bytes`
    /// they make up `lower_bound`, except where an exhaustive search of a small graph proved more without finding a plan
    /// that holds no more.
    pub together: Vec<ValueId>,
    /// The scratch at that moment: that of the lightest implementation of its op.
    pub scratch_bytes: u64,
}

/// What sets the smallest feasible budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The inputs of the graph: all are resident at the start.
    Start,
    /// What every schedule holds while this op runs for the first time.
    Op(OpId),
    /// The results: all are resident at the end.
    End,
    /// No single moment: all schedules were tried. What is told is what the plan holds at its peak, while this op runs.
    Exhaustion(OpId),
}

impl Minimum {
    /// Whether `achieved` is proven to be the smallest feasible budget.
    pub fn is_exact(&self) -> bool {
        self.lower_bound == self.achieved
    }

    /// The op that needs it, unless the start or the end of every schedule does.
    pub fn op(&self) -> Option<OpId> {
        matches!(self.set_by, SetBy::Op(_) | SetBy::Exhaustion(_)).then_some(self.blocking_op)
    }

    /// What [`together`](Self::together), the scratch and the constant bytes add up to.
    pub fn bytes_together(&self, graph: &Graph) -> u64 {
        graph.constant_bytes() + graph.bytes_of(&self.together) + self.scratch_bytes
    }
}

/// Finds the smallest feasible budget of `graph`.
///
/// ```
/// use burn_remat_plan::{GraphBuilder, Op, minimum};
///
/// let mut builder = GraphBuilder::new("chain");
/// let (x, y, z) = (builder.value(8, "x"), builder.value(4, "y"), builder.value(2, "z"));
/// builder.op(Op::new("f", 1.0, vec![], vec![x]));
/// builder.op(Op::new("g", 1.0, vec![x], vec![y]));
/// builder.op(Op::new("h", 1.0, vec![y], vec![z]));
/// let minimum = minimum(&builder.build()?);
/// assert_eq!((minimum.achieved, minimum.blocking_op), (12, 1));
/// assert!(minimum.is_exact());
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
pub fn minimum(graph: &Graph) -> Minimum {
    let (certified, set_by) = lower_half(graph);
    let mut best = upper::best(graph, certified);
    let lower_bound = exhaust::close(graph, certified, &mut best);
    let (set_by, (together, scratch_bytes)) = match peak_of(graph, &best) {
        Some((step, op, held)) if lower_bound > certified && lower_bound == best.peak => {
            let scratch = Choice::of_step(step).map_or(0, |choice| choice.scratch(graph));
            (SetBy::Exhaustion(op), (held, scratch))
        }
        _ => (set_by, together(graph, set_by)),
    };
    let blocking_op = match set_by {
        SetBy::Start => 0,
        SetBy::Op(op) | SetBy::Exhaustion(op) => op,
        SetBy::End => graph.ops().len() - 1,
    };
    let Best { plan, peak: achieved } = best;
    Minimum { lower_bound, achieved, plan, blocking_op, set_by, together, scratch_bytes }
}

/// The computation at which a plan holds its peak, and the values that it then holds.
fn peak_of(graph: &Graph, best: &Best) -> Option<(Step, OpId, Vec<ValueId>)> {
    let timeline = simulate(graph, &best.plan);
    let at = timeline.bytes.iter().position(|&bytes| bytes == timeline.peak_bytes)?;
    let op = best.plan.steps[at].op()?;
    let mut resident: Vec<bool> = (0..graph.values().len()).map(|v| graph.producer(v).is_none()).collect();
    for step in &best.plan.steps[..=at] {
        match (*step, step.op()) {
            (Step::Evict(value), _) => resident[value] = false,
            (_, Some(op)) => graph.ops()[op].outputs.iter().for_each(|&value| resident[value] = true),
            _ => {}
        }
    }
    Some((best.plan.steps[at], op, (0..resident.len()).filter(|&v| resident[v]).collect()))
}

/// The last op whose first computation uses each value, `ops().len()` for results.
fn last_uses(graph: &Graph) -> Vec<Option<OpId>> {
    let end = graph.ops().len();
    (0..graph.values().len())
        .map(|v| if graph.is_result(v) { Some(end) } else { graph.consumers(v).last().copied() })
        .collect()
}

fn is_root(graph: &Graph, value: ValueId) -> bool {
    graph.producer(value).is_none_or(|op| !graph.ops()[op].recomputable)
}

/// What an op reads whatever implementation is chosen.
fn certain_inputs(graph: &Graph, op: OpId) -> Vec<ValueId> {
    let op = &graph.ops()[op];
    op.inputs.iter().copied().filter(|v| op.alternatives.iter().all(|a| a.inputs.binary_search(v).is_ok())).collect()
}

/// The last *certain* use: with alternatives a use may be avoided.
fn last_certain_uses(graph: &Graph) -> Vec<Option<OpId>> {
    if !has_alternatives(graph) {
        return last_uses(graph);
    }
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
fn together(graph: &Graph, set_by: SetBy) -> (Vec<ValueId>, u64) {
    let op = match set_by {
        SetBy::Start => return (graph.inputs().collect(), 0),
        SetBy::End => return (graph.results().to_vec(), 0),
        SetBy::Op(op) | SetBy::Exhaustion(op) => op,
    };
    let last = last_certain_uses(graph);
    let mut values: Vec<ValueId> = (0..graph.values().len())
        .filter(|&v| {
            let produced = graph.producer(v).is_none_or(|p| p < op);
            produced && is_root(graph, v) && last[v].is_some_and(|last| last > op)
        })
        .collect();
    let lightest = lightest_inputs(graph, op, &last);
    values.extend(lightest.inputs);
    values.extend_from_slice(&graph.ops()[op].outputs);
    values.sort_unstable();
    values.dedup();
    (values, lightest.scratch)
}

/// What an implementation needs beside the roots that are used later.
struct Needs {
    inputs: Vec<ValueId>,
    scratch: u64,
    /// Of both.
    bytes: u64,
}

/// The implementation of `op` that needs least beside the roots used later.
fn lightest_inputs(graph: &Graph, op: OpId, last: &[Option<OpId>]) -> Needs {
    let is_held = |v: ValueId| is_root(graph, v) && last[v].is_some_and(|last| last > op);
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
fn lower_half(graph: &Graph) -> (u64, SetBy) {
    let start = graph.constant_bytes() + graph.inputs().map(|v| graph.bytes(v)).sum::<u64>();
    let end = graph.constant_bytes() + graph.bytes_of(graph.results());
    let ops = needs(graph).into_iter().enumerate().map(|(op, need)| (need, SetBy::Op(op)));
    // Of equals the first op, then the start.
    let moments = ops.chain([(start, SetBy::Start), (end, SetBy::End)]);
    moments.fold((0, SetBy::Op(0)), |most, moment| if moment.0 > most.0 { moment } else { most })
}

/// Whether it is certain that no schedule at all fits in `budget`.
pub(crate) fn is_too_little(graph: &Graph, budget: u64) -> bool {
    budget < lower_half(graph).0
}

/// The bytes that are resident in every schedule while each op runs for the first time.
pub(crate) fn needs(graph: &Graph) -> Vec<u64> {
    let last = last_certain_uses(graph);
    let end = graph.ops().len();
    // Bytes of the roots that are needed after each op, found by sweeping with the ops at which they stop counting.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};

    #[test]
    fn a_chain_needs_two_neighbours() {
        let mut builder = GraphBuilder::new("chain");
        let values: Vec<_> = (0..6).map(|i| builder.value(10 + i, "")).collect();
        for i in 0..6 {
            let inputs = if i == 0 { vec![] } else { vec![values[i - 1]] };
            builder.op(Op::new("", 1.0, inputs, vec![values[i]]));
        }
        let found = minimum(&builder.build().unwrap());
        assert!(found.is_exact());
        assert_eq!((found.achieved, found.blocking_op), (29, 5));
        assert_eq!(found.together, [4, 5]);
    }

    #[test]
    fn an_input_used_late_counts_all_the_way() {
        let mut builder = GraphBuilder::new("late input");
        let x = builder.value(100, "x");
        let (a, b, c) = (builder.value(1, "a"), builder.value(50, "b"), builder.value(1, "c"));
        builder.op(Op::new("a", 1.0, vec![x], vec![a]));
        builder.op(Op::new("b", 1.0, vec![a], vec![b]));
        builder.op(Op::new("c", 1.0, vec![x, b], vec![c]));
        let found = minimum(&builder.build().unwrap());
        assert_eq!((found.lower_bound, found.achieved), (151, 151));
        assert_eq!(found.blocking_op, 1);
        assert_eq!(found.together, [x, a, b]);
    }

    #[test]
    fn recomputation_lowers_the_minimum_below_the_store_all_peak() {
        let mut builder = GraphBuilder::new("skip");
        let v: Vec<_> = [10, 1, 10, 1, 1].iter().map(|&bytes| builder.value(bytes, "")).collect();
        builder.op(Op::new("", 1.0, vec![], vec![v[0]]));
        builder.op(Op::new("", 1.0, vec![v[0]], vec![v[1]]));
        builder.op(Op::new("", 1.0, vec![v[1]], vec![v[2]]));
        builder.op(Op::new("", 1.0, vec![v[2]], vec![v[3]]));
        builder.op(Op::new("", 1.0, vec![v[0], v[3]], vec![v[4]]));
        let found = minimum(&builder.build().unwrap());
        assert_eq!(found.achieved, 12);
        assert!(found.is_exact());
    }

    fn read(text: &str) -> (Graph, Minimum) {
        let graph = Graph::from_json(text).unwrap();
        let found = minimum(&graph);
        (graph, found)
    }

    #[test]
    fn inputs_that_are_heavier_than_any_op_set_it() {
        let (_, found) = read(
            r#"{"format": "remat-graph/1", "values": [{"bytes": 50}, {"bytes": 30}, {"bytes": 1}],
                "ops": [{"cost": 1, "inputs": [], "outputs": [2]}]}"#,
        );
        assert_eq!((found.lower_bound, found.set_by, found.together), (80, SetBy::Start, vec![0, 1]));
    }

    #[test]
    fn results_that_are_heavier_than_any_op_set_it() {
        let (graph, found) = read(
            r#"{"format": "remat-graph/1", "constant_bytes": 9, "values": [{"bytes": 8}, {"bytes": 1}, {"bytes": 4}],
                "ops": [{"cost": 5, "inputs": [0], "outputs": [1]}, {"cost": 2, "inputs": [], "outputs": [2]}],
                "results": [2, 0, 1]}"#,
        );
        assert_eq!((found.achieved, found.set_by, found.bytes_together(&graph)), (22, SetBy::End, 22));
    }

    #[test]
    fn the_scratch_is_that_of_the_lightest_implementation() {
        let (graph, found) = read(
            r#"{"format": "remat-graph/1", "values": [{"bytes": 4}, {"bytes": 8}, {"bytes": 8}], "ops": [
                {"cost": 1, "inputs": [], "outputs": [0]}, {"cost": 1, "inputs": [0], "outputs": [1]},
                {"cost": 3, "inputs": [1, 0], "outputs": [2],
                 "alternatives": [{"cost": 3, "inputs": [1], "scratch_bytes": 2}]}]}"#,
        );
        assert_eq!((found.lower_bound, found.scratch_bytes, found.bytes_together(&graph)), (18, 2, 18));
    }
}
