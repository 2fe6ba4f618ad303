//! Where a pass ends: a forward with its backward, found from what autodiff does.
//!
//! - A backward begins with a single one, the gradient of the loss: the *seed*.
//! - What the forward has made and the program still holds then is *saved*: autodiff holds it for the backward, and lets go of it
//!   step by step. When all of it is gone, the pass is over.
//!
//! Nothing here needs a program to update anything, or depends on what it keeps a copy of or does between its passes. Bytes are counted: of
//! what was computed since the last pass, does not descend from the seed and is still held. Three things blur the count:
//!
//! - A program may keep some of it (activations that it logs; what autodiff holds of another network, until that learns). Such a pass is not
//!   seen to end. When a parameter is updated, or the next seed comes and much more has been computed than is left of it, it has been over,
//!   and from then on that share is taken to be kept, of passes that have saved as much.
//! - A one may be no seed: then next to nothing was saved, or what was saved before is still there when the next one comes, and counts
//!   with it. So do two losses that were computed before the backward of the first.
//! - What an optimizer has made is still held when the next backward begins: what was computed up to the last update before a step is
//!   told does not count.
//!
//! Constant work for every operation.
//!
//! Larger than the rule: `Passes`, because all of it is what is known of the stretch of operations at hand.

use alloc::vec::Vec;

use crate::trace::Position;

/// A seed is none where less is saved than one part in so many of the most that ever was.
const LEAST: u64 = 64;
/// A pass is over when one part in so many of what was saved is left.
const REST: u64 = 256;
/// Most operations between two passes, so often, after which passes tell no more until there is another; and how many these are at least.
const PATIENCE: u64 = 8;
const LEAST_GAP: u64 = 1000;
/// A pass may begin while at most one part in so many of the most that was ever saved has been computed and is held.
const QUIET: u64 = 4;
/// A backward of which an optimizer has what it needs has let go of one part in so many of what was saved, or more.
const PART: u64 = 4;
/// Passes are of one kind, as far as that matters for what the program keeps of them, that save the same but for one part in so many.
const ALIKE: u64 = 32;
/// How many kinds are told apart.
const KINDS: usize = 8;

/// Which part of a pass a tensor belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// None: it was not computed, or the backward of no pass needs it.
    #[default]
    None,
    /// It was computed and does not descend from the seed.
    Forward,
    /// It descends from the seed.
    Backward,
}

/// What a single one has turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    /// None, or another one in the same pass.
    Nothing,
    /// A backward begins.
    Begins,
    /// A backward begins, and the pass before was over at this clock.
    After(u64),
}

#[derive(Clone, Copy, Default)]
struct Moment {
    clock: u64,
    position: Position,
}

/// What is left of a pass that is over.
#[derive(Clone, Copy, Default)]
struct Rest {
    /// What was made between these clocks was saved.
    from: u64,
    to: u64,
    /// Bytes that are still held, and how many there were at the seed.
    bytes: u64,
    at_seed: u64,
}

/// What of a pass the program keeps when it is over, as a share of what was saved: by how much that was, as passes of several kinds may come
/// in turns, the last of each first.
#[derive(Default)]
struct Kept(Vec<(u64, f64)>);

impl Kept {
    /// Of a pass that has saved so many bytes. One of a kind that was not met is taken to be like the last.
    fn of(&self, at_seed: u64) -> f64 {
        let is_alike = |(of, _): &&(u64, f64)| of.abs_diff(at_seed) <= at_seed / ALIKE;
        self.0.iter().find(is_alike).or(self.0.first()).map_or(0.0, |(_, share)| *share)
    }

    fn learn(&mut self, at_seed: u64, share: f64) {
        self.0.retain(|(of, _)| of.abs_diff(at_seed) > at_seed / ALIKE);
        self.0.insert(0, (at_seed, share));
        self.0.truncate(KINDS);
    }
}

