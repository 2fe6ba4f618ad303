//! What happens where a training step ends and the next begins: to its trace, to the plan that it follows, and to the history that is forgotten.

use alloc::sync::Arc;

use super::{Asked, Machine, StepTotals};
use crate::counters::Times;
use crate::driver::{Event, Left, Planning, World};
use crate::facts::ThreadId;
use crate::follow::{Follow, Start};
use crate::history::Tensor;
use crate::keys::{BufferKey, TensorKey};
use crate::ledger::Entry;
use crate::passes::Part;
use crate::schedule::Schedule;
use crate::spine::Spine;
use crate::trace::Trace;
use crate::tracer::Tracer;

/// At the end of a step, a tensor is kept, rather than the way to compute it, if it takes at most one part in this many of the budget.
const SMALL: u64 = 4096;

/// The machine remembers for this many steps how to compute what a forward pass has saved.
const REMEMBERED: usize = 16;

/// When the last steps ended.
#[derive(Default)]
pub(super) struct Boundaries {
    clocks: [u64; REMEMBERED],
    next: usize,
}

impl Boundaries {
    /// A step has ended at `clock`. Returns when the step ended that was [`REMEMBERED`] steps earlier.
    fn note(&mut self, clock: u64) -> u64 {
        let long_ago = core::mem::replace(&mut self.clocks[self.next], clock);
        self.next = (self.next + 1) % REMEMBERED;
        long_ago
    }
}

impl<W: World> Machine<W> {
    /// The program says that a step begins here.
    pub fn mark(&mut self, thread: ThreadId) {
        self.threads.mark(thread);
        let first = self.steps.detector.mark();
        if first && self.steps.number == 0 && self.steps.position == 0 {
            // Nothing has run: what was held before is not part of the step.
            self.steps.totals.peak = self.ledger.live;
        } else {
            self.end_step(self.now.clock + 1, !first);
        }
    }

    /// A step ends, and so does its trace and plan if steps are planned. `is_step` is false for what came before the first mark: a budget that
    /// is a share of the first step is not a share of that.
    pub(super) fn end_step(&mut self, boundary: u64, is_step: bool) {
        if self.steps.plans_passes(self.now.clock) {
            self.steps.detector.set_boundary(boundary);
            if self.steps.passes.step_ends() {
                self.count_step(is_step);
            }
            if !self.steps.detector.goes_by_passes() {
                // A pass may have begun before it turned out that a new step has begun.
                let begun = self.watch.follow.as_ref().map_or(boundary, |follow| follow.start.clock);
                self.forget(boundary.min(begun));
            }
            return;
        }
        let unit = self.end_unit(boundary);
        self.steps.detector.set_boundary(boundary);
        self.count_step(is_step);
        self.begin_unit(unit);
    }

    /// A pass that may be planned ends.
    pub(super) fn end_planned_pass(&mut self, boundary: u64) {
        let unit = self.end_unit(boundary);
        if self.steps.detector.goes_by_passes() {
            self.steps.detector.set_boundary(boundary);
            self.count_step(true);
        }
        self.begin_unit(unit);
    }

    /// Ends the unit of planning; returns the trace to be planned.
    fn end_unit(&mut self, boundary: u64) -> Option<Trace> {
        // A boundary in the past, or one that the program may not have meant, does not say where a trace ends.
        let whole = self.is_sure() && boundary >= self.now.clock;
        let position = self.steps.position as usize;
        if self.planned_pass().is_some_and(|schedule| schedule.spine.is_over(position)) {
            self.steps.passes.done();
        }
        let trace = self.end_following(whole);
        let unit = trace.map(|trace| self.unit_of(trace));
        self.steps.passes.end(boundary, self.steps.totals.peak);
        // Gradients belong to the optimizer's step, if it is known where that is.
        if !self.steps.plans_passes(self.now.clock) || self.steps.detector.goes_by_passes() {
            self.forget(boundary);
        } else {
            self.keep_gradients();
        }
        unit
    }

