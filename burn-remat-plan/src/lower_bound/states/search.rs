//! Best-first search for the cheapest way through an abstraction.
//!
//! A* (Hart, Nilsson & Raphael 1968) over (first computations done, resident groups). Only computations are steps.
//! Values are evicted only when a computation lacks room, and as few as possible, since what stays can still go later.
//! The remaining cost of a state is at least what `ahead.rs` says.
//!
//! At any time, the least estimate of all open states bounds every schedule, so the search may stop whenever it likes. A
//! state is dropped if another one, as cheap and with more resident, covers it. A state first leads only to the states
//! that look about as good as itself, and then waits with the estimate of the best of the others (partial expansion,
//! Yoshizumi, Miura & Ishida 2000). If one computation has too many sets of evictions to choose from, the rest of them
//! are replaced by what they have in common, as if that fitted.
//!
//! The remaining cost of each expanded state is at least the bound minus what was spent up to it: later searches of the
//! same abstraction start from that (Adaptive A*, Koenig & Likhachev 2006). If it is known from elsewhere that something
//! is spent after a later moment, this holds only for states before that moment: the abstraction may reach a state after
//! it for less than any schedule does, and such a state has less left than the bound says. Then only the states with as
//! many first computations done as at the start of the search are reused.
//!
//! Complexity: exponential in what is resident together, capped by the limits on time and memory.

use std::cmp::{Ordering, Reverse};
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};

use super::ahead::{Ahead, Reach};
use super::bits::Bits;
use super::model::{Model, Way};
use crate::deadline::Deadline;

/// When a search ends; its bound is whatever it has reached by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub deadline: Deadline,
    /// Limit on the bytes of states.
    pub bytes: usize,
    /// Limit on the states expanded.
    pub states: usize,
    /// A bound beyond this is of no use.
    pub enough: f64,
    /// How far apart the estimates of states expanded together may be.
    pub slack: f64,
}

/// What a search found.
pub(super) struct Found<const W: usize> {
    /// A lower bound on what is spent from the start to the end, or `enough`.
    pub bound: f64,
    /// Expanded states, with what is at least spent from there on.
    pub learned: Vec<((usize, Bits<W>), f64)>,
}

pub(super) struct Search<'m, const W: usize> {
    pub model: &'m Model<W>,
    pub budget: u64,
    pub ahead: Ahead<'m, W>,
}

/// A state that waits for its turn.
#[derive(Clone, Copy)]
struct Open<const W: usize> {
    estimate: f64,
    spent: f64,
    done: usize,
    resident: Bits<W>,
    /// Whether it has already been expanded, up to a smaller estimate.
    again: bool,
}

impl<const W: usize> PartialEq for Open<W> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<const W: usize> Eq for Open<W> {}

impl<const W: usize> PartialOrd for Open<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The greatest comes next: the least estimate, then the furthest in the program, then the one that has spent most.
impl<const W: usize> Ord for Open<W> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_estimate = other.estimate.total_cmp(&self.estimate);
        by_estimate.then(self.done.cmp(&other.done)).then(self.spent.total_cmp(&other.spent))
    }
}

/// How many of the latest expanded states are checked for one that covers another.
const LOOK_BACK: usize = 500;
/// Limit on the sets of evictions, complete or not, that the computations from one state may choose from.
const MOST_SETS: usize = 20_000;
/// After how many such sets the clock is read; each state counts as 20 of them.
const CLOCK: usize = 1_000;

/// Collects what may stay, up to an estimate of the remaining cost.
struct Sift<const W: usize> {
    limit: f64,
    visited: usize,
    found: Vec<(Bits<W>, f64)>,
    least_left_out: f64,
}

/// What a search has seen.
struct Seen<const W: usize> {
    open: BinaryHeap<Open<W>>,
    spent: HashMap<(usize, Bits<W>), f64>,
    closed: Vec<Vec<(Bits<W>, f64)>>,
    pushed: usize,
}

