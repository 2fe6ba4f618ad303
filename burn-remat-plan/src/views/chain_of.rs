//! A training graph seen as a chain of stages, and chain schedules turned back into plans of the graph.
//!
//! Method. The ops before the first backward op are the forward list, the rest is the backward list, which runs once
//! and in order. ([`passes`](super::passes) says where the lists part.) Values that the
//! forward list computes are *carried* across every place between their computation and their last use.
//!
//! 1. *Pinned* values are computed once and kept to their last use: outputs of ops that may not run again, results,
//!    and, if requested, values of long reach, such as an attention mask or the skips of a U-Net.
//! 2. A place in the forward list is a cut if what crosses it, pinned values and inputs of the graph aside, is one
//!    value plus at most a twentieth of its size, or nothing. The ops between two cuts are a stage. If ops carry the
//!    names of stages, the places at which the name changes are another set of cuts, whatever crosses there.
//! 3. The backward list is divided into one run per stage, from the last to the first: an op belongs to the highest
//!    stage of which it or a later op needs a value. A forward value that a backward op of a later stage uses is
//!    carried up to that stage.
//! 4. Boundary `i` is all that crosses into stage `i`. The saved set of a stage is what it computes and a backward op
//!    or a later stage uses. All else (inputs, pinned values, gradients) depends only on how far the backward list has
//!    come: these are the chain's gradient sizes.
//! 5. Back: the schedule's steps give a sequence of ops. A pass from the end drops repeated computations that nothing
//!    uses and evicts every value after its last use before it is computed again.
//!
//! Invariants: the plan is valid for any persistent schedule of the chain, and never needs more than the chain
//! predicts, because at any time the chain accounts for every value that is yet to be used before its next computation.
//! The chain may count a value that crosses several boundaries more than once, never less than once.
//!
//! Complexity: O((ops + uses) log ops + stages · crossing values) for the view, O(steps of the plan) for the way back.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::chain::terms::Terms;
use crate::chain::{ChainStep, StageId};
use crate::graph::{Graph, OpId, ValueId};
use crate::plan::Plan;
use crate::sequence::plan_from_order;
use crate::views::passes::forward_length;

/// The most bytes that may cross a cut besides the one large value: a twentieth of that value.
const REST_SHARE: u64 = 20;

/// A graph as a chain of stages; the [module](self) says how.
#[derive(Clone, Debug)]
pub struct ChainView {
    terms: Terms,
    stages: Vec<Stage>,
    /// Forward ops that run in every forward run of their stage; the others run once.
    repeats: Vec<bool>,
}

/// The ops of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Forward ops.
    pub forward: Range<OpId>,
    /// Backward ops; may be empty.
    pub backward: Range<OpId>,
}

/// The distance between a forward value's computation and its last use in the forward list, in ops.
pub(crate) fn reach(graph: &Graph, value: ValueId, split: OpId) -> usize {
    let Some(from) = graph.producer(value).filter(|&op| op < split) else { return 0 };
    let uses = graph.consumers(value);
    uses[..uses.partition_point(|&op| op < split)].last().map_or(0, |last| last - from)
}

/// Values to be computed once and kept: see the module. `shortest` is the least reach of a value pinned for its reach.
pub(super) fn pinned_values(graph: &Graph, split: OpId, shortest: usize) -> Vec<bool> {
    let pinned = |value: ValueId| {
        let Some(op) = graph.producer(value).filter(|&op| op < split) else { return false };
        !graph.ops()[op].recomputable || graph.is_result(value) || reach(graph, value, split) >= shortest
    };
    (0..graph.values().len()).map(pinned).collect()
}

impl ChainView {
    /// Views worth trying, without duplicates: with no value pinned for its reach, then with those pinned that reach over a quarter and
    /// over a twelfth of the forward list; each with the cuts that it finds and with those that the stages' names mark.
    pub fn candidates(graph: &Graph) -> Vec<Self> {
        Self::candidates_with(graph, |cuts| cuts)
    }

    /// The same, with each stage that costs next to nothing joined to the one after it. If a block ends in an activation function, that is then
    /// computed again at the start of the next block, without the whole block being computed again for its sake.
    pub(crate) fn joined_candidates(graph: &Graph) -> Vec<Self> {
        let split = forward_length(graph);
        Self::candidates_with(graph, |cuts| joined_ahead(graph, split, &cuts))
    }

