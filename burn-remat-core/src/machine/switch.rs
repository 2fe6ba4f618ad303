//! Switching from one plan to another in the middle of a step: two plans that begin in the same way have not evicted the same.
//!
//! What the new plan holds by now and the old one has evicted is brought back from what is still there; later that would take everything done so far. There
//! is room for it once everything that is of no use for it has been released. Where the new plan has left a substitute by now, it is left of what is there,
//! and of what is computed on the way. Complexity: O(operations + storages + tensors).

use alloc::sync::Arc;
use alloc::vec::Vec;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Machine;
use crate::driver::{Planning, World};
use crate::facts::Need;
use crate::follow::{Follow, Named};
use crate::history::ARRIVED;
use crate::keys::TensorKey;
use crate::schedule::Schedule;
use crate::trace::{Number, Place, Trace};

/// The storages and tensors of one plan, mapped to those of another.
type Renumbered = (FxHashMap<Place, Place>, FxHashMap<Number, Number>);

impl<W: World> Machine<W> {
    /// Switches to a plan whose first `at` operations are those that were done.
    pub(super) fn switch_plan(&mut self, at: usize, schedule: Arc<Schedule>) {
        let Some(mut follow) = self.watch.follow.take() else { return };
        let (old, before) = (follow.schedule.clone(), core::mem::take(&mut follow.held));
        let (places, numbers) = self.renumber(&old.trace, &schedule.trace, at);
        let renumbered = |(place, &name): (&Place, &Named)| Some((*places.get(place)?, name));
        let externals = follow.externals.iter().filter_map(renumbered).collect();
        let carried = follow.carried.take().map(|carried| carried.renumbered(&places, &numbers));
        // What was measured so far applies to this step too.
        let measured = carried.is_some() || self.world.planning().is_unmeasured(&schedule);
        let measures = if measured { follow.measures } else { None };
        self.watch.follow = Some(Follow { schedule: schedule.clone(), measures, externals, carried, ..follow });
        if self.needs_more(&schedule) {
            self.carry();
        }
        let (held, substitutes) = (schedule.held_before(at), schedule.substitutes_before(at));
        // What the old plan held is no longer held, unless the new one holds it.
        for &name in &before {
            if self.history.knows(name) {
                self.history.tensors[name.0].held = false;
            }
        }
        self.hold_what_is_there(&held);
        self.leave_substitutes(&substitutes, false);
        self.bring_in_before_switch(&schedule, at, &held, &substitutes);
        self.hold_what_is_there(&held);
        self.leave_substitutes(&substitutes, true);
        for place in schedule.given_up(at, &held) {
            match self.is_carried() {
                true => self.offer(place, substitutes.get(&place).copied()),
                false => self.give_up(place),
            }
        }
        for name in before {
            if self.history.knows(name) && self.history.tensors[name.0].is_unused() {
                self.bury(name.0);
            }
        }
    }

    /// Holds those storages that a plan holds by now and that are resident.
    fn hold_what_is_there(&mut self, held: &[bool]) {
        for place in (0..held.len()).filter(|&place| held[place]) {
            let first = self.owners_of(place as Place).first().copied();
            if let Some(name) = first.filter(|name| self.history.tensors[name.0].buffer.is_some()) {
                self.hold(name);
            }
        }
    }

    /// Brings back what the new plan holds by now for later use and the old one has evicted, while what the old one holds is still there:
    /// later that would take everything done so far. There is room for it once everything that is of no use for it has been released.
    fn bring_in_before_switch(
        &mut self,
        schedule: &Schedule,
        at: usize,
        held: &[bool],
        substitutes: &FxHashMap<Place, Need>,
    ) {
        let is_of_use = schedule.of_use_from(at, held);
        let missing = |place: usize| {
            let (key, _) = *self.owners_of(place as Place).first()?;
            let tensor = &self.history.tensors[key];
            let is_wanted = tensor.alive || is_of_use[place];
            (is_wanted && tensor.is_evicted() && tensor.recipe.is_some()).then_some(key)
        };
        let missing: Vec<TensorKey> = (0..held.len()).filter(|&place| held[place]).filter_map(missing).collect();
        missing.iter().for_each(|&key| self.pin(key));
        let closure = self.history.closure(&missing).unwrap_or_default();
        let needed: FxHashSet<TensorKey> =
            closure.iter().flat_map(|&recipe| self.history.recipes[recipe].inputs.iter().copied()).collect();
        for place in schedule.given_up(at, held).filter(|_| !self.is_carried()).collect::<Vec<_>>() {
            if self.owners_of(place).iter().all(|(key, _)| !needed.contains(key)) {
                self.give_up(place);
            }
        }
        let substitutes: FxHashMap<TensorKey, Need> =
            substitutes.iter().filter_map(|(&place, &need)| Some((self.owners_of(place).first()?.0, need))).collect();
        // All at once, so that none is evicted again for the sake of another.
        let beside = core::mem::replace(&mut self.now.beside, true);
        // A failure is reported when the tensor is read.
        let _ = self.ensure_leaving(&missing, &substitutes);
        missing.into_iter().for_each(|key| self.unpin(key));
        self.now.beside = beside;
    }

    /// Leaves these substitutes of what is resident, where there is room for them; if `makes_room`, once there is.
    fn leave_substitutes(&mut self, substitutes: &FxHashMap<Place, Need>, makes_room: bool) {
        let budget = self.room.tensor_budget().unwrap_or(u64::MAX);
        let beside = core::mem::replace(&mut self.now.beside, true);
        for (&place, &need) in substitutes {
            let Some(&(key, _)) = self.owners_of(place).first() else { continue };
            let bytes = need.most_bytes(self.history.tensors[key].facts.bytes);
            self.pin(key);
            if makes_room && self.lacks_substitute(key) {
                self.make_room(bytes);
            }
            if self.ledger.live.saturating_add(bytes) <= budget {
                self.leave_substitute(key, need);
            }
            self.unpin(key);
        }
        self.now.beside = beside;
    }

    /// The first `at` operations of two steps are the same. Their storages may have different numbers, since a tensor that came from the host gets
    /// one even before it is read. Gives this step's tensors the numbers of `new`.
    fn renumber(&mut self, old: &Trace, new: &Trace, at: usize) -> Renumbered {
        let (mut places, mut numbers) = (FxHashMap::default(), FxHashMap::default());
        for (old, new) in old.ops[..at].iter().zip(&new.ops[..at]) {
            let pairs = old.reads.iter().zip(&new.reads).chain(old.writes.iter().zip(&new.writes));
            places.extend(pairs.map(|(&old, &new)| (old, new)));
            numbers.extend(old.inputs.iter().zip(&new.inputs).map(|(&(old, _), &(new, _))| (old, new)));
            numbers.extend((0..old.writes.len() as u32).map(|k| (old.outputs + k, new.outputs + k)));
        }
        let step = self.steps.number;
        for (_, tensor) in &mut self.history.tensors {
            let spot = &mut tensor.spot;
            if spot.step != step || spot.place == ARRIVED {
                continue;
            }
            match (places.get(&spot.place), numbers.get(&spot.number)) {
                (Some(&place), Some(&number)) => (spot.place, spot.number) = (place, number),
                // It is treated as if it had existed before the step.
                _ => spot.step = step.wrapping_sub(1),
            }
        }
        (places, numbers)
    }
}
