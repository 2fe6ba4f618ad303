//! Which of its forward values a stage can do without, and what it costs to compute them again inside the stage.
//!
//! Problem: a stage's saved set is what its backward ops read of its forward values. Between keeping all of it and
//! none there are many choices; a planner of stages wants a few good ones. The same question comes up for a stage's forward
//! outputs: which of them follow from the others at next to no cost?
//!
//! Method: from the whole set, values are dropped one after the other, always those that cost least to compute again
//! per byte, given what is still kept. That gives nested sets from everything to nothing, each with its cost. Offered are everything,
//! nothing, the smallest set whose recomputation costs at most a twentieth of recomputing everything, and those that lie furthest
//! below the straight line between two chosen ones. Forward outputs are split at that smallest set.
//!
//! For a kept set the sequence of ops is: the backward ops in order, and before each the forward ops that compute what it
//! lacks, each at most once. So what is cheap to compute and soon used is resident for a short time only.
//!
//! Invariants: only repeatable ops of the stage run again; the sets are nested; values of no size are always kept.
//!
//! Complexity: at most [`ROUNDS`] rounds, each of one walk over the stage's ops for every kept value.
//!
//! Source: this project. Selective recomputation by hand (Korthikanti et al. 2022, *Reducing activation recomputation in
//! large transformer models*) picks one such set for a known layer.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::deadline::Deadline;
use crate::graph::{Graph, OpId, ValueId};

/// The most ways to recompute inside a stage; the last keeps nothing.
const ALTERNATIVES: usize = 3;
/// Rounds of dropping: with more saved values, several go in each.
const ROUNDS: usize = 32;
/// A set that saves less than this share of the cost of full recomputation compared with its neighbours is not offered.
const LEAST_GAIN: f64 = 0.02;
/// Recomputation of at most this share of the cost of recomputing everything counts as next to nothing.
const CHEAP: f64 = 0.05;
/// Forward ops are split if at least this share of their outputs' bytes is cheap.
const LEAST_CHEAP_BYTES: f64 = 0.15;

/// Values that `order` reads before it makes them itself.
pub(super) fn external_reads(graph: &Graph, order: &[OpId]) -> BTreeSet<ValueId> {
    let (mut made, mut reads) = (BTreeSet::new(), BTreeSet::new());
    for &id in order {
        let op = &graph.ops()[id];
        reads.extend(op.inputs.iter().copied().filter(|value| !made.contains(value)));
        made.extend(op.outputs.iter().copied());
    }
    reads
}

/// The sequences of ops for the backward ops `share` of a stage: first with the whole saved set, then with less and less.
pub(super) fn backward_ways(graph: &Graph, forward: &Range<OpId>, share: Range<OpId>) -> Vec<Vec<OpId>> {
    let turns = share.map(|op| (graph.ops()[op].inputs.clone(), Some(op))).collect();
    let mut points = Stage { graph, forward, turns, always: &|_| false }.nested(Deadline::NEVER);
    worth_a_choice(&points).into_iter().map(|at| std::mem::take(&mut points[at].order)).collect()
}

/// A run of forward ops in two parts.
pub(super) struct Split {
    /// Values that are expensive to compute.
    pub dear: BTreeSet<ValueId>,
    /// Ops that compute the expensive values.
    pub dear_ops: Vec<OpId>,
    /// Ops that compute the other outputs if the expensive values are kept.
    pub cheap_ops: Vec<OpId>,
}

/// Splits the `outputs` of the repeatable ops in `forward` if a part is far cheaper to compute from the rest.
pub(super) fn forward_split(graph: &Graph, forward: &Range<OpId>, outputs: &[ValueId]) -> Option<Split> {
    let stage = |outputs: Vec<ValueId>| Stage { graph, forward, turns: vec![(outputs, None)], always: &|_| false };
    let mut points = stage(outputs.to_vec()).nested(Deadline::NEVER);
    let at = cheap(&points);
    let (all, none) = (&points[0], &points[points.len() - 1]);
    if none.cost == 0.0 || ((all.bytes - points[at].bytes) as f64) < LEAST_CHEAP_BYTES * all.bytes as f64 {
        return None;
    }
    let Point { kept, order, .. } = points.swap_remove(at);
    let dear_ops = stage(kept.iter().copied().collect()).order(&BTreeSet::new());
    Some(Split { dear: kept, dear_ops, cheap_ops: order })
}

/// The nested sets of what the backward ops `share` read of the forward values, from everything to nothing; what `always` names
/// is always available. If time runs out, the smaller sets are left out.
pub(super) fn nested_sets(
    graph: &Graph,
    forward: &Range<OpId>,
    share: Range<OpId>,
    always: &dyn Fn(ValueId) -> bool,
    deadline: Deadline,
) -> Vec<Point> {
    let turns = share.map(|op| (graph.ops()[op].inputs.clone(), Some(op))).collect();
    Stage { graph, forward, turns, always }.nested(deadline)
}

