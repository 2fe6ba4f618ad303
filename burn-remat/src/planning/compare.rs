//! What each form of compression is worth: one measured step, planned with several sets of forms.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use burn_remat_core::Trace;

use super::chosen::ChosenPlanner;
use super::fit::{Fit, Planned};
use super::lowering::lower;
use super::schedule::Schedule;
use crate::compression::Compression;

/// What a plan costs if only some forms of compression are allowed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CompressionCost {
    /// The forms allowed, in the text form of [`Compression`](crate::Compression).
    pub allowed: String,
    /// Smallest budget for which a plan is known, in bytes.
    pub floor_bytes: u64,
    /// Time that the cheapest plan found adds, as a share of the step's time; `None` if no plan keeps to the budget.
    pub predicted_overhead: Option<f64>,
    /// No plan within the budget adds less than this share, if a bound is proven.
    pub lower_bound: Option<f64>,
}

/// Plans the step of `schedule` anew with none of its alternatives, with each alone, with the exact ones and with all.
pub(super) fn alternatives(
    schedule: Arc<Schedule>,
    budget: u64,
    limit: Duration,
) -> impl Iterator<Item = CompressionCost> {
    let present: BTreeSet<_> = schedule.trace.alternatives().collect();
    let only = |allowed: Compression| {
        present.iter().filter(|one| allowed.allows(**one)).fold(Compression::NONE, |some, &one| some.with(one))
    };
    let alone = present.iter().map(|&one| Compression::NONE.with(one));
    let mut choices: Vec<Compression> = Vec::new();
    for choice in
        [Compression::NONE].into_iter().chain(alone).chain([only(Compression::EXACT), only(Compression::EVERY)])
    {
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    // The first choice has no forms. Its plan fits the others too: a form that is allowed need not be used.
    let mut without = None;
    choices.into_iter().filter_map(move |allowed| {
        let (cost, found) = plan(&schedule, allowed, budget, limit, without.as_ref())?;
        if allowed == Compression::NONE {
            without = found;
        }
        Some(cost)
    })
}

/// What a plan with these forms costs, and the plan. It is no more expensive than the plan `without` any.
fn plan(
    schedule: &Schedule,
    allowed: Compression,
    budget: u64,
    limit: Duration,
    without: Option<&Planned>,
) -> Option<(CompressionCost, Option<Planned>)> {
    let trace = Trace::clone(&schedule.trace).with_alternatives(|one| allowed.allows(one));
    let lowered = lower(&trace, schedule.lowered.graph.name()).ok()?;
    let cost_ns = lowered.cost_ns.max(1) as f64;
    let mut fit = Fit::new(Arc::new(trace), lowered, None, 0).ok()?;
    if let Some((schedule, outcome)) = without {
        fit = fit.with_plain(&schedule.plan, &outcome.planner);
    }
    let found = fit.best(&ChosenPlanner::auto(), budget, limit).filter(|(schedule, _)| schedule.peak <= budget);
    let floor = found.as_ref().map_or(u64::MAX, |(schedule, _)| schedule.peak).min(fit.floor().0);
    let bound = found.as_ref().and_then(|(_, outcome)| outcome.lower_bound);
    let cost = CompressionCost {
        allowed: allowed.to_string(),
        floor_bytes: floor,
        predicted_overhead: found.as_ref().map(|(schedule, _)| schedule.overhead()),
        lower_bound: bound.map(|bound| (bound / cost_ns - 1.0).max(0.0)),
    };
    Some((cost, found))
}
