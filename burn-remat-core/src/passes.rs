//! Where a pass ends: a forward with its backward pass, found from what autodiff does.
//!
//! - A backward pass begins with a single one, the gradient of the loss: the *seed*.
//! - What the forward pass has made and the program still holds then is *saved*: autodiff holds it for the backward pass, and releases it
//!   step by step. What replaces a saved tensor counts in its stead: the backward pass of a normalization computes the normalized input from the saved one,
//!   and needs it longer. When all of it is gone, the pass is over.
//!
//! This does not require a program to update anything, and does not depend on what it keeps copies of or does between its passes. What is counted is
//! the bytes of tensors that were computed since the last pass, do not descend from the seed and are still held. Four things blur the count:
//!
//! - A program may keep some of it (activations that it logs; what autodiff holds of another network, until that one learns). Such a pass is not
//!   seen to end. If a parameter is updated, or the next seed comes when much more has been computed than is left of the pass, then the pass was over,
//!   and from then on that share is expected to be kept, for passes that have saved as much.
//! - What is left may be what the next backward pass needs: one forward with two backward passes and an update between them. If that has been seen, a
//!   pass that saves as much is over only when its second backward pass is.
//! - A one may not be a seed: then next to nothing was saved, or what was saved before is still held when the next one comes, and counts
//!   towards it. The same holds for two losses that were both computed before the backward pass of the first.
//! - What an optimizer has made is still held when the next backward pass begins. So what was computed up to the last update before a step
//!   boundary does not count.
//!
//! Each operation takes constant work.
//!
//! Larger than the rule: `Passes`, because it is everything that is known of the current stretch of operations.

mod kept;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::trace::Position;
use kept::{Kept, PART, Rest};

/// A one is not a seed if less than one part in this many of the most ever saved was saved before it.
const LEAST: u64 = 64;
/// A pass is over when only one part in this many of what was saved is left.
const REST: u64 = 256;
/// Passes no longer tell, until another one comes, after this many times the most operations between two passes; and a lower bound for the latter.
const PATIENCE: u64 = 8;
const LEAST_GAP: u64 = 1000;
/// A pass may begin while at most one part in this many of the most ever saved has been computed and is held.
const QUIET: u64 = 4;

/// Most seeds with updates that are remembered until a step ends.
const MOST_OPTIMIZED: usize = 64;

/// The part of a pass that a tensor belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    /// None: it was not computed, or no pass needs it for its backward.
    #[default]
    None,
    /// It was computed and does not descend from the seed.
    Forward,
    /// It descends from the seed.
    Backward,
}

/// What a single one turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    /// No seed, or a further one in the same pass.
    Nothing,
    /// A backward pass begins.
    Begins,
    /// A backward pass begins, and the previous pass was over at this clock.
    After(u64),
}

#[derive(Clone, Copy, Default)]
struct Moment {
    clock: u64,
    position: Position,
}

/// Whether a pass has another backward pass, as far as is known.
#[derive(Clone, Copy, Default, PartialEq)]
enum GoesOn {
    #[default]
    No,
    /// Yes, after an update.
    Will,
    /// Yes, and the update has come.
    Now,
}

/// Finds passes. See the [module](self).
#[derive(Default)]
pub(crate) struct Passes {
    /// Clock when the last pass was over.
    start: u64,
    /// Bytes that were computed since then, or since the seed, and are held.
    forward: u64,
    /// Clock of the last update of a parameter or of an optimizer's state, and how many of those bytes were computed since.
    updated: u64,
    recent: u64,
    /// Saved bytes that are still held, and how many there were at the seed.
    saved: u64,
    at_seed: u64,
    /// The pass is over when no more than this many saved bytes are held: those expected to be kept, and a few more.
    rest_at_end: u64,
    seed: Option<Moment>,
    goes_on: GoesOn,
    /// What was saved for the earlier backward passes, if there were any.
    before: u64,
    have_gone_on: bool,
    /// Since when next to nothing of what was saved has been released, and how many bytes of it were held then.
    let_go: (Moment, u64),
    /// Whether a parameter was updated before the end of the pass was seen.
    is_late: bool,
    /// Most bytes that were ever saved.
    most: u64,
    kept: Kept,
    /// Most bytes held in any pass so far.
    highest: u64,
    /// Passes whose end was seen since anything else last indicated a step.
    seen: u64,
    /// Clock of the first seed and of the last, and most operations between two successive seeds.
    first: u64,
    last: u64,
    longest: u64,
    /// What optimizers have made in this step: for each seed, what was made between it and the last parameter update before the next. And when that step
    /// began.
    optimized: Vec<(u64, u64)>,
    told: u64,
    /// Clock of the last single one, and of the last one before a step ended.
    one: u64,
    one_before: u64,
}

impl Passes {
    /// The program has made a single one, whatever it turns out to be.
    pub fn meet(&mut self, clock: u64) {
        self.one = clock;
    }

