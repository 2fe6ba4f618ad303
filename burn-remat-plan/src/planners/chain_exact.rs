//! The cheapest of all schedules of a chain, persistent or not, by A*.
//!
//! A state is the stage whose backward operation is due and the form in which each boundary is held. The steps are those
//! of the [chain model](crate::chain) (`Fn` is `Fck` and a release). A state's bound is its cost so far plus every backward
//! operation left and the forward operation of every stage left whose set is not saved. It never
//! falls along a step, so the first final state to leave the queue is a cheapest one. States that cannot beat the cheapest
//! plan known are dropped; when none is left, that plan is proved optimal. If the search stops early, the bound of the next
//! state is a lower bound for every schedule.
//!
//! A schedule never gains by releasing what holds no bytes, nor by running a stage without saving if its saved set is no
//! larger than its activation; A* tries neither.
//!
//! Complexity: at most [`MOST_STATES`] states are visited, fewer if memory is too small for them.
//!
//! Source: this project.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::allowance::Allowance;
use crate::chain::terms::{Grouped, Terms};
use crate::chain::{ChainStep, StageId};

/// A* is not tried on longer chains.
const MOST_EXACT_STAGES: usize = 60;
/// A* gives up when it knows this many states; on chains of more than 24 stages at fewer, since each takes longer.
const MOST_STATES: usize = 400_000;

/// The result of the exact search.
pub(crate) enum Exact {
    /// A cheapest schedule, cheaper than the one known.
    Cheapest(Vec<ChainStep>),
    /// No schedule is cheaper than the one known.
    NoneCheaper {
        /// If no plan was known, every budget below this gives the same result.
        next_budget: u64,
    },
    /// Stopped early; no schedule is cheaper than this.
    Stopped(f64),
}

/// The cheapest of all schedules that cost less than `known`, by A*.
pub(crate) fn exact(joined: &Grouped, budget: u64, known: f64, allowance: Allowance) -> Exact {
    if joined.terms.len() > MOST_EXACT_STAGES {
        return Exact::Stopped(0.0);
    }
    match Search::new(&joined.terms, budget, known).run(allowance) {
        Exact::Cheapest(steps) => Exact::Cheapest(tidy(&joined.expand_idle(&steps))),
        other => other,
    }
}

/// Two bits for each boundary: 0 not held, 1 bare, 2 saved.
type Boundaries = u128;

/// The number of stages still to go backward, and what is held.
type State = (u8, Boundaries);

fn form(held: Boundaries, boundary: usize) -> Boundaries {
    held >> (2 * boundary) & 3
}

fn with(held: Boundaries, boundary: usize, form: Boundaries) -> Boundaries {
    held & !(3 << (2 * boundary)) | form << (2 * boundary)
}

/// A state in the queue. The greatest is expanded next: least bound, then most progress, then first found.
#[derive(PartialEq)]
struct Open {
    bound: f64,
    cost: f64,
    number: usize,
    state: State,
}

impl Eq for Open {}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_bound = other.bound.total_cmp(&self.bound);
        let by_progress = self.cost.total_cmp(&other.cost).then(other.state.0.cmp(&self.state.0));
        by_bound.then(by_progress).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Search<'a> {
    terms: &'a Terms,
    budget: u64,
    /// Schedules that cost at least this much are of no use.
    known: f64,
    /// Cost of the best way to each state, and the last step of that way.
    best: HashMap<State, (f64, Option<(State, ChainStep)>)>,
    queue: BinaryHeap<Open>,
    pushed: usize,
    /// The least memory needed by a step that was over the budget.
    least_refused: u64,
}

impl<'a> Search<'a> {
    fn new(terms: &'a Terms, budget: u64, known: f64) -> Self {
        // The same sum in another order must not count as an improvement.
        let known = known * (1.0 - 1e-12);
        Self {
            terms,
            budget,
            known,
            best: HashMap::new(),
            queue: BinaryHeap::new(),
            pushed: 0,
            least_refused: u64::MAX,
        }
    }

    fn run(mut self, allowance: Allowance) -> Exact {
        let n = self.terms.len();
        let start = (n as u8, with(0, 0, 1));
        if !self.fits(self.terms.activation[0] + self.terms.gradient[n - 1]) {
            return Exact::NoneCheaper { next_budget: self.least_refused };
        }
        self.push(start, 0.0, None);
        let most_states = MOST_STATES * 24 / n.max(24);
        let mut rounds = 0;
        while let Some(open) = self.queue.pop() {
            if self.best[&open.state].0 < open.cost {
                continue;
            }
            if open.state.0 == 0 {
                return Exact::Cheapest(self.way_to(open.state));
            }
            let is_late = rounds % 64 == 0 && allowance.deadline.passed();
            if self.best.len() > most_states || self.bytes() > allowance.memory || is_late {
                return Exact::Stopped(open.bound);
            }
            rounds += 1;
            self.expand(open.state, open.cost);
        }
        Exact::NoneCheaper { next_budget: self.least_refused }
    }

