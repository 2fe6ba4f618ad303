//! Simulated annealing over compute orders.
//!
//! The energy of an order is its cost plus `weight` times the bytes above the budget, summed over positions; each position that is over
//! counts some extra bytes, or a walk would stay a little above the budget for long. The
//! weight follows the walk: it grows while the walk is mostly over the budget and shrinks while it is mostly within,
//! so that the walk stays near the border, where the cheap orders lie. A walk that has long been over continues from its best order.
//!
//! Moves:
//! - *evict*: a value that is idle at a position (one over the budget, if there are any) is evicted and computed again just
//!   before its next use. It is drawn from all values, then from those that are used nearby: in a large graph hardly any value is resident there.
//!   Missing inputs are kept longer where memory allows, else computed too, and their own later repeats are often dropped, since the new one serves their users;
//! - *keep*: a repeat is removed, and with it every repeat that only it used. Repeats that read the value which now stays, and
//!   ran early only because it was evicted, are often postponed to their first use: each change alone would be worse;
//! - *swap*: keep one value, evict another, now and then two of either;
//! - *shift*: a repeat moves to another position between its inputs and its first use.
//!
//! If ops have several [ways](super::problem) to run, three moves in ten change these:
//! - *switch*: a computation, first or later, switches to another way of its op. Inputs that only the new way reads are kept
//!   longer or computed again, as those of a repeat are; repeats that only the old way used are removed. It is done alone, twice
//!   at once, or together with evicting or keeping a value, to pay for the memory or to make use of it.
//!
//! A new repeat runs in the way that looks cheapest there, or in a random one; instead of inserting a repeat, an *evict* may switch
//! the next use of the value to a way that does without it.
//!
//! A move is applied to the [`State`] and undone if it is rejected.
//!
//! *Repacking* is not a move but a pass over all values, at low temperature: a value is evicted, and the memory that this frees is filled with
//! the results of repeats, those that save the most per byte first. Moves hardly ever exchange many cheap repeats for one expensive repeat of
//! the same bytes, since all orders on the way cost more or do not fit.

mod evict;
mod keep;
mod repack;
mod shift;
mod switch;

use super::problem::Problem;
use super::random::Random;
use super::settings::Without;
use super::state::{Instance, State};
use crate::choice::Choice;
use crate::graph::{OpId, ValueId};

/// What a byte over the budget costs a walk, adjusted so that the walk stays near the border.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    pub weight: f64,
    /// At this weight, one byte over the budget outweighs everything.
    most: f64,
    within: u32,
    tried: u32,
}

impl Pressure {
    fn observe(&mut self, is_within: bool) {
        self.tried += 1;
        self.within += u32::from(is_within);
        if self.tried == 512 {
            if self.within * 10 < self.tried * 3 {
                self.weight = (self.weight * 1.15).min(self.most);
            } else if self.within * 10 > self.tried * 6 {
                self.weight /= 1.15;
            }
            (self.tried, self.within) = (0, 0);
        }
    }
}

/// When the best order so far is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// Whenever there is a better one.
    EachBest,
    /// After each run of moves, if the order is then the best: copying a long order takes longer than a move.
    EachRun,
}

pub(crate) struct Walk<'p, 'g> {
    pub state: State<'p, 'g>,
    pub random: Random,
    pub pressure: Pressure,
    /// Values that are worth evicting.
    evictable: Vec<ValueId>,
    /// Ops with several ways.
    choosers: Vec<OpId>,
    pub best: Option<(f64, Vec<Choice>)>,
    /// Parts left out, for ablations.
    pub without: Without,
    /// The order does not grow beyond this many computations.
    pub most_computations: usize,
    pub copies: Copies,
    /// Moves since the walk was last within the budget.
    strayed: usize,
    /// The most that the order may cost, if it is within the budget, for the current move to be accepted.
    most_cost: f64,
}

/// Whether evicting a value may be worthwhile.
fn is_evictable(problem: &Problem<'_>, value: ValueId) -> bool {
    let graph = problem.graph;
    problem.bytes(value) > 0
        && graph.producer(value).is_some_and(|op| graph.ops()[op].recomputable)
        && (problem.is_read(value) || graph.is_result(value))
}

/// Share of the moves that change the way of a computation, if there is a choice.
const SWITCHES: f64 = 0.3;
/// After this many moves over the budget in a row, a walk continues from its best order.
const MOST_STRAYED: usize = 20_000;

