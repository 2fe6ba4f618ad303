//! Passes as they come: see [`Passes`](crate::passes::Passes).
//!
//! A pass ends where what was saved for its backward is gone, or where its plan ends. One that has a plan begins with the plan's first
//! operation, wherever that comes: what a program does in between is no part of any. A validation that begins in the same way
//! goes by the plan for as long as it does the same.

use super::Machine;
use super::call::Call;
use crate::driver::World;
use crate::facts::{Operation, ThreadId};
use crate::keys::TensorKey;
use crate::passes::{Part, Seed};
use crate::schedule::Schedule;
use crate::trace::{Trace, extend};

use alloc::sync::Arc;

/// A pass is not like another whose first result is more than so many times larger or smaller.
const MOST_TIMES: u64 = 64;

impl<W: World> Machine<W> {
    /// An operation of the program is about to be served: the pass before it may be over, and it may be a seed.
    pub(super) fn meet_operation(&mut self, thread: ThreadId, op: &Operation, call: &Call) {
        if !self.now.foreign {
            self.end_pass(self.now.clock, |machine, schedule| !machine.is_glue(schedule, op, call));
        }
        if op.nature.one {
            self.steps.passes.meet(self.now.clock);
            if !self.steps.detector.goes_by_marks() {
                self.meet_one(thread);
            }
        }
    }

    fn meet_one(&mut self, thread: ThreadId) {
        if self.now.foreign {
            // What this thread has computed was not looked at. Its next pass is.
            if self.steps.detector.goes_by_passes() && self.threads.pass(thread) {
                self.forget_step();
            }
            return;
        }
        let is_updating = self.steps.detector.is_updating(self.steps.passes.last_update(), self.now.clock);
        if is_updating && !self.steps.passes.awaits_backward() {
            // It is an optimizer's.
            return;
        }
        let seed = self.steps.passes.one(self.now.clock, self.steps.position);
        if seed == Seed::Nothing {
            return;
        }
        if self.steps.detector.knows_no_better(self.steps.passes.seen()) {
            self.steps.detector.go_by_passes();
            self.threads.pass(thread);
        }
        if !self.steps.plans_passes(self.now.clock) {
            return;
        }
        if let Some(left) = self.watch.left.take() {
            self.world.left(left);
        }
        if let Seed::After(boundary) = seed {
            self.end_planned_pass(boundary);
            // What was written down begins in the middle of a pass.
            self.watch.tracer = None;
        }
        let untold = !self.steps.detector.is_exact() && self.steps.passes.seen() > 1;
        if untold || self.steps.detector.goes_by_passes() {
            self.take_share(self.steps.passes.highest().max(self.steps.totals.peak));
        }
    }

    /// Ends the pass under way if it is over: what was saved is gone, and all that its plan has is done. What comes then `is_other`, or may be
    /// more of the glue with which it ends.
    pub(super) fn end_pass(&mut self, clock: u64, is_other: impl Fn(&Self, &Schedule) -> bool) {
        if !self.steps.plans_passes(self.now.clock) {
            if self.steps.passes.is_over() {
                self.steps.passes.end(clock, 0);
            }
            return;
        }
        if self.steps.passes.have_gone_on() {
            self.end_planned_pass(clock);
            return self.world.forget_observed();
        }
        let (position, is_over) = (self.steps.position as usize, self.steps.passes.is_over());
        let ends = match self.planned_pass() {
            Some(schedule) => schedule.spine.is_over(position) && (is_over || is_other(self, schedule)),
            None => is_over,
        };
        if ends {
            self.end_planned_pass(clock);
        }
    }

    /// Notes to which part of the pass belongs what an operation has made.
    pub(super) fn note_part(&mut self, op: &Operation, inputs: &[TensorKey], outputs: &[TensorKey]) {
        if self.now.foreign {
            return;
        }
        let passes = &mut self.steps.passes;
        let tensors = &mut self.history.tensors;
        if passes.left_something() {
            for &input in inputs {
                let tensor = &tensors[input];
                passes.reads(tensor.lineage.part, tensor.lineage.born, tensor.facts.bytes);
            }
        }
        let is_seed = op.nature.one && passes.seed().is_some();
        let descends = is_seed
            || inputs.iter().any(|&input| {
                let lineage = &tensors[input].lineage;
                passes.descends(lineage.part, lineage.born)
            });
        // What a view looks at, by when that came to be.
        let base = inputs.first().filter(|_| op.nature.view).map(|&base| tensors[base].lineage);
        let base = base.map(|lineage| passes.counts(lineage.part, lineage.born).then_some(lineage.born));
        let part = match (descends, base) {
            (true, _) => Part::Backward,
            (false, Some(None)) => Part::None,
            (false, _) => Part::Forward,
        };
        for &output in outputs {
            let tensor = &mut tensors[output];
            tensor.lineage.part = part;
            if part != Part::Forward {
                continue;
            }
            match base.flatten().filter(|&born| passes.looks_at_saved(born, tensor.facts.bytes)) {
                Some(born) => tensor.lineage.born = born,
                None => passes.computed(tensor.facts.bytes),
            }
        }
    }

    /// The same where how to make it is not known, because it took roots: what took gradients of this pass only is one, and no new state of something
    /// else.
    pub(super) fn note_descent(&mut self, inputs: &[TensorKey], consumed: &[TensorKey], outputs: &[TensorKey]) {
        if self.now.foreign {
            return;
        }
        let (passes, tensors) = (&self.steps.passes, &mut self.history.tensors);
        let descends = |&key: &TensorKey| passes.descends(tensors[key].lineage.part, tensors[key].lineage.born);
        let is_root = |key: &&TensorKey| tensors[**key].recipe.is_none();
        if inputs.iter().any(descends) && consumed.iter().filter(is_root).all(descends) {
            outputs.iter().for_each(|&output| tensors[output].lineage.part = Part::Backward);
        }
    }

