//! How planners are asked for plans of a step, and how much time and memory they may use.

use std::sync::Arc;
use std::time::Duration;

use burn_remat_core::Trace;
use burn_remat_plan::clock::patiently;
use burn_remat_plan::{Graph, Outcome, PlanError, Request, Solved, Status};

use crate::planning::chosen::ChosenPlanner;
use crate::planning::lowering::Lowered;
use crate::planning::schedule::Schedule;

/// The most quick plans for one graph.
pub(super) const ROUNDS: u32 = 8;
/// The time for each of them: at least, at most, and per op of the graph.
const QUICKEST: Duration = Duration::from_millis(25);
const QUICK: Duration = Duration::from_millis(400);
const QUICK_PER_OP: Duration = Duration::from_micros(150);
/// The memory that planners may use: one part in this many of what the step holds without evictions, but at least `LEAST_MEMORY`. Half of it would not
/// change a plan of a thousand operations.
const MEMORY_SHARE: u64 = 16;
const LEAST_MEMORY: u64 = 32 << 20;
/// A plan this close to its lower bound is not improved further.
pub(crate) const GOOD_ENOUGH: f64 = 0.002;

/// What a search for plans is given.
pub(crate) struct Terms<'a> {
    pub planner: &'a ChosenPlanner,
    pub budget: u64,
    pub limit: Duration,
}

/// How many times its limit a planner may take in wall-clock time if it has to wait for a processor: beside a program that computes, it has the lowest
/// priority.
const PATIENCE: u32 = 4;

/// Runs `work`. Limits in it are on the processor time of planners.
pub(super) fn beside_others<T>(work: impl FnOnce() -> T) -> T {
    patiently(PATIENCE, work)
}

/// What a search for plans finds.
pub(crate) enum Found<'a> {
    /// A plan that is cheaper than all before it. The figures of its outcome are those of the graph.
    Plan(Arc<Schedule>, &'a Outcome),
    /// The planner failed.
    Problem(PlanError),
}

/// A plan, and what its planner says about it.
pub(crate) type Planned = (Arc<Schedule>, Outcome);

/// A quick plan within the budget, for the graph as it is. The step follows it until the smallest plan is known, and with that what planners may be told.
/// `None` if the graph counts too much for this, or if the planner fails.
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

/// A request to a planner that may use `threads` threads, or all that the machine has. Planners use memory beside the step that they plan, so how much
/// they may use depends on what the step holds.
pub(super) fn request(budget: u64, time_limit: Duration, threads: Option<usize>, step: &Lowered) -> Request {
    let request = Request { time_limit, ..Request::new(budget) };
    let memory_limit = request.memory_limit.min((step.peak() / MEMORY_SHARE).max(LEAST_MEMORY));
    Request { threads: threads.unwrap_or(request.threads), memory_limit, ..request }
}

/// The plan that a planner finds for a `graph` of the step, if it finds one.
pub(super) fn planned(
    trace: &Arc<Trace>,
    lowered: &Lowered,
    graph: &Graph,
    planner: &ChosenPlanner,
    request: &Request,
) -> Result<Option<(Schedule, Outcome)>, PlanError> {
    let Solved { mut outcome, checked } = planner.solve(graph, request)?;
    if lowered.is_weighted() {
        // The costs include preferences, so a bound on them is not a bound on time.
        (outcome.status, outcome.lower_bound) = (Status::Feasible, None);
    }
    Ok(checked.map(|checked| (Schedule::new(trace.clone(), lowered.clone(), &checked), outcome)))
}
