//! What ends and begins with a training step: its trace, the plan that it follows, and what is forgotten.
//!
//! Where a step ends is told by `steps.rs`; what a plan has the engine do within one by `follow.rs`.

use super::Engine;
use super::follow::Follow;
use super::tracing::Tracer;
use crate::backend::RematBackend;
use crate::budget::Budget;
use crate::planning::Trace;

impl<B: RematBackend> Engine<B> {
    /// The program says that a step begins here.
    pub fn mark(&mut self) {
        self.note_mark();
        let first = self.detector.mark();
        if !(first && self.stats.operations == 0) {
            self.end_step(self.clock + 1, !first);
        }
    }

    /// `is_step` is false for what came before the first mark: a share of the first step is not a share of that.
    pub(super) fn end_step(&mut self, boundary: u64, is_step: bool) {
        let name = self.names.get(&self.serving).map_or("", String::as_str);
        log::trace!("a step ends before operation {boundary}, seen at {} ({name})", self.clock);
        // A boundary in the past, or one that the program only may have meant, says nothing about where a trace ends.
        let whole = self.detector.is_exact() && boundary >= self.clock;
        let trace = self.end_following(whole);
        self.detector.set_boundary(boundary);
        self.forget_before(boundary);
        let tensors = &self.tensors;
        self.stages.prune(|key, id| tensors.get(key).is_some_and(|tensor| tensor.id == id));
        self.stats.steps += 1;
        self.stats.steps_over_budget += u64::from(self.step.over_budget);
        self.stats.base_ns = self.step.compute_ns;
        let most = std::mem::take(&mut self.step).peak;
        self.pool.end_step(most);
        if let (Budget::Share(share), None, true) = (self.config.budget, self.budget, is_step) {
            let budget = (self.stats.peak as f64 * share) as u64;
            log::info!("the first step held {} bytes: the budget is {budget} bytes from now on", self.stats.peak);
            self.budget = Some(budget);
            self.stats.peak = self.storages.live;
            if self.stats.floor.bytes > budget {
                // Said now, before a step is lost to it. A strict engine fails at the operation itself.
                let _ = self.below_floor(budget);
            }
        }
        self.begin_following(trace);
        let watched = self.follow.is_some() || self.tracer.is_some() || self.stages.any_forced;
        self.light = !watched && self.is_ample(most);
    }

    /// Ends the trace and the plan of this step; gives the trace if it is that of a whole step.
    fn end_following(&mut self, whole: bool) -> Option<Trace> {
        self.release_holds();
        if let Some(follow) = self.follow.take()
            && whole
        {
            if follow.is_complete() {
                self.stats.followed_ns += self.step.compute_ns;
                self.stats.followed_recompute_ns += self.step.recompute_ns;
                let schedule = follow.schedule().clone();
                let budget = self.planned_budget();
                let mut outcome = follow.outcome();
                self.device_clock.read(outcome.trace.as_mut());
                if self.plans.followed(&schedule, outcome, budget) {
                    self.pool.plan_with(schedule.signature(), self.room());
                }
            } else {
                let at = self.position;
                self.plans.abandoned(&format!("it ended after {at} operations"));
                self.resume_trace(&follow.schedule().trace.clone(), at);
            }
        }
        let names = &self.names;
        let mut trace = self.tracer.take().map(|tracer| tracer.finish(names));
        self.device_clock.read(trace.as_mut());
        trace.filter(|trace| whole && !trace.ops.is_empty())
    }

    /// Chooses how the step that begins goes: by a plan, traced, or neither.
    fn begin_following(&mut self, trace: Option<Trace>) {
        self.step_number = self.step_number.wrapping_add(1) % u32::MAX;
        self.position = 0;
        self.held_at_start = self.storages.live - self.storages.aside;
        if !self.plans.is_on() || !self.detector.is_exact() {
            return;
        }
        if let Some(trace) = trace {
            let (signature, room, budget) = (trace.signature(), self.room(), self.planned_budget());
            if self.plans.observe(trace, budget) {
                self.pool.plan_with(signature, room);
            }
        }
        self.plans.poll(self.budget, self.overrun);
        if let (Some(budget), Some(next)) = (self.budget, self.plans.next())
            && self.pool.outgrows(next.signature(), next.peak, budget)
        {
            self.plans.plan_anew();
        }
        self.trim_pool();
        if self.budget.is_some() && self.stats.evictions != self.evictions_seen {
            self.plans.unsettle();
        }
        self.evictions_seen = self.stats.evictions;
        match self.plans.next() {
            Some(schedule) => {
                if self.budget.is_some_and(|budget| schedule.peak > budget) {
                    self.overrun = self.overrun.max(schedule.peak);
                }
                self.start_following();
            }
            None if self.plans.is_settled() => {}
            None => self.tracer = Some(Tracer::new(self.held_at_start)),
        }
    }

    /// The step that begins goes by the plan that is expected for it, if there is one.
    pub(super) fn start_following(&mut self) {
        self.follow = self.plans.next().map(|schedule| {
            let measures = self.plans.is_unmeasured(&schedule);
            Follow::new(schedule, measures)
        });
    }

    /// The budget that plans may use: what other threads hold stands beside them.
    fn planned_budget(&self) -> Option<u64> {
        self.tensor_budget().map(|budget| budget.saturating_sub(self.aside.peak))
    }

    /// Something failed in this step: it is neither planned nor followed any further.
    pub(super) fn forget_step(&mut self) {
        self.release_holds();
        self.follow = None;
        self.tracer = None;
    }

    /// Leaves a plan under which more is held than it foresaw and the budget allows.
    pub(super) fn watch_budget(&mut self) {
        let (Some(follow), Some(budget)) = (&self.follow, self.budget) else { return };
        let most = budget.max(follow.schedule().peak);
        if self.storages.live > most {
            self.explain_deviation();
            let (live, at) = (self.storages.live, self.position as usize);
            let name = self.names.get(&self.serving).map_or("an operation", String::as_str);
            let why = format!("after operation {at}, `{name}`, {live} bytes are held where it foresaw at most {most}");
            let (signature, foreseen) = (follow.schedule().signature(), follow.schedule().trace.held_at_start);
            self.abandon_plan(at, &why);
            if self.held_at_start > foreseen {
                self.plans.outgrown(signature);
            }
        }
    }
}
