//! Finding passes as they come: see [`Passes`](crate::passes::Passes).
//!
//! A pass ends where everything saved for its backward pass is gone, or where its plan ends. A pass that has a plan begins with the plan's first
//! operation, wherever that comes: what a program does in between belongs to no pass. A validation that begins in the same way
//! follows the plan for as long as it does the same.

use super::Machine;
use super::call::Call;
use crate::driver::{Planning, World};
use crate::facts::{Operation, Rule, TensorFacts, ThreadId};
use crate::keys::TensorKey;
use crate::passes::{Part, Seed};
use crate::schedule::Schedule;
use crate::trace::{Trace, extend};

use alloc::sync::Arc;

/// Two passes are not alike if their first results differ in size by more than this factor.
const MOST_TIMES: u64 = 64;

impl<W: World> Machine<W> {
    /// An operation of the program is about to be served: the previous pass may be over, and the operation may be a seed.
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
            // What this thread has computed was not observed. Its next pass will be.
            if self.steps.detector.goes_by_passes() && self.threads.pass(thread) {
                self.forget_step();
            }
            return;
        }
        let is_updating = self.steps.detector.is_updating(self.steps.passes.last_update(), self.now.clock);
        if is_updating && !self.steps.passes.awaits_backward() {
            // It belongs to an optimizer.
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
            self.world.planning_mut().left(left);
        }
        if let Seed::After(boundary) = seed {
            self.end_planned_pass(boundary);
            // The trace begins in the middle of a pass.
            self.watch.tracer = None;
        }
        let untold = !self.steps.detector.is_exact() && self.steps.passes.seen() > 1;
        if untold || self.steps.detector.goes_by_passes() {
            self.take_share(self.steps.passes.highest().max(self.steps.totals.peak));
        }
    }

    /// Ends the current pass if it is over: what was saved is gone, and everything in its plan is done. The next operation `is_other`, or may be
    /// more of the glue with which the pass ends.
    pub(super) fn end_pass(&mut self, clock: u64, is_other: impl Fn(&Self, &Schedule) -> bool) {
        if !self.steps.plans_passes(self.now.clock) {
            if self.steps.passes.is_over() {
                self.steps.passes.end(clock, 0);
            }
            return;
        }
        if self.steps.passes.have_gone_on() {
            self.end_planned_pass(clock);
            return self.world.planning_mut().forget_observed();
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

    /// Notes to which part of the pass the outputs of an operation belong.
    pub(super) fn note_part(&mut self, op: &Operation, call: &Call, outputs: &[TensorKey]) {
        if self.now.foreign {
            return;
        }
        let inputs = &*call.inputs;
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
        // When the base of a view was made, if that counts in this pass.
        let base = inputs.first().filter(|_| op.nature.view).map(|&base| tensors[base].lineage);
        let base = base.map(|lineage| passes.counts(lineage.part, lineage.born).then_some(lineage.born));
        let part = match (descends, base) {
            (true, _) => Part::Backward,
            (false, Some(None)) => Part::None,
            (false, _) => Part::Forward,
        };
        let base = base.flatten();
        for &output in outputs {
            tensors[output].lineage.part = part;
            if part != Part::Forward {
                continue;
            }
            let TensorFacts { shape, bytes, .. } = tensors[output].facts;
            let spent = || {
                let mut dying =
                    call.dying.iter().map(|&input| &tensors[input]).filter(|input| input.facts.shape == shape);
                let counted = dying.find(|input| passes.counts(input.lineage.part, input.lineage.born));
                counted.map(|input| input.lineage.born)
            };
            match base.or_else(spent).filter(|&born| passes.stands_for_saved(born, bytes)) {
                Some(born) => tensors[output].lineage.born = born,
                None => passes.computed(bytes),
            }
        }
    }

    /// The same for results that cannot be computed again, because the operation took over roots: if it took over gradients of this pass only, the result
    /// is one too, and not new state of something else.
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

    /// A tensor that takes the place of another from step to step is not part of a pass.
    pub(super) fn note_no_part(&mut self, key: TensorKey) {
        self.note_let_go(key);
        self.history.tensors[key].lineage.part = Part::None;
    }

    /// The program has released a tensor.
    pub(super) fn note_let_go(&mut self, key: TensorKey) {
        let tensor = &self.history.tensors[key];
        let (part, born, bytes) = (tensor.lineage.part, tensor.lineage.born, tensor.facts.bytes);
        self.steps.passes.let_go(part, born, bytes, (self.now.clock, self.steps.position));
    }

    /// Takes up the plan of a pass that begins with this operation, if there is one.
    pub(super) fn begin_pass(&mut self, op: &Operation, call: &mut Call) -> bool {
        if self.steps.detector.goes_by_marks() || self.now.foreign || self.steps.passes.seed().is_some() {
            return false;
        }
        // Passes of two kinds may begin alike. If it is known which kind comes next, the machine waits for that.
        let is_sure = self.world.planning().is_sure();
        if !is_sure && !self.steps.passes.is_quiet() {
            return false;
        }
        // If a pass begins here, so does the count of what its policies apply to.
        let usual = call.rule;
        call.rule = usual.map(|rule| Rule { scope: 1, ..rule });
        let exact = self.pass_that_begins(op, call).map(|schedule| (schedule, 0));
        let is_next = |schedule: &Schedule| {
            self.world.planning().next().is_some_and(|next| next.structure() == schedule.structure())
        };
        let found = exact.or_else(|| self.pass_like(op, call));
        let Some((schedule, like)) = found.filter(|(schedule, _)| !is_sure || is_next(schedule)) else {
            call.rule = usual;
            return false;
        };
        // The one that left its plan never came to a backward pass, so it was not a pass.
        self.watch.left = None;
        self.watch.tracer = None;
        self.steps.number = self.steps.number.wrapping_add(1) % u32::MAX;
        self.steps.position = 1;
        self.watch.most_held = self.ledger.live;
        self.note_start();
        self.clear_for(&schedule);
        // A plan that exceeds the budget holds the least that is known to be possible.
        if self.exceeds(&schedule, schedule.peak) {
            self.world.planning_mut().outgrown(schedule.structure());
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
            call.rule = self.stages.rule(self.now.thread, Some(self.steps.number));
            call.signature = self.signature(op, call);
        }
        true
    }

    /// The plan that is followed, if it is a plan of a pass and says where that ends.
    pub(super) fn planned_pass(&self) -> Option<&Schedule> {
        let follow = self.watch.follow.as_ref()?;
        Some(&*follow.schedule).filter(|schedule| schedule.trace.is_pass && !follow.is_mended())
    }

    /// Whether a pass has begun and its plan has not come to its end.
    pub(super) fn is_in_planned_pass(&self) -> bool {
        self.planned_pass().is_some_and(|schedule| !schedule.spine.is_over(self.steps.position as usize))
    }

    /// Whether a plan, counting what was held when the pass began, exceeds both the budget and `most`.
    pub(super) fn exceeds(&self, schedule: &Schedule, most: u64) -> bool {
        let foreseen = schedule.peak.saturating_add(self.steps.held_at_start);
        let foreseen = foreseen.saturating_sub(schedule.trace.held_at_start);
        self.limits().budget.is_some_and(|budget| foreseen > budget.max(most))
    }

    /// Whether a plan keeps everything, without deciding anything, although that exceeds the budget.
    pub(super) fn needs_more(&self, schedule: &Schedule) -> bool {
        !schedule.decides.iter().any(|&decides| decides) && self.exceeds(schedule, 0)
    }

    fn pass_that_begins(&self, op: &Operation, call: &Call) -> Option<Arc<Schedule>> {
        let expected = self.world.planning().next()?;
        let prefix = extend(0, self.signature_in(op, call, None));
        let begins = |schedule: &Arc<Schedule>| schedule.trace.is_pass && schedule.prefixes.get(1) == Some(&prefix);
        Some(expected).filter(begins).or_else(|| self.world.planning().beginning_with(1, prefix).filter(begins))
    }

    /// The plan of a pass that begins like this one but on tensors of another size, and the signature of the current operation (not 0).
    fn pass_like(&self, op: &Operation, call: &Call) -> Option<(Arc<Schedule>, u64)> {
        let bytes = op.outputs.first()?.bytes;
        let schedule = self.world.planning().like(&[], op.kind, bytes).filter(|schedule| schedule.trace.is_pass)?;
        let signature = self.signature_in(op, call, None) | 1;
        let planned = schedule.trace.tensors[schedule.trace.ops[0].outputs as usize].bytes;
        let is_near = bytes <= planned.saturating_mul(MOST_TIMES) && planned <= bytes.saturating_mul(MOST_TIMES);
        let may_be =
            is_near && !self.watch.refused.contains(&signature) && self.is_like(&schedule, 0, op, call, |_| None);
        may_be.then_some((schedule, signature))
    }

    /// The part of a trace that is to be planned.
    pub(super) fn unit_of(&self, trace: Trace) -> Trace {
        let passes = &self.steps.passes;
        let seed = passes.seed().filter(|_| self.steps.plans_passes(self.now.clock));
        let trace = Trace { seed, over: passes.over(), ..trace };
        // A dry run also needs to know what lies between passes.
        if self.config.rehearsing { trace } else { trace.planned_part() }
    }
}
