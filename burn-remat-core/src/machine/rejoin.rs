//! Finding the place in the plan of an operation that is not exactly the next one: glue (see `spine.rs`) may come in any number and order.

use smallvec::SmallVec;

use super::Machine;
use super::call::Call;
use crate::driver::World;
use crate::facts::Operation;
use crate::keys::TensorKey;
use crate::schedule::{Action, Schedule};
use crate::trace::{Number, Place};

/// The place of an operation in a plan.
pub(super) enum Stands {
    /// It is the planned operation at this position.
    At(usize),
    /// It is glue that was not planned. It runs outside the plan.
    Beside,
    /// The step differs from the planned one.
    Nowhere,
}

/// Which sizes tensors may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sizes {
    Planned,
    Any,
}

/// If sizes differ from those of the plan, tensors up to this many times larger than small ones still count as glue.
const GROWN: u64 = 16;

impl<W: World> Machine<W> {
    /// The place of an operation in the plan that is followed, if the one at `at` is next.
    pub(super) fn place_in_plan(&self, at: usize, sizes: Sizes, op: &Operation, call: &Call) -> Stands {
        let Some(follow) = &self.watch.follow else { return Stands::Nowhere };
        let schedule = &*follow.schedule;
        let number = |input: TensorKey| self.number_in_plan(input);
        let is_planned = |place: usize| {
            let planned = schedule.trace.ops.get(place);
            planned.is_some_and(|planned| {
                let does_the_same = || self.does_the_same(schedule, place, op, call, number);
                planned.signature == call.signature || planned.rule == call.rule && does_the_same()
            }) || sizes == Sizes::Any && self.is_like(schedule, place, op, call, number)
        };
        if is_planned(at) {
            return Stands::At(at);
        }
        let ahead = || Some(schedule.spine.next(at)).filter(|&next| next > at && is_planned(next)).map(Stands::At);
        let beside = |times: u64| self.is_below(schedule, op, call, times).then_some(Stands::Beside);
        let stands = match sizes {
            Sizes::Planned => beside(1).or_else(ahead),
            // First the operations that are next in the plan: a tensor that is large there may be small here.
            Sizes::Any => ahead().or_else(|| beside(GROWN)),
        };
        stands.unwrap_or(Stands::Nowhere)
    }

    /// Whether an operation makes only small tensors, and those that it reads are small or live on.
    pub(super) fn is_glue(&self, schedule: &Schedule, op: &Operation, call: &Call) -> bool {
        self.is_below(schedule, op, call, 1)
    }

    /// The same, with a limit for small tensors that is higher by this factor.
    fn is_below(&self, schedule: &Schedule, op: &Operation, call: &Call, times: u64) -> bool {
        let is_small = |bytes: u64| schedule.spine.is_small(bytes.div_ceil(times));
        let mut ended = call.dying.iter().map(|&input| self.history.tensors[input].facts.buffer_bytes);
        op.outputs.iter().all(|output| is_small(output.buffer_bytes)) && ended.all(is_small)
    }

    /// Whether the planned step is over, most of what it made is gone, and this operation is the first of another such step. If the program
    /// has kept a copy of its model, no update shows that.
    pub(super) fn begins_anew(&self, op: &Operation, call: &Call) -> bool {
        let Some(follow) = self.watch.follow.as_ref().filter(|_| self.steps.detector.goes_by_updates()) else {
            return false;
        };
        let schedule = &follow.schedule;
        let first = schedule.spine.next(0);
        let is_over = schedule.spine.is_over(self.steps.position as usize);
        let (held, start) = (self.ledger.live - self.ledger.foreign, schedule.trace.held_at_start);
        let is_low = held <= start + schedule.peak.saturating_sub(start) / 4;
        is_over && is_low && self.does_the_same(schedule, first, op, call, |_| None)
    }

    /// Whether an operation does the same as the planned one at `at`, as far as its tensors are large. Tensors whose number in the plan is
    /// known to `number` must be the planned ones; others must have the same shape.
    fn does_the_same(
        &self,
        schedule: &Schedule,
        at: usize,
        op: &Operation,
        call: &Call,
        number: impl Fn(TensorKey) -> Option<Number>,
    ) -> bool {
        let (trace, spine) = (&schedule.trace, &schedule.spine);
        let Some(planned) = trace.ops.get(at) else { return false };
        if planned.kind != op.kind || planned.writes.len() != op.outputs.len() {
            return false;
        }
        let made = op.outputs.iter().zip(&trace.tensors[planned.outputs as usize..]);
        let mut pairs = made.map(|(made, planned)| {
            let are_small = spine.is_small(made.buffer_bytes) && spine.is_small(planned.buffer_bytes);
            are_small || made.shape == planned.shape
        });
        if !pairs.all(|same| same) {
            return false;
        }
        let mut large = self.large_inputs(schedule, call);
        let same = spine.large_inputs(trace, planned).all(|(planned, last)| {
            large.next().is_some_and(|input| {
                let shape = trace.tensors[planned as usize].shape;
                let looks_alike = || self.history.tensors[input].facts.shape == shape;
                number(input).map_or_else(looks_alike, |number| number == planned)
                    && call.dying.contains(&input) == last
            })
        });
        same && large.next().is_none()
    }

    pub(super) fn large_inputs<'a>(
        &'a self,
        schedule: &'a Schedule,
        call: &'a Call,
    ) -> impl Iterator<Item = TensorKey> + 'a {
        let is_small = |input: TensorKey| schedule.spine.is_small(self.history.tensors[input].facts.buffer_bytes);
        call.inputs.iter().copied().filter(move |&input| !is_small(input))
    }

    /// The large inputs of an operation with their places and numbers in the plan, or all inputs if there are as many as planned: the number of
    /// small ones may differ.
    pub(super) fn planned_inputs(
        &self,
        schedule: &Schedule,
        at: usize,
        call: &Call,
    ) -> SmallVec<[(TensorKey, Place, Number); 4]> {
        let (trace, planned) = (&schedule.trace, &schedule.trace.ops[at]);
        if planned.inputs.len() == call.inputs.len() {
            let names = planned.reads.iter().zip(&planned.inputs);
            return call.inputs.iter().zip(names).map(|(&key, (&place, &(number, _)))| (key, place, number)).collect();
        }
        let large = schedule.spine.large_inputs(trace, planned);
        let names = large.map(|(number, _)| (trace.tensors[number as usize].place, number));
        self.large_inputs(schedule, call).zip(names).map(|(key, (place, number))| (key, place, number)).collect()
    }

    /// Continues in the plan at `to`: the glue before it does not come this time.
    pub(super) fn skip_glue(&mut self, from: usize, to: usize) {
        let Some(schedule) = self.watch.follow.as_ref().map(|follow| follow.schedule.clone()) else { return };
        for at in from..to {
            let Some(follow) = &mut self.watch.follow else { return };
            let is_mended = follow.is_mended();
            let planned = &schedule.trace.ops[at];
            follow.made.push(SmallVec::new());
            follow.measured.push(self.ledger.live);
            if let Some(measures) = &mut follow.measures {
                measures.push((planned.cost_ns, planned.scratch));
            }
            let steps = schedule.before[at].iter().chain(&schedule.after[at]);
            // What would be recomputed for an operation that does not come may not be needed.
            let is_needed = |action: &&Action| !(is_mended && matches!(action, Action::Recompute(_)));
            for action in steps.filter(is_needed) {
                if let Err(failure) = self.take(core::slice::from_ref(action)) {
                    self.remember(&failure);
                }
            }
        }
        self.steps.position += (to - from) as u32;
    }
}
