//! Worlds in which one part makes the plans.

use alloc::sync::Arc;

use crate::driver::{Followed, Left, Limits, Planning};
use crate::facts::Kind;
use crate::schedule::Schedule;
use crate::trace::{Trace, TracedOp};

/// A world in which one part makes the plans: all questions about plans go to that part.
pub trait HasPlanning {
    /// The part.
    type Planning: Planning;

    /// The part.
    fn planning(&self) -> &Self::Planning;

    /// The part.
    fn planning_mut(&mut self) -> &mut Self::Planning;
}

impl<W: HasPlanning> Planning for W {
    fn is_on(&self) -> bool {
        self.planning().is_on()
    }

    fn is_settled(&self) -> bool {
        self.planning().is_settled()
    }

    fn observe(&mut self, trace: Trace, structure: u64, limits: Limits) -> bool {
        self.planning_mut().observe(trace, structure, limits)
    }

    fn poll(&mut self, limits: Limits) {
        self.planning_mut().poll(limits);
    }

    fn next(&self) -> Option<Arc<Schedule>> {
        self.planning().next()
    }

    fn is_sure(&self) -> bool {
        self.planning().is_sure()
    }

    fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Schedule>> {
        self.planning().beginning_with(count, prefix)
    }

    fn like(&self, done: &[TracedOp], kind: Kind, bytes: u64) -> Option<Arc<Schedule>> {
        self.planning().like(done, kind, bytes)
    }

    fn is_unmeasured(&self, schedule: &Schedule) -> bool {
        self.planning().is_unmeasured(schedule)
    }

    fn followed(&mut self, schedule: &Schedule, outcome: Followed, limits: Limits) -> bool {
        self.planning_mut().followed(schedule, outcome, limits)
    }

    fn left(&mut self, why: Left) {
        self.planning_mut().left(why);
    }

    fn outgrown(&mut self, structure: u64) {
        self.planning_mut().outgrown(structure);
    }

    fn plan_anew(&mut self) {
        self.planning_mut().plan_anew();
    }

    fn unsettle(&mut self) {
        self.planning_mut().unsettle();
    }

    fn forget_observed(&mut self) {
        self.planning_mut().forget_observed();
    }

    fn taken_up(&self) -> u64 {
        self.planning().taken_up()
    }
}
