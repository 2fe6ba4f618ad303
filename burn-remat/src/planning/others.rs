//! Plans of one step for other budgets than its own.

use std::sync::Arc;
use std::time::Duration;

use super::chosen::ChosenPlanner;
use super::fit::Fit;
use super::schedule::Schedule;

/// Steps from the smallest budget to what the step takes without evictions.
const POINTS: usize = 8;

/// A plan for a budget, which it keeps.
pub(super) struct OtherPlan {
    pub budget: u64,
    /// Name of its planner.
    pub planner: String,
    pub schedule: Arc<Schedule>,
}

/// Plans for budgets from the smallest to the largest that make a difference.
pub(super) struct Others {
    /// The smallest budget for which a plan is known.
    pub least: u64,
    /// What the step takes without evictions.
    pub most: u64,
    /// In ascending order of budgets. A larger budget may have a dearer plan: each was looked for by itself.
    pub plans: Vec<OtherPlan>,
}

/// Plans the step of `schedule` anew at several budgets, with `limit` for each.
pub(super) fn others(schedule: &Schedule, limit: Duration) -> Result<Others, String> {
    let fit = Fit::new(schedule.trace.clone(), schedule.lowered.clone(), None)
        .map_err(|violations| violations.to_string())?;
    let planner = ChosenPlanner::auto();
    let least = fit.floor().0.min(schedule.peak);
    let most = schedule.lowered.peak().max(least + 1);
    let planned = |step: usize| {
        let budget = least + (most - least) * step as u64 / POINTS as u64;
        let (found, outcome) = fit.best(&planner, budget, limit).filter(|(found, _)| found.peak <= budget)?;
        Some(OtherPlan { budget, planner: outcome.planner, schedule: found })
    };
    Ok(Others { least, most, plans: (0..=POINTS).filter_map(planned).collect() })
}
