//! Frontier-advancing schedules: what is kept between stages, and what is computed within them.
//!
//! A graph of *n* ops is run in *n* stages. Stage *t* computes op *t* for the first time; before it, in ascending
//! order, any earlier ops may be computed again, each at most once. A [`Retention`] says which values are resident at
//! the start of each stage; [`computations`] gives the smallest set of ops that every stage must then compute, and
//! [`plan_from_order`](crate::sequence::plan_from_order) turns the resulting sequence into a [`Plan`](crate::Plan) that evicts every
//! value the moment it becomes useless.
//!
//! | paper | here |
//! | --- | --- |
//! | S (t, i), value i retained from stage t-1 to t | [`Retention::keep`], spans of stages per value |
//! | R (t, i), op i computed in stage t | the rows of [`computations`], one after the other |
//! | FREE (t, i, k), value i freed after op k of stage t | the evictions of [`plan_from_order`](crate::sequence::plan_from_order) |
//!
//! Given S, the rows of R do not depend on each other: row *t* is the closure of op *t*, and of the producers of the
//! values whose retention begins at stage *t + 1*, under "an input that is not resident must be computed". That is the
//! unique smallest R, hence the cheapest (Checkmate, section 5.2 and appendix B.1).
//!
//! Beyond the paper: an op may have several outputs, retained separately; inputs of the graph and outputs of ops that
//! may not run again are resident in every stage after they appear (they are still evicted early, because evictions
//! follow from the sequence alone, which never holds more than S does).
//!
//! Complexity: [`computations`] is O(values + spans log spans + inputs of all computed ops), [`plan_from_order`](crate::sequence::plan_from_order) is linear in
//! the uses of the sequence.

use crate::deadline::{Deadline, Patience};
use crate::graph::{Graph, OpId, ValueId};

/// Which values are resident at the start of which stages.
#[derive(Clone, Debug, Default)]
pub struct Retention {
    /// `(value, first stage, last stage)`, in any order, possibly overlapping.
    spans: Vec<(ValueId, usize, usize)>,
}

impl Retention {
    /// Nothing is retained.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps `value` resident at the start of the stages `first..=last`; an empty range is ignored. If the span begins
    /// later than the stage after the value's producer, the value is computed again in stage `first - 1`.
    pub fn keep(&mut self, value: ValueId, first: usize, last: usize) {
        if first <= last {
            self.spans.push((value, first, last));
        }
    }

    /// Disjoint spans ordered by first stage, clipped to where the value exists; values that are always resident are
    /// left out.
    fn normalized(&self, graph: &Graph) -> Vec<(ValueId, usize, usize)> {
        let mut spans: Vec<_> = self
            .spans
            .iter()
            .filter_map(|&(value, first, last)| {
                let producer = graph.producer(value).filter(|&op| graph.ops()[op].recomputable)?;
                let first = first.max(producer + 1);
                (first <= last).then_some((value, first, last))
            })
            .collect();
        spans.sort_unstable();
        let mut merged: Vec<(ValueId, usize, usize)> = Vec::with_capacity(spans.len());
        for (value, first, last) in spans {
            match merged.last_mut() {
                Some(previous) if previous.0 == value && first <= previous.2.saturating_add(1) => {
                    previous.2 = previous.2.max(last);
                }
                _ => merged.push((value, first, last)),
            }
        }
        merged.sort_unstable_by_key(|&(value, first, _)| (first, value));
        merged
    }
}

/// The ops of all stages in order: the cheapest way to satisfy `retention`.
pub fn computations(graph: &Graph, retention: &Retention) -> Vec<OpId> {
    computations_within(graph, retention, usize::MAX, Deadline::NEVER).expect("without limits nothing ends early")
}

/// Like [`computations`], but stops and returns `None` when there are more than `most` ops or when time is up.
pub fn computations_within(graph: &Graph, retention: &Retention, most: usize, deadline: Deadline) -> Option<Vec<OpId>> {
    let mut patience = Patience::until(deadline);
    let spans = retention.normalized(graph);
    let count = graph.ops().len();
    let mut sequence = Vec::with_capacity(count * 2);
    // Last stage of the current span of each value; roots are held throughout.
    let mut held_until: Vec<Option<usize>> =
        (0..graph.values().len()).map(|value| graph.is_root(value).then_some(usize::MAX)).collect();
    let mut seen_in = vec![usize::MAX; count];
    let (mut next, mut last_row) = (0, 0);
    let mut stack = Vec::new();
    for stage in 0..count {
        let row_start = sequence.len();
        if row_start > most || patience.is_over(row_start - last_row) {
            return None;
        }
        last_row = row_start;
        stack.push(stage);
        // A span that begins at the next stage needs its value by the end of this one.
        let mut begin = next;
        while begin < spans.len() && spans[begin].1 == stage + 1 {
            stack.extend(graph.producer(spans[begin].0));
            begin += 1;
        }
        while let Some(op) = stack.pop() {
            if std::mem::replace(&mut seen_in[op], stage) == stage {
                continue;
            }
            sequence.push(op);
            for &value in &graph.ops()[op].inputs {
                if held_until[value].is_none_or(|last| last < stage) {
                    stack.extend(graph.producer(value));
                }
            }
        }
        sequence[row_start..].sort_unstable();
        for &(value, _, last) in &spans[next..begin] {
            held_until[value] = Some(last);
        }
        next = begin;
    }
    Some(sequence)
}