    /// A backward pass may begin: the program has made a single one at `clock`, as the operation at `position`.
    pub fn one(&mut self, clock: u64, position: Position) -> Seed {
        let seed = Moment { clock, position };
        let Some(mut before) = self.seed else {
            if self.forward == 0 || self.forward < self.most / LEAST {
                return Seed::Nothing;
            }
            self.begin(seed);
            return Seed::Begins;
        };
        if self.goes_on == GoesOn::Now {
            if self.saved >= self.at_seed / PART {
                self.seed = Some(Moment { clock, ..before });
                self.before = self.kind();
                self.save_more();
                return Seed::Nothing;
            }
            self.goes_on = GoesOn::No;
            self.kept.ends(self.kind());
        }
        if self.goes_on == GoesOn::No && self.forward > self.saved && self.saved <= self.at_seed / 2 {
            self.learn();
            let over = self.let_go.0.clock;
            self.begin(seed);
            return Seed::After(over);
        }
        before.clock = clock;
        if self.forward > self.saved {
            // What was taken for a seed before was not a seed of this pass, or the seed of a small part of it.
            before.position = position;
        }
        self.seed = Some(before);
        self.save_more();
        Seed::Nothing
    }

    /// What was computed since the seed is saved too.
    fn save_more(&mut self) {
        self.saved += core::mem::take(&mut self.forward);
        self.at_seed = self.at_seed.max(self.saved);
        self.most = self.most.max(self.at_seed);
        self.look_ahead();
    }

    /// The number that identifies the kind of this pass.
    fn kind(&self) -> u64 {
        self.at_seed + self.before
    }

    fn look_ahead(&mut self) {
        self.goes_on = if self.kept.goes_on(self.kind()) { GoesOn::Will } else { GoesOn::No };
        self.foresee_end();
    }

    fn begin(&mut self, seed: Moment) {
        self.saved = core::mem::take(&mut self.forward);
        (self.at_seed, self.let_go, self.seed) = (self.saved, (seed, self.saved), Some(seed));
        self.most = self.most.max(self.saved);
        self.first = if self.last == 0 { seed.clock } else { self.first };
        self.longest = self.longest.max(seed.clock - self.last);
        self.last = seed.clock;
        self.kept.backward_begins();
        self.before = 0;
        self.look_ahead();
    }

    /// Whether passes are the unit of planning: some have been found, and recently too.
    #[inline]
    pub fn tell(&self, clock: u64) -> bool {
        self.last > 0 && clock - self.last <= PATIENCE * self.longest.max(LEAST_GAP)
    }

    /// A parameter or an optimizer's state has been updated.
    pub fn update(&mut self, clock: u64) {
        (self.updated, self.recent) = (clock, 0);
    }

    /// A parameter has been updated. If a good part of what was saved is gone, the pass is over, and what is left is kept. What an optimizer has
    /// made up to now is not part of the pass that begins.
    pub fn update_parameter(&mut self, clock: u64) {
        if self.is_quiet() {
            (self.forward, self.start) = (0, clock + 1);
        }
        self.have_gone_on |= self.kept.updated();
        let has_let_go = self.seed.is_some() && self.saved <= self.at_seed - self.at_seed / PART;
        if !has_let_go || self.is_over() {
            return;
        }
        match self.goes_on {
            GoesOn::Will => self.goes_on = GoesOn::Now,
            GoesOn::Now => {}
            GoesOn::No => {
                self.is_late = true;
                self.learn();
            }
        }
    }

    /// A parameter has been updated: what was made since the seed belongs to an optimizer, if there was a seed in this step. What is updated without a
    /// seed belongs to a forward pass, such as running averages.
    pub fn optimize(&mut self, clock: u64) {
        match self.optimized.last_mut() {
            _ if self.last <= self.told => {}
            Some((seed, updated)) if *seed == self.last => *updated = clock,
            _ => {
                if self.optimized.len() == MOST_OPTIMIZED {
                    self.optimized.remove(0);
                }
                self.optimized.push((self.last, clock));
            }
        }
    }

    /// Another step begins at `clock`. Returns a function that tells, from when a tensor was made, whether an optimizer made it in the previous step.
    pub fn optimized(&mut self, clock: u64) -> impl Fn(u64) -> bool + use<> {
        self.told = clock;
        let optimized = core::mem::take(&mut self.optimized);
        move |born| optimized.iter().any(|&(seed, updated)| seed < born && born <= updated)
    }

    /// Whether it has turned out, since the last call, that passes went on when they seemed to be over.
    pub fn have_gone_on(&mut self) -> bool {
        core::mem::take(&mut self.have_gone_on)
    }

    /// The current pass has another backward pass, as far as is known.
    pub fn go_on(&mut self) {
        if self.seed.is_some() && self.goes_on == GoesOn::No {
            self.goes_on = GoesOn::Will;
            self.foresee_end();
        }
    }