    /// What was computed before `clock` is no longer computed again, except what forward passes have saved whose backward pass may come in a later
    /// step: when two networks learn in turns, autodiff holds what one has made while the other learns. The machine remembers for a few more
    /// steps how to compute that; the limit makes sure that chains end and the budget is kept.
    pub(super) fn forget(&mut self, clock: u64) {
        let before = self.ledger.live;
        let long_ago = self.steps.boundaries.note(clock);
        self.forget_before(long_ago, |_| false);
        let budget = self.room.budget.or(self.config.rehearsing.then_some(self.counters.peak.bytes));
        let is_large = |tensor: &Tensor| budget.is_some_and(|budget| tensor.facts.bytes > budget / SMALL);
        // What existed before the first backward pass may be a parameter that was computed initially.
        let first = self.steps.passes.first_seed();
        let is_later = move |tensor: &Tensor| first.is_some_and(|first| tensor.lineage.born > first);
        // What an optimizer makes of gradients was computed too.
        let is_optimized = self.steps.passes.optimized(clock);
        let is_saved = |tensor: &Tensor| {
            let lineage = &tensor.lineage;
            lineage.part == Part::Forward && is_large(tensor) && is_later(tensor) && !is_optimized(lineage.born)
        };
        self.forget_before(clock, is_saved);
        if self.own.records {
            let lasts = |tensor: &Tensor| tensor.lineage.is.computed && tensor.lineage.born < clock;
            let lasting = self.history.keys_of(|tensor| tensor.recipe.is_none() && lasts(tensor));
            lasting.into_iter().for_each(|key| self.note_outlives(key));
        }
        // What is released here came before the pass that may have begun, so it does not belong to what that pass holds.
        if let Some(follow) = &mut self.watch.follow {
            let gone = before.saturating_sub(self.ledger.live);
            follow.start.held = follow.start.held.saturating_sub(gone);
        }
        let history = &self.history;
        self.stages.prune(|key, id| history.knows((key, id)));
    }

    /// What a finished backward pass has made is not computed again: that would take the whole pass. O(tensors).
    fn keep_gradients(&mut self) {
        let is_gradient = |tensor: &Tensor| {
            tensor.alive && tensor.buffer.is_some() && tensor.recipe.is_some() && tensor.lineage.part == Part::Backward
        };
        for key in self.history.keys_of(is_gradient) {
            self.keep_data(key);
        }
        self.collect();
    }

    /// Whether the end of the unit of planning is known as soon as the operation comes.
    fn is_sure(&self) -> bool {
        self.steps.detector.is_exact() || self.steps.plans_passes(self.now.clock)
    }

    /// Counts a step that has ended.
    fn count_step(&mut self, is_step: bool) {
        if self.steps.detector.is_exact() && !self.steps.detector.goes_by_passes() {
            self.steps.passes.forget_seen();
        }
        self.world.tell(Event::StepEnds);
        let totals =
            core::mem::replace(&mut self.steps.totals, StepTotals { peak: self.ledger.live, ..Default::default() });
        self.steps.ended = self.steps.ended.wrapping_add(1) % u32::MAX;
        self.counters.steps += 1;
        self.counters.steps_over_budget += u64::from(totals.over_budget);
        self.steps.last_ns = totals.compute_ns;
        if totals.over_budget {
            self.steps.online_overhead = None;
        } else if self.world.planning().taken_up() == 0 {
            self.steps.online_overhead = Some(totals.repeated_ns.saturating_mul(1000) / totals.compute_ns.max(1));
        }
        self.room.pool.end_step(totals.peak);
        self.room.end_step();
        self.threads.end_step(self.ledger.foreign);
        // If passes are planned, the second pass shows what the first has not: what an optimizer makes.
        if is_step && !self.steps.detector.goes_by_passes() {
            self.take_share(totals.peak);
        }
        self.own.records = self.watches() || !self.is_ample(totals.peak);
    }

    /// Whether what the program does is observed.
    fn watches(&self) -> bool {
        self.watch.follow.is_some() || self.watch.tracer.is_some() || self.stages.any_forced
    }

    /// The first step has held this many bytes: a budget that is a share of them is now known.
    pub(super) fn take_share(&mut self, first_step: u64) {
        let (Asked::Share(share), None) = (self.config.budget, self.room.budget) else { return };
        let budget = (first_step as f64 * share) as u64;
        self.world.tell(Event::Budget { first_step, budget });
        self.room.budget = Some(budget);
        self.counters.peak.bytes = self.ledger.live;
        let floor = self.counters.floor;
        if floor.bytes > budget {
            // Reported now, before a step is lost to it. A strict machine fails at the operation itself.
            let kind = core::mem::replace(&mut self.now.kind, floor.kind);
            let _ = self.below_floor(budget, floor.bytes);
            self.now.kind = kind;
        }
    }

