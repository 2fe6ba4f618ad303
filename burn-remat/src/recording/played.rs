//! Replays a recording on a machine that holds no data.

use std::time::Duration;

use burn_remat_core::play;

use super::RecordedProgram;
use crate::budget::Budget;
use crate::config::RematConfig;
use crate::error::RematError;
use crate::planning::{PlanReport, Plans};

/// How long to wait for a planner beyond its own limit.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of replaying a recording.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Operations that the program asked for.
    pub operations: u64,
    /// Operations that ran again.
    pub recomputed_operations: u64,
    /// Buffers evicted.
    pub evictions: u64,
    /// Training steps seen.
    pub steps: u64,
    /// Steps that held more than the budget at some point.
    pub steps_over_budget: u64,
    /// Most bytes held at once.
    pub peak_bytes: u64,
    /// Most bytes that had to be held together.
    pub floor_bytes: u64,
    /// The plan that was followed last.
    pub plan: Option<PlanReport>,
    /// Why there is no plan, if planning failed.
    pub planning_problem: Option<String>,
    /// The first thing that went wrong.
    pub failure: Option<String>,
}

impl RecordedProgram {
    /// Replays the program under `config`: [`RecordedProgram::config`] for the recorded one, or another budget or planner. It waits for planners, so that
    /// each plan is in force from the next step on.
    ///
    /// Nothing is executed, and operations take the times that were recorded. Under the recorded configuration the traces and graphs are those of
    /// the program, bit for bit, and so are the plans of a planner that does not look at the clock.
    ///
    /// # Errors
    ///
    /// An invalid configuration, or a budget that is a share of free memory: a replay has no device.
    pub fn replay(&self, config: impl Into<RematConfig>) -> Result<ReplayReport, RematError> {
        let config = config.into().validated()?;
        if let budget @ Budget::Free(_) = config.budget {
            return Err(RematError::BudgetInBytes { budget });
        }
        let plans = Plans::new(config.planning_in_force(), config.plans_for(self.device()), false);
        let limit = config.planning.time_limit.saturating_add(PATIENCE);
        let machine = play(&self.recording, config.of_core(self.layout()), plans, |machine| {
            machine.world().planning.wait().wait(limit);
        });
        let (counters, plans) = (machine.counters(), &machine.world().planning);
        let followed = (counters.times.followed, counters.times.followed_recompute);
        Ok(ReplayReport {
            operations: counters.operations,
            recomputed_operations: counters.recomputed,
            evictions: counters.evictions,
            steps: counters.steps,
            steps_over_budget: counters.steps_over_budget + u64::from(machine.is_over_budget()),
            peak_bytes: counters.peak.bytes,
            floor_bytes: counters.floor.bytes,
            plan: PlanReport::of(plans, followed, machine.budget()),
            planning_problem: plans.state.problem.clone(),
            failure: counters.failure.as_deref().map(str::to_owned),
        })
    }
}
