//! Following the plan of a pass with other sizes; see [`Carried`](crate::carry::Carried).

use super::Machine;
use super::call::Call;
use crate::carry::Carried;
use crate::driver::World;
use crate::facts::{Need, Operation};
use crate::follow::Follow;
use crate::keys::{BufferKey, TensorKey};
use crate::schedule::Schedule;
use crate::trace::{Number, Place};

/// A pass that departs from a plan for other sizes within this many operations of its spine is refused from then on.
pub(super) const EARLY: usize = 8;
/// Most first operations that are remembered as refused.
const MOST_REFUSED: usize = 4096;
/// The factor by which what the plan has evicted is preferred for eviction over what it keeps.
const FIRST: f64 = 1e6;

impl<W: World> Machine<W> {
    /// Whether the plan that is followed is for other sizes.
    pub(super) fn is_carried(&self) -> bool {
        self.watch.follow.as_ref().is_some_and(|follow| follow.carried.is_some())
    }

    /// The sizes seen so far, if the plan is followed with sizes other than its own.
    pub(super) fn carried(&mut self) -> Option<&mut Carried> {
        self.watch.follow.as_mut()?.carried.as_mut()
    }

    /// From here on the plan is followed with other sizes.
    pub(super) fn carry(&mut self) {
        if let Some(follow) = &mut self.watch.follow {
            follow.carry();
        }
    }

    /// Whether an operation does the same as the planned one at `at`, whatever the sizes. `number` gives the number in the plan of a tensor
    /// that belongs to the pass.
    pub(super) fn is_like(
        &self,
        schedule: &Schedule,
        at: usize,
        op: &Operation,
        call: &Call,
        number: impl Fn(TensorKey) -> Option<Number>,
    ) -> bool {
        let Some(planned) = schedule.trace.ops.get(at) else { return false };
        let is_same_work =
            planned.kind == op.kind && planned.rule == call.rule && planned.writes.len() == op.outputs.len();
        if !is_same_work {
            return false;
        }
        let is_it = |input: TensorKey, (planned, last): (Number, bool)| {
            let is_it = number(input).map_or_else(|| schedule.is_external(planned), |number| number == planned);
            is_it && call.dying.contains(&input) == last
        };
        let is_large = |number: Number| !schedule.spine.is_small(schedule.trace.tensors[number as usize].buffer_bytes);
        if planned.inputs.len() == call.inputs.len() {
            let mut pairs = call.inputs.iter().zip(&planned.inputs);
            return pairs.all(|(&input, &planned)| !is_large(planned.0) || is_it(input, planned));
        }
        // There may be more or fewer small tensors.
        let mut large = self.large_inputs(schedule, call);
        let mut planned = schedule.spine.large_inputs(&schedule.trace, planned);
        planned.all(|planned| large.next().is_some_and(|input| is_it(input, planned))) && large.next().is_none()
    }

    /// Notes the size of a tensor that the plan knows as `number`, in storage `place`.
    pub(super) fn note_size(&mut self, key: TensorKey, place: Place, number: Number) {
        if !self.is_carried() {
            return;
        }
        let (bytes, tensor) = (self.bytes_of(key), &self.history.tensors[key]);
        let (facts, form) = (tensor.facts, tensor.form());
        if let Some(carried) = self.carried() {
            carried.meet(number, facts);
            carried.measure(place, bytes, form);
        }
    }

    /// The plan evicts a storage: it is released only when room is needed.
    pub(super) fn offer(&mut self, place: Place, need: Option<Need>) {
        for name in self.owners_of(place) {
            self.let_go(name);
        }
        if let Some(carried) = self.carried() {
            carried.give_up(place, need);
        }
    }