/// Finds passes. See the [module](self).
#[derive(Default)]
pub(crate) struct Passes {
    /// Clock when the last pass was over.
    start: u64,
    /// Bytes that were computed since, or since the seed, and are held.
    forward: u64,
    /// Clock of the last update of a parameter or of an optimizer's state, and of the bytes before those that were computed since.
    updated: u64,
    recent: u64,
    /// Bytes of what was saved that are still held, and how many there were.
    saved: u64,
    at_seed: u64,
    /// Bytes of it with which the pass is over: what is taken to be kept, and some.
    rest_at_end: u64,
    seed: Option<Moment>,
    /// Since when next to nothing of what was saved has been let go of, and how many bytes of it were held then.
    let_go: (Moment, u64),
    /// Whether a parameter was updated before the pass was seen to be over.
    is_late: bool,
    /// Most that was ever saved.
    most: u64,
    kept: Kept,
    rest: Rest,
    /// Most bytes held in any pass so far.
    highest: u64,
    /// Passes that were seen to end since something else has told of a step.
    seen: u64,
    /// Clock of the first seed and of the last, and most operations between two of them.
    first: u64,
    last: u64,
    longest: u64,
    /// Whether a single one was made since a step ended.
    one_in_step: bool,
}

impl Passes {
    /// The program has made a single one, whatever that is.
    pub fn meet(&mut self) {
        self.one_in_step = true;
    }

    /// A backward may begin: the program has made a single one at `clock`, as the operation at `position`.
    pub fn one(&mut self, clock: u64, position: Position) -> Seed {
        let seed = Moment { clock, position };
        let Some(before) = &mut self.seed else {
            if self.forward == 0 || self.forward < self.most / LEAST {
                return Seed::Nothing;
            }
            self.begin(seed);
            return Seed::Begins;
        };
        if self.forward > self.saved && self.saved <= self.at_seed / 2 {
            self.learn();
            let over = self.let_go.0.clock;
            self.begin(seed);
            return Seed::After(over);
        }
        before.clock = clock;
        if self.forward > self.saved {
            // What was taken for a seed before it was none of this pass, or one of little of it.
            before.position = position;
        }
        self.saved += core::mem::take(&mut self.forward);
        self.at_seed = self.at_seed.max(self.saved);
        self.most = self.most.max(self.at_seed);
        self.foresee_end();
        Seed::Nothing
    }

    fn begin(&mut self, seed: Moment) {
        self.saved = core::mem::take(&mut self.forward);
        (self.at_seed, self.let_go, self.seed) = (self.saved, (seed, self.saved), Some(seed));
        self.most = self.most.max(self.saved);
        self.first = if self.last == 0 { seed.clock } else { self.first };
        self.longest = self.longest.max(seed.clock - self.last);
        self.last = seed.clock;
        // What was taken to be kept, and is gone by now, was none.
        let Rest { bytes, at_seed, .. } = core::mem::take(&mut self.rest);
        if at_seed > 0 {
            let share = bytes as f64 / at_seed as f64;
            if share < self.kept.of(at_seed) {
                self.kept.learn(at_seed, share);
            }
        }
        self.foresee_end();
    }

    /// Whether passes are what is planned: some have been found, of late too.
    #[inline]
    pub fn tell(&self, clock: u64) -> bool {
        self.last > 0 && clock - self.last <= PATIENCE * self.longest.max(LEAST_GAP)
    }

    /// A parameter or an optimizer's state has been updated.
    pub fn update(&mut self, clock: u64) {
        (self.updated, self.recent) = (clock, 0);
    }

    /// A parameter has been updated: where a good part of what was saved is gone, the pass is over, and what is left is kept. What an optimizer has
    /// made until then is no part of the pass that begins.
    pub fn update_parameter(&mut self, clock: u64) {
        if self.is_quiet() {
            (self.forward, self.start) = (0, clock + 1);
        }
        if self.seed.is_some() && self.saved <= self.at_seed - self.at_seed / PART && !self.is_over() {
            self.is_late = true;
            self.learn();
        }
    }

    /// Where the pass under way was over, if that was seen later.
    pub fn over(&self) -> Option<Position> {
        self.is_late.then_some(self.let_go.0.position)
    }

    fn learn(&mut self) {
        self.kept.learn(self.at_seed, self.saved as f64 / self.at_seed.max(1) as f64);
        self.foresee_end();
    }

    /// When that was last.
    pub fn last_update(&self) -> u64 {
        self.updated
    }

    /// A step has ended, as updates tell: what was computed until the last of them is no part of the pass that begins now. Whether it was one:
    /// no backward without a single one.
    pub fn step_ends(&mut self) -> bool {
        if self.seed.is_none() && self.updated >= self.start {
            (self.forward, self.start) = (self.recent, self.updated + 1);
        }
        core::mem::take(&mut self.one_in_step)
    }

