//! Following a plan while the program runs.
//!
//! The plan says which storages to hold, to evict and to compute again between the operations of the step; see
//! [`Action`]. Correctness never depends on it: a tensor that is read is computed again if necessary, whatever the plan says. At the
//! first operation, glue apart, that differs from the planned step, the plan is left for this step: all its holds are released, the online
//! policy takes over, and the trace continues from there, so that the new step can be planned too.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smallvec::SmallVec;

use super::Machine;
use super::call::Call;
use super::rejoin::{Sizes, Stands};
use crate::driver::{Event, Left, Planning, World};
use crate::facts::{Failure, Operation};
use crate::follow::Named;
use crate::history::Spot;
use crate::keys::{RecipeKey, TensorKey};
use crate::schedule::Action;
use crate::trace::{EXTERNAL, Place, extend, origin};

impl<W: World> Machine<W> {
    /// Compares the current operation with the plan and carries out the plan's actions before it.
    pub(super) fn follow_before(&mut self, op: &Operation, call: &mut Call) {
        let next = self.last_position() as usize;
        let stands = match self.place_in_plan(next, self.sizes(), op, call) {
            Stands::Nowhere if self.goes_on(next, op, call) => self.place_in_plan(next, self.sizes(), op, call),
            stands => stands,
        };
        let stands = if matches!(stands, Stands::Nowhere) { self.mend(next, op, call) } else { stands };
        let at = match stands {
            Stands::At(at) => at,
            Stands::Beside => return self.pass_beside(call),
            Stands::Nowhere => return self.differ(next, op, call),
        };
        let Some(schedule) = self.watch.follow.as_ref().map(|follow| follow.schedule.clone()) else { return };
        self.skip_glue(next, at);
        if let Some(follow) = &mut self.watch.follow {
            follow.beside = self.ledger.live.saturating_sub(follow.expected);
        }
        for (input, place, number) in self.planned_inputs(&schedule, at, call) {
            self.follow_input(input, place, number, schedule.holds[place as usize]);
        }
        // The operation still reads what is released here, perhaps through a view of it, which must be resident first.
        let actions = &schedule.before[at];
        let lets_go = |action: &Action| matches!(action, Action::Loosen(_) | Action::ReleaseAll);
        let (first, last) = actions.split_at(actions.iter().position(lets_go).unwrap_or(actions.len()));
        let taken = self.take(first).and_then(|()| {
            if !last.is_empty() {
                self.ensure_inputs(op, call)?;
            }
            self.take(last)
        });
        if let Err(failure) = taken {
            // Work that the plan ordered failed; the operation may be able to do without it.
            self.leave_plan(at, Left::Failed(failure));
        }
    }

    /// Whether what the plan predicts at the current operation does not fit into `most` bytes together with everything else that is held: by other threads,
    /// or by the program although it was not held when the step was observed.
    pub(super) fn is_crowded(&self, most: u64) -> bool {
        let Some(follow) = &self.watch.follow else { return false };
        let foreseen = follow.schedule.foreseen.during.get(self.last_position() as usize).copied().unwrap_or(0);
        follow.foreseen(foreseen).saturating_add(follow.beside) > most
    }

    /// The current operation does not belong to the plan.
    fn pass_beside(&mut self, call: &mut Call) {
        call.watched = false;
        self.now.beside = true;
        self.steps.position -= 1;
    }

    /// An operation of the plan reads a tensor.
    fn follow_input(&mut self, input: TensorKey, place: Place, number: u32, holds: bool) {
        let is_new = self.number_in_plan(input).is_none();
        let (bytes, has_come) = (self.bytes_of(input), self.has_come(input));
        let tensor = &mut self.history.tensors[input];
        if is_new {
            tensor.spot = Spot { step: self.steps.number, place, origin: EXTERNAL, number };
        }
        let (name, origin) = ((input, tensor.facts.id), tensor.spot.origin);
        if origin == EXTERNAL {
            self.note_size(input, place, number);
        }
        let Some(follow) = &mut self.watch.follow else { return };
        if origin == EXTERNAL && !follow.externals.contains_key(&place) {
            follow.externals.insert(place, name);
            follow.meet(place, bytes, has_come);
            if holds {
                self.hold(name);
            }
        }
    }

