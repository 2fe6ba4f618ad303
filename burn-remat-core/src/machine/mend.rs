//! Going on in a plan where the pass does something that is not planned, or not something that is: it skips a layer, leaves early, has another term in
//! its loss.
//!
//! At first a pass that differs from its plan leaves it, so that what it does is written down and can be planned. Where passes of [many
//! kinds](crate::differences) have left a plan it is *mended*. An operation that does what one further on in the plan does, with the same tensors, resumes the
//! plan there; what lies between is skipped. A tensor that the plan expects of what was skipped, or that comes from what was not planned, is taken for the
//! planned one. All other operations go through beside the plan. Sizes need not be those of the plan: it is [carried](crate::carry).
//!
//! Complexity: O([`WINDOW`]) for an operation that is not the next of the plan.

use smallvec::SmallVec;

use super::Machine;
use super::call::Call;
use super::carry::EARLY;
use super::rejoin::Stands;
use crate::driver::World;
use crate::facts::Operation;
use crate::history::{ARRIVED, Spot};
use crate::keys::TensorKey;
use crate::schedule::Schedule;
use crate::trace::Number;

/// How far ahead in the plan an operation is looked for.
const WINDOW: usize = 512;
/// Most operations in a row that go through beside the plan.
const MOST_BESIDE: u32 = 256;

/// Which inputs of an operation are which tensors of the plan.
type Pairs = SmallVec<[(TensorKey, Number); 4]>;

impl<W: World> Machine<W> {
    /// Where in the plan an operation stands that is not the next one, at `from`, if the plan can be mended.
    pub(super) fn mend(&mut self, from: usize, op: &Operation, call: &Call) -> Stands {
        let Some(follow) = &self.watch.follow else { return Stands::Nowhere };
        let (schedule, is_mended) = (follow.schedule.clone(), follow.is_mended());
        // It may be no such pass at all.
        let is_too_early = follow.made.len() <= if follow.start.like == 0 { 1 } else { EARLY };
        if !schedule.trace.is_pass
            || is_too_early
            || !is_mended && !self.watch.differences.are_many(schedule.structure(), from)
        {
            return Stands::Nowhere;
        }
        let end = schedule.trace.ops.len().min(from + WINDOW);
        let ahead = (from..end).find_map(|at| Some((at, self.resumes(&schedule, (from, at), op, call)?)));
        self.carry();
        let Some(follow) = &mut self.watch.follow else { return Stands::Nowhere };
        let mended = follow.mended.get_or_insert_default();
        let Some((at, pairs)) = ahead else {
            mended.beside += 1;
            mended.in_a_row += 1;
            return if mended.in_a_row > MOST_BESIDE { Stands::Nowhere } else { Stands::Beside };
        };
        mended.skipped += (at - from) as u32;
        mended.in_a_row = 0;
        for (key, number) in pairs {
            self.take_for(key, number, &schedule);
        }
        Stands::At(at)
    }

    /// Whether an operation does what the planned one at `at` does, where those from `from` on have not come: its inputs that are to be taken for the
    /// plan's. At least one large input must be a tensor of the pass.
    fn resumes(&self, schedule: &Schedule, (from, at): (usize, usize), op: &Operation, call: &Call) -> Option<Pairs> {
        let planned = &schedule.trace.ops[at];
        let does_the_same = planned.kind == op.kind
            && planned.rule == call.rule
            && planned.writes.len() == op.outputs.len()
            && planned.inputs.len() == call.inputs.len();
        if !does_the_same {
            return None;
        }
        let (mut pairs, mut is_anchored) = (Pairs::new(), false);
        for (&input, &(number, _)) in call.inputs.iter().zip(&planned.inputs) {
            if schedule.spine.is_small(schedule.trace.tensors[number as usize].buffer_bytes) {
                continue;
            }
            let made_at = (schedule.origins[number as usize] >> 8) as usize;
            match self.number_in_plan(input) {
                Some(known) if known == number => is_anchored |= !schedule.is_external(number),
                None if schedule.is_external(number) => {}
                _ if schedule.is_external(number) => return None,
                // What should have been made by now, and is something else that the plan knows, is not what is meant.
                Some(_) if !(from..at).contains(&made_at) => return None,
                _ => {
                    is_anchored = true;
                    pairs.push((input, number));
                }
            }
        }
        is_anchored.then_some(pairs)
    }

    /// The number of a tensor in the plan that is followed.
    pub(super) fn number_in_plan(&self, key: TensorKey) -> Option<Number> {
        let spot = &self.history.tensors[key].spot;
        (spot.step == self.steps.number && spot.place != ARRIVED).then_some(spot.number)
    }

    /// A tensor is the one that the plan knows as `number`.
    fn take_for(&mut self, key: TensorKey, number: Number, schedule: &Schedule) {
        let place = schedule.trace.tensors[number as usize].place;
        let origin = schedule.origins[number as usize];
        let tensor = &mut self.history.tensors[key];
        tensor.spot = Spot { step: self.steps.number, place, origin, number };
        let name = (key, tensor.facts.id);
        if let Some(follow) = &mut self.watch.follow {
            follow.externals.entry(place).or_insert(name);
        }
    }
}