    /// A tensor that takes the place of another from step to step is no part of a pass.
    pub(super) fn note_no_part(&mut self, key: TensorKey) {
        self.note_let_go(key);
        self.history.tensors[key].lineage.part = Part::None;
    }

    /// The program has let go of a tensor.
    pub(super) fn note_let_go(&mut self, key: TensorKey) {
        let tensor = &self.history.tensors[key];
        let (part, born, bytes) = (tensor.lineage.part, tensor.lineage.born, tensor.facts.bytes);
        self.steps.passes.let_go(part, born, bytes, (self.now.clock, self.steps.position));
    }

    /// Takes up the plan of a pass that begins with an operation, if there is one.
    pub(super) fn begin_pass(&mut self, op: &Operation, call: &mut Call) -> bool {
        if self.steps.detector.goes_by_marks() || self.now.foreign || self.steps.passes.seed().is_some() {
            return false;
        }
        // Passes of two kinds may begin alike: where it is known which comes, that is waited for.
        let is_sure = self.world.is_sure();
        if !is_sure && !self.steps.passes.is_quiet() {
            return false;
        }
        let exact = self.pass_that_begins(op, call).map(|schedule| (schedule, 0));
        let Some((schedule, like)) = exact.or_else(|| self.pass_like(op, call)) else { return false };
        if is_sure && self.world.next().is_none_or(|next| next.structure() != schedule.structure()) {
            return false;
        }
        // A pass that was never met: it was none.
        self.watch.left = None;
        self.watch.tracer = None;
        self.steps.number = self.steps.number.wrapping_add(1) % u32::MAX;
        self.steps.position = 1;
        self.watch.most_held = self.ledger.live;
        self.note_start();
        self.clear_for(&schedule);
        // A plan that holds more than the budget holds the least that is known.
        if self.exceeds(&schedule, schedule.peak) {
            self.world.outgrown(schedule.structure());
        }
        self.follow(schedule);
        if like != 0 {
            self.carry();
        }
        if let Some(follow) = &mut self.watch.follow {
            follow.start.like = like;
        }
        call.watched = true;
        if op.known.is_none() {
            call.rule = self.stages.rule(self.now.thread, self.steps.number);
            call.signature = self.signature(op, call);
        }
        true
    }

    /// The plan that is followed, where it is one of a pass and says where that ends.
    pub(super) fn planned_pass(&self) -> Option<&Schedule> {
        let follow = self.watch.follow.as_ref()?;
        Some(&*follow.schedule).filter(|schedule| schedule.trace.is_pass && !follow.is_mended())
    }

    /// Whether a pass is under way that its plan does not end yet.
    pub(super) fn is_in_planned_pass(&self) -> bool {
        self.planned_pass().is_some_and(|schedule| !schedule.spine.is_over(self.steps.position as usize))
    }

    /// Whether a plan holds more than the budget, and more than `most`, with what was there when the pass began.
    pub(super) fn exceeds(&self, schedule: &Schedule, most: u64) -> bool {
        let foreseen = schedule.peak.saturating_add(self.steps.held_at_start);
        let foreseen = foreseen.saturating_sub(schedule.trace.held_at_start);
        self.limits().budget.is_some_and(|budget| foreseen > budget.max(most))
    }

    /// Whether a plan decides nothing, so that all is held, though that is more than the budget allows.
    pub(super) fn needs_more(&self, schedule: &Schedule) -> bool {
        !schedule.decides.iter().any(|&decides| decides) && self.exceeds(schedule, 0)
    }

    fn pass_that_begins(&self, op: &Operation, call: &Call) -> Option<Arc<Schedule>> {
        let expected = self.world.next()?;
        let prefix = extend(0, self.signature_in(op, call, None));
        let begins = |schedule: &Arc<Schedule>| schedule.trace.is_pass && schedule.prefixes.get(1) == Some(&prefix);
        Some(expected).filter(begins).or_else(|| self.world.beginning_with(1, prefix).filter(begins))
    }

    /// The plan of a pass that begins like this one does, on tensors of another size, and the signature of the operation at hand (not 0).
    fn pass_like(&self, op: &Operation, call: &Call) -> Option<(Arc<Schedule>, u64)> {
        let bytes = op.outputs.first()?.bytes;
        let schedule = self.world.like(&[], op.kind, bytes).filter(|schedule| schedule.trace.is_pass)?;
        let signature = self.signature_in(op, call, None) | 1;
        let planned = schedule.trace.tensors[schedule.trace.ops[0].outputs as usize].bytes;
        let is_near = bytes <= planned.saturating_mul(MOST_TIMES) && planned <= bytes.saturating_mul(MOST_TIMES);
        let may_be =
            is_near && !self.watch.refused.contains(&signature) && self.is_like(&schedule, 0, op, call, |_| None);
        may_be.then_some((schedule, signature))
    }

    /// What is to be planned of what was written down.
    pub(super) fn unit_of(&self, trace: Trace) -> Trace {
        let passes = &self.steps.passes;
        let seed = passes.seed().filter(|_| self.steps.plans_passes(self.now.clock));
        let trace = Trace { seed, over: passes.over(), ..trace };
        // Whoever rehearses wants to know what lies between passes too.
        if self.config.rehearsing { trace } else { trace.planned_part() }
    }
}
