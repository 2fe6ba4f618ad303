//! Continuing a plan when the pass does something that is not planned, or omits something that is: it skips a layer, exits early, or has another term in
//! its loss.
//!
//! At first, a pass that differs from its plan leaves it, so that it is traced and can be planned. After passes of [many
//! kinds](crate::differences) have left a plan, it is *mended*. An operation that does the same as one further on in the plan, with the same tensors,
//! resumes the plan there; what lies between is skipped. A tensor that the plan expects from a skipped operation, or that comes from an unplanned one, is
//! taken for the planned tensor. All other operations run outside the plan. Sizes may differ from those of the plan: it is [carried](crate::carry).
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

/// How far ahead in the plan an operation is searched for.
const WINDOW: usize = 512;
/// Most operations in a row that run outside the plan.
const MOST_BESIDE: u32 = 256;

/// Inputs of an operation, each with the planned tensor that it is taken for.
type Pairs = SmallVec<[(TensorKey, Number); 4]>;

impl<W: World> Machine<W> {
    /// The position in the plan of an operation that is not the next one (at `from`), if the plan can be mended.
    pub(super) fn mend(&mut self, from: usize, op: &Operation, call: &Call) -> Stands {
        let Some(follow) = &self.watch.follow else { return Stands::Nowhere };
        let (schedule, is_mended) = (follow.schedule.clone(), follow.is_mended());
        // It may not be such a pass at all.
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

    /// Whether an operation does the same as the planned one at `at`, if those from `from` on are skipped. Returns the inputs to be taken for planned
    /// tensors. At least one large input must be a tensor of the pass.
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
                // A tensor that should have been made by now, but is another one that the plan knows, does not match.
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

    /// Takes a tensor for the one that the plan knows as `number`.
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
