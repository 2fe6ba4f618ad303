//! `search` on chains: schedules that need not be persistent.
//!
//! Method: the cheapest of
//!
//! 1. the persistent optimum of [`chain_dp`](super::chain_dp);
//! 2. the optimum over schedules that release checkpoints early as in `chain_exchange`, on the chain itself or,
//!    if it is long, on groups of its stages;
//! 3. for chains of up to 60 stages, the best of *all* schedules, found by A* (`chain_exact`) if it ends within its limits.
//!
//! Stages that cost and hold nothing are joined with their neighbours first. If none of these fits, the schedule of
//! the [least memory known](crate::chain::minimum) is tried.
//!
//! Source: this project. Beaumont et al. (RR-9302, section 4.1) show that persistent schedules are not always best.

use super::ChainDp;
use super::chain_exact::{Exact, exact};
use super::chain_exchange::Exchange;
use crate::allowance::Allowance;
use crate::chain::terms::{Grouped, Terms};
use crate::chain::{self, Chain, ChainOutcome, ChainPlan, ChainStep};
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::planner::{Planner, Progress, Request, Status, StopReason};

/// Longer chains are grouped for the exchange program.
const MOST_GROUPS: usize = 48;
/// Most memory units of the exchange program.
const MOST_UNITS: u64 = 500;
/// With fewer it is not tried.
const LEAST_UNITS: u64 = 20;

/// Plans `chain` for the planner called `name`.
///
/// # Errors
///
/// As [`Planner::solve_chain`].
pub(crate) fn solve_chain(name: &'static str, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
    let end = request.deadline();
    let most = Request { time_limit: request.time_limit / 4 * 3, ..request.clone() };
    let persistent = ChainDp.solve_chain(chain, &most);
    let time_limit = end.left();
    improve(name, chain, &Request { time_limit, ..request.clone() }, persistent)
}

/// As [`solve_chain`], from the persistent schedule that [`ChainDp`] found, or from its error.
///
/// # Errors
///
/// As [`Planner::solve_chain`].
pub(crate) fn improve(
    name: &'static str,
    chain: &Chain,
    request: &Request,
    persistent: Result<ChainOutcome, PlanError>,
) -> Result<ChainOutcome, PlanError> {
    let allowance = request.allowance();
    let terms = Terms::of_chain(chain);
    let store_all = chain.store_all_makespan();
    let mut best = match persistent {
        // Its time was up before it had a plan.
        Ok(outcome) if outcome.plan.is_none() => Err(PlanError::no_plan(request.budget)),
        Ok(outcome) if outcome.makespan <= store_all => {
            let planner = name.to_owned();
            let (status, stop_reason) = (Status::Optimal, StopReason::Proved);
            return Ok(ChainOutcome { planner, status, stop_reason, lower_bound: Some(outcome.makespan), ..outcome });
        }
        Ok(outcome) => Ok(ChainOutcome { status: Status::Feasible, stop_reason: StopReason::Heuristic, ..outcome }),
        Err(error) => Err(error),
    };
    let consider = |steps: Vec<ChainStep>, best: &mut Result<ChainOutcome, PlanError>| {
        let plan = ChainPlan { steps };
        let outcome = ChainOutcome::of_plan(name, chain, plan, Status::Feasible, StopReason::Heuristic);
        let known = best.as_ref().map_or(f64::INFINITY, |best| best.makespan);
        if outcome.peak_bytes <= request.budget && outcome.makespan < known {
            request.report(Progress { incumbent: Some(outcome.makespan), lower_bound: Some(store_all) });
            *best = Ok(outcome);
        }
    };
    let joined = Grouped::joining_idle(&terms);
    if let Some(steps) = exchange(&joined.terms, request.budget, allowance) {
        consider(joined.expand_idle(&steps), &mut best);
    }
    let known = best.as_ref().map_or(f64::INFINITY, |best| best.makespan);
    let bound = match exact(&joined, request.budget, known, allowance) {
        Exact::Cheapest(steps) => {
            consider(steps, &mut best);
            f64::INFINITY
        }
        Exact::NoneCheaper { .. } => f64::INFINITY,
        Exact::Stopped(lower) => store_all.max(lower),
    };
    if best.is_err() {
        let least = chain::minimum_by(chain, allowance);
        if least.achieved > request.budget {
            return Err(PlanError::Infeasible {
                budget: request.budget,
                minimum: Some(least.achieved),
                blocking_op: Some(least.peak_stage),
                proven: bound == f64::INFINITY || request.budget < least.lower_bound,
            });
        }
        consider(least.plan.steps, &mut best);
    }
    best.map(|best| closed(ChainOutcome { planner: name.to_owned(), ..best }, bound, allowance.deadline))
}

/// The best outcome, with the status that the bound gives it.
fn closed(mut best: ChainOutcome, bound: f64, deadline: Deadline) -> ChainOutcome {
    best.lower_bound = Some(bound.min(best.makespan));
    if bound >= best.makespan {
        (best.status, best.stop_reason) = (Status::Optimal, StopReason::Proved);
    } else if deadline.passed() {
        best.stop_reason = StopReason::TimeLimit;
    }
    best
}

/// The best schedule of the exchange program within `budget`.
fn exchange(terms: &Terms, budget: u64, allowance: Allowance) -> Option<Vec<ChainStep>> {
    let grouped = Grouped::of(terms, MOST_GROUPS);
    let terms = &grouped.terms;
    let limit = budget.min(terms.store_all_peak()).checked_sub(terms.activation[0])?;
    let common = terms.common_unit();
    let most = MOST_UNITS.min(Exchange::units_within(terms.len(), allowance.memory));
    if most < LEAST_UNITS {
        return None;
    }
    let unit = if limit / common <= most { common } else { limit.div_ceil(most).next_multiple_of(common) };
    let scaled = terms.in_units(unit);
    let units = usize::try_from(limit / unit).ok()?;
    let steps = Exchange::fill(&scaled, units, allowance.deadline)?.schedule()?;
    Some(grouped.expand(&steps))
}
