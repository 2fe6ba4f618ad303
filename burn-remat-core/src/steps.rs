//! Where one training step ends and the next begins.
//!
//! Four signals, the surest first:
//!
//! 1. The program says so ([`mark`](crate::Machine::mark)).
//! 2. Parameters are updated (see `machine/parameters.rs`): the first operation that reads a parameter's successor made in this step
//!    begins the next one. If no plan has been made for long, so does the operation after as many updates as in the steps before. This finds optimizer
//!    steps, however many passes were accumulated into one; an optimizer's state and running statistics do not disturb it. But if much more is alive
//!    than usual, no step begins, because what is alive at a step boundary can never be evicted again. So a generator that learns through the
//!    discriminator that was updated just before is not a step of its own.
//! 3. If many passes end and no update indicates a step: the passes (see `passes.rs`). A program that keeps a copy of its model
//!    from before the first update hides all updates.
//! 4. If there are no backward passes, and nothing is updated any more: the bytes of live tensors that
//!    were computed rise through forward and backward and fall to almost nothing at the end. A boundary is the lowest
//!    point after such a fall, recognised once they rise again. The first time, two rises must be of similar height: an input
//!    that is normalised on the device is a small rise of its own before the step's.
//!
//! Larger than the rule: `StepDetector`, because four signals, each with its own memory, decide together.

/// Fraction of the peak below which a valley counts as the end of a step, and by which the bytes must rise again.
const FRACTION: f64 = 0.1;

/// A tensor that was never updated may be a parameter after all, of a model that was created later, once it is older than this many times the longest
/// step. Also: updates no longer count as a signal after this many step lengths without a boundary or an update.
const PATIENCE: u64 = 8;

/// A step is assumed to have at least this many operations, if nothing has been updated for long, or no backward pass was seen.
const LEAST_STEP: u64 = 1000;

/// After this many steps without a plan, steps are perhaps never alike, because what begins the next one comes at the end of each.
const LONG_UNPLANNED: u64 = 16;

/// After this many passes since updates last indicated a step, passes tell: the program keeps a copy of what it updates, accumulates many
/// gradients, or updates nothing.
const MANY_PASSES: u64 = 8;

/// An optimizer is still at work within this many operations after an update.
const RECENT: u64 = 64;

/// How often in a row too much may be alive when a parameter is read for the first time after its update. After that, this is usual.
const MOST_REFUSED: u32 = 3;

/// Finds boundaries by the surest signal that a program has given so far.
#[derive(Default)]
pub(crate) struct StepDetector {
    peak: u64,
    valley: Option<Valley>,
    /// The peak before the last valley.
    last_peak: u64,
    source: Source,
    /// Clock of the last update before the first boundary that was not a guess.
    first: u64,
    /// Clock of the last boundary.
    boundary: u64,
    boundaries: u64,
    /// Operations between the last two boundaries.
    last_length: u64,
    /// Most operations of a step. A step that is longer than those before and after it does not count.
    longest: u64,
    /// Roots that recorded operations have read, and updates; needed for the first step.
    all_read: u64,
    updates: u64,
    /// How many roots were read since the last boundary, and in the step before it.
    roots_read: u64,
    last_read: u64,
    /// Clock when the first root was read.
    began: u64,
    /// Clock of the last update.
    updated: u64,
    /// Clock of the last update for which it was decided whether a step begins.
    judged: u64,
    /// How often in a row none began.
    refused: u32,
    rhythm: Rhythm,
    /// Computed bytes that were alive at the last boundary found from updates.
    usual: Option<u64>,
    /// Most computed bytes that were alive since the last boundary.
    highest: u64,
}

/// Updates since the last boundary, and in each of the two steps before it.
#[derive(Clone, Copy, Default)]
struct Rhythm {
    /// Tensors that may be parameters and were read since the last boundary.
    read: u64,
    now: u64,
    last: u64,
    before: u64,
    /// Steps that began without any plan.
    unplanned: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    #[default]
    Valleys,
    Updates,
    Passes,
    Marks,
}

