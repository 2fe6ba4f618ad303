//! What a planner found for a chain.

use std::time::Duration;

use super::{Chain, ChainPlan, simulate};
use crate::planner::{Status, StopReason};

/// What a planner found for a chain: [`Outcome`](crate::Outcome) with a [`ChainPlan`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChainOutcome {
    /// Name of the planner that made the plan (for `auto`, of the one that won).
    pub planner: String,
    /// What is known about the plan.
    pub status: Status,
    /// Why the planner stopped.
    pub stop_reason: StopReason,
    /// The plan; `None` only with [`Status::NoSolution`].
    pub plan: Option<ChainPlan>,
    /// Cost of the plan.
    pub makespan: f64,
    /// Most bytes resident at once, the chain's input included.
    pub peak_bytes: u64,
    /// A proven lower bound on the makespan of the planner's class of schedules within the budget.
    pub lower_bound: Option<f64>,
    /// Time the planner took.
    pub solve_time: Duration,
}

impl ChainOutcome {
    /// An outcome around `plan`, with makespan and peak from [`simulate`]. `solve_time` is left at zero: the caller
    /// of [`Planner::solve_chain`](crate::Planner::solve_chain) measures it.
    pub fn of_plan(planner: &str, chain: &Chain, plan: ChainPlan, status: Status, stop_reason: StopReason) -> Self {
        let timeline = simulate(chain, &plan);
        Self {
            planner: planner.to_owned(),
            status,
            stop_reason,
            plan: Some(plan),
            makespan: timeline.makespan,
            peak_bytes: timeline.peak_bytes,
            lower_bound: None,
            solve_time: Duration::ZERO,
        }
    }
}
