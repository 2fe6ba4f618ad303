//! The stages of a [chain view](super::chain_of), each with several saved sets to choose from.
//!
//! Problem: in the chain model a stage keeps all that its backward ops read, or nothing. A block that holds
//! normalizations, activations and attention scores can do with a fraction of that at next to no cost.
//!
//! Method. A stage's options are the nested saved sets of [`saved_sets`](super::saved_sets), from everything to nothing;
//! of those that lie below the lines between the others in bytes and cost, [`MOST_OPTIONS`] at most are offered.
//! Neighbouring stages, [`MOST_STAGES`] at most, also have options together: what lies between them, such as the sums of
//! a residual network, can then be dropped too. With an
//! option go the bytes kept, the cost of the backward ops with what they compute again, the scratch of the forward run
//! that keeps the set, and the most held during the backward ops. What later stages read always stays: it is their
//! input.
//!
//! Stages of the same structure (costs, sizes and who reads what) are solved once. Where all terms agree too, stages
//! have the same *class*, by which a planner can tell equal runs of stages.
//!
//! Invariants: any choice of options gives an executable order.
//!
//! Complexity: that of `saved_sets` for each structure, O(ops of the stage) for each option of each stage.
//!
//! Source: Rockmate (Zhao et al. 2023) solves blocks for several budgets, equal blocks once, and lets the dynamic program
//! of Beaumont et al. choose; it solves a block exactly, here sets are dropped greedily.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::chain_of::{Builder, Stage, cuts, joined_ahead, marks, pinned_values, without_useless};
use super::passes::forward_length;
use super::saved_sets::nested_sets;
use crate::chain::StageId;
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId, ValueId};
use crate::plan::Plan;
use crate::sequence::plan_of;

/// Options of a stage, at most.
const MOST_OPTIONS: usize = 12;
/// Neighbours that an option takes as one stage, at most, and their forward ops.
const MOST_STAGES: usize = 4;
const MOST_OPS: usize = 120;

/// A saved set of a stage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StageOption {
    /// Stages that it saves as one.
    pub stages: usize,
    /// Bytes kept, the stage's output among them.
    pub saved: u64,
    /// Cost of the backward ops and of what they compute again.
    pub backward_cost: f64,
    /// Scratch of the forward run that saves.
    pub save_scratch: u64,
    /// Most bytes during the backward ops beside the saved set and the stage's input.
    pub backward_bytes: u64,
    /// The backward ops, each behind what is computed again for it.
    order: Vec<OpId>,
}

/// A chain of stages with options.
#[derive(Clone, Debug)]
pub(crate) struct OptionView {
    stages: Vec<Stage>,
    repeats: Vec<bool>,
    /// Options of each stage, the whole saved set first.
    pub options: Vec<Vec<StageOption>>,
    /// Cost of each forward run.
    pub forward_cost: Vec<f64>,
    /// Size of boundary `0..=n`.
    pub activation: Vec<u64>,
    /// Bytes held on the backward side before the backward ops of the stage.
    pub gradient: Vec<u64>,
    /// Scratch of a forward run that does not save.
    pub pass_scratch: Vec<u64>,
    /// Stages of the same class agree in everything but the bytes held on the backward side.
    pub class: Vec<usize>,
}

/// A step of a schedule of such a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionStep {
    /// The forward ops of a stage.
    Forward(StageId),
    /// Its backward ops, by one of its options.
    Backward(StageId, usize),
}

impl OptionView {
    /// Views worth trying: stages of next to no cost joined to those behind them, at the cuts found and at those that
    /// names mark, with and without long values pinned. Where the time is over, there are fewer, with fewer options.
    pub fn candidates(graph: &Graph, deadline: Deadline) -> Vec<Self> {
        let split = forward_length(graph);
        let mut views = Vec::new();
        let mut seen: Vec<(Vec<bool>, Vec<OpId>)> = Vec::new();
        for shortest in [usize::MAX, (split / 4).max(2), (split / 12).max(2)] {
            let pinned = pinned_values(graph, split, shortest);
            for places in [cuts(graph, split, &pinned), marks(graph, split)] {
                let joined = joined_ahead(graph, split, &places);
                let case = (pinned.clone(), joined);
                if !case.1.is_empty() && !seen.contains(&case) && !deadline.passed() {
                    views.push(Self::new(Builder::new(graph, split, &case.0, &case.1), deadline));
                    seen.push(case);
                }
            }
        }
        views
    }

