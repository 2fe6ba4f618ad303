//! The stages of a [chain view](super::chain_of), each with several saved sets to choose from.
//!
//! Problem: in the chain model a stage keeps all that its backward ops read, or nothing. A block that holds
//! normalizations, activations and attention scores can do with a fraction of that at next to no cost.
//!
//! Method. A stage's options are the nested saved sets of [`saved_sets`](super::saved_sets), from everything to nothing;
//! of those that lie below the lines between the others in bytes and cost, at most a dozen are offered.
//! Neighbouring stages, at most [`MOST_STAGES`], also have options together: what lies between them, such as the sums of
//! a residual network, can then be dropped too. Each
//! option states the bytes kept, the cost of the backward ops with what they compute again, the scratch of the forward run
//! that keeps the set, and the most held during the backward ops. What later stages read always stays: it is their
//! input.
//!
//! Stages, and runs of them, of the same structure are solved once ([`stage_runs`](super::stage_runs)). If all terms
//! agree too, stages have the same *class*, by which a planner can recognise equal runs of stages.
//!
//! Invariants: any choice of options gives an executable order.
//!
//! Complexity: that of `saved_sets` for each structure, O(ops) for each stage.
//!
//! Source: Rockmate (Zhao et al. 2023) solves blocks for several budgets, equal blocks once, and lets the dynamic program
//! of Beaumont et al. choose; it solves a block exactly, here sets are dropped greedily.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::chain_of::{Builder, Stage, cuts, joined_ahead, marks, pinned_values, without_useless};
use super::passes::forward_length;
use super::stage_runs::{KnownRuns, Ops, Run, RunOption};
use crate::chain::StageId;
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId};
use crate::plan::Plan;
use crate::sequence::plan_from_order;

/// The most neighbours that an option takes as one stage, and the most forward ops that these may have.
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
    /// The backward ops, each after what is computed again for it, [counted from the start](Ops) of its stages.
    order: Arc<[usize]>,
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
    /// Views worth trying: with stages of next to no cost joined to those after them, at the cuts found and at those that
    /// names mark, with and without long values pinned. If time runs out, there are fewer, with fewer options.
    pub fn candidates(graph: &Graph, deadline: Deadline) -> Vec<Self> {
        let split = forward_length(graph);
        let (mut views, mut known) = (Vec::new(), KnownRuns::default());
        let mut seen: Vec<(Vec<bool>, Vec<OpId>)> = Vec::new();
        for shortest in [usize::MAX, (split / 4).max(2), (split / 12).max(2)] {
            let pinned = pinned_values(graph, split, shortest);
            for places in [cuts(graph, split, &pinned), marks(graph, split)] {
                let joined = joined_ahead(graph, split, &places);
                let case = (pinned.clone(), joined);
                if !case.1.is_empty() && !seen.contains(&case) && !deadline.passed() {
                    views.push(Self::new(Builder::new(graph, split, &case.0, &case.1), &mut known, deadline));
                    seen.push(case);
                }
            }
        }
        views
    }

    fn new(builder: Builder<'_>, known: &mut KnownRuns, deadline: Deadline) -> Self {
        let mut classes = HashMap::new();
        let side = builder.backward_side();
        let n = builder.stages.len();
        let mut own = |i: StageId| -> Vec<StageOption> {
            let ops = |end: StageId| builder.stages[end - 1].forward.end - builder.stages[i].forward.start;
            let ends = (i + 1..=n.min(i + MOST_STAGES)).filter(|&end| end == i + 1 || ops(end) <= MOST_OPS);
            ends.flat_map(|end| options_of(&builder, i..end, &side.before_op, known, deadline)).collect()
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
                OptionStep::Backward(i, option) => {
                    let option = &self.options[i][option];
                    let run = Ops::of(&self.stages[i..i + option.stages]);
                    ops.extend(option.order.iter().map(|&op| run.at(op)));
                }
            }
        }
        plan_from_order(graph, &without_useless(graph, &ops))
    }
}

/// The options of a run of stages.
fn options_of(
    builder: &Builder<'_>,
    stages: Range<StageId>,
    before_op: &[u64],
    known: &mut KnownRuns,
    deadline: Deadline,
) -> Vec<StageOption> {
    let run = Run::new(builder, stages.clone());
    let base = run.base(before_op);
    let options = known.options(&run, before_op, deadline);
    // The whole set of several stages is what each of them keeps by itself.
    let offered = options.iter().skip(usize::from(stages.len() > 1));
    let option = |option: &RunOption| StageOption {
        stages: stages.len(),
        saved: option.saved,
        backward_cost: option.backward_cost,
        save_scratch: option.save_scratch,
        backward_bytes: base + option.backward_beyond,
        order: Arc::clone(&option.order),
    };
    offered.map(option).collect()
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