    fn candidates_with(graph: &Graph, change: impl Fn(Vec<OpId>) -> Vec<OpId>) -> Vec<Self> {
        let split = forward_length(graph);
        let mut pin_sets: Vec<Vec<bool>> = Vec::new();
        for shortest in [usize::MAX, (split / 4).max(2), (split / 12).max(2)] {
            let pinned = pinned_values(graph, split, shortest);
            if !pin_sets.contains(&pinned) {
                pin_sets.push(pinned);
            }
        }
        let marks = change(marks(graph, split));
        let mut views = Vec::new();
        for pinned in &pin_sets {
            let cuts = change(cuts(graph, split, pinned));
            views.push(Builder::new(graph, split, pinned, &cuts).finish());
            if !marks.is_empty() && marks != cuts {
                views.push(Builder::new(graph, split, pinned, &marks).finish());
            }
        }
        views
    }

    /// The stages.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Costs and sizes of the chain; its budget is the graph's less the constant bytes.
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Per forward op whether it runs in every forward run of its stage.
    pub(super) fn repeats(&self) -> &[bool] {
        &self.repeats
    }

    /// The plan of the graph for a schedule of the chain.
    pub fn plan(&self, graph: &Graph, steps: &[ChainStep]) -> Plan {
        let mut ran = vec![false; graph.ops().len()];
        let mut ops = Vec::new();
        for step in steps {
            match *step {
                ChainStep::SaveAll(i) | ChainStep::KeepInput(i) | ChainStep::Pass(i) => {
                    for op in self.stages[i].forward.clone() {
                        if self.repeats[op] || !ran[op] {
                            ops.push(op);
                            ran[op] = true;
                        }
                    }
                }
                ChainStep::Backward(i) => ops.extend(self.stages[i].backward.clone()),
                ChainStep::Release(_) => {}
            }
        }
        plan_from_order(graph, &without_useless(graph, &ops))
    }
}

/// `order` without the repeated computations whose outputs nothing uses before they are computed again.
pub(crate) fn without_useless(graph: &Graph, order: &[OpId]) -> Vec<OpId> {
    let mut first = vec![usize::MAX; graph.ops().len()];
    for (at, &op) in order.iter().enumerate().rev() {
        first[op] = at;
    }
    let mut needed: Vec<bool> = (0..graph.values().len()).map(|value| graph.is_result(value)).collect();
    let mut kept = Vec::with_capacity(order.len());
    for (at, &id) in order.iter().enumerate().rev() {
        let op = &graph.ops()[id];
        if first[id] == at || op.outputs.iter().any(|&value| needed[value]) {
            op.outputs.iter().for_each(|&value| needed[value] = false);
            op.inputs.iter().for_each(|&value| needed[value] = true);
            kept.push(id);
        }
    }
    kept.reverse();
    kept
}

/// The stages between `cuts`, each with its share of the backward list, and the stage of each op.
pub(crate) fn share_out(graph: &Graph, split: OpId, pinned: &[bool], cuts: &[OpId]) -> (Vec<Stage>, Vec<StageId>) {
    let ops = graph.ops().len();
    let starts: Vec<OpId> = std::iter::once(0).chain(cuts.iter().copied()).chain([split]).collect();
    let mut stage_of = vec![0; ops];
    for (stage, pair) in starts.windows(2).enumerate() {
        stage_of[pair[0]..pair[1]].fill(stage);
    }
    // An op belongs to the highest stage that it or a later op needs.
    let mut highest = 0;
    for op in (split..ops).rev() {
        let made_by = |value: ValueId| graph.producer(value).filter(|&op| op < split && !pinned[value]);
        let needs = graph.ops()[op].inputs.iter().filter_map(|&value| made_by(value));
        highest = needs.map(|maker| stage_of[maker]).fold(highest, usize::max);
        stage_of[op] = highest;
    }
    let mut end = split;
    let mut stages: Vec<Stage> =
        starts.windows(2).map(|pair| Stage { forward: pair[0]..pair[1], backward: 0..0 }).collect();
    for (i, stage) in stages.iter_mut().enumerate().rev() {
        let start = end;
        while end < ops && stage_of[end] == i {
            end += 1;
        }
        stage.backward = start..end;
    }
    (stages, stage_of)
}

