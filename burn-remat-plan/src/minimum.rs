//! The smallest feasible budget, with its certificate.
//!
//! *Lower half.* While op k runs for the first time, its inputs, outputs and scratch are resident (those of its lightest
//! implementation at least), and so is every value that a later first computation (or the end) uses in any case and that
//! cannot be computed again: an input of the graph or an output of an op that may run only once. The largest such sum over all k bounds every schedule; the op and those
//! values are the certificate. At the start all inputs are resident, which bounds too.
//!
//! *Upper half.* A plan that was found: a constructive pass (see `planners::search`) at the lower half, and where that
//! fails the smallest budget at which a pass succeeds, by bisection down from the store-all peak. Where ops have
//! alternatives, once in default implementations and once in those of the least working set.
//!
//! On small graphs the exact search then bisects what is left between the halves.
//!
//! Where the halves meet, [`Minimum::is_exact`]. Between them lies the question whether *unlimited* recomputation
//! helps, a pebbling problem (PSPACE-hard in general); passes are cut off at `40 n + 20000` computations, so that the
//! plan behind the upper half is always one that can be written down.
//!
//! Complexity: O(n + uses) for the lower half; at most 25 passes for the upper one.

use crate::choice::{has_alternatives, implementation, implementations};
use crate::graph::{Graph, OpId, ValueId};
use crate::plan::Plan;
use crate::planners::search::construct::{Policy, construct};
use crate::planners::search::exact::{Exact, exact};
use crate::sequence::{order_of, plan_of, plan_of_choices};
use crate::simulate::simulate;
use crate::views::plain::Plain;

/// The smallest feasible budget of a graph: see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Minimum {
    /// No schedule at all fits in less.
    pub lower_bound: u64,
    /// The smallest budget for which a plan is known: the peak of [`plan`](Self::plan).
    pub achieved: u64,
    /// A plan with that peak.
    pub plan: Plan,
    /// The op whose first computation needs `lower_bound` bytes.
    pub blocking_op: OpId,
    /// The values that must be resident together while it runs, ascending: with the constant bytes and the op's
    /// scratch they make up `lower_bound`, except where the inputs alone need more or an exhaustive search of a small
    /// graph proved more.
    pub together: Vec<ValueId>,
}

impl Minimum {
    /// Whether `achieved` is proven to be the smallest feasible budget.
    pub fn is_exact(&self) -> bool {
        self.lower_bound == self.achieved
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
    let (lower_bound, blocking_op) = lower_half(graph);
    let (mut plan, mut achieved) = upper_half(graph, lower_bound);
    if has_alternatives(graph) && lower_bound < achieved {
        let lightest = Plain::lightest(graph);
        let (other, peak) = upper_half(&lightest.graph, lower_bound);
        if peak < achieved {
            (plan, achieved) = (plan_of_choices(graph, &lightest.choices(&order_of(&other))), peak);
        }
    }
    let lower_bound = exhaust(graph, lower_bound, &mut plan, &mut achieved);
    Minimum { lower_bound, achieved, plan, blocking_op, together: together(graph, blocking_op) }
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

fn together(graph: &Graph, op: OpId) -> Vec<ValueId> {
    let last = last_certain_uses(graph);
    let mut values: Vec<ValueId> = (0..graph.values().len())
        .filter(|&v| {
            let produced = graph.producer(v).is_none_or(|p| p < op);
            produced && is_root(graph, v) && last[v].is_some_and(|last| last > op)
        })
        .collect();
    values.extend(lightest_inputs(graph, op, &last).0);
    values.extend_from_slice(&graph.ops()[op].outputs);
    values.sort_unstable();
    values.dedup();
    values
}

/// The implementation of `op` that needs least beside the roots used later: what it reads of other values, and the bytes
/// of these with its scratch.
fn lightest_inputs(graph: &Graph, op: OpId, last: &[Option<OpId>]) -> (Vec<ValueId>, u64) {
    let is_held = |v: ValueId| is_root(graph, v) && last[v].is_some_and(|last| last > op);
    let weigh = |k: usize| {
        let (inputs, _, scratch) = implementation(&graph.ops()[op], k);
        let others: Vec<ValueId> = inputs.iter().copied().filter(|&v| !is_held(v)).collect();
        let bytes = graph.bytes_of(&others) + scratch;
        (others, bytes)
    };
    (1..implementations(&graph.ops()[op]))
        .map(weigh)
        .fold(weigh(0), |least, way| if way.1 < least.1 { way } else { least })
}

pub(crate) fn lower_half(graph: &Graph) -> (u64, OpId) {
    let (mut most, mut blocking) = (0, 0);
    for (id, need) in needs(graph).into_iter().enumerate() {
        if need > most {
            (most, blocking) = (need, id);
        }
    }
    let start = graph.constant_bytes() + graph.inputs().map(|v| graph.bytes(v)).sum::<u64>();
    (most.max(start), blocking)
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
        needs.push(held + lightest_inputs(graph, id, &last).1 + graph.bytes_of(&op.outputs));
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

/// Bisects with the exact search, as far as it goes: it closes the question on small graphs.
fn exhaust(graph: &Graph, mut low: u64, plan: &mut Plan, high: &mut u64) -> u64 {
    let mut probe = low;
    while low < *high {
        match exact(graph, probe, 5_000, None) {
            Exact::Optimal(order) => {
                *plan = plan_of_choices(graph, &order);
                *high = simulate(graph, plan).peak_bytes;
            }
            Exact::Infeasible => low = probe + 1,
            Exact::GaveUp => break,
        }
        probe = low + high.saturating_sub(low) / 2;
    }
    low
}

fn upper_half(graph: &Graph, lower: u64) -> (Plan, u64) {
    let all: Vec<OpId> = (0..graph.ops().len()).collect();
    let mut best = plan_of(graph, &all);
    let mut high = simulate(graph, &best).peak_bytes;
    let step_limit = 40 * graph.ops().len() + 20_000;
    let mut low = lower;
    let mut probe = lower;
    let mut rounds = 0;
    // Passes over large graphs take long.
    let (most_rounds, most_policies) = if graph.ops().len() > 4000 { (10, 1) } else { (25, 3) };
    let policies = &[(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)][..most_policies];
    while low < high && rounds < most_rounds {
        rounds += 1;
        let found = policies
            .iter()
            .find_map(|&(cost, distance)| construct(graph, probe, Policy { cost, distance, step_limit }));
        match found.map(|order| plan_of(graph, &order)) {
            Some(plan) => {
                high = simulate(graph, &plan).peak_bytes;
                best = plan;
            }
            None => low = probe + 1,
        }
        probe = low + high.saturating_sub(low) / 2;
    }
    (best, high)
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
}
