//! A lower bound on the cost still to be spent from a state on.
//!
//! A *horizon* is the first computation of some later op. What first computations up to it read must be resident, so what
//! is missing must be entered again (`model.rs`) before it runs. After the horizon more is spent, whatever is resident
//! there. The two costs add up, because they are spent at different times. If the cost after the horizon comes from a
//! relaxation, its multipliers also say how much more it is for each group that is not resident at the horizon (its
//! *regret*): a group that is missing now and not entered before costs its regret or its entry, whichever is less.
//!
//! The best of several horizons counts; the further away, the sparser they are.
//!
//! Complexity: for each horizon, about the number of missing groups.

use std::collections::HashMap;
use std::rc::Rc;

use super::bits::Bits;
use super::model::Model;
use crate::deadline::Deadline;
use crate::graph::OpId;
use crate::lower_bound::tails::Tail;

/// The cost from a state on, as learned by earlier searches.
pub(super) type Known<const W: usize> = HashMap<(usize, Bits<W>), f64>;

/// How far a state looks ahead.
struct Horizon<const W: usize> {
    /// The already computed groups that first computations up to there read.
    reads: Bits<W>,
    /// What is spent after it.
    tail: f64,
    /// By group: how much more is spent after it if the group is not resident there.
    regrets: Rc<Vec<f64>>,
    /// The groups whose `regrets` apply to a state.
    regretted: Bits<W>,
}

/// What is missing up to one horizon, while the set of resident groups shrinks.
#[derive(Clone, Copy)]
pub(super) struct Reach<const W: usize> {
    horizon: usize,
    /// Groups that must be resident or be entered.
    wanted: Bits<W>,
    entered: Bits<W>,
    cost: f64,
    regret: f64,
    tail: f64,
}

impl<const W: usize> Reach<W> {
    pub fn ahead(&self) -> f64 {
        self.cost + self.regret + self.tail
    }
}

pub(super) struct Ahead<'m, const W: usize> {
    model: &'m Model<W>,
    /// By number of first computations done: whether something is known to be spent afterwards.
    is_spent: Vec<bool>,
    /// By number of first computations done: the horizons, nearest first.
    horizons: Vec<Vec<Horizon<W>>>,
    known: &'m Known<W>,
}

impl<'m, const W: usize> Ahead<'m, W> {
    /// `spent` says, by number of first computations done, what is at least spent afterwards; `tails` say more. `None` if
    /// the deadline comes first. Complexity: O(ops · (ops + reads)).
    pub fn new(
        model: &'m Model<W>,
        spent: &[f64],
        tails: &[Tail],
        known: &'m Known<W>,
        deadline: Deadline,
    ) -> Option<Self> {
        let end = model.outputs.len();
        let none = Rc::new(Vec::new());
        let mut priced: Vec<Option<(f64, Rc<Vec<f64>>)>> = vec![None; end + 1];
        for tail in tails {
            // A tail that proves less than what is known to be spent anyway adds little.
            if tail.bound > WORTH * spent[tail.done] {
                priced[tail.done] = Some((tail.bound, Rc::new(model.regrets(&tail.regrets))));
            }
        }
        let of = |done: usize| {
            if deadline.passed() {
                return None;
            }
            let mut reads = Bits::EMPTY;
            let mut list = Vec::new();
            let (mut plain, mut telling) = (Spaced::from(done), Spaced::from(done));
            for op in done..end {
                let known = |&&(_, producer): &&(usize, Option<OpId>)| producer.is_none_or(|p| p < done);
                model.reads[op].iter().filter(known).for_each(|&(group, _)| reads.insert(group));
                let falls = op + 2 > end || spent[op + 1] > spent[op + 2];
                if spent[op + 1] > 0.0 && falls && plain.takes(op) {
                    list.push(Horizon {
                        reads,
                        tail: spent[op + 1],
                        regrets: Rc::clone(&none),
                        regretted: Bits::EMPTY,
                    });
                }
                if let Some((tail, regrets)) = priced[op + 1].as_ref().filter(|_| telling.takes(op)) {
                    let regretted = (0..regrets.len()).filter(|&g| regrets[g] > 0.0 && model.born[g] <= done).collect();
                    list.push(Horizon { reads, tail: *tail, regrets: Rc::clone(regrets), regretted });
                }
            }
            let known = |&&(_, producer): &&(usize, Option<OpId>)| producer.is_none_or(|p| p < done);
            model.reads[end].iter().filter(known).for_each(|&(group, _)| reads.insert(group));
            list.push(Horizon { reads, tail: 0.0, regrets: Rc::clone(&none), regretted: Bits::EMPTY });
            Some(list)
        };
        let is_spent = (0..=end).map(|done| spent[done] > 0.0 || priced[done].is_some()).collect();
        Some(Self { model, is_spent, horizons: (0..=end).map(of).collect::<Option<_>>()?, known })
    }

