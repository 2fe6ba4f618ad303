//! Budgets, each with the cheapest known plan that fits it.

use super::model::Stop;
use super::run::Run;

/// The budgets of a page in ascending order. All runs are considered for each, so that no larger budget gets a more expensive
/// plan; among equals, the first in `runs` wins. A budget that no run fits is left out.
pub(super) fn stops(runs: &[&Run], mut budgets: Vec<u64>) -> Vec<Stop> {
    budgets.sort_unstable();
    budgets.dedup();
    let best = |budget: u64| {
        let fits = runs.iter().enumerate().filter(|(_, run)| run.peak_bytes() <= budget);
        fits.min_by(|(_, a), (_, b)| a.makespan().total_cmp(&b.makespan())).map(|(view, _)| Stop { budget, view })
    };
    budgets.into_iter().filter_map(best).collect()
}