/// What a plan that computes `sequence` retains between the stages: whatever it still uses before computing it again.
///
/// With [`computations`] this maps any plan to a frontier-advancing one that retains the same.
pub fn retention_of(graph: &Graph, sequence: &[OpId]) -> Retention {
    let mut retention = Retention::new();
    let mut live: Vec<bool> = (0..graph.values().len()).map(|value| graph.is_result(value)).collect();
    let mut seen = vec![false; graph.ops().len()];
    let is_first: Vec<bool> = sequence.iter().map(|&op| !std::mem::replace(&mut seen[op], true)).collect();
    for (&op, is_first) in sequence.iter().zip(is_first).rev() {
        if is_first {
            // What is live after the first computation of op t is retained at the start of stage t + 1.
            for value in (0..live.len()).filter(|&value| live[value]) {
                retention.keep(value, op + 1, op + 1);
            }
        }
        graph.ops()[op].outputs.iter().for_each(|&value| live[value] = false);
        graph.ops()[op].inputs.iter().for_each(|&value| live[value] = true);
    }
    retention
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};
    use crate::sequence::plan_from_order;
    use crate::simulate::simulate;

    /// a -> b -> c, and d uses a and c.
    fn graph() -> Graph {
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = [10, 4, 3, 1].iter().map(|&bytes| builder.value(bytes, "")).collect();
        builder.op(Op::new("a", 1.0, vec![], vec![v[0]]));
        builder.op(Op::new("b", 1.0, vec![v[0]], vec![v[1]]));
        builder.op(Op::new("c", 1.0, vec![v[1]], vec![v[2]]));
        builder.op(Op::new("d", 1.0, vec![v[0], v[2]], vec![v[3]]));
        builder.build().unwrap()
    }

    #[test]
    fn keeping_nothing_computes_every_ancestor_in_every_stage() {
        let sequence = computations(&graph(), &Retention::new());
        assert_eq!(sequence, [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]);
    }

    #[test]
    fn a_span_that_begins_late_computes_its_value_in_the_stage_before() {
        let graph = graph();
        let mut retention = Retention::new();
        retention.keep(0, 1, 1);
        retention.keep(1, 2, 2);
        retention.keep(0, 3, 3);
        retention.keep(2, 3, 3);
        assert_eq!(computations(&graph, &retention), [0, 1, 0, 2, 3]);
        retention.keep(0, 2, 2);
        assert_eq!(computations(&graph, &retention), [0, 1, 2, 3]);
    }

    #[test]
    fn a_frontier_advancing_sequence_is_its_own_image() {
        let graph = graph();
        for sequence in [vec![0, 1, 2, 3], vec![0, 1, 0, 2, 3], vec![0, 1, 2, 0, 3], vec![0, 1, 0, 1, 2, 0, 3]] {
            assert_eq!(computations(&graph, &retention_of(&graph, &sequence)), sequence);
        }
        // Out of order within the last stage: what the repeat of b reads is retained for it, and serves d as well.
        assert_eq!(computations(&graph, &retention_of(&graph, &[0, 1, 2, 1, 0, 3])), [0, 1, 2, 3]);
    }

    #[test]
    fn values_are_evicted_as_soon_as_they_are_useless() {
        let graph = graph();
        let plan = plan_from_order(&graph, &[0, 1, 2, 0, 3]);
        let text: Vec<_> = plan.steps.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["+0", "+1", "-0", "+2", "-1", "+0", "+3", "-0", "-2"]);
        assert_eq!(simulate(&graph, &plan).peak_bytes, 14);
    }

    #[test]
    fn an_op_that_may_not_run_again_has_its_outputs_kept() {
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = (0..3).map(|_| builder.value(1, "")).collect();
        builder.op(Op { recomputable: false, ..Op::new("random", 1.0, vec![], vec![v[0]]) });
        builder.op(Op::new("b", 1.0, vec![v[0]], vec![v[1]]));
        builder.op(Op::new("c", 1.0, vec![v[0], v[1]], vec![v[2]]));
        let graph = builder.build().unwrap();
        assert_eq!(computations(&graph, &Retention::new()), [0, 1, 1, 2]);
    }
}
