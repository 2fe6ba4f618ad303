//! The best of many schedules: the cheapest that fits the budget, and the lowest peak of all.

use crate::choice::{has_alternatives, least_makespan};
use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::need::is_too_little;
use crate::plan::Plan;
use crate::planner::{Bound, Outcome, Status, StopReason};
use crate::sequence::plan_from_order;
use crate::simulate::simulate;

/// The best schedule so far.
pub(super) struct Incumbent<'a> {
    graph: &'a Graph,
    budget: u64,
    best: Option<Best>,
    lowest: Option<(u64, Option<OpId>)>,
}

/// A schedule that fits.
#[derive(Clone)]
pub(super) struct Best {
    pub cost: f64,
    pub peak_bytes: u64,
    pub plan: Plan,
}

impl<'a> Incumbent<'a> {
    /// Starts with the store-all schedule: with default implementations nothing is cheaper, so if it fits, the search is over.
    pub fn new(graph: &'a Graph, budget: u64) -> Self {
        let mut incumbent = Self { graph, budget, best: None, lowest: None };
        let store_all: Vec<OpId> = (0..graph.ops().len()).collect();
        incumbent.offer(&store_all);
        incumbent
    }

    /// Cost of computing every op once by default: no schedule without alternatives costs less.
    #[cfg(feature = "highs")]
    pub fn least_cost(&self) -> f64 {
        self.graph.ops().iter().map(|op| op.cost).sum()
    }

    /// A bound on schedules in default implementations, if it holds for every schedule.
    #[cfg(feature = "highs")]
    pub fn general_bound(&self, bound: Option<f64>) -> Option<f64> {
        bound.filter(|_| !has_alternatives(self.graph))
    }

    /// Considers the schedule that computes `sequence`; returns its peak.
    pub fn offer(&mut self, sequence: &[OpId]) -> u64 {
        let plan = plan_from_order(self.graph, sequence);
        let timeline = simulate(self.graph, &plan);
        let (cost, peak_bytes) = (timeline.makespan, timeline.peak_bytes);
        if self.lowest.is_none_or(|(bytes, _)| peak_bytes < bytes) {
            let at = timeline.bytes.iter().position(|&bytes| bytes == peak_bytes);
            self.lowest = Some((peak_bytes, at.and_then(|step| plan.steps[step].op())));
        }
        let better = |best: &Best| cost < best.cost || (cost == best.cost && peak_bytes < best.peak_bytes);
        if peak_bytes <= self.budget && self.best.as_ref().is_none_or(better) {
            self.best = Some(Best { cost, peak_bytes, plan });
        }
        peak_bytes
    }

    /// The best schedule that fits.
    #[cfg(feature = "highs")]
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// Its cost.
    #[cfg(feature = "highs")]
    pub fn cost(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.cost)
    }

    /// The lowest peak seen, and the op at which it occurs, as an error.
    pub fn infeasible(&self) -> PlanError {
        let (minimum, blocking_op) = self.lowest.unzip();
        let proven = is_too_little(self.graph, self.budget);
        PlanError::Infeasible { budget: self.budget, minimum, blocking_op: blocking_op.flatten(), proven }
    }

    /// The outcome with the best schedule and the better of `bound` and the least cost; `None` if no schedule fits.
    /// These schedules use default implementations, and so does the proof behind `status` and `bound`: if ops have
    /// alternatives, it proves nothing.
    ///
    /// # Errors
    ///
    /// If `bound` exceeds the cost of the best schedule, for which it should hold.
    pub fn outcome(
        &self,
        name: &'static str,
        status: Status,
        reason: StopReason,
        bound: Option<f64>,
    ) -> Result<Option<Outcome>, PlanError> {
        let Some(best) = &self.best else { return Ok(None) };
        let least = least_makespan(self.graph);
        let (status, reason, bound) = if best.cost <= least {
            (Status::Optimal, StopReason::Proved, None)
        } else if !has_alternatives(self.graph) {
            (status, reason, bound)
        } else if matches!(reason, StopReason::Proved | StopReason::Gap) {
            (Status::Feasible, StopReason::Heuristic, None)
        } else {
            (Status::Feasible, reason, None)
        };
        let outcome = Outcome::of_plan(name, self.graph, best.plan.clone(), status, reason);
        let bound = bound
            .filter(|&bound| bound.is_nan() || bound > least)
            .map_or(Bound::for_all_schedules(least), Bound::for_own_class);
        outcome.bounded(name, bound).map(Some)
    }
}
