//! Runs of neighbouring stages and what they may keep, worked out once for all equal runs.
//!
//! Problem: a network of a hundred equal blocks has hundreds of stages and of runs of stages. What each may keep, what it
//! costs to compute the rest again and how much is held meanwhile is the same for all runs of the same structure.
//!
//! Method. The *structure* of a run lists everything that these depend on: costs, sizes, who reads what, which values others
//! need, and how the bytes of the backward side change from op to op. Options are kept by structure, with ops counted from
//! the start of the run and bytes from what the backward side holds before its backward ops. So a run costs one walk over
//! its ops, which gives its structure, and only the first of its kind is solved.
//!
//! Invariants: equal structures have equal options. A structure for which time was too short has fewer.
//!
//! Complexity: O(ops of the run) for each run; that of [`saved_sets`](super::saved_sets) and O(ops) for each option of
//! each structure.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::chain_of::{Builder, Stage};
use super::saved_sets::nested_sets;
use crate::chain::StageId;
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId, ValueId};

/// The most options of a run.
const MOST_OPTIONS: usize = 12;

/// What a run of stages may keep.
#[derive(Debug, PartialEq)]
pub(super) struct RunOption {
    /// Bytes kept, the run's output among them.
    pub saved: u64,
    /// Cost of the backward ops and of what they compute again.
    pub backward_cost: f64,
    /// Scratch of the forward run that saves.
    pub save_scratch: u64,
    /// Most bytes during the backward ops beside the saved set and the run's input, beyond what the backward side holds
    /// before them.
    pub backward_beyond: u64,
    /// The backward ops, each after what is computed again for it, [counted from the start](Ops).
    pub order: Arc<[usize]>,
}

/// The options of all structures met so far.
#[derive(Default)]
pub(super) struct KnownRuns {
    options: HashMap<Vec<u64>, Arc<[RunOption]>>,
}

impl KnownRuns {
    /// The options of `run`, the one that keeps everything first; if time runs out, only those found by then.
    pub(super) fn options(&mut self, run: &Run<'_>, before_op: &[u64], deadline: Deadline) -> Arc<[RunOption]> {
        let structure = run.structure(before_op);
        Arc::clone(self.options.entry(structure).or_insert_with(|| run.solve(before_op, deadline)))
    }
}

/// The ops of a run of stages. Counted from the start, its forward ops come first.
#[derive(Clone, Debug)]
pub(super) struct Ops {
    pub forward: Range<OpId>,
    pub backward: Range<OpId>,
}

impl Ops {
    /// The ops of neighbouring `stages`.
    pub(super) fn of(stages: &[Stage]) -> Self {
        let (first, last) = (&stages[0], &stages[stages.len() - 1]);
        Self { forward: first.forward.start..last.forward.end, backward: last.backward.start..first.backward.end }
    }

    pub(super) fn at(&self, local: usize) -> OpId {
        let forward = self.forward.len();
        if local < forward { self.forward.start + local } else { self.backward.start + local - forward }
    }

    fn local(&self, op: OpId) -> usize {
        let inside = self.forward.contains(&op);
        if inside { op - self.forward.start } else { op - self.backward.start + self.forward.len() }
    }
}

/// Neighbouring stages taken as one.
pub(super) struct Run<'a> {
    builder: &'a Builder<'a>,
    stages: Range<StageId>,
    ops: Ops,
}

impl<'a> Run<'a> {
    pub(super) fn new(builder: &'a Builder<'a>, stages: Range<StageId>) -> Self {
        let ops = Ops::of(&builder.stages[stages.clone()]);
        Self { builder, stages, ops }
    }