    /// Whether a tensor of this part that came to be at `born` counts in this pass.
    pub fn counts(&self, part: Part, born: u64) -> bool {
        part == Part::Forward && born >= self.start
    }

    /// The part of what an operation makes from a tensor of this part that came to be at `born`.
    pub fn descends(&self, part: Part, born: u64) -> bool {
        part == Part::Backward && born >= self.start
    }

    /// So many bytes have been computed that do not descend from a seed.
    #[inline]
    pub fn computed(&mut self, bytes: u64) {
        self.forward += bytes;
        self.recent += bytes;
    }

    /// So many bytes look at what came to be at `born` in another way. Whether that is saved: then they are too, for as long as they do.
    #[inline]
    pub fn looks_at_saved(&mut self, born: u64, bytes: u64) -> bool {
        let is_saved = self.seed.is_some_and(|seed| born < seed.clock);
        self.saved += if is_saved { bytes } else { 0 };
        is_saved
    }

    /// The program has let go of a tensor.
    #[inline]
    pub fn let_go(&mut self, part: Part, born: u64, bytes: u64, (clock, position): (u64, Position)) {
        if !self.counts(part, born) {
            if part == Part::Forward && (self.rest.from..self.rest.to).contains(&born) {
                self.rest.bytes = self.rest.bytes.saturating_sub(bytes);
            }
            return;
        }
        match self.seed {
            Some(seed) if born < seed.clock => {
                self.saved = self.saved.saturating_sub(bytes);
                if self.saved + self.at_seed / REST < self.let_go.1 {
                    self.let_go = (Moment { clock: clock + 1, position }, self.saved);
                }
            }
            _ => self.forward = self.forward.saturating_sub(bytes),
        }
        if born > self.updated {
            self.recent = self.recent.saturating_sub(bytes);
        }
    }

    /// The seed of the pass under way.
    pub fn seed(&self) -> Option<Position> {
        self.seed.map(|seed| seed.position)
    }

    /// When the first backward began.
    pub fn first_seed(&self) -> Option<u64> {
        (self.first > 0).then_some(self.first)
    }