struct Valley {
    bytes: u64,
    clock: u64,
}

impl StepDetector {
    /// The program marks its steps. Returns whether this is its first mark.
    pub fn mark(&mut self) -> bool {
        core::mem::replace(&mut self.source, Source::Marks) != Source::Marks
    }

    /// Whether steps are recognised by marks, updates or passes, at the operation itself.
    pub fn is_exact(&self) -> bool {
        self.source != Source::Valleys
    }

    /// Whether passes are the better signal: so many have been `seen` since updates last indicated a step.
    pub fn knows_no_better(&self, seen: u64) -> bool {
        seen >= MANY_PASSES && self.source < Source::Passes
    }

    /// From now on passes indicate steps.
    pub fn go_by_passes(&mut self) {
        self.source = self.source.max(Source::Passes);
    }

    /// Whether the program marks its steps.
    pub fn goes_by_marks(&self) -> bool {
        self.source == Source::Marks
    }

    /// Whether an optimizer is at work, as far as updates tell; the last update of a parameter or of a state came at `last`.
    pub fn is_updating(&self, last: u64, clock: u64) -> bool {
        self.source == Source::Updates && last > self.boundary && clock - last <= RECENT
    }

    /// Whether passes indicate steps.
    pub fn goes_by_passes(&self) -> bool {
        self.source == Source::Passes
    }

    /// Whether steps are recognised from operations that read what has been updated.
    pub fn goes_by_updates(&self) -> bool {
        self.source == Source::Updates
    }

    /// A parameter was updated, for the first time or not.
    pub fn update(&mut self, clock: u64, is_first: bool) {
        self.updates += u64::from(is_first);
        self.updated = clock;
        self.rhythm.now += 1;
        self.source = self.source.max(Source::Updates);
    }

    /// Whether a parameter whose last two updates came after `last` and `interval` operations is updated in every step: the two are alike,
    /// and long compared with everything seen so far.
    pub fn is_regular(&self, last: u64, interval: u64, clock: u64) -> bool {
        let alike = last > 0 && 4 * last.abs_diff(interval) <= interval;
        alike && 8 * interval >= clock.saturating_sub(self.began)
    }

    /// Whether what was made at `clock` is older than the step. Always true until a step has been found for certain.
    pub fn is_older(&self, clock: u64) -> bool {
        self.first == 0 || clock < self.boundary
    }

    /// Whether what happened at `clock`, 0 for never, happened in this step.
    #[inline]
    pub fn is_of_this_step(&self, clock: u64) -> bool {
        clock > self.boundary
    }

    /// Whether a tensor can be a parameter `now`, if it or what it has succeeded has existed `since` then: in the first step, since any time
    /// except near its end; later, since the first step or for several steps. What is uploaded for one step can be older than that step,
    /// because it may exist before the step's first operation.
    pub fn may_be_parameter(&self, since: u64, now: u64) -> bool {
        let age = now.saturating_sub(since);
        if self.first == 0 {
            return 4 * age >= now.saturating_sub(self.began);
        }
        since < self.first || age > PATIENCE * self.longest
    }

    /// Whether so many parameters have been updated that a step begins when the first of them is read.
    ///
    /// In the first step, random noise that is consumed in the backward pass looks like a parameter, and so does an input that is normalised in
    /// place. So in that step several roots must have been read, and a third of them updated. If most parameters are frozen, the
    /// third update of one parameter tells ([`is_regular`](Self::is_regular)).
    #[inline]
    pub fn has_enough_updates(&self) -> bool {
        let enough = |read: u64| read > 1 && 3 * self.updates >= read;
        // What was recognised from the bytes may be the middle of a step.
        self.first > 0 || enough(self.all_read) || enough(self.roots_read.max(self.last_read))
    }