impl<const W: usize> Seen<W> {
    fn push(&mut self, state: Open<W>) {
        match self.spent.entry((state.done, state.resident)) {
            Entry::Occupied(mut known) if *known.get() > state.spent => *known.get_mut() = state.spent,
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => drop(place.insert(state.spent)),
        }
        self.pushed += 1;
        self.open.push(state);
    }

    /// Whether a state is worth expanding; if so, it counts as expanded.
    fn close(&mut self, state: &Open<W>) -> bool {
        if self.spent[&(state.done, state.resident)] < state.spent {
            return false;
        }
        if state.again {
            return true;
        }
        let closed = &mut self.closed[state.done];
        let covers = |other: &&(Bits<W>, f64)| other.1 <= state.spent && state.resident.is_within(&other.0);
        if closed.iter().rev().take(LOOK_BACK).any(|other| covers(&other)) {
            return false;
        }
        closed.push((state.resident, state.spent));
        true
    }

    /// Approximate memory: each state is in three containers, each of which may have grown to twice its size.
    fn bytes(&self) -> usize {
        self.pushed * 2 * (size_of::<Open<W>>() + 2 * size_of::<(usize, Bits<W>, f64)>())
    }
}

impl<const W: usize> Search<'_, W> {
    /// Searches from a state to the end of the program.
    pub fn run(&self, done: usize, start: Bits<W>, limits: Limits) -> Found<W> {
        let closed = vec![Vec::new(); self.model.outputs.len() + 1];
        let mut seen = Seen { open: BinaryHeap::new(), spent: HashMap::new(), closed, pushed: 0 };
        seen.push(Open { estimate: self.ahead.of(done, &start), spent: 0.0, done, resident: start, again: false });
        let bound = self.bound(&mut seen, limits);
        let mut learned = Vec::new();
        let last = if self.ahead.knows_of_later(done) { done } else { self.model.outputs.len() };
        for (done, states) in seen.closed.iter().enumerate().take(last + 1) {
            let left = states.iter().map(|&(resident, spent)| ((done, resident), bound - spent));
            learned.extend(left.filter(|&(_, left)| left > 0.0));
        }
        Found { bound, learned }
    }

    fn bound(&self, seen: &mut Seen<W>, limits: Limits) -> f64 {
        let end = self.model.outputs.len();
        let (mut gone, mut since_clock) = (0, 0);
        while let Some(state) = seen.open.pop() {
            if state.estimate >= limits.enough || state.estimate.is_infinite() {
                break;
            }
            if state.done == end && self.model.results.is_within(&state.resident) {
                return state.spent;
            }
            if seen.bytes() > limits.bytes || gone >= limits.states {
                return state.estimate;
            }
            if since_clock > CLOCK {
                since_clock = 0;
                if limits.deadline.passed() {
                    return state.estimate;
                }
            }
            since_clock += 20;
            if seen.close(&state) {
                gone += 1;
                since_clock += self.expand(&state, limits, seen);
            }
        }
        limits.enough
    }

    /// Adds the states that one step leads to; returns how many sets of evictions that took.
    fn expand(&self, state: &Open<W>, limits: Limits, seen: &mut Seen<W>) -> usize {
        let model = self.model;
        let (done, resident) = (state.done, &state.resident);
        let last = model.first_way[(done + 1).min(model.outputs.len())];
        let limit = (state.estimate + limits.slack).min(limits.enough);
        let (mut postponed, mut visited) = (f64::INFINITY, 0);
        // The first computation comes before the repeats.
        for way in model.ways[..last].iter().rev() {
            let is_first = way.op == done;
            let adds = !model.outputs[way.op].common(&model.useful[done]).is_within(resident);
            let is_of_use = is_first || model.recomputable[way.op] && adds;
            if !is_of_use || !way.inputs.is_within(resident) {
                continue;
            }
            let (next, spent) = match is_first {
                true => (done + 1, state.spent + way.first),
                false => (done, state.spent + way.again),
            };
            let mut sift = Sift { limit: limit - spent, visited, found: Vec::new(), least_left_out: f64::INFINITY };
            self.after(done, way, resident, &mut sift);
            visited = sift.visited;
            postponed = postponed.min(spent + sift.least_left_out);
            let is_free = is_first && self.is_free(done, way, resident, &sift);
            for (set, ahead) in sift.found {
                let estimate = (spent + ahead).max(state.estimate);
                seen.push(Open { estimate, spent, done: next, resident: set, again: false });
            }
            if is_free {
                break;
            }
        }
        if postponed < limits.enough {
            let estimate = postponed.max(state.estimate);
            seen.open.push(Open { estimate, again: true, ..*state });
        }
        visited
    }

    /// What stays of `resident` when `way` runs and as little as possible is evicted.
    fn after(&self, done: usize, way: &Way<W>, resident: &Bits<W>, sift: &mut Sift<W>) {
        let model = self.model;
        let outputs = model.outputs[way.op];
        let is_first = way.op == done;
        let next = done + usize::from(is_first);
        let all = resident.union(&outputs);
        let fresh = if is_first { model.fresh_roots[way.op] } else { 0 };
        let need = model.held[done] + fresh + way.extra + model.weigh(&all);
        let useful = &model.useful[next];
        let Some(over) = need.checked_sub(self.budget).filter(|&over| over > 0) else {
            return self.keep(next, all.common(useful), sift);
        };
        let mut list: Vec<usize> = resident.minus(&way.inputs).minus(&outputs).members().collect();
        // The heaviest first: then a set is minimal exactly if the last group evicted is indispensable.
        list.sort_by_key(|&group| (Reverse(model.weights[group]), group));
        let mut rest: Vec<u64> = vec![0; list.len() + 1];
        for (at, &group) in list.iter().enumerate().rev() {
            rest[at] = rest[at + 1] + model.weights[group];
        }
        let mut stack: Vec<(usize, Bits<W>, u64, Reach<W>)> =
            vec![(0, all, over, self.ahead.best_reach(next, &all.common(useful)))];
        while let Some((at, stay, over, reach)) = stack.pop() {
            sift.visited += 1;
            if reach.ahead() > sift.limit {
                sift.least_left_out = sift.least_left_out.min(reach.ahead());
            } else if over == 0 || sift.visited > MOST_SETS {
                // Past the limit, this step is assumed to fit.
                self.keep(next, stay.common(useful), sift);
            } else if over <= rest[at] {
                let group = list[at];
                stack.push((at + 1, stay, over, reach));
                let mut less = stay;
                less.remove(group);
                let over = over.saturating_sub(model.weights[group]);
                let mut reach = reach;
                if useful.contains(group) {
                    let left = less.common(useful);
                    reach = self.ahead.without(reach, next, group, &left);
                    if reach.ahead() <= sift.limit {
                        // Another horizon may give a larger bound by now.
                        reach = self.ahead.best_reach(next, &left);
                    }
                }
                stack.push((at + 1, less, over, reach));
            }
        }
    }

    fn keep(&self, next: usize, stay: Bits<W>, sift: &mut Sift<W>) {
        let ahead = self.ahead.of(next, &stay);
        if ahead > sift.limit {
            sift.least_left_out = sift.least_left_out.min(ahead);
        } else {
            sift.found.push((stay, ahead));
        }
    }

    /// Whether nothing is lost by running a first computation before anything else: it costs nothing, evicts nothing and
    /// leaves no more resident than before.
    fn is_free(&self, done: usize, way: &Way<W>, resident: &Bits<W>, sift: &Sift<W>) -> bool {
        let model = self.model;
        way.first == 0.0
            && model.outputs[way.op].is_within(resident)
            && model.held[done + 1] <= model.held[done]
            && sift.found.first().is_some_and(|(set, _)| *set == resident.common(&model.useful[done + 1]))
    }
}