    fn new(builder: Builder<'_>, deadline: Deadline) -> Self {
        let (mut sets, mut classes) = (HashMap::new(), HashMap::new());
        let side = builder.backward_side();
        let n = builder.stages.len();
        let mut own = |i: StageId| -> Vec<StageOption> {
            let ops = |end: StageId| builder.stages[end - 1].forward.end - builder.stages[i].forward.start;
            let ends = (i + 1..=n.min(i + MOST_STAGES)).filter(|&end| end == i + 1 || ops(end) <= MOST_OPS);
            ends.flat_map(|end| options_of(&Run::new(&builder, i..end), &side.before_op, &mut sets, deadline)).collect()
        };
        let options: Vec<Vec<StageOption>> = (0..n).map(&mut own).collect();
        let gradient = side.gradient;
        let view = builder.finish();
        let (stages, terms) = (view.stages().to_vec(), view.terms().clone());
        let relative = |bytes: u64, i: StageId| bytes.wrapping_sub(gradient[i]);
        let mut class_of = |i: StageId| {
            let mut key: Vec<u64> = vec![
                terms.forward_cost[i].to_bits(),
                terms.activation[i],
                terms.activation[i + 1],
                terms.pass_scratch[i],
                i.checked_sub(1).map_or(0, |below| relative(gradient[below], i)),
            ];
            for option in &options[i] {
                let bytes = relative(option.backward_bytes, i);
                // What a run of stages offers follows from them; near the end of the chain there are fewer runs.
                if option.stages > 1 {
                    break;
                }
                key.extend([option.saved, option.backward_cost.to_bits(), option.save_scratch, bytes]);
            }
            let next = classes.len();
            *classes.entry(key).or_insert(next)
        };
        let class = (0..n).map(&mut class_of).collect();
        Self {
            repeats: view.repeats().to_vec(),
            stages,
            class,
            forward_cost: terms.forward_cost,
            activation: terms.activation,
            pass_scratch: terms.pass_scratch,
            options,
            gradient,
        }
    }

    /// Number of stages.
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// The plan of the graph for a schedule.
    pub fn plan(&self, graph: &Graph, steps: &[OptionStep]) -> Plan {
        let mut ran = vec![false; graph.ops().len()];
        let mut ops = Vec::new();
        for step in steps {
            match *step {
                OptionStep::Forward(i) => {
                    for op in self.stages[i].forward.clone() {
                        if self.repeats[op] || !ran[op] {
                            ops.push(op);
                            ran[op] = true;
                        }
                    }
                }
                OptionStep::Backward(i, option) => ops.extend(&self.options[i][option].order),
            }
        }
        plan_of(graph, &without_useless(graph, &ops))
    }
}

/// A saved set with ops and values counted from the start of the stage.
struct LocalSet {
    kept: BTreeSet<(usize, usize)>,
    cost: f64,
    order: Vec<usize>,
}

type Sets = HashMap<Vec<u64>, Vec<LocalSet>>;

/// Neighbouring stages taken as one.
struct Run<'a> {
    builder: &'a Builder<'a>,
    stages: Range<StageId>,
    forward: Range<OpId>,
    backward: Range<OpId>,
}

impl<'a> Run<'a> {
    fn new(builder: &'a Builder<'a>, stages: Range<StageId>) -> Self {
        let (first, last) = (&builder.stages[stages.start], &builder.stages[stages.end - 1]);
        let (forward, backward) = (first.forward.start..last.forward.end, last.backward.start..first.backward.end);
        Self { builder, stages, forward, backward }
    }

    /// Whether `value` is there in any case: not computed anew in runs of a stage, or needed by a later stage.
    fn is_always(&self, value: ValueId) -> bool {
        !self.builder.is_stage_value(value) || self.builder.last_stage[value] >= self.stages.end
    }

    /// The ops, forward ops first, by their numbers from the start.
    fn op_at(&self, local: usize) -> OpId {
        let forward = self.forward.len();
        if local < forward { self.forward.start + local } else { self.backward.start + local - forward }
    }

    fn local_of(&self, op: OpId) -> usize {
        let inside = self.forward.contains(&op);
        if inside { op - self.forward.start } else { op - self.backward.start + self.forward.len() }
    }

    /// What it makes for later stages.
    fn crossing(&self) -> Vec<ValueId> {
        let graph = self.builder.graph;
        let made = self.forward.clone().flat_map(|op| &graph.ops()[op].outputs).copied();
        made.filter(|&value| self.builder.is_stage_value(value) && self.is_always(value)).collect()
    }

    /// The sets worth offering.
    fn solve(&self, deadline: Deadline) -> Vec<LocalSet> {
        let graph = self.builder.graph;
        let points = nested_sets(graph, &self.forward, self.backward.clone(), &|value| self.is_always(value), deadline);
        let chosen = below_the_lines(&points.iter().map(|point| (point.bytes, point.cost)).collect::<Vec<_>>());
        let place = |value: ValueId| {
            let op = graph.producer(value)?;
            Some((op - self.forward.start, graph.ops()[op].outputs.iter().position(|&other| other == value)?))
        };
        let local = |at: usize| LocalSet {
            kept: points[at].kept.iter().filter_map(|&value| place(value)).collect(),
            cost: points[at].cost,
            order: points[at].order.iter().map(|&op| self.local_of(op)).collect(),
        };
        chosen.into_iter().map(local).collect()
    }

