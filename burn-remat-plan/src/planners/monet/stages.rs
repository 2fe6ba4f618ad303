//! The class of schedules: which ops each stage may compute.
//!
//! | paper | here |
//! | --- | --- |
//! | forward pass, operators 1 to N | stage 0, if the graph has a forward pass |
//! | recomputation and backward of node k | one stage per later op, which ends the stage |
//! | implementation l of an operator | 0 for the op itself, l + 1 for `alternatives[l]` |

use std::ops::Range;

use crate::choice::Choice;
use crate::graph::{Graph, OpId};
use crate::sequence::plan_of_choices;
use crate::simulate::{Timeline, simulate};
use crate::views::passes::marked_forward;

/// The stages of a graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stages {
    /// Ops of the forward pass; 0 if the graph has no phases.
    pub forward: usize,
    ops: usize,
}

impl Stages {
    /// The stages according to the graph's phases.
    pub fn new(graph: &Graph) -> Self {
        Self { forward: marked_forward(graph).unwrap_or(0), ops: graph.ops().len() }
    }

    pub fn count(&self) -> usize {
        self.ops - self.forward + usize::from(self.forward > 0)
    }

    /// The stage in which `op` is computed for the first time.
    pub fn first_of(&self, op: OpId) -> usize {
        if self.forward == 0 { op } else { (op + 1).saturating_sub(self.forward) }
    }

    /// Ops computed for the first time.
    pub fn forced(&self, stage: usize) -> Range<OpId> {
        match (self.forward, stage) {
            (0, _) => stage..stage + 1,
            (forward, 0) => 0..forward,
            (forward, _) => forward + stage - 1..forward + stage,
        }
    }

    /// Ops that may be computed again, before those of [`forced`](Self::forced).
    pub fn optional(&self, stage: usize) -> Range<OpId> {
        match (self.forward, stage) {
            (0, _) => 0..stage,
            (_, 0) => 0..0,
            (forward, _) => 0..forward,
        }
    }

    /// Whether `op` may be computed again in some stage.
    pub fn may_repeat(&self, graph: &Graph, op: OpId) -> bool {
        graph.ops()[op].recomputable && (self.forward == 0 || op < self.forward)
    }
}

/// The ops of all stages in order, if the values in `keep` stay and all others are computed again when needed.
pub(super) fn sequence(graph: &Graph, stages: &Stages, keep: &[bool]) -> Vec<OpId> {
    let mut order = Vec::new();
    let mut seen = vec![usize::MAX; graph.ops().len()];
    let mut stack = Vec::new();
    for stage in 0..stages.count() {
        let start = order.len();
        if stages.optional(stage).is_empty() {
            order.extend(stages.forced(stage));
            continue;
        }
        stack.extend(stages.forced(stage));
        while let Some(op) = stack.pop() {
            if std::mem::replace(&mut seen[op], stage) == stage {
                continue;
            }
            order.push(op);
            let again = graph.ops()[op].inputs.iter().filter(|&&value| !keep[value]);
            stack.extend(
                again.filter_map(|&value| graph.producer(value)).filter(|&from| stages.may_repeat(graph, from)),
            );
        }
        order[start..].sort_unstable();
    }
    order
}

/// A schedule and what it costs.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub choices: Vec<Choice>,
    pub timeline: Timeline,
}

impl Candidate {
    pub fn new(graph: &Graph, choices: Vec<Choice>) -> Self {
        let timeline = simulate(graph, &plan_of_choices(graph, &choices));
        Self { choices, timeline }
    }
}