    /// Notes the outputs of an operation that has run, and holds them if the plan says so.
    pub(super) fn follow_outputs(&mut self, outputs: &[TensorKey], cost_ns: u64) {
        let at = self.last_position();
        let Some(follow) = &mut self.watch.follow else { return };
        let schedule = follow.schedule.clone();
        let Some(op) = schedule.trace.ops.get(at as usize) else { return };
        follow.measured.push(core::mem::replace(&mut self.watch.most_held, self.ledger.live));
        if let Some(measures) = &mut follow.measures {
            measures.push((cost_ns, self.watch.scratch));
        }
        follow.made.push(outputs.iter().map(|&key| (key, self.history.tensors[key].facts.id)).collect());
        for (k, (&output, &place)) in outputs.iter().zip(&op.writes).enumerate() {
            let tensor = &mut self.history.tensors[output];
            let number = op.outputs + k as u32;
            tensor.spot = Spot { step: self.steps.number, place, origin: origin(at, k), number };
            let name = (output, tensor.facts.id);
            self.note_size(output, place, number);
            let first = schedule.owners[place as usize].first() == Some(&(at, k as u8));
            if schedule.holds[place as usize] && first {
                self.hold(name);
            }
        }
    }

    /// Carries out the plan's actions after the operation that ran last.
    pub(super) fn follow_after(&mut self) {
        let at = self.last_position() as usize;
        let Some(follow) = &self.watch.follow else { return };
        let schedule = follow.schedule.clone();
        let taken = schedule.after.get(at).map_or(Ok(()), |actions| self.take(actions));
        // What the program drops between two steps may still be held after the last operation.
        let foreseen = schedule.foreseen.after.get(at).filter(|_| at + 1 < schedule.trace.ops.len());
        if let Err(failure) = taken {
            self.remember(&failure);
        } else if let Some(&foreseen) = foreseen
            && !self.is_carried()
        {
            self.compare(foreseen);
        }
        let most = self.watch.most_held;
        if let Some(follow) = &mut self.watch.follow
            && follow.is_complete()
            && let Some(last) = follow.measured.last_mut()
        {
            // What comes back after the last operation is attributed to that operation, because no other follows.
            *last = (*last).max(most);
        }
    }

    pub(super) fn take(&mut self, actions: &[Action]) -> Result<(), Failure> {
        let carried = self.is_carried();
        for action in actions {
            match action {
                Action::Evict(place) | Action::Compress(place) if carried => self.offer(*place, None),
                Action::LeaveSubstitute(place, need, _) if carried => self.offer(*place, Some(*need)),
                Action::Recompute(places) => self.recompute(places)?,
                Action::Evict(place) => self.give_up(*place),
                Action::Compress(place) => self.compress_place(*place),
                Action::LeaveSubstitute(place, need, _) => {
                    if let Some(&(key, _)) = self.owners_of(*place).first() {
                        self.leave_substitute(key, *need);
                    }
                }
                Action::DropSubstitute(place) => {
                    for (key, _) in self.owners_of(*place) {
                        self.drop_substitute(key);
                    }
                }
                Action::Loosen(place) => {
                    for name in self.owners_of(*place) {
                        self.let_go(name);
                    }
                }
                Action::ReleaseAll => self.release_holds(),
            }
        }
        Ok(())
    }

    /// Compares what is held with the bytes that the plan predicts at this point.
    fn compare(&mut self, foreseen: u64) {
        let Some(follow) = &self.watch.follow else { return };
        let foreseen = follow.foreseen(foreseen);
        let live = self.ledger.live - self.ledger.foreign;
        if live != foreseen {
            let at = self.last_position();
            self.world.tell(Event::Deviates { at, live, foreseen });
        }
        if let Some(follow) = &mut self.watch.follow {
            follow.deviation = follow.deviation.max(live.abs_diff(foreseen));
            follow.expected = foreseen;
        }
    }

