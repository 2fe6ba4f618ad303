//! What the core asks of the planning service.

use std::sync::Arc;

use burn_remat_core::{Followed, Kind, Left, Limits, Planning, Schedule, Trace, TracedOp};

use super::plans::Plans;

impl Planning for Plans {
    fn is_on(&self) -> bool {
        Self::is_on(self)
    }

    fn is_settled(&self) -> bool {
        Self::is_settled(self)
    }

    fn observe(&mut self, trace: Trace, structure: u64, limits: Limits) -> bool {
        Self::observe(self, trace, structure, limits.budget)
    }

    fn poll(&mut self, limits: Limits) {
        Self::poll(self, limits);
    }

    fn next(&self) -> Option<Arc<Schedule>> {
        Self::next(self)
    }

    fn is_sure(&self) -> bool {
        Self::is_sure(self)
    }

    fn beginning_with(&self, count: usize, prefix: u64) -> Option<Arc<Schedule>> {
        Self::beginning_with(self, count, prefix)
    }

    fn like(&self, done: &[TracedOp], kind: Kind, bytes: u64) -> Option<Arc<Schedule>> {
        Self::like(self, done, kind, bytes)
    }

    fn is_unmeasured(&self, schedule: &Schedule) -> bool {
        Self::is_unmeasured(self, schedule.structure())
    }

    fn followed(&mut self, schedule: &Schedule, outcome: Followed, limits: Limits) -> bool {
        Self::followed(self, schedule.structure(), outcome, limits.budget)
    }

    fn left(&mut self, why: Left) {
        Self::left(self, &why);
    }

    fn outgrown(&mut self, structure: u64) {
        Self::outgrown(self, structure);
    }

    fn plan_anew(&mut self) {
        Self::plan_anew(self);
    }

    fn unsettle(&mut self) {
        Self::unsettle(self);
    }

    fn forget_observed(&mut self) {
        Self::forget_observed(self);
    }

    fn taken_up(&self) -> u64 {
        self.state.made + self.state.from_cache
    }
}