/// Works out stages and terms.
pub(super) struct Builder<'a> {
    pub graph: &'a Graph,
    split: OpId,
    pub pinned: &'a [bool],
    pub stages: Vec<Stage>,
    /// Stage of each op.
    pub stage_of: Vec<StageId>,
    /// Last stage that needs each value.
    pub last_stage: Vec<StageId>,
}

impl<'a> Builder<'a> {
    pub fn new(graph: &'a Graph, split: OpId, pinned: &'a [bool], cuts: &[OpId]) -> Self {
        let (stages, stage_of) = share_out(graph, split, pinned, cuts);
        let last_stage = |value| graph.consumers(value).iter().map(|&op| stage_of[op]).max().unwrap_or(0);
        let last_stage = (0..graph.values().len()).map(last_stage).collect();
        Self { graph, split, pinned, stages, stage_of, last_stage }
    }

    /// Whether `value` is computed again in each forward run of its stage.
    pub fn is_stage_value(&self, value: ValueId) -> bool {
        !self.pinned[value] && self.graph.producer(value).is_some_and(|op| op < self.split)
    }

    fn stage_of_value(&self, value: ValueId) -> StageId {
        self.graph.producer(value).map_or(0, |op| self.stage_of[op])
    }

    pub fn used_backward(&self, value: ValueId) -> bool {
        self.graph.consumers(value).last().is_some_and(|&op| op >= self.split)
    }

    pub fn finish(self) -> ChainView {
        let n = self.stages.len();
        let ops = self.graph.ops();
        let is_repeated = |op: OpId| ops[op].outputs.iter().any(|&value| self.is_stage_value(value));
        let repeats: Vec<bool> = (0..self.split).map(is_repeated).collect();
        let mut activation = vec![0_u64; n + 1];
        let mut saved = vec![0_u64; n];
        for value in (0..self.graph.values().len()).filter(|&value| self.is_stage_value(value)) {
            let (from, to) = (self.stage_of_value(value), self.last_stage[value]);
            for bytes in &mut activation[from + 1..=to.max(from)] {
                *bytes += self.graph.bytes(value);
            }
            if to > from || self.used_backward(value) {
                saved[from] += self.graph.bytes(value);
            }
        }
        let BackwardSide { gradient, during: backward_bytes, .. } = self.backward_side();
        let forward_cost = |stage: &Stage| stage.forward.clone().filter(|&op| repeats[op]).map(|op| ops[op].cost).sum();
        let backward_cost = |stage: &Stage| stage.backward.clone().map(|op| ops[op].cost).sum();
        let terms = Terms {
            forward_cost: self.stages.iter().map(forward_cost).collect(),
            backward_cost: self.stages.iter().map(backward_cost).collect(),
            pass_scratch: (0..n).map(|i| self.forward_peak(i, false).saturating_sub(activation[i + 1])).collect(),
            save_scratch: (0..n).map(|i| self.forward_peak(i, true).saturating_sub(saved[i])).collect(),
            activation,
            saved,
            gradient,
            backward_bytes,
        };
        ChainView { terms, stages: self.stages, repeats }
    }

    /// Most bytes of a stage's own values and scratch during its forward run; with `save`, what its backward ops need
    /// stays.
    fn forward_peak(&self, i: StageId, save: bool) -> u64 {
        self.forward_peak_keeping(i..i + 1, |value| save && self.used_backward(value))
    }

    /// The same for several stages as one, if the values of `saves` stay, besides those that later stages need.
    pub fn forward_peak_keeping(&self, run: Range<StageId>, saves: impl Fn(ValueId) -> bool) -> u64 {
        let graph = self.graph;
        let range = self.stages[run.start].forward.start..self.stages[run.end - 1].forward.end;
        let keeps = |value: ValueId| self.last_stage[value] >= run.end || saves(value);
        let own = |value: ValueId| self.is_stage_value(value) && run.contains(&self.stage_of_value(value));
        let last_use = |value: ValueId| {
            let uses = graph.consumers(value);
            uses[..uses.partition_point(|&op| op < range.end)].last().copied()
        };
        let (mut held, mut peak) = (0, 0);
        for id in range.clone() {
            let op = &graph.ops()[id];
            let outputs: Vec<ValueId> = op.outputs.iter().copied().filter(|&value| own(value)).collect();
            held += graph.bytes_of(&outputs);
            peak = peak.max(held + op.scratch_bytes);
            let unused = outputs.iter().copied().filter(|&value| last_use(value).is_none());
            let spent = op.inputs.iter().copied().filter(|&value| own(value) && last_use(value) == Some(id));
            held -= unused.chain(spent).filter(|&value| !keeps(value)).map(|value| graph.bytes(value)).sum::<u64>();
        }
        peak
    }

