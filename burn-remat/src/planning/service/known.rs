//! The plans that there are, and which of them the next step will probably follow.
//!
//! Several kinds of step (the last batch of an epoch, sequences of different lengths) each have a plan of their own. Those that came before tell which
//! comes next ([`Sequence`]). Complexity: O(plans) for each question.

use std::sync::Arc;

use burn_remat_core::{Kind, Schedule as Running, Trace, TracedOp};

use super::observed;
use super::sequence::Sequence;
use crate::planning::schedule::Schedule;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Known {
    schedules: Vec<Arc<Schedule>>,
    /// Kinds of step that have no plan, and what they do. Some keep to the budget by themselves while others do not; these are listed so that the two can
    /// be told apart. Others are passes that are not planned yet; these are listed so that the engine evicts first what they need last.
    unplanned: Vec<Arc<Running>>,
    sequence: Sequence,
}

impl Known {
    /// Expects steps of these kinds, in this order, and then the last of them again and again.
    pub fn expect(&mut self, structures: &[u64]) {
        self.sequence.expect(structures);
    }

    /// Records that a step of this kind is over.
    pub fn finished(&mut self, structure: u64) {
        self.sequence.came(structure);
    }

    /// The plan that the next step will probably follow.
    pub fn next(&self) -> Option<Arc<Running>> {
        let expected = self.sequence.next();
        let is_expected = |known: &&Arc<Running>| expected == Some(known.structure());
        // If there is no plan for the expected kind yet, the step may still be another one: its first operation will tell.
        self.runs().find(is_expected).or_else(|| self.schedules.last().map(|known| known.run())).cloned()
    }

    /// Whether it is known which plan the next step will follow.
    pub fn is_sure(&self) -> bool {
        self.sequence.is_sure() && self.sequence.next().is_some_and(|next| self.knows(next))
    }

    /// Another plan whose first `count` operations have this signature.
    pub fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Running>> {
        self.runs().rev().find(|known| known.prefixes.get(count) == Some(&prefix)).cloned()
    }

    /// A plan whose first operations are of the same kinds as those `done`, and whose next operation is of this `kind`. Of several, the one in which that
    /// operation makes the fewest bytes from `bytes` on; if there is none, the one in which it makes the most.
    pub fn like(&self, done: &[TracedOp], kind: Kind, bytes: u64) -> Option<Arc<Running>> {
        let alike = self.runs().filter_map(|known| {
            let next = known.trace.ops.get(done.len()).filter(|next| next.kind == kind)?;
            let same = known.trace.ops.iter().zip(done).all(|(planned, done)| planned.kind == done.kind);
            let made = known.trace.tensors.get(next.outputs as usize).map_or(0, |tensor| tensor.bytes);
            same.then_some((made < bytes, made.abs_diff(bytes), known))
        });
        alike.min_by_key(|&(is_less, beyond, _)| (is_less, beyond)).map(|(_, _, known)| known.clone())
    }

    fn runs(&self) -> impl DoubleEndedIterator<Item = &Arc<Running>> {
        self.unplanned.iter().chain(self.schedules.iter().map(|known| known.run()))
    }

    /// The plan for a kind of step, if it has one that does something.
    pub fn plan_for(&self, structure: u64) -> Option<&Arc<Schedule>> {
        self.schedules.iter().find(|known| known.structure() == structure)
    }

    /// Whether it is known what a kind of step does.
    pub fn knows(&self, structure: u64) -> bool {
        self.runs().any(|known| known.structure() == structure)
    }

    /// Whether any kind of step has a plan that does something.
    pub fn has_plans(&self) -> bool {
        !self.schedules.is_empty()
    }

    /// Takes up a plan in place of the one for the same kind of step.
    pub fn take_up(&mut self, schedule: Arc<Schedule>) {
        self.unplanned.retain(|known| known.structure() != schedule.structure());
        self.schedules.retain(|known| known.structure() != schedule.structure());
        observed::add(&mut self.schedules, schedule.structure(), schedule);
    }

    /// Remembers what a kind of step without a plan does.
    pub fn know(&mut self, trace: Trace) {
        let none = vec![false; trace.storages.len()];
        // Without a plan, everything is held.
        let run = Running::new(Arc::new(trace), none.clone(), none).storing_all();
        self.unplanned.retain(|known| known.structure() != run.structure());
        observed::add(&mut self.unplanned, run.structure(), Arc::new(run));
    }

    /// Forgets all plans, but not which kind of step follows which.
    pub fn forget_all(&mut self) {
        self.schedules.clear();
        self.unplanned.clear();
    }
}
