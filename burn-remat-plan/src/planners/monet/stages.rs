//! The class of schedules: which ops each stage may compute, and plans from choices of ops and implementations.
//!
//! | paper | here |
//! | --- | --- |
//! | forward pass, operators 1 to N | stage 0, where the graph has a forward pass |
//! | recomputation and backward of node k | one stage per later op, which ends the stage |
//! | implementation l of an operator | 0 for the op itself, l + 1 for `alternatives[l]` |

use std::ops::Range;

use crate::graph::{Graph, Op, OpId, Phase, ValueId};
use crate::plan::{Plan, Step};
use crate::simulate::{Timeline, simulate};

/// An op and the way to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub op: OpId,
    /// 0 is the op itself, k + 1 its alternative k.
    pub implementation: usize,
}

/// How many implementations `op` has.
pub(super) fn implementations(op: &Op) -> usize {
    1 + op.alternatives.len()
}

/// Inputs, cost and scratch of an implementation.
pub(super) fn implementation(op: &Op, index: usize) -> (&[ValueId], f64, u64) {
    match index.checked_sub(1).and_then(|k| op.alternatives.get(k)) {
        Some(other) => (&other.inputs, other.cost, other.scratch_bytes),
        None => (&op.inputs, op.cost, op.scratch_bytes),
    }
}

/// Implementations worth a thought: of those as good in all respects, the first.
pub(super) fn useful_implementations(op: &Op) -> Vec<usize> {
    let beats = |a: usize, b: usize| {
        let ((inputs, cost, scratch), (others, other_cost, other_scratch)) =
            (implementation(op, a), implementation(op, b));
        let no_worse = cost <= other_cost
            && scratch <= other_scratch
            && inputs.iter().all(|value| others.binary_search(value).is_ok());
        no_worse && (a < b || cost < other_cost || scratch < other_scratch || inputs.len() < others.len())
    };
    let all = 0..implementations(op);
    all.clone().filter(|&b| !all.clone().any(|a| a != b && beats(a, b))).collect()
}

/// The stages of a graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stages {
    /// Ops of the forward pass; 0 where the graph does not tell.
    pub forward: usize,
    ops: usize,
}

impl Stages {
    /// The forward pass is all that comes before the first backward or update op.
    pub fn new(graph: &Graph) -> Self {
        let late = |op: &Op| matches!(op.phase, Some(Phase::Backward | Phase::Update));
        let forward = graph.ops().iter().position(late).unwrap_or(0);
        Self { forward, ops: graph.ops().len() }
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

/// The plan that runs `choices` and evicts every value as soon as it is useless.
pub(super) fn plan_of(graph: &Graph, choices: &[Choice]) -> Plan {
    let mut needed: Vec<bool> = (0..graph.values().len()).map(|value| graph.is_result(value)).collect();
    let mut steps = Vec::with_capacity(choices.len() * 2);
    for choice in choices.iter().rev() {
        let op = &graph.ops()[choice.op];
        for &value in op.outputs.iter().rev() {
            if !std::mem::replace(&mut needed[value], false) {
                steps.push(Step::Evict(value));
            }
        }
        for &value in implementation(op, choice.implementation).0.iter().rev() {
            if !std::mem::replace(&mut needed[value], true) {
                steps.push(Step::Evict(value));
            }
        }
        steps.push(match choice.implementation {
            0 => Step::Compute(choice.op),
            k => Step::ComputeAlternative(choice.op, k - 1),
        });
    }
    steps.extend(graph.inputs().filter(|&value| !needed[value]).map(Step::Evict));
    steps.reverse();
    Plan { steps }
}

/// The ops of all stages in order, where the values in `keep` stay and all else is computed again when asked for.
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
        let timeline = simulate(graph, &plan_of(graph, &choices));
        Self { choices, timeline }
    }
}