    /// Ends the trace and the plan of this step; returns the trace if it covers a whole step.
    fn end_following(&mut self, whole: bool) -> Option<Trace> {
        let at = self.steps.position as usize;
        if let Some(follow) = self.watch.follow.as_ref().filter(|follow| whole && follow.schedule.spine.is_over(at)) {
            self.skip_glue(at, follow.schedule.trace.ops.len());
        }
        self.abandon_holds();
        if let Some(follow) = self.watch.follow.take()
            && whole
        {
            if follow.is_complete() || follow.is_mended() {
                // The counters may have been reset meanwhile.
                if follow.carried.is_none() {
                    let times = &mut self.counters.times;
                    times.followed += times.compute.saturating_sub(follow.start.compute_ns);
                    times.followed_recompute += times.recompute.saturating_sub(follow.start.recompute_ns);
                }
                let schedule = follow.schedule.clone();
                let limits = self.limits();
                let mut outcome = follow.outcome();
                self.world.end_step(outcome.trace.as_mut());
                if self.world.planning_mut().followed(&schedule, outcome, limits) {
                    let room = self.room.beside_tensors();
                    self.room.pool.plan_with(schedule.structure(), room);
                }
            } else {
                let at = self.steps.position;
                self.world.planning_mut().left(Left::Ended { at });
                if let Some(trace) = follow.trace() {
                    self.resume_trace(&trace, at);
                }
            }
        }
        let mut trace = self.watch.tracer.take().map(|tracer| self.finish_trace(tracer));
        self.world.end_step(trace.as_mut());
        trace.filter(|trace| whole && !trace.ops.is_empty())
    }

    /// Begins a unit of planning, which follows a plan, is traced, or neither. `unit` is the trace of the previous one, if it is to be planned.
    pub(super) fn begin_unit(&mut self, unit: Option<Trace>) {
        self.begin_following(unit);
        self.own.records |= self.watches();
    }

    fn begin_following(&mut self, unit: Option<Trace>) {
        self.steps.number = self.steps.number.wrapping_add(1) % u32::MAX;
        self.steps.position = 0;
        // What the previous step held is not part of this one.
        self.watch.most_held = self.ledger.live;
        self.note_start();
        if !self.world.planning().is_on() || !self.is_sure() {
            return;
        }
        let limits = self.limits();
        let structure = unit.as_ref().map(|trace| Spine::of(trace).structure());
        self.watch.differences.ends(structure);
        if let Some((trace, structure)) = unit.zip(structure) {
            let room = self.room.beside_tensors();
            if self.world.planning_mut().observe(trace, structure, limits) {
                self.room.pool.plan_with(structure, room);
            }
        }
        self.world.planning_mut().poll(limits);
        if self.world.planning().taken_up() == 0 && !self.world.planning().is_settled() {
            self.steps.detector.begins_unplanned();
        }
        if let (Some(budget), Some(next)) = (self.room.budget, self.world.planning().next())
            && self.room.pool.outgrows(next.structure(), next.peak, budget)
        {
            self.world.planning_mut().plan_anew();
        }
        if self.room.pool.is_to_be_trimmed(self.world.planning().taken_up()) {
            self.world.trim_pool();
        }
        if self.room.budget.is_some() && self.room.evictions != self.room.evictions_before {
            self.world.planning_mut().unsettle();
        }
        self.room.evictions_before = self.room.evictions;
        self.start_following();
        if self.watch.follow.is_none() && !self.world.planning().is_settled() {
            self.watch.tracer = Some(Tracer::new(self.steps.held_at_start, self.watch.yielding));
        }
    }

    /// Lets the step that begins follow the plan that is expected for it, if there is one.
    pub(super) fn start_following(&mut self) {
        self.watch.follow = None;
        // A pass begins with an operation, not here.
        let is_step = |schedule: &Arc<Schedule>| !schedule.trace.is_pass || self.steps.detector.goes_by_marks();
        if let Some(schedule) = self.world.planning().next().filter(is_step) {
            self.clear_for(&schedule);
            self.follow(schedule);
        }
    }

