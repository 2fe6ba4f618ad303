//! How planners are asked for plans of a step, and what they may take for it.

use std::sync::Arc;
use std::time::Duration;

use burn_remat_core::Trace;
use burn_remat_plan::clock::patiently;
use burn_remat_plan::{Graph, Outcome, PlanError, Request, Solved, Status};

use crate::planning::chosen::ChosenPlanner;
use crate::planning::lowering::Lowered;
use crate::planning::schedule::Schedule;

/// Most quick plans from one graph.
pub(super) const ROUNDS: u32 = 8;
/// Time of each, at least and at most, and for each op of the graph.
const QUICKEST: Duration = Duration::from_millis(25);
const QUICK: Duration = Duration::from_millis(400);
const QUICK_PER_OP: Duration = Duration::from_micros(150);
/// What planners may take of memory: one part in so many of what the step holds without evictions, or this where that is more. Half of it changes no
/// plan of a thousand operations.
const MEMORY_SHARE: u64 = 16;
const LEAST_MEMORY: u64 = 32 << 20;
/// A plan this near to its lower bound is not improved further.
pub(crate) const GOOD_ENOUGH: f64 = 0.002;

/// What planning may take.
pub(crate) struct Terms<'a> {
    pub planner: &'a ChosenPlanner,
    pub budget: u64,
    pub limit: Duration,
}

/// So many times a limit may be on the wall where the planner has to wait for a processor: beside a program that computes it has the lowest priority.
const PATIENCE: u32 = 4;

/// Runs `work`, in which limits are such on what planners have of a processor.
pub(super) fn beside_others<T>(work: impl FnOnce() -> T) -> T {
    patiently(PATIENCE, work)
}

/// What a search for a plan comes across.
pub(crate) enum Found<'a> {
    /// A plan cheaper than all before it; its outcome speaks of the graph.
    Plan(Arc<Schedule>, &'a Outcome),
    /// The planner failed.
    Problem(PlanError),
}

/// A plan, and its account of itself.
pub(crate) type Planned = (Arc<Schedule>, Outcome);

/// A plan within the budget in little time, from the graph as it is: what a step goes by until the plan that holds least is known, and with that what
/// planners may be told. None where the graph counts too much for that, or the planner fails.
pub(crate) fn first(
    trace: &Arc<Trace>,
    lowered: &Lowered,
    threads: Option<usize>,
    terms: &Terms<'_>,
) -> Option<Planned> {
    let request = request(terms.budget, quick(lowered).min(terms.limit / ROUNDS), threads, lowered);
    let found = beside_others(|| planned(trace, lowered, &lowered.graph, terms.planner, &request));
    let (schedule, outcome) = found.ok()??;
    (schedule.peak <= terms.budget).then(|| (Arc::new(schedule), outcome))
}

/// The time of a quick plan.
pub(super) fn quick(lowered: &Lowered) -> Duration {
    let ops = u32::try_from(lowered.graph.ops().len()).unwrap_or(u32::MAX);
    QUICK_PER_OP.saturating_mul(ops).clamp(QUICKEST, QUICK)
}

/// For planners that may use so many threads; all that the machine has without a number. They take memory beside the step that they plan, so what
/// they may take goes by what it holds.
pub(super) fn request(budget: u64, time_limit: Duration, threads: Option<usize>, step: &Lowered) -> Request {
    let request = Request { time_limit, ..Request::new(budget) };
    let memory_limit = request.memory_limit.min((step.peak() / MEMORY_SHARE).max(LEAST_MEMORY));
    Request { threads: threads.unwrap_or(request.threads), memory_limit, ..request }
}

/// What a planner finds for a `graph` of the step, if that can be followed.
pub(super) fn planned(
    trace: &Arc<Trace>,
    lowered: &Lowered,
    graph: &Graph,
    planner: &ChosenPlanner,
    request: &Request,
) -> Result<Option<(Schedule, Outcome)>, PlanError> {
    let Solved { mut outcome, checked } = planner.solve(graph, request)?;
    if lowered.is_weighted() {
        // Its costs are preferences, and a bound on them is none on time.
        (outcome.status, outcome.lower_bound) = (Status::Feasible, None);
    }
    Ok(checked.map(|checked| (Schedule::new(trace.clone(), lowered.clone(), &checked), outcome)))
}