    /// About the most memory that the states take until the next call: a container that grows exists twice for a while.
    fn bytes(&self) -> u64 {
        let known = 3 * self.best.capacity() * size_of::<(State, (f64, Option<(State, ChainStep)>))>();
        (known + 3 * self.queue.capacity() * size_of::<Open>()) as u64
    }

    fn fits(&mut self, bytes: u64) -> bool {
        if bytes > self.budget {
            self.least_refused = self.least_refused.min(bytes);
        }
        bytes <= self.budget
    }

    fn way_to(&self, mut state: State) -> Vec<ChainStep> {
        let mut steps = Vec::new();
        while let Some((from, step)) = self.best[&state].1 {
            steps.push(step);
            state = from;
        }
        steps.reverse();
        steps
    }

    fn push(&mut self, state: State, cost: f64, from: Option<(State, ChainStep)>) {
        if self.best.get(&state).is_some_and(|known| known.0 <= cost) {
            return;
        }
        let bound = cost + self.at_least(state);
        if bound < self.known {
            self.best.insert(state, (cost, from));
            self.pushed += 1;
            self.queue.push(Open { bound, cost, number: self.pushed, state });
        }
    }

    /// A lower bound on the remaining cost.
    fn at_least(&self, (due, held): State) -> f64 {
        let stage = |i: StageId| {
            let forward = if form(held, i + 1) == 2 { 0.0 } else { self.terms.forward_cost[i] };
            forward + self.terms.backward_cost[i]
        };
        (0..usize::from(due)).map(stage).sum()
    }

    /// Bytes of a boundary.
    fn bytes_of(&self, held: Boundaries, boundary: usize) -> u64 {
        match form(held, boundary) {
            0 => 0,
            2 => self.terms.saved[boundary - 1],
            _ => self.terms.activation[boundary],
        }
    }

    /// Releases a boundary, unless that frees nothing.
    fn release(&mut self, (due, held): State, boundary: usize, cost: f64) {
        if self.bytes_of(held, boundary) > 0 {
            let after = (due, with(held, boundary, 0));
            self.push(after, cost, Some(((due, held), ChainStep::Release(boundary))));
        }
    }

    /// Whether saving stage `i` takes no more memory than keeping its activation, which it replaces.
    fn saving_is_lighter(&self, i: StageId) -> bool {
        self.terms.saved[i] <= self.terms.activation[i + 1] && self.terms.save_scratch[i] <= self.terms.pass_scratch[i]
    }

    fn expand(&mut self, state: State, cost: f64) {
        let (due, held) = state;
        let last = usize::from(due) - 1;
        let bytes: u64 = (0..=self.terms.len()).map(|boundary| self.bytes_of(held, boundary)).sum();
        for i in (0..=last).filter(|&i| form(held, i) != 0) {
            for (to, step, scratch) in [
                (2, ChainStep::SaveAll(i), self.terms.save_scratch[i]),
                (1, ChainStep::KeepInput(i), self.terms.pass_scratch[i]),
            ] {
                let after = with(held, i + 1, to);
                if form(held, i + 1) >= to || (to == 1 && self.saving_is_lighter(i)) {
                    continue;
                }
                let others = bytes - self.bytes_of(held, i + 1);
                if self.fits(others + self.bytes_of(after, i + 1) + self.terms.gradient[last] + scratch) {
                    self.push((due, after), cost + self.terms.forward_cost[i], Some((state, step)));
                }
            }
            if i > 0 {
                self.release(state, i, cost);
            }
        }
        // The input of the next stage, whose backward operation is done and has left the boundary saved.
        if last + 1 < self.terms.len() {
            self.release(state, last + 1, cost);
        }
        let ready = form(held, last + 1) == 2 && form(held, last) != 0;
        if ready && self.fits(bytes + self.terms.backward_bytes[last]) {
            let mut after = with(held, last + 1, 0);
            if form(held, last) == 1 {
                after = with(after, last, 0);
            }
            let step = ChainStep::Backward(last);
            self.push((due - 1, after), cost + self.terms.backward_cost[last], Some((state, step)));
        }
    }
}

/// Moves each release to right after the last use of what it releases, and joins it with a forward operation where possible.
fn tidy(steps: &[ChainStep]) -> Vec<ChainStep> {
    let mut out: Vec<ChainStep> = Vec::with_capacity(steps.len());
    for &step in steps {
        let ChainStep::Release(i) = step else {
            out.push(step);
            continue;
        };
        let touches = |step: &ChainStep| match *step {
            ChainStep::Release(j) | ChainStep::Backward(j) => j == i,
            ChainStep::SaveAll(j) | ChainStep::KeepInput(j) | ChainStep::Pass(j) => j == i || j + 1 == i,
        };
        let at = out.iter().rposition(touches);
        let made = |step: &&ChainStep| matches!(**step, ChainStep::SaveAll(j) | ChainStep::KeepInput(j) | ChainStep::Pass(j) if j + 1 == i);
        let saved = at.is_some_and(|at| matches!(out[..at].iter().rfind(made), Some(ChainStep::SaveAll(_))));
        match at {
            Some(at) if out[at] == ChainStep::KeepInput(i) && !saved => out[at] = ChainStep::Pass(i),
            _ => out.insert(at.map_or(0, |at| at + 1), step),
        }
    }
    out
}