    /// Begins to follow a plan.
    pub(super) fn follow(&mut self, schedule: Arc<Schedule>) {
        let needs_more = self.needs_more(&schedule);
        let measures = self.world.planning().is_unmeasured(&schedule);
        let Times { compute: compute_ns, recompute: recompute_ns, .. } = self.counters.times;
        let (clock, held, needed) = (self.now.clock, self.steps.held_at_start, self.needed());
        let start = Start { clock, like: 0, held, needed, compute_ns, recompute_ns };
        self.watch.follow = Some(Follow::new(schedule, measures, start));
        if needs_more {
            self.carry();
        }
    }

    /// A unit of planning begins: notes what is held.
    pub(super) fn note_start(&mut self) {
        self.steps.held_at_start = self.ledger.live - self.ledger.foreign;
        let yields = |&(key, entry): &(BufferKey, &Entry)| !entry.foreign && self.yields(key);
        self.watch.yielding = self.ledger.iter().filter(yields).map(|(_, entry)| entry.bytes).sum();
    }

    /// Whether a buffer is evicted before what a plan needs: earlier passes have saved it, and it can be computed again.
    pub(super) fn yields(&self, buffer: BufferKey) -> bool {
        let entry = self.ledger.get(buffer);
        let is_saved = |owner: &TensorKey| self.history.tensors[*owner].lineage.part == Part::Forward;
        self.steps.plans_passes(self.now.clock) && !entry.is_fixed() && entry.owners.iter().all(is_saved)
    }

    /// Makes room for a plan that begins, by evicting what earlier passes have saved, if it can be computed from what is near: the rest would take
    /// a whole pass each to bring back. O(buffers x chain).
    pub(super) fn clear_for(&mut self, schedule: &Schedule) {
        if self.watch.yielding == 0 || !self.exceeds(schedule, 0) {
            return;
        }
        for (_, buffer) in self.candidates(0) {
            if !self.ledger.contains(buffer) || !self.yields(buffer) || !self.exceeds(schedule, 0) {
                continue;
            }
            let chain = self.history.chain(buffer, &self.ledger.get(buffer).owners);
            if chain.is_none_or(|chain| !chain.is_long && !chain.runs_backward) {
                self.evict_cheaply(buffer, u64::MAX);
                self.steps.held_at_start = self.ledger.live - self.ledger.foreign;
            }
        }
    }

    /// Bytes held, without those of other threads, without what is kept only because something could be computed from it, and without what
    /// earlier passes have saved. It includes what the previous step made and is released once the step boundary is known. O(buffers).
    fn needed(&self) -> u64 {
        let tensors = &self.history.tensors;
        let is_dead = |owner: &TensorKey| !tensors[*owner].alive && tensors[*owner].pins == 0;
        let goes = |&(key, entry): &(BufferKey, &Entry)| {
            !entry.foreign && (entry.owners.iter().all(is_dead) || self.yields(key))
        };
        let dead = self.ledger.iter().filter(goes);
        self.ledger.live - self.ledger.foreign - dead.map(|(_, entry)| entry.bytes).sum::<u64>()
    }

    /// Something failed in this step: it is neither planned nor followed any further.
    pub(super) fn forget_step(&mut self) {
        self.release_holds();
        self.watch.follow = None;
        self.watch.tracer = None;
    }

    /// If more is held than the plan predicted and the budget allows, the plan's sizes are no longer trusted.
    pub(super) fn watch_budget(&mut self) {
        let (Some(follow), Some(budget)) = (&self.watch.follow, self.room.budget) else { return };
        if follow.carried.is_none() && self.ledger.live > budget.max(follow.most()) {
            self.outgrow();
            self.make_room(0);
        }
    }

    /// There is no room for the plan as it is. From here on it is followed as far as room allows, and a new plan is made if more was held from the start.
    pub(super) fn outgrow(&mut self) {
        let Some(follow) = &self.watch.follow else { return };
        let (structure, foreseen) = (follow.schedule.structure(), follow.schedule.trace.held_at_start);
        self.carry();
        if self.steps.held_at_start > foreseen {
            self.world.planning_mut().outgrown(structure);
        }
    }
}