    /// The bytes of inputs, pinned values and gradients that are held as the backward list goes on.
    pub fn backward_side(&self) -> BackwardSide {
        let (graph, n) = (self.graph, self.stages.len());
        let mut released_after: Vec<u64> = vec![0; graph.ops().len()];
        let mut released_with: Vec<u64> = vec![0; n];
        let mut held = 0;
        for value in (0..graph.values().len()).filter(|&value| !self.is_stage_value(value)) {
            let bytes = graph.bytes(value);
            if graph.producer(value).is_none_or(|op| op < self.split) {
                held += bytes;
            }
            if graph.is_result(value) {
                continue;
            }
            // In order of time: stages from the last to the first, ops within a stage, the stage's end. A forward
            // op may run again until its stage ends.
            let when = |op: OpId| (n - 1 - self.stage_of[op], if op < self.split { usize::MAX } else { op });
            let uses = graph.consumers(value).iter().copied().chain(graph.producer(value));
            match uses.map(when).max() {
                Some((stage_from_end, usize::MAX)) => released_with[n - 1 - stage_from_end] += bytes,
                Some((_, op)) => released_after[op] += bytes,
                None => released_with[n - 1] += bytes,
            }
        }
        let mut gradient = vec![0; n];
        let mut during = vec![0; n];
        let mut before_op = vec![0; graph.ops().len()];
        for (i, stage) in self.stages.iter().enumerate().rev() {
            gradient[i] = held;
            during[i] = held;
            for op in stage.backward.clone() {
                before_op[op] = held;
                held += graph.bytes_of(&graph.ops()[op].outputs);
                during[i] = during[i].max(held + graph.ops()[op].scratch_bytes);
                held -= released_after[op];
            }
            held -= released_with[i];
        }
        BackwardSide { gradient, during, before_op }
    }
}

/// Bytes of inputs, pinned values and gradients.
pub(super) struct BackwardSide {
    /// Before the backward ops of each stage.
    pub gradient: Vec<u64>,
    /// The most during these ops.
    during: Vec<u64>,
    /// Before each backward op.
    pub before_op: Vec<u64>,
}

/// A stage costs next to nothing below this share of the mean cost of a stage.
const SMALL_SHARE: f64 = 0.05;

/// `cuts` without those after stages that cost next to nothing.
pub(super) fn joined_ahead(graph: &Graph, split: OpId, cuts: &[OpId]) -> Vec<OpId> {
    let cost = |range: Range<OpId>| graph.ops()[range].iter().map(|op| op.cost).sum::<f64>();
    let small = SMALL_SHARE * cost(0..split) / (cuts.len() + 1) as f64;
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    cuts.iter().zip(starts).filter(|&(&end, start)| cost(start..end) >= small).map(|(&end, _)| end).collect()
}

/// Places in the forward list where the name of the stage changes, each given as the op after it.
pub(crate) fn marks(graph: &Graph, split: OpId) -> Vec<OpId> {
    let stage = |op: OpId| graph.ops()[op].stage.as_deref();
    (1..split).filter(|&op| stage(op) != stage(op - 1)).collect()
}

/// Places in the forward list that are cuts, each given as the op after it.
pub(crate) fn cuts(graph: &Graph, split: OpId, pinned: &[bool]) -> Vec<OpId> {
    let mut ends: Vec<Vec<ValueId>> = vec![Vec::new(); split + 1];
    // What crosses, the largest last.
    let mut crossing = BTreeSet::new();
    let mut total = 0_u64;
    let mut found = Vec::new();
    for op in 0..split {
        for value in ends[op].drain(..) {
            crossing.remove(&(graph.bytes(value), value));
            total -= graph.bytes(value);
        }
        let largest = crossing.last().map_or(0, |&(bytes, _)| bytes);
        if op > 0 && (total - largest).saturating_mul(REST_SHARE) <= largest {
            found.push(op);
        }
        for &value in graph.ops()[op].outputs.iter().filter(|&&value| !pinned[value]) {
            let reach = reach(graph, value, split);
            if reach > 0 {
                crossing.insert((graph.bytes(value), value));
                total += graph.bytes(value);
                ends[op + reach + 1].push(value);
            }
        }
    }
    found
}
