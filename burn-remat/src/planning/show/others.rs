//! Plans of one step for several budgets.

use std::sync::Arc;
use std::time::Duration;

use crate::planning::budgets::budgets;
use crate::planning::chosen::ChosenPlanner;
use crate::planning::fit::Fit;
use crate::planning::schedule::Schedule;

/// A plan that keeps to a budget.
pub struct OtherPlan {
    pub budget: u64,
    /// Name of its planner.
    pub planner: String,
    pub schedule: Arc<Schedule>,
}

/// Plans for budgets from the smallest possible to the largest that makes a difference.
pub struct Others {
    /// The smallest budget for which a plan is known.
    pub least: u64,
    /// What the step takes without evictions.
    pub most: u64,
    /// In ascending order of budgets. A larger budget may have a more expensive plan, because each was searched for separately.
    pub plans: Vec<OtherPlan>,
}

/// Plans the step of `schedule` anew at several budgets, with `limit` for each.
pub fn others(schedule: &Schedule, limit: Duration) -> Result<Others, String> {
    let fit = Fit::new(schedule.trace.clone(), schedule.lowered.clone(), None, 0)
        .map_err(|violations| violations.to_string())?;
    let planner = ChosenPlanner::auto();
    let least = fit.floor().0.min(schedule.peak);
    let most = schedule.lowered.peak().max(least + 1);
    let planned = |budget: u64| {
        let (found, outcome) = fit.best(&planner, budget, limit).filter(|(found, _)| found.peak <= budget)?;
        Some(OtherPlan { budget, planner: outcome.planner, schedule: found })
    };
    Ok(Others { least, most, plans: budgets(least, most).filter_map(planned).collect() })
}
