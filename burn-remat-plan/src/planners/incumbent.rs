//! The best of many schedules: what fits the budget and costs least, and the lowest peak of all.

use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::plan::Plan;
use crate::planner::{Outcome, Status, StopReason};
use crate::sequence::plan_of;
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
    /// Starts with the store-all schedule: nothing is cheaper, so if it fits, the search is over.
    pub fn new(graph: &'a Graph, budget: u64) -> Self {
        let mut incumbent = Self { graph, budget, best: None, lowest: None };
        let store_all: Vec<OpId> = (0..graph.ops().len()).collect();
        incumbent.offer(&store_all);
        incumbent
    }

    /// Cost of one computation of every op: no schedule costs less.
    pub fn least_cost(&self) -> f64 {
        self.graph.ops().iter().map(|op| op.cost).sum()
    }

    /// Weighs the schedule that computes `sequence`; returns its peak.
    pub fn offer(&mut self, sequence: &[OpId]) -> u64 {
        let plan = plan_of(self.graph, sequence);
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
    pub fn cost(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.cost)
    }

    /// Whether the best schedule computes nothing twice, or only what is free.
    pub fn is_least(&self) -> bool {
        self.cost().is_some_and(|cost| cost <= self.least_cost())
    }

    /// The lowest peak seen, and the op at which it stands, as an error.
    pub fn infeasible(&self) -> PlanError {
        let (minimum, blocking_op) = self.lowest.unzip();
        let proven = self.budget < crate::minimum::lower_half(self.graph).0;
        PlanError::Infeasible { budget: self.budget, minimum, blocking_op: blocking_op.flatten(), proven }
    }

    /// The outcome around the best schedule, with the better of `bound` and the least cost; `None` where none fits.
    pub fn outcome(&self, name: &str, status: Status, reason: StopReason, bound: Option<f64>) -> Option<Outcome> {
        let (status, reason) = if self.is_least() { (Status::Optimal, StopReason::Proved) } else { (status, reason) };
        let best = self.best.as_ref()?;
        let mut outcome = Outcome::of_plan(name, self.graph, best.plan.clone(), status, reason);
        outcome.lower_bound = Some(bound.unwrap_or(0.0).max(self.least_cost()).min(outcome.makespan));
        Some(outcome)
    }
}