/// A kept set.
pub(super) struct Point {
    pub kept: BTreeSet<ValueId>,
    pub bytes: u64,
    /// Cost of what is computed again.
    pub cost: f64,
    pub order: Vec<OpId>,
}

/// A stage's forward ops and, in order, the values that must be available and the op that reads them.
struct Stage<'a> {
    graph: &'a Graph,
    forward: &'a Range<OpId>,
    turns: Vec<(Vec<ValueId>, Option<OpId>)>,
    /// Values that are always available.
    always: &'a dyn Fn(ValueId) -> bool,
}

impl Stage<'_> {
    /// Whether the stage can, and may have to, compute `value` again.
    fn is_own(&self, value: ValueId) -> bool {
        if (self.always)(value) {
            return false;
        }
        let maker = self.graph.producer(value).filter(|op| self.forward.contains(op));
        maker.is_some_and(|op| self.graph.ops()[op].recomputable)
    }

    fn saved(&self) -> BTreeSet<ValueId> {
        let reads = self.turns.iter().flat_map(|(values, _)| values).copied();
        reads.filter(|&value| self.is_own(value)).collect()
    }

    /// The ops of the turns, each after the forward ops that compute what it lacks.
    fn order(&self, kept: &BTreeSet<ValueId>) -> Vec<OpId> {
        let mut present = kept.clone();
        let mut order = Vec::new();
        let mut stack: Vec<ValueId> = Vec::new();
        for (values, op) in &self.turns {
            let mut again = BTreeSet::new();
            stack.extend(values);
            while let Some(value) = stack.pop() {
                if self.is_own(value)
                    && !present.contains(&value)
                    && let Some(maker) = self.graph.producer(value)
                    && again.insert(maker)
                {
                    stack.extend(&self.graph.ops()[maker].inputs);
                }
            }
            present.extend(again.iter().flat_map(|&op| &self.graph.ops()[op].outputs));
            order.extend(again);
            order.extend(op);
        }
        order
    }

    fn point(&self, kept: &BTreeSet<ValueId>) -> Point {
        let order = self.order(kept);
        let again = order.iter().filter(|op| self.forward.contains(op));
        let cost = again.map(|&op| self.graph.ops()[op].cost).sum();
        let bytes = kept.iter().map(|&value| self.graph.bytes(value)).sum();
        Point { kept: kept.clone(), bytes, cost, order }
    }

    /// From the whole saved set to nothing, as far as time allows.
    fn nested(&self, deadline: Deadline) -> Vec<Point> {
        let mut kept = self.saved();
        let mut left: Vec<ValueId> = kept.iter().copied().filter(|&value| self.graph.bytes(value) > 0).collect();
        let each = left.len().div_ceil(ROUNDS).max(1);
        let mut points = vec![self.point(&kept)];
        while !left.is_empty() {
            let so_far = points.last().map_or(0.0, |point| point.cost);
            let mut worth: Vec<(f64, ValueId)> = Vec::with_capacity(left.len());
            for &value in &left {
                if deadline.passed() {
                    return points;
                }
                kept.remove(&value);
                worth.push(((self.point(&kept).cost - so_far) / self.graph.bytes(value) as f64, value));
                kept.insert(value);
            }
            worth.sort_by(|a, b| a.0.total_cmp(&b.0));
            for &(_, value) in worth.iter().take(each) {
                kept.remove(&value);
                left.retain(|&other| other != value);
            }
            points.push(self.point(&kept));
        }
        points
    }
}

/// The smallest of the nested sets whose recomputation costs next to nothing.
fn cheap(points: &[Point]) -> usize {
    let whole = points[points.len() - 1].cost;
    points.partition_point(|point| point.cost <= CHEAP * whole).saturating_sub(1)
}

/// The first and the last of `points`, the one where recomputation is [`cheap`], and those furthest below the line from
/// one chosen point to the next.
fn worth_a_choice(points: &[Point]) -> Vec<usize> {
    let last = points.len() - 1;
    let mut chosen = BTreeSet::from([0, last, cheap(points)]);
    let gain = |from: usize, to: usize, at: usize| {
        let (from, to, at) = (&points[from], &points[to], &points[at]);
        let share = (from.bytes - at.bytes) as f64 / (from.bytes - to.bytes).max(1) as f64;
        from.cost + share * (to.cost - from.cost) - at.cost
    };
    while chosen.len() <= ALTERNATIVES {
        let ends: Vec<usize> = chosen.iter().copied().collect();
        let between =
            ends.windows(2).flat_map(|pair| (pair[0] + 1..pair[1]).map(|at| (gain(pair[0], pair[1], at), at)));
        match between.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((gain, at)) if gain > LEAST_GAIN * points[last].cost => chosen.insert(at),
            _ => break,
        };
    }
    chosen.into_iter().collect()
}