    fn graph(&self) -> &'a Graph {
        self.builder.graph
    }

    /// Whether `value` is always available: not computed again in runs of a stage, or needed by a later stage.
    fn is_always(&self, value: ValueId) -> bool {
        !self.builder.is_stage_value(value) || self.is_needed_later(value)
    }

    fn is_needed_later(&self, value: ValueId) -> bool {
        self.builder.last_stage[value] >= self.stages.end
    }

    /// The values that it makes for later stages.
    fn crossing(&self) -> Vec<ValueId> {
        let graph = self.graph();
        let made = self.ops.forward.clone().flat_map(|op| &graph.ops()[op].outputs).copied();
        made.filter(|&value| self.builder.is_stage_value(value) && self.is_needed_later(value)).collect()
    }

    /// What the backward side holds before the first backward op.
    pub(super) fn base(&self, before_op: &[u64]) -> u64 {
        self.ops.backward.clone().next().map_or(0, |op| before_op[op])
    }

    /// Everything that options depend on.
    fn structure(&self, before_op: &[u64]) -> Vec<u64> {
        let (graph, base) = (self.graph(), self.base(before_op));
        let mut numbers: HashMap<ValueId, u64> = HashMap::new();
        let mut key = vec![self.ops.forward.len() as u64];
        for id in self.ops.forward.clone().chain(self.ops.backward.clone()) {
            let op = &graph.ops()[id];
            key.extend([op.cost.to_bits(), op.scratch_bytes, u64::from(op.recomputable)]);
            key.extend([op.inputs.len() as u64, op.outputs.len() as u64]);
            if !self.ops.forward.contains(&id) {
                key.push(before_op[id].wrapping_sub(base));
            }
            for &value in op.inputs.iter().chain(&op.outputs) {
                let next = numbers.len() as u64;
                let kind = u64::from(self.builder.is_stage_value(value)) * 2 + u64::from(self.is_needed_later(value));
                key.extend([*numbers.entry(value).or_insert(next) * 4 + kind, graph.bytes(value)]);
            }
        }
        key
    }

    /// The options worth offering.
    fn solve(&self, before_op: &[u64], deadline: Deadline) -> Arc<[RunOption]> {
        let graph = self.graph();
        let always = |value| self.is_always(value);
        let points = nested_sets(graph, &self.ops.forward, self.ops.backward.clone(), &always, deadline);
        let chosen = below_the_lines(&points.iter().map(|point| (point.bytes, point.cost)).collect::<Vec<_>>());
        let crossing = graph.bytes_of(&self.crossing());
        let backward_cost: f64 = self.ops.backward.clone().map(|op| graph.ops()[op].cost).sum();
        let option = |at: usize| {
            let point = &points[at];
            let saved = crossing + point.bytes;
            let peak = self.builder.forward_peak_keeping(self.stages.clone(), |value| point.kept.contains(&value));
            RunOption {
                saved,
                backward_cost: backward_cost + point.cost,
                save_scratch: peak.saturating_sub(saved),
                backward_beyond: self.backward_peak(&point.kept, &point.order, before_op) - self.base(before_op),
                order: point.order.iter().map(|&op| self.ops.local(op)).collect(),
            }
        };
        chosen.into_iter().map(option).collect()
    }

    /// Most bytes during the backward ops in `order`: what the backward side holds and what is computed again.
    fn backward_peak(&self, kept: &BTreeSet<ValueId>, order: &[OpId], before_op: &[u64]) -> u64 {
        let (graph, forward) = (self.graph(), &self.ops.forward);
        let is_again = |value: &ValueId| {
            let own = graph.producer(*value).is_some_and(|op| forward.contains(&op));
            own && !self.is_always(*value) && !kept.contains(value)
        };
        let mut last_use: HashMap<ValueId, usize> = HashMap::new();
        let mut kept_until: HashMap<ValueId, usize> =
            kept.iter().copied().chain(self.crossing()).map(|value| (value, 0)).collect();
        for (at, &id) in order.iter().enumerate() {
            for value in &graph.ops()[id].inputs {
                if is_again(value) {
                    last_use.insert(*value, at);
                } else if let Some(until) = kept_until.get_mut(value) {
                    *until = at;
                }
            }
        }
        // Bytes of the kept set, and of what later stages read, that are released on the way.
        let mut leaves = vec![0; order.len() + 1];
        kept_until.iter().for_each(|(&value, &at)| leaves[at] += graph.bytes(value));
        // What the backward side holds: before a run of forward ops the same as before the backward op after them.
        let mut side = vec![0; order.len()];
        let mut held_side = 0;
        for (at, &id) in order.iter().enumerate().rev() {
            if !forward.contains(&id) {
                held_side = before_op[id];
            }
            side[at] = held_side;
        }
        let (mut live, mut held, mut gone) = (BTreeSet::new(), 0, 0);
        let mut most = self.base(before_op);
        for (at, &id) in order.iter().enumerate() {
            let op = &graph.ops()[id];
            let is_forward = forward.contains(&id);
            let outputs = op.outputs.iter().filter(|value| is_forward && is_again(value));
            held += outputs.filter(|&&value| live.insert(value)).map(|&value| graph.bytes(value)).sum::<u64>();
            let made = if is_forward { 0 } else { graph.bytes_of(&op.outputs) };
            most = most.max((side[at] + held + made + op.scratch_bytes).saturating_sub(gone));
            for &value in op.inputs.iter().chain(&op.outputs) {
                if last_use.get(&value).is_none_or(|&last| last <= at) && live.remove(&value) {
                    held -= graph.bytes(value);
                }
            }
            gone += leaves[at];
        }
        most
    }
}

/// Of points with falling bytes and rising cost, the first, the last and those furthest below the lines between chosen ones.
fn below_the_lines(points: &[(u64, f64)]) -> Vec<usize> {
    let last = points.len() - 1;
    let mut chosen = BTreeSet::from([0, last]);
    let gain = |from: usize, to: usize, at: usize| {
        let share = (points[from].0 - points[at].0) as f64 / (points[from].0 - points[to].0).max(1) as f64;
        points[from].1 + share * (points[to].1 - points[from].1) - points[at].1
    };
    while chosen.len() < MOST_OPTIONS {
        let ends: Vec<usize> = chosen.iter().copied().collect();
        let between =
            ends.windows(2).flat_map(|pair| (pair[0] + 1..pair[1]).map(|at| (gain(pair[0], pair[1], at), at)));
        match between.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, at)) => chosen.insert(at),
            None => break,
        };
    }
    chosen.into_iter().collect()
}