    /// Tensors of a storage that are still known.
    pub(super) fn owners_of(&self, place: Place) -> SmallVec<[Named; 2]> {
        let Some(follow) = &self.watch.follow else { return SmallVec::new() };
        let made = follow.schedule.owners[place as usize]
            .iter()
            .filter_map(|&(position, k)| follow.made.get(position as usize)?.get(k as usize).copied());
        let external = follow.externals.get(&place).copied();
        external.into_iter().chain(made).filter(|&name| self.history.knows(name)).collect()
    }

    pub(super) fn hold(&mut self, name: Named) {
        let tensor = &mut self.history.tensors[name.0];
        if !core::mem::replace(&mut tensor.held, true)
            && let Some(follow) = &mut self.watch.follow
        {
            follow.held.push(name);
        }
    }

    pub(super) fn let_go(&mut self, name: Named) {
        if !self.history.knows(name) {
            return;
        }
        let tensor = &mut self.history.tensors[name.0];
        if core::mem::take(&mut tensor.held) && tensor.is_unused() {
            self.bury(name.0);
        }
    }

    pub(super) fn give_up(&mut self, place: Place) {
        let owners = self.owners_of(place);
        for &name in &owners {
            self.let_go(name);
        }
        for name in owners {
            if !self.history.knows(name) {
                continue;
            }
            let tensor = &self.history.tensors[name.0];
            let Some(buffer) = tensor.buffer else { continue };
            if tensor.recipe.is_none() && !tensor.alive && tensor.pins == 0 {
                // A small root is kept in case it is needed; the plan knows that it is not.
                self.cut(name.0, 0);
                continue;
            }
            let can_go = |&owner: &TensorKey| {
                let tensor = &self.history.tensors[owner];
                tensor.pins == 0 && !tensor.held && tensor.recipe.is_some()
            };
            if self.ledger.get(buffer).owners.iter().all(can_go) {
                self.evict(buffer);
            }
        }
    }

    /// Compresses a storage, or evicts it if it cannot be compressed.
    fn compress_place(&mut self, place: Place) {
        let owners = self.owners_of(place);
        // The first owner made the buffer; none of its views may be in use.
        let is_free = owners.iter().all(|name| self.history.tensors[name.0].pins == 0);
        if let Some(&(first, _)) = owners.first()
            && let Some(buffer) = self.history.tensors[first].buffer.filter(|_| is_free)
        {
            self.compress_buffer(buffer, first);
        }
        self.give_up(place);
    }

    /// Brings storages back, all in one call, and holds them.
    fn recompute(&mut self, places: &[Place]) -> Result<(), Failure> {
        if let Some(carried) = self.carried() {
            places.iter().for_each(|&place| carried.take_back(place));
        }
        // The first owner made the buffer; views of it follow when they are read.
        let first = |&place: &Place| self.owners_of(place).first().copied();
        let names: SmallVec<[Named; 2]> = places.iter().filter_map(first).collect();
        for &name in &names {
            self.hold(name);
            self.pin(name.0);
        }
        let keys: SmallVec<[TensorKey; 2]> = names.iter().map(|name| name.0).collect();
        let result = self.ensure_all(&keys);
        keys.into_iter().for_each(|key| self.unpin(key));
        result
    }

    /// Releases everything that the plan holds.
    pub(super) fn release_holds(&mut self) {
        let Some(follow) = &mut self.watch.follow else { return };
        for name in core::mem::take(&mut follow.held) {
            self.let_go(name);
        }
    }