    /// Whether it is known that something is spent after a moment later than `done`, whatever is resident.
    pub fn knows_of_later(&self, done: usize) -> bool {
        self.is_spent[done + 1..].contains(&true)
    }

    /// What is at least spent from a state on; infinite if it has no way to the end.
    pub fn of(&self, done: usize, resident: &Bits<W>) -> f64 {
        let known = self.known.get(&(done, *resident)).copied().unwrap_or(0.0);
        self.best_reach(done, resident).ahead().max(known)
    }

    /// The horizon that gives the largest bound.
    pub fn best_reach(&self, done: usize, resident: &Bits<W>) -> Reach<W> {
        let mut reach =
            Reach { horizon: 0, wanted: Bits::EMPTY, entered: Bits::EMPTY, cost: 0.0, regret: 0.0, tail: 0.0 };
        let mut best = reach;
        // What is missing up to one horizon is missing up to the next.
        for (number, horizon) in self.horizons[done].iter().enumerate() {
            reach.wanted = reach.wanted.union(&horizon.reads);
            let missing = horizon.reads.minus(resident).minus(&reach.entered);
            self.enter(&mut reach, missing, resident);
            let missing = horizon.regretted.minus(resident).minus(&reach.entered);
            let regret = missing.members().map(|group| horizon.regrets[group]).sum();
            let here = Reach { horizon: number, regret, tail: horizon.tail, ..reach };
            if number == 0 || here.ahead() > best.ahead() {
                best = here;
            }
        }
        best
    }

    /// Enters `missing`, and everything needed for that.
    fn enter(&self, reach: &mut Reach<W>, mut missing: Bits<W>, resident: &Bits<W>) {
        while let Some(group) = missing.pop() {
            let entry = &self.model.entries[group];
            reach.cost += entry.cost;
            reach.entered = reach.entered.union(&entry.along);
            reach.entered.insert(group);
            reach.wanted = reach.wanted.union(&entry.inputs);
            missing = missing.union(&entry.inputs.minus(resident)).minus(&reach.entered);
        }
    }

    /// The reach once `group` is no longer resident and only `left` remains.
    pub fn without(&self, mut reach: Reach<W>, done: usize, group: usize, left: &Bits<W>) -> Reach<W> {
        if reach.entered.contains(group) {
            return reach;
        }
        let Horizon { regrets, regretted, .. } = &self.horizons[done][reach.horizon];
        if regretted.contains(group) {
            reach.regret += regrets[group];
        }
        if reach.wanted.contains(group) {
            let before = reach.entered;
            let mut missing = Bits::EMPTY;
            missing.insert(group);
            self.enter(&mut reach, missing, left);
            let no_longer = reach.entered.minus(&before).common(regretted).minus(left);
            reach.regret -= no_longer.members().map(|group| regrets[group]).sum::<f64>();
        }
        reach
    }
}

/// Relaxations count if they prove more than this share of what is known to be spent.
const WORTH: f64 = 0.9;

/// Takes one place, then the next that is at least one further on, then two, four, ..
struct Spaced {
    next: usize,
    step: usize,
}

impl Spaced {
    fn from(next: usize) -> Self {
        Self { next, step: 1 }
    }

    fn takes(&mut self, place: usize) -> bool {
        let takes = place >= self.next;
        if takes {
            (self.next, self.step) = (place + self.step, self.step * 2);
        }
        takes
    }
}