    /// The position at which the current pass was over, if that was recognised only later.
    pub fn over(&self) -> Option<Position> {
        self.is_late.then_some(self.let_go.0.position)
    }

    fn learn(&mut self) {
        self.kept.learn(self.kind(), self.saved as f64 / self.at_seed.max(1) as f64);
        self.foresee_end();
    }

    /// Clock of the last update.
    pub fn last_update(&self) -> u64 {
        self.updated
    }

    /// A step has ended, according to updates: what was computed until the last of them is not part of the pass that begins now. Returns whether
    /// there was a single one in the step: without it there was no backward pass.
    pub fn step_ends(&mut self) -> bool {
        if self.seed.is_none() && self.updated >= self.start {
            (self.forward, self.start) = (self.recent, self.updated + 1);
        }
        core::mem::replace(&mut self.one_before, self.one) != self.one
    }

    /// Whether a tensor of this part that was made at `born` counts in this pass.
    pub fn counts(&self, part: Part, born: u64) -> bool {
        part == Part::Forward && born >= self.start
    }

    /// Whether what an operation makes from a tensor of this part that was made at `born` descends from the seed.
    pub fn descends(&self, part: Part, born: u64) -> bool {
        part == Part::Backward && born >= self.start
    }

    /// This many bytes have been computed that do not descend from a seed.
    #[inline]
    pub fn computed(&mut self, bytes: u64) {
        self.forward += bytes;
        self.recent += bytes;
    }

    /// Whether anything was left of a pass when the next backward pass began: if so, reads of it are observed.
    #[inline]
    pub fn left_something(&self) -> bool {
        self.kept.left_something()
    }

    /// An operation reads a tensor of this part.
    #[inline]
    pub fn reads(&mut self, part: Part, born: u64, bytes: u64) {
        if part == Part::Forward && born < self.start {
            self.kept.read(born, bytes);
        }
    }

    /// Whether the next backward pass may belong to the same pass as the last.
    pub fn awaits_backward(&self) -> bool {
        self.goes_on == GoesOn::Now || self.kept.awaits_backward()
    }

    /// A tensor of this many bytes stands for one made at `born`: as a view of it, or because it has its shape and was made from it, and nothing else reads
    /// that one any more. Returns whether that one is saved: if so, the new one counts as saved too while it lives.
    #[inline]
    pub fn stands_for_saved(&mut self, born: u64, bytes: u64) -> bool {
        let is_saved = self.seed.is_some_and(|seed| born < seed.clock);
        self.saved += if is_saved { bytes } else { 0 };
        is_saved
    }

    /// The program has released a tensor.
    #[inline]
    pub fn let_go(&mut self, part: Part, born: u64, bytes: u64, (clock, position): (u64, Position)) {
        if !self.counts(part, born) {
            if part == Part::Forward {
                self.kept.let_go(born, bytes);
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

    /// The seed of the current pass.
    pub fn seed(&self) -> Option<Position> {
        self.seed.map(|seed| seed.position)
    }

    /// Clock when the program last made a single one; 0 for never.
    pub fn last_one(&self) -> u64 {
        self.one
    }

    /// Clock when the first backward pass began.
    pub fn first_seed(&self) -> Option<u64> {
        (self.first > 0).then_some(self.first)
    }

    /// Whether what was saved is gone.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.seed.is_some() && self.saved <= self.rest_at_end
    }

    fn foresee_end(&mut self) {
        let kept = (self.at_seed as f64 * self.kept.share(self.kind())) as u64;
        self.rest_at_end = if self.goes_on == GoesOn::No { kept + self.at_seed / REST } else { 0 };
    }

    /// Whether a pass may begin here: little has been computed since the last one.
    pub fn is_quiet(&self) -> bool {
        self.seed.is_none() && (self.forward <= self.most / QUIET || self.most == 0)
    }

    /// Everything in the plan of this pass is done: its end is seen, though some of it may be kept.
    pub fn done(&mut self) {
        self.seen += u64::from(self.seed.is_some() && !self.is_over());
    }

    /// A pass that has held at most `peak` bytes is over at `clock`.
    pub fn end(&mut self, clock: u64, peak: u64) {
        if let Some(seed) = self.seed.filter(|seed| seed.clock < clock) {
            self.seen += u64::from(self.is_over());
            let (from, to, kind) = (self.start, seed.clock, self.kind());
            self.kept.over(Rest { from, to, bytes: self.saved, saved: self.at_seed, kind, at_next: None, read: 0 });
            (self.saved, self.seed, self.is_late) = (0, None, false);
        }
        if self.seed.is_none() {
            self.forward = 0;
        }
        self.start = clock;
        self.highest = self.highest.max(peak);
    }

    /// How many passes were seen to end since anything else last indicated a step.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Something else indicates a step.
    pub fn forget_seen(&mut self) {
        self.seen = 0;
    }

    /// Most bytes held in the passes so far.
    pub fn highest(&self) -> u64 {
        self.highest
    }
}