    /// A step has begun, and there is no plan yet for any step, although one is needed.
    pub fn begins_unplanned(&mut self) {
        self.rhythm.unplanned += 1;
    }

    /// Whether as much has been updated as in each of the two steps before, and at least a third of what has been read: what comes now belongs to the next
    /// step. Running statistics that are updated early in the step are few compared with the parameters. Only if no plan was made for long,
    /// because for a while this makes two kinds of steps out of one.
    #[inline]
    pub fn is_due(&self) -> bool {
        let Rhythm { read, now, last, before, unplanned } = self.rhythm;
        let is_alike = now == last && last == before && 3 * now >= read.max(1);
        self.source == Source::Updates && unplanned > LONG_UNPLANNED && is_alike
    }

    /// Something that may be a parameter is read, and was last read at the clock of `last`.
    #[inline]
    pub fn parameter_read(&mut self, last: u64) {
        self.rhythm.read += u64::from(last <= self.boundary);
    }

    /// Whether the current step may end when an updated parameter is read and this many computed `bytes` are alive.
    pub fn may_begin(&mut self, bytes: u64) -> bool {
        let most = |usual: u64| usual.saturating_add(usual / 2).saturating_add(self.highest / 8);
        let is_low = self.usual.is_none_or(|usual| bytes <= most(usual));
        // Everything that the same updates would begin is one case.
        let is_new = core::mem::replace(&mut self.judged, self.updated) != self.updated;
        let begins = is_low || is_new && self.refused >= MOST_REFUSED;
        if begins {
            (self.usual, self.refused) = (Some(bytes), 0);
        } else {
            self.refused += u32::from(is_new);
        }
        begins
    }

    /// Whether something that comes in every step, and was last seen at the clock of `last`, has ceased to come.
    pub fn is_overdue(&self, last: u64, clock: u64) -> bool {
        clock.saturating_sub(last) > PATIENCE * self.sure_length().max(LEAST_STEP)
    }

    /// Most operations of a step.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Operations of a step, once one was found for certain; otherwise 0.
    pub fn sure_length(&self) -> u64 {
        if self.first > 0 { self.longest } else { 0 }
    }

    /// Whether roots have been read: what comes now is no longer preparation.
    pub fn has_begun(&self) -> bool {
        self.all_read > 0
    }

    /// A recorded operation reads a root, and last did so at the clock of `last`, or never (0). Until a step is found for certain, a
    /// root counts in each of the steps recognised from bytes: an evaluation may come first, and reads the same parameters.
    #[inline]
    pub fn root_read(&mut self, last: u64, clock: u64) {
        if last > 0 && (self.first > 0 || last >= self.boundary) {
            return;
        }
        if self.roots_read == 0 {
            self.began = clock;
        }
        self.all_read += u64::from(last == 0);
        self.roots_read += 1;
    }

    /// A step has begun at `clock`.
    pub fn set_boundary(&mut self, clock: u64) {
        if self.first == 0 {
            if self.is_exact() {
                // What was recognised from bytes before was a guess, not the length of a step.
                (self.first, self.boundaries) = (self.updated, 0);
            }
            self.last_read = core::mem::take(&mut self.roots_read);
        }
        let length = clock.saturating_sub(self.boundary);
        let both = length.min(core::mem::replace(&mut self.last_length, length));
        self.longest = match self.boundaries {
            0 => length,
            1 => both,
            _ => self.longest.max(both),
        };
        self.boundaries += 1;
        (self.boundary, self.highest) = (clock, 0);
        self.rhythm = Rhythm { read: 0, now: 0, last: self.rhythm.now, before: self.rhythm.last, ..self.rhythm };
    }