    /// Releases everything that the plan holds, before the plan has ended. Tensors that could be computed now from what is released are brought back first:
    /// a gradient that the plan has evicted for a while would later take the whole pass to compute.
    pub(super) fn abandon_holds(&mut self) {
        if self.watch.follow.as_ref().is_some_and(|follow| !follow.is_complete() && !follow.held.is_empty()) {
            let tensors = &self.history.tensors;
            let goes = |&input: &TensorKey| tensors[input].held && !tensors[input].alive;
            let is_there = |input: &TensorKey| tensors[*input].buffer.is_some();
            let inputs = |recipe: RecipeKey| &self.history.recipes[recipe].inputs;
            let sinks = |recipe: RecipeKey| inputs(recipe).iter().all(is_there) && inputs(recipe).iter().any(goes);
            let sinking = tensors
                .iter()
                .filter(|(_, tensor)| tensor.alive && tensor.is_evicted() && tensor.recipe.is_some_and(sinks));
            let sinking: Vec<TensorKey> = sinking.map(|(key, _)| key).collect();
            self.bring_back_beside(sinking);
        }
        self.release_holds();
    }

    /// The current operation is not the planned one at `at`. Returns whether the step can still follow a plan: one that begins with the same
    /// operations; otherwise the same one, carried to other sizes; otherwise one for other sizes that begins in the same way.
    fn goes_on(&mut self, at: usize, op: &Operation, call: &Call) -> bool {
        let Some(follow) = &self.watch.follow else { return false };
        let old = follow.schedule.clone();
        if follow.is_mended() {
            return false;
        }
        if follow.carried.is_none() {
            if let Some(schedule) =
                self.world.planning().beginning_with(at + 1, extend(old.prefixes[at], call.signature))
            {
                self.switch_plan(at, schedule);
                return true;
            }
            if !matches!(self.place_in_plan(at, Sizes::Any, op, call), Stands::Nowhere) {
                self.carry();
                return true;
            }
        }
        if at == 0 {
            return false;
        }
        let bytes = op.outputs.first().map_or(0, |output| output.bytes);
        let done = &old.trace.ops[..at.min(old.trace.ops.len())];
        let other = self.world.planning().like(done, op.kind, bytes).filter(|other| !Arc::ptr_eq(other, &old));
        let Some(schedule) = other else { return false };
        self.carry();
        self.switch_plan(at, schedule);
        true
    }

    fn sizes(&self) -> Sizes {
        if self.is_carried() { Sizes::Any } else { Sizes::Planned }
    }

    /// The step differs from the planned one: another plan begins here, or the online policy takes over.
    fn differ(&mut self, at: usize, op: &Operation, call: &mut Call) {
        self.abandon_holds();
        let Some(follow) = self.watch.follow.take() else { return };
        let old = follow.schedule.clone();
        let is_false_start = self.refuse(&follow, at);
        if self.begin_pass(op, call) {
            return self.follow_before(op, call);
        }
        if at > old.spine.next(0) {
            let found = self.name(op.kind);
            let left = match old.trace.ops.len() {
                count if at >= count => Left::GoesOn { at: count, found },
                _ => Left::Differs { at, found, planned: old.trace.name(at as u32).into() },
            };
            if old.trace.is_pass && self.steps.passes.seed().is_none() {
                self.watch.left = Some(left);
            } else {
                self.world.planning_mut().left(left);
            }
        }
        // If it began in the middle of something else, its trace would lack the beginning.
        if !is_false_start && let Some(trace) = follow.trace() {
            if trace.is_pass {
                self.watch.differences.leaves(old.structure(), at);
            }
            self.resume_trace(&trace, at as u32);
        }
    }

    /// Brings tensors back for which no plan has made room.
    fn bring_back_beside(&mut self, keys: Vec<TensorKey>) {
        let beside = core::mem::replace(&mut self.now.beside, true);
        for key in keys {
            self.pin(key);
            // A failure is reported when the tensor is read.
            let _ = self.ensure(key);
            self.unpin(key);
        }
        self.now.beside = beside;
    }

    /// Abandons the plan for this step, because it does not fit what happens. `done` operations of the step have run.
    pub(super) fn leave_plan(&mut self, done: usize, why: Left) {
        self.abandon_holds();
        if let Some(follow) = self.watch.follow.take() {
            self.world.planning_mut().left(why);
            if let Some(trace) = follow.trace() {
                self.resume_trace(&trace, done.min(trace.ops.len()) as u32);
            }
        }
    }
}