impl<'p, 'g> Walk<'p, 'g> {
    pub fn new(state: State<'p, 'g>, seed: u64) -> Self {
        let problem = state.problem;
        let graph = problem.graph;
        let evictable: Vec<ValueId> = (0..graph.values().len()).filter(|&v| is_evictable(problem, v)).collect();
        let costs: f64 = graph.ops().iter().map(|op| op.cost).sum();
        let bytes: f64 = (0..graph.values().len()).map(|v| problem.bytes(v) as f64).sum();
        let weight = 20.0 * costs / (bytes.max(1.0) * graph.ops().len() as f64);
        let mut walk = Self {
            state,
            random: Random::new(seed),
            pressure: Pressure { weight, most: costs.max(weight), within: 0, tried: 0 },
            strayed: 0,
            evictable,
            choosers: problem.choosers(),
            best: None,
            without: Without::default(),
            most_computations: usize::MAX,
            copies: Copies::EachBest,
            most_cost: 0.0,
        };
        walk.note_best();
        walk
    }

    pub fn is_stuck(&self) -> bool {
        self.evictable.is_empty() && self.choosers.is_empty()
    }

    fn note_best(&mut self) {
        let cost = self.state.cost;
        if self.state.over() == 0 && self.best.as_ref().is_none_or(|(best, _)| cost < best - best.abs() * 1e-12) {
            self.best = Some((cost, self.state.choices()));
        }
    }

    /// Makes `moves` moves at `temperature`.
    pub fn run(&mut self, moves: usize, temperature: f64) {
        for _ in 0..moves {
            self.one(temperature);
            if self.copies == Copies::EachBest {
                self.note_best();
            }
            let is_within = self.state.over() == 0;
            self.pressure.observe(is_within);
            self.strayed = if is_within { 0 } else { self.strayed + 1 };
            if self.strayed == MOST_STRAYED
                && let Some((_, order)) = &self.best
            {
                self.state.load(order);
                self.strayed = 0;
            }
        }
        self.note_best();
    }

    /// The energy that the order has at a weight.
    pub fn energy(&self, weight: f64) -> f64 {
        self.state.cost + weight * self.state.over() as f64
    }

    fn one(&mut self, temperature: f64) {
        let (cost, over) = (self.state.cost, self.state.over());
        // The largest loss that is accepted, drawn in advance: a move that is sure to lose more is not even tried.
        let loss = -temperature * (1.0 - self.random.unit()).ln();
        self.most_cost = cost + loss + self.pressure.weight * over as f64;
        let mut kind = self.random.below(100);
        if self.without.shift && kind >= 85 {
            kind = self.random.below(85);
        }
        if self.without.swap && (50..85).contains(&kind) {
            kind = self.random.below(50);
        }
        let repeats = !self.state.repeats().is_empty();
        let done = if !self.choosers.is_empty() && self.random.chance(SWITCHES) {
            self.rechoose()
        } else if !repeats {
            self.evict()
        } else if over > 0 {
            match kind {
                0..50 => self.evict(),
                50..70 => self.keep(),
                70..85 => self.swap(),
                _ => self.shift(),
            }
        } else {
            match kind {
                0..25 => self.evict(),
                25..50 => self.keep(),
                50..85 => self.swap(),
                _ => self.shift(),
            }
        };
        if self.state.pending() == 0 {
            return;
        }
        let delta = self.state.cost - cost + self.pressure.weight * (self.state.over() - over) as f64;
        if done && delta <= loss {
            self.state.commit();
        } else {
            self.state.undo();
            self.state.cost = cost;
        }
    }

    fn anywhere(&mut self) -> Instance {
        loop {
            let number = self.random.below(self.state.numbers());
            if let Some(instance) = self.state.numbered(number) {
                return instance;
            }
        }
    }

    /// A random position, over the budget if there is such a position.
    fn crowded_position(&mut self) -> Instance {
        let anywhere = self.anywhere();
        if self.state.over() > 0 { self.state.first_over(anywhere).unwrap_or(anywhere) } else { anywhere }
    }

    /// The last instance of `op` before a label.
    fn last_before(&self, op: OpId, label: u64) -> Option<Instance> {
        self.state.instances(op).iter().rev().find(|&&instance| self.state.label(instance) < label).copied()
    }

    fn is_there(&self, instance: Instance) -> bool {
        self.state.numbered(instance as usize - 2).is_some()
    }
}

#[cfg(test)]
mod tests;