    /// How suitable a buffer is for eviction according to the plan: the number of operations until its next use; much more if the plan has evicted it; much
    /// less if it outlives the plan and such results were wanted then, since computing them may take the whole pass. `None` if no plan knows the buffer.
    pub(super) fn patience(&self, buffer: BufferKey) -> Option<f64> {
        let follow = self.watch.follow.as_ref()?;
        let position = self.steps.position as usize;
        let places = self.planned_places(buffer);
        let next = |place: Place| follow.schedule.next_use(place, position);
        let never = 2 * follow.schedule.trace.ops.len();
        let next = places.clone().map(|place| next(place).unwrap_or(never)).min()?;
        let is_given_up = |place| follow.carried.as_ref().is_some_and(|carried| carried.is_given_up(place).is_some());
        let is_wanted_late =
            |&owner: &TensorKey| self.watch.wanted_late.contains(&self.history.tensors[owner].lineage.made_by);
        let first = if places.clone().any(is_given_up) {
            FIRST
        } else if self.ledger.get(buffer).owners.iter().any(is_wanted_late) && self.outlives_plan(buffer) {
            1.0 / FIRST
        } else {
            1.0
        };
        Some((1 + next.saturating_sub(position)) as f64 * first)
    }

    /// Whether the plan has no more use for a buffer and the program still holds it when the plan ends.
    fn outlives_plan(&self, buffer: BufferKey) -> bool {
        let Some(Follow { schedule, .. }) = &self.watch.follow else { return false };
        let position = self.steps.position as usize;
        let mut places = self.planned_places(buffer);
        places.clone().any(|place| schedule.trace.storages[place as usize].died.is_none())
            && places.all(|place| schedule.next_use(place, position).is_none())
    }

    /// Called when the program reads a tensor, uses it outside any backward pass, or holds it when its step ends (after which it is not computed again).
    /// If it was evicted because its plan had no more use for it, it is not the first to be evicted next time.
    pub(super) fn note_wanted(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        if core::mem::take(&mut tensor.lineage.is.parted) && tensor.is_evicted() {
            self.watch.wanted_late.insert(tensor.lineage.made_by);
        }
    }

    /// The plan's numbers for the storages of a buffer.
    fn planned_places(&self, buffer: BufferKey) -> impl Iterator<Item = Place> + Clone + '_ {
        let count = self.watch.follow.as_ref().map_or(0, |follow| follow.schedule.trace.storages.len());
        let owners = self.ledger.get(buffer).owners.iter().map(|&owner| &self.history.tensors[owner].spot);
        owners
            .filter(|spot| spot.step == self.steps.number)
            .map(|spot| spot.place)
            .filter(move |&p| (p as usize) < count)
    }

    /// A buffer is about to be evicted although the plan has not said so. Releases the plan's holds on it, and leaves a substitute for those who read
    /// it, if both fit into `most` bytes.
    pub(super) fn yield_buffer(&mut self, buffer: BufferKey, most: u64) {
        let Some(follow) = &self.watch.follow else { return };
        let need = |carried: &Carried| self.planned_places(buffer).find_map(|place| carried.is_given_up(place)?);
        let need = follow.carried.as_ref().and_then(need);
        let owners = self.ledger.owners(buffer);
        if self.outlives_plan(buffer) {
            owners.iter().for_each(|&owner| self.history.tensors[owner].lineage.is.parted = true);
        }
        if let (Some(need), Some(&first)) = (need, owners.first()) {
            let bytes = need.most_bytes(self.history.tensors[first].facts.bytes);
            if self.ledger.live.saturating_add(bytes) <= most {
                self.leave_substitute(first, need);
            }
        }
        for owner in owners {
            let Some(tensor) = self.history.tensors.get_mut(owner) else { continue };
            if core::mem::take(&mut tensor.held) && !tensor.alive {
                self.bury(owner);
            }
        }
    }

    /// Whether what began like a planned pass of other sizes soon turned out to be something else. If so, what begins like this is not tried again.
    pub(super) fn refuse(&mut self, follow: &Follow, at: usize) -> bool {
        let is_early = follow.schedule.trace.ops.len() > at && follow.made.len() <= EARLY;
        let is_false_start = is_early && follow.start.like != 0;
        if is_false_start {
            if self.watch.refused.len() >= MOST_REFUSED {
                self.watch.refused.clear();
            }
            self.watch.refused.insert(follow.start.like);
        }
        is_false_start
    }
}