    /// Takes the bytes of computed live tensors; returns the clock of a boundary recognised from them.
    #[inline]
    pub fn observe(&mut self, bytes: u64, clock: u64) -> Option<u64> {
        self.highest = self.highest.max(bytes);
        let last = self.boundary.max(self.updated);
        if self.source == Source::Updates && self.is_overdue(last, clock) {
            (self.source, self.peak, self.valley) = (Source::Valleys, bytes, None);
        }
        if self.source != Source::Valleys {
            return None;
        }
        self.peak = self.peak.max(bytes);
        let threshold = (self.peak as f64 * FRACTION) as u64;
        match &mut self.valley {
            Some(valley) if bytes > valley.bytes.saturating_add(threshold) => {
                let boundary = valley.clock;
                let (peak, last) = (self.peak, core::mem::replace(&mut self.last_peak, self.peak));
                self.valley = None;
                self.peak = bytes;
                let similar = peak <= 2 * last && last <= 2 * peak;
                (similar || self.boundary > 0).then_some(boundary)
            }
            Some(valley) => {
                if bytes <= valley.bytes {
                    *valley = Valley { bytes, clock: clock + 1 };
                }
                None
            }
            None => {
                if bytes < threshold {
                    self.valley = Some(Valley { bytes, clock: clock + 1 });
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Bytes over one step: up to `peak` in the forward pass, down in the backward pass, and a small remainder.
    fn step(peak: u64) -> impl Iterator<Item = u64> {
        (0..=10).map(move |k| peak * k / 10).chain((0..10).rev().map(move |k| peak * k / 10))
    }

    #[test]
    fn a_sawtooth_has_one_boundary_per_tooth() {
        let mut detector = StepDetector::default();
        let found: Vec<u64> = (0..5)
            .flat_map(|_| step(1000))
            .enumerate()
            .filter_map(|(clock, bytes)| detector.observe(bytes, clock as u64))
            .collect();
        assert_eq!(found.len(), 3);
        assert!(found.windows(2).all(|pair| pair[1] - pair[0] == 21));
    }

    #[test]
    fn a_small_rise_before_the_first_step_is_none() {
        let mut detector = StepDetector::default();
        let bytes: Vec<u64> = step(100).chain(step(1000)).chain(step(1000)).chain(step(1000)).collect();
        let found: Vec<u64> = (0..).zip(bytes).filter_map(|(clock, bytes)| detector.observe(bytes, clock)).collect();
        assert_eq!(found, [21 * 3 + 1]);
    }

    #[test]
    fn a_dip_that_stays_high_is_no_boundary() {
        let mut detector = StepDetector::default();
        let bytes = [100, 500, 1000, 400, 900, 300, 1000];
        assert!(bytes.iter().enumerate().all(|(clock, &bytes)| detector.observe(bytes, clock as u64).is_none()));
    }

    #[test]
    fn a_surer_signal_switches_the_others_off() {
        let mut detector = StepDetector::default();
        detector.update(4, true);
        assert!(step(1000).chain(step(1000)).all(|bytes| detector.observe(bytes, 0).is_none()));
        (0..2).for_each(|_| detector.root_read(0, 1));
        assert!(detector.goes_by_updates() && detector.has_enough_updates() && detector.is_of_this_step(5));
        detector.set_boundary(6);
        assert!(!detector.is_of_this_step(5) && detector.is_of_this_step(7));
        assert!(detector.mark());
        assert!(!detector.mark());
        detector.update(4, true);
        assert!(!detector.goes_by_updates());
    }

    #[test]
    fn an_evaluation_before_the_first_step_does_not_count() {
        let mut detector = StepDetector::default();
        (0..100).for_each(|_| detector.root_read(0, 1));
        detector.set_boundary(50);
        assert!(!detector.has_enough_updates());
        detector.set_boundary(55);
        (0..3).for_each(|_| detector.root_read(20, 60));
        (0..3).for_each(|_| detector.root_read(60, 70));
        detector.update(80, true);
        assert!(detector.has_enough_updates());
    }

    #[test]
    fn no_step_begins_where_more_than_usual_is_alive() {
        let mut detector = StepDetector::default();
        let mut round = |clock: u64, first: u64, second: u64| {
            let mut at = |clock: u64, bytes: u64| {
                detector.observe(1000, clock);
                detector.update(clock, false);
                let begins = detector.may_begin(bytes);
                assert_eq!(detector.may_begin(bytes), begins, "what is read next is the same case");
                if begins {
                    detector.set_boundary(clock);
                }
                begins
            };
            (at(clock, first), at(clock + 1, second))
        };
        assert_eq!(round(10, 500, 10), (true, true), "nothing is known, then less is alive");
        assert_eq!(round(20, 500, 10), (false, true));
        assert_eq!(round(30, 500, 100), (false, true), "a little more");
        assert_eq!(round(40, 900, 900), (false, false));
        assert_eq!(round(50, 900, 900), (false, true), "this is usual now");
        assert_eq!(round(60, 900, 900), (true, true));
    }

    #[test]
    fn bytes_tell_where_nothing_is_updated_any_more() {
        let mut detector = StepDetector::default();
        detector.update(4, true);
        detector.set_boundary(5);
        let bytes = (0..1000).flat_map(|_| step(1000));
        let found: Vec<u64> = (5..).zip(bytes).filter_map(|(clock, bytes)| detector.observe(bytes, clock)).collect();
        assert!(found[0] > PATIENCE * LEAST_STEP && found[1] - found[0] == 21);
        detector.update(30_000, true);
        assert!(step(1000).chain(step(1000)).all(|bytes| detector.observe(bytes, 30_001).is_none()));
    }

    #[test]
    fn the_first_step_may_be_long() {
        let mut detector = StepDetector::default();
        let long = 2 * PATIENCE * LEAST_STEP;
        (0..3).for_each(|_| detector.root_read(0, 1));
        (1..long).for_each(|clock| assert_eq!(detector.observe(10, clock), None));
        detector.update(long, true);
        detector.observe(10, long);
        assert!(detector.goes_by_updates() && detector.has_enough_updates());
    }

    #[test]
    fn one_long_step_makes_no_other_wait() {
        let mut detector = StepDetector::default();
        [500, 510, 520, 1520, 1530].iter().for_each(|&clock| detector.set_boundary(clock));
        assert_eq!(detector.longest, 10);
        [2000, 2500].iter().for_each(|&clock| detector.set_boundary(clock));
        assert_eq!(detector.longest, 470);
    }

    #[test]
    fn what_is_uploaded_for_a_step_is_no_parameter() {
        let mut detector = StepDetector::default();
        detector.update(4, true);
        assert!(detector.may_be_parameter(1, 5));
        detector.set_boundary(10);
        detector.set_boundary(20);
        assert!(detector.may_be_parameter(3, 25), "existed before parameters were updated for the first time");
        assert!(!detector.may_be_parameter(9, 25), "uploaded for the second step");
        assert!(!detector.may_be_parameter(18, 25), "uploaded for this step");
        detector.set_boundary(30);
        assert!(detector.may_be_parameter(18, 100), "has existed for long");
    }

    #[test]
    fn an_input_that_is_normalised_begins_no_first_step() {
        let mut detector = StepDetector::default();
        detector.root_read(0, 1);
        detector.update(4, true);
        assert!(!detector.has_enough_updates());
        (0..3).for_each(|_| detector.root_read(0, 1));
        assert!(!detector.has_enough_updates());
        (0..3).for_each(|_| detector.update(5, true));
        assert!(detector.has_enough_updates());
    }

    #[test]
    fn one_of_many_roots_tells_when_it_is_updated_for_the_third_time() {
        let mut detector = StepDetector::default();
        (0..100).for_each(|_| detector.root_read(0, 10));
        detector.update(110, true);
        assert!(!detector.has_enough_updates());
        assert!(!detector.is_regular(0, 105, 215), "updated twice");
        assert!(detector.is_regular(105, 100, 315), "three times");
        assert!(!detector.is_regular(70, 9, 315) && !detector.is_regular(9, 9, 315), "within a step");
    }
}
