//! A schedule to start from, for coarse graphs: first a descent to the budget, then a walk to cheaper schedules.
//!
//! Problem: the branch and bound is late to find good schedules of a few dozen stages. In a coarse graph most of the gain lies
//! in the choice of implementations, which the greedy search over kept values (`heuristic`) does not make.
//!
//! Method. A state gives each value a mode and each later op an implementation; one schedule of the class follows from it:
//! inputs that an op lacks are computed again right before it. Starting from the state that keeps everything, the single
//! change that removes the most excess (bytes above the budget, summed over the steps) for its cost is made, until the budget
//! holds. Then random changes of one to three modes and implementations are made, and kept if the schedule fits and costs no
//! more than the best plus a threshold, which falls to nothing (threshold accepting).
//!
//! Invariants: every state gives a valid schedule; the same seed gives the same result unless the time runs out.
//!
//! Complexity: each trial is a simulation of the plan; at most [`TRIALS`] of them at random.
//!
//! Source: Dueck and Scheuer 1990 (threshold accepting). Two modes are what Chen et al. do with checkpoints and with the
//! inside of a segment; the third recomputes for each use.

use std::collections::BTreeSet;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::heuristic::Start;
use super::stages::{Candidate, Stages};
use crate::choice::{Choice, implementation, useful_implementations};
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId, ValueId};
use crate::planner::Request;

/// Random changes tried.
const TRIALS: usize = 150_000;
/// The first threshold, as a share of the cost.
const THRESHOLD: f64 = 0.01;

/// How long a value stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// From its first computation to its last use.
    Kept,
    /// Until the forward pass is over; once computed again, to its last use.
    Again,
    /// For the stage in which it is computed.
    Never,
}

/// A mode for each value and an implementation for each op.
#[derive(Clone)]
pub(super) struct State {
    pub modes: Vec<Mode>,
    pub ways: Vec<usize>,
}

/// One choice of a state.
#[derive(Clone, Copy)]
enum Change {
    Mode(ValueId, Mode),
    Way(OpId, usize),
}

impl State {
    /// Makes `change` and returns the one that undoes it.
    fn set(&mut self, change: Change) -> Change {
        match change {
            Change::Mode(value, mode) => Change::Mode(value, std::mem::replace(&mut self.modes[value], mode)),
            Change::Way(op, way) => Change::Way(op, std::mem::replace(&mut self.ways[op], way)),
        }
    }

    /// The schedule.
    pub fn candidate(&self, graph: &Graph, stages: &Stages) -> Candidate {
        let mut choices = Vec::new();
        let mut present = vec![true; graph.values().len()];
        let mut stack = Vec::new();
        for stage in 0..stages.count() {
            let is_pass = stages.optional(stage).is_empty();
            let mut runs: BTreeSet<OpId> = stages.forced(stage).collect();
            if !is_pass {
                stack.extend(runs.iter().copied());
            }
            while let Some(op) = stack.pop() {
                for &value in implementation(&graph.ops()[op], self.ways[op]).0.iter().filter(|&&value| !present[value])
                {
                    let maker = graph.producer(value).filter(|&maker| stages.may_repeat(graph, maker));
                    stack.extend(maker.filter(|&maker| runs.insert(maker)));
                }
            }
            for &op in &runs {
                choices.push(Choice { op, implementation: self.ways[op] });
                for &value in &graph.ops()[op].outputs {
                    let mode = self.modes[value];
                    present[value] = mode == Mode::Kept || (mode == Mode::Again && !is_pass);
                }
            }
        }
        Candidate::new(graph, choices)
    }
}

/// Bytes above the budget, summed over the steps.
fn excess(candidate: &Candidate, budget: u64) -> f64 {
    candidate.timeline.bytes.iter().map(|&bytes| bytes.saturating_sub(budget) as f64).sum()
}

/// Offers the schedules found until `end`.
pub(super) fn offer(graph: &Graph, stages: &Stages, request: &Request, end: Deadline, start: &mut Start) {
    let descent = Descent { graph, stages, request, end, changes: changes(graph, stages) };
    let state = State { modes: vec![Mode::Kept; graph.values().len()], ways: vec![0; graph.ops().len()] };
    if let Some((state, cost)) = descent.descend(state, start) {
        descent.walk(state, cost, start);
    }
}

struct Descent<'a> {
    graph: &'a Graph,
    stages: &'a Stages,
    request: &'a Request,
    end: Deadline,
    changes: Vec<Change>,
}

impl Descent<'_> {
    fn late(&self) -> bool {
        self.end.passed()
    }

    /// From `state` to one that fits, by the best single changes; with its cost.
    fn descend(&self, mut state: State, start: &mut Start) -> Option<(State, f64)> {
        let budget = self.request.budget;
        let mut current = state.candidate(self.graph, self.stages);
        while current.timeline.peak_bytes > budget {
            let (above, cost) = (excess(&current, budget), current.timeline.makespan);
            let mut best: Option<(f64, Change, Candidate)> = None;
            for &change in &self.changes {
                if self.late() {
                    return None;
                }
                let undo = state.set(change);
                let next = state.candidate(self.graph, self.stages);
                state.set(undo);
                let (less, dearer) = (above - excess(&next, budget), next.timeline.makespan - cost);
                let worth = less / dearer.max(1e-6 * cost);
                if less > 0.0 && best.as_ref().is_none_or(|best| worth > best.0) {
                    best = Some((worth, change, next));
                }
            }
            let (_, change, next) = best?;
            state.set(change);
            current = next;
        }
        let cost = current.timeline.makespan;
        start.offer(current, budget);
        Some((state, cost))
    }

    /// Makes random changes from `state`, accepting less and less.
    fn walk(&self, mut state: State, first: f64, start: &mut Start) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.request.seed);
        let mut least = first;
        let trials = if self.changes.is_empty() { 0 } else { TRIALS };
        for trial in 0..trials {
            if trial % 64 == 0 && self.late() {
                break;
            }
            let mut undo = Vec::with_capacity(3);
            for _ in 0..rng.random_range(1..=3) {
                undo.push(state.set(self.changes[rng.random_range(0..self.changes.len())]));
            }
            let next = state.candidate(self.graph, self.stages);
            let threshold = THRESHOLD * (1.0 - trial as f64 / trials as f64).powi(2);
            let cost = next.timeline.makespan;
            if next.timeline.peak_bytes > self.request.budget || cost > least * (1.0 + threshold) {
                for change in undo.into_iter().rev() {
                    state.set(change);
                }
            } else if cost < least {
                least = cost;
                start.offer(next, self.request.budget);
            }
        }
        log::debug!("{}: a walk from {first} to {least}", super::Monet::NAME);
    }
}

/// All single changes worth a trial.
fn changes(graph: &Graph, stages: &Stages) -> Vec<Change> {
    let mut changes = Vec::new();
    for (id, op) in graph.ops().iter().enumerate() {
        let ways = useful_implementations(op);
        if ways.len() > 1 && stages.first_of(id) > 0 {
            changes.extend(ways.into_iter().map(|way| Change::Way(id, way)));
        }
        if stages.may_repeat(graph, id) {
            let modes = [Mode::Kept, Mode::Again, Mode::Never];
            let sized = op.outputs.iter().filter(|&&value| graph.bytes(value) > 0);
            changes.extend(sized.flat_map(|&value| modes.map(|mode| Change::Mode(value, mode))));
        }
    }
    changes
}
