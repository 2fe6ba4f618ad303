//! The smallest feasible budget, with its certificate.
//!
//! *Lower bound.* What every schedule must hold at some moment (`need.rs`).
//!
//! *Upper bound.* The smallest peak of the plans that several methods find (`upper.rs`).
//!
//! On small graphs, an exhaustive search closes the gap between the bounds as far as it can (`exhaust.rs`).
//!
//! If the bounds are equal, [`Minimum::is_exact`] returns true. Otherwise it is open whether *unlimited* recomputation
//! helps, a pebbling problem (PSPACE-hard in general).
//!
//! Complexity: O(n + uses) for the lower bound; for the upper bound see `upper.rs`. [`minimum_within`] keeps to limits on
//! time and memory, which may leave a wider gap.

mod exhaust;
mod upper;

use crate::choice::Choice;
use crate::graph::{Graph, OpId, ValueId};
use crate::need::{largest, together};
use crate::plan::{Plan, Step};
use crate::planner::{Request, StopReason};
use crate::simulate::simulate;
use upper::Best;

pub use crate::need::SetBy;

/// The smallest feasible budget of a graph: see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Minimum {
    /// No schedule fits in less.
    pub lower_bound: u64,
    /// The smallest budget for which a plan is known: the peak of [`plan`](Self::plan).
    pub achieved: u64,
    /// A plan with that peak.
    pub plan: Plan,
    /// The op that needs it, as [`set_by`](Self::set_by) says: for the start, the first op; for the end, the last.
    pub blocking_op: OpId,
    /// The moment at which `together` are resident.
    pub set_by: SetBy,
    /// The values that must be resident together at that moment, ascending: with the constant bytes and `scratch_bytes`
    /// they add up to `lower_bound`, unless an exhaustive search of a small graph proved a higher bound without finding a
    /// plan that attains it.
    pub together: Vec<ValueId>,
    /// The scratch at that moment: that of the lightest implementation of its op.
    pub scratch_bytes: u64,
    /// [`StopReason::Proved`] if the bounds are equal, [`StopReason::TimeLimit`] if the search was cut short and more
    /// time may narrow the gap, [`StopReason::Heuristic`] if more time would not help.
    pub stop_reason: StopReason,
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

/// Finds the smallest feasible budget of `graph` within the limits of [`Request::new`]: a minute, which even graphs of tens
/// of thousands of ops do not need.
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
    minimum_within(graph, &Request::new(0))
}

/// Like [`minimum`], but within the time and memory that `request` allows; its budget is ignored. The result is valid even
/// if the search was cut short, which [`Minimum::stop_reason`] reports.
pub fn minimum_within(graph: &Graph, request: &Request) -> Minimum {
    let limits = request.allowance();
    let (certified, set_by) = largest(graph);
    let mut best = upper::best(graph, certified, limits);
    let lower_bound = exhaust::close(graph, certified, &mut best, limits);
    let stop_reason = match (lower_bound == best.peak, best.cut_short || limits.deadline.passed()) {
        (true, _) => StopReason::Proved,
        (false, true) => StopReason::TimeLimit,
        (false, false) => StopReason::Heuristic,
    };
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
    let Best { plan, peak: achieved, .. } = best;
    Minimum { lower_bound, achieved, plan, blocking_op, set_by, together, scratch_bytes, stop_reason }
}

/// The computation at which a plan reaches its peak, and the values that it then holds.
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

    #[test]
    fn without_time_it_is_valid_and_says_that_it_was_cut_short() {
        use crate::generate::{Options, by_name};
        let graph = by_name("residual", &Options { depth: 30, ..Options::default() }).unwrap();
        let whole = minimum(&graph);
        let found = minimum_within(&graph, &Request { time_limit: std::time::Duration::ZERO, ..Request::new(0) });
        assert_eq!((found.lower_bound, found.stop_reason), (whole.lower_bound, StopReason::TimeLimit));
        assert!(found.achieved >= whole.achieved && crate::check(&graph, &found.plan, found.achieved).is_ok());
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