    /// Whether what was saved is gone.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.seed.is_some() && self.saved <= self.rest_at_end
    }

    fn foresee_end(&mut self) {
        let kept = (self.at_seed as f64 * self.kept.of(self.at_seed)) as u64;
        self.rest_at_end = kept + self.at_seed / REST;
    }

    /// Whether a pass may begin here: little has been computed since the last.
    pub fn is_quiet(&self) -> bool {
        self.seed.is_none() && (self.forward <= self.most / QUIET || self.most == 0)
    }

    /// A pass that has held at most `peak` bytes is over at `clock`.
    pub fn end(&mut self, clock: u64, peak: u64) {
        if let Some(seed) = self.seed.filter(|seed| seed.clock < clock) {
            self.seen += u64::from(self.is_over());
            self.rest = Rest { from: self.start, to: seed.clock, bytes: self.saved, at_seed: self.at_seed };
            (self.saved, self.seed, self.is_late) = (0, None, false);
        }
        if self.seed.is_none() {
            self.forward = 0;
        }
        self.start = clock;
        self.highest = self.highest.max(peak);
    }

    /// How many passes have been seen to end since something else has told of a step.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Something else tells of a step.
    pub fn forget_seen(&mut self) {
        self.seen = 0;
    }

    /// Most bytes held in the passes so far.
    pub fn highest(&self) -> u64 {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saves ten tensors of ten bytes from `clock` on, of which the program keeps `kept`; the clock afterwards.
    fn forward(passes: &mut Passes, clock: u64) -> u64 {
        (0..10).for_each(|_| passes.computed(10));
        clock + 10
    }

    /// Lets go of all but `kept` of what was made from `clock` on; whether the pass is over after each.
    fn backward(passes: &mut Passes, made: u64, clock: u64, kept: u64) -> Vec<bool> {
        let gone = (kept..10).rev().map(|at| {
            passes.let_go(Part::Forward, made + at, 10, (clock + 10 - at, 0));
            passes.is_over()
        });
        gone.collect()
    }

    #[test]
    fn a_pass_is_over_when_what_was_saved_is_gone() {
        let mut passes = Passes::default();
        for round in 0..3 {
            let made = 1 + 100 * round;
            let clock = forward(&mut passes, made);
            assert!(!passes.is_over());
            assert_eq!(passes.one(clock, 7), Seed::Begins);
            let over = backward(&mut passes, made, clock, 0);
            assert_eq!(over.iter().filter(|over| **over).count(), 1, "only with the last");
            assert_eq!(passes.seed(), Some(7));
            passes.end(clock + 20, 100);
            assert!(passes.is_quiet() && !passes.is_over());
        }
    }

    #[test]
    fn what_a_program_keeps_is_learned() {
        let mut passes = Passes::default();
        let clock = forward(&mut passes, 1);
        passes.one(clock, 10);
        assert!(backward(&mut passes, 1, clock, 3).iter().all(|over| !over));
        let clock = forward(&mut passes, 100);
        assert_eq!(passes.one(clock, 50), Seed::After(11 + 10 - 3 + 1));
        passes.end(20, 100);
        assert_eq!(passes.seed(), Some(50), "the one that has begun goes on");
        assert!(backward(&mut passes, 100, clock, 3).last().unwrap());
    }

    #[test]
    fn what_a_program_kept_once_is_unlearned() {
        let mut passes = Passes::default();
        let clock = forward(&mut passes, 1);
        passes.one(clock, 10);
        backward(&mut passes, 1, clock, 3);
        // How many are let go of until the pass is over; the others go then.
        let mut pass = |made: u64| {
            let clock = forward(&mut passes, made);
            passes.one(clock, 10);
            let mut until = 0;
            for at in (0..10).rev() {
                passes.let_go(Part::Forward, made + at, 10, (clock + 10 - at, 0));
                until += u64::from(passes.seed().is_some());
                if passes.is_over() {
                    passes.end(clock + 11 - at, 100);
                }
            }
            until
        };
        assert_eq!(pass(100), 7, "three are taken to be kept");
        assert_eq!(pass(200), 10, "none was");
    }

    #[test]
    fn an_update_shows_that_a_pass_has_been_over() {
        let mut passes = Passes::default();
        let clock = forward(&mut passes, 1);
        passes.one(clock, 10);
        for at in (3..10).rev() {
            let count = 10 - at;
            passes.let_go(Part::Forward, 1 + at, 10, (clock + count, 10 + count as Position));
            if count < 3 {
                // Too much is there yet.
                passes.update_parameter(clock + count);
            }
            assert_eq!((passes.is_over(), passes.over()), (false, None), "{count}");
        }
        passes.update_parameter(clock + 20);
        assert_eq!((passes.is_over(), passes.over()), (true, Some(17)), "where the last was let go of");
    }

    #[test]
    fn of_two_kinds_in_turns_each_is_known_by_what_it_saves() {
        let mut passes = Passes::default();
        let mut clock = 1;
        // Of a large pass three in ten are kept, of a small one none: how many are let go of before it is over.
        let mut pass = |count: u64, kept: u64| {
            let made = clock;
            (0..count).for_each(|_| passes.computed(10));
            if let Seed::After(over) = passes.one(made + count, 10) {
                passes.end(over, 100);
            }
            let mut until = 0;
            for at in (kept..count).rev() {
                passes.let_go(Part::Forward, made + at, 10, (made + 2 * count - at, 0));
                until += u64::from(passes.seed().is_some());
                if passes.is_over() {
                    passes.end(made + 2 * count - at + 1, 100);
                }
            }
            clock += 2 * count + 10;
            (until, passes.seed().is_some())
        };
        let rounds: Vec<_> = (0..4).map(|_| (pass(10, 3), pass(6, 0))).collect();
        assert_eq!(rounds[0].0, (7, true), "it is not known yet that something is kept");
        assert_eq!(rounds[2..], [((7, false), (6, false)); 2]);
    }

    #[test]
    fn a_one_that_is_no_seed_changes_nothing() {
        let mut passes = Passes::default();
        assert_eq!(passes.one(1, 0), Seed::Nothing, "nothing was computed");
        let clock = forward(&mut passes, 2);
        assert_eq!(passes.one(clock, 10), Seed::Begins, "it looks like one");
        let clock = forward(&mut passes, 20);
        assert_eq!(passes.one(clock, 20), Seed::Nothing);
        assert!(backward(&mut passes, 20, clock, 0).iter().all(|over| !over));
        assert!(backward(&mut passes, 2, clock, 0).last().unwrap());
    }
}