    /// What tells one run from another: costs, sizes, and who reads what.
    fn structure(&self) -> Vec<u64> {
        let graph = self.builder.graph;
        let mut numbers: HashMap<ValueId, u64> = HashMap::new();
        let mut key = vec![self.forward.len() as u64];
        for op in self.forward.clone().chain(self.backward.clone()) {
            let op = &graph.ops()[op];
            key.extend([op.cost.to_bits(), op.scratch_bytes, u64::from(op.recomputable), op.inputs.len() as u64]);
            for &value in op.inputs.iter().chain(&op.outputs) {
                let next = numbers.len() as u64;
                key.push(*numbers.entry(value).or_insert(next));
                key.extend([graph.bytes(value), u64::from(self.is_always(value))]);
            }
        }
        key
    }

    /// Most bytes during the backward ops in `order`: what the backward side holds and what is computed again.
    fn backward_peak(&self, kept: &BTreeSet<ValueId>, order: &[OpId], before_op: &[u64]) -> u64 {
        let (graph, forward) = (self.builder.graph, &self.forward);
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
        // What goes of the kept set, and of what later stages read, on the way.
        let mut leaves = vec![0; order.len() + 1];
        kept_until.iter().for_each(|(&value, &at)| leaves[at] += graph.bytes(value));
        // What the backward side holds: before a run of forward ops as before the backward op behind them.
        let mut side = vec![0; order.len()];
        let mut held_side = 0;
        for (at, &id) in order.iter().enumerate().rev() {
            if !forward.contains(&id) {
                held_side = before_op[id];
            }
            side[at] = held_side;
        }
        let (mut live, mut held, mut gone) = (BTreeSet::new(), 0, 0);
        let mut most = self.backward.clone().next().map_or(0, |op| before_op[op]);
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

/// The options of a run of stages.
fn options_of(run: &Run<'_>, before_op: &[u64], sets: &mut Sets, deadline: Deadline) -> Vec<StageOption> {
    let graph = run.builder.graph;
    let sets = sets.entry(run.structure()).or_insert_with(|| run.solve(deadline));
    let crossing = graph.bytes_of(&run.crossing());
    let backward_cost: f64 = run.backward.clone().map(|op| graph.ops()[op].cost).sum();
    let option = |set: &LocalSet| {
        let kept: BTreeSet<ValueId> =
            set.kept.iter().map(|&(op, output)| graph.ops()[run.op_at(op)].outputs[output]).collect();
        let order: Vec<OpId> = set.order.iter().map(|&op| run.op_at(op)).collect();
        let saved = crossing + kept.iter().map(|&value| graph.bytes(value)).sum::<u64>();
        let peak = run.builder.forward_peak_keeping(run.stages.clone(), |value| kept.contains(&value));
        StageOption {
            stages: run.stages.len(),
            saved,
            backward_cost: backward_cost + set.cost,
            save_scratch: peak.saturating_sub(saved),
            backward_bytes: run.backward_peak(&kept, &order, before_op),
            order,
        }
    };
    // The whole set of several stages is what each of them keeps by itself.
    sets.iter().skip(usize::from(run.stages.len() > 1)).map(option).collect()
}

/// Of points with falling bytes and rising cost the first, the last and those furthest below the lines between.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Options, by_name};
    use crate::views::chain_of::ChainView;

    fn views(name: &str, depth: usize) -> (Graph, Vec<OptionView>) {
        let graph = by_name(name, &Options { depth, ..Options::default() }).unwrap();
        let views = OptionView::candidates(&graph, Deadline::NEVER);
        (graph, views)
    }

    #[test]
    fn the_first_option_is_the_stage_of_the_chain_and_each_further_one_is_smaller_and_dearer() {
        let (graph, views) = views("gpt", 2);
        let plain = ChainView::joined_candidates(&graph);
        for view in &views {
            let alone = |i: StageId| view.options[i].iter().filter(|option| option.stages == 1).collect::<Vec<_>>();
            let is_same = |plain: &ChainView| {
                let saved = (0..view.len()).map(|i| alone(i)[0].saved);
                plain.stages() == view.stages && saved.eq(plain.terms().saved.iter().copied())
            };
            assert!(plain.iter().any(is_same));
            for pair in (0..view.len()).flat_map(|i| alone(i).windows(2).map(<[_]>::to_vec).collect::<Vec<_>>()) {
                assert!(pair[1].saved < pair[0].saved && pair[1].backward_cost >= pair[0].backward_cost);
            }
        }
    }

    #[test]
    fn a_deeper_network_has_no_more_classes_of_stages() {
        for name in ["gpt", "gpt-flash", "vit"] {
            let classes = |depth| {
                // The first view has nothing pinned for its reach, which the depth would change.
                views(name, depth).1[0].class.iter().max().copied()
            };
            assert_eq!(classes(8), classes(16), "{name}");
        }
    }
}
