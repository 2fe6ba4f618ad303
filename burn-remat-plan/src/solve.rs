//! Runs a planner and lets nothing unchecked out.

use std::time::Instant;

use crate::chain::{self, Chain, ChainOutcome};
use crate::check::{CheckedPlan, check};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request};

/// What a planner found, and its plan as the checker accepted it.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// The outcome, with the time the planner took.
    pub outcome: Outcome,
    /// The plan of the outcome; `None` only where the planner found none before a limit.
    pub checked: Option<CheckedPlan>,
}

/// Runs `planner`, measures the time that it takes and passes its plan through [`check`].
///
/// ```
/// use burn_remat_plan::{GraphBuilder, Op, Request, planners::StoreAll, solve};
///
/// let mut builder = GraphBuilder::new("one op");
/// let (x, y) = (builder.value(100, "x"), builder.value(200, "y"));
/// builder.op(Op::new("f", 1.0, vec![x], vec![y]));
/// let solved = solve(&StoreAll, &builder.build()?, &Request::new(300))?;
/// assert_eq!(solved.checked.unwrap().peak_bytes(), 300);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// What the planner says; [`PlanError::Internal`] where its plan fails the check, or costs other than the outcome claims.
pub fn solve(planner: &dyn Planner, graph: &Graph, request: &Request) -> Result<Solved, PlanError> {
    let start = Instant::now();
    let mut outcome = planner.solve(graph, request)?;
    outcome.solve_time = start.elapsed();
    let internal = |reason: String| PlanError::Internal { planner: planner.name(), reason };
    let Some(plan) = &outcome.plan else { return Ok(Solved { outcome, checked: None }) };
    let checked = check(graph, plan, request.budget).map_err(|violations| internal(violations.to_string()))?;
    if (checked.peak_bytes(), checked.makespan()) != (outcome.peak_bytes, outcome.makespan) {
        return Err(internal(format!(
            "claims a peak of {} bytes and a makespan of {}, but the plan has {} and {}",
            outcome.peak_bytes,
            outcome.makespan,
            checked.peak_bytes(),
            checked.makespan()
        )));
    }
    judge_bound(outcome.lower_bound, outcome.makespan).map_err(internal)?;
    log::info!(
        "{}: makespan {} at {} of {} bytes, {:?}, after {:?}",
        outcome.planner,
        outcome.makespan,
        outcome.peak_bytes,
        request.budget,
        outcome.status,
        outcome.solve_time
    );
    Ok(Solved { outcome, checked: Some(checked) })
}

/// [`solve`] for a chain: the plan passes through the chain's own [checker](chain::check).
///
/// # Errors
///
/// As [`solve`].
pub fn solve_chain(planner: &dyn Planner, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
    let start = Instant::now();
    let mut outcome = planner.solve_chain(chain, request)?;
    outcome.solve_time = start.elapsed();
    let internal = |reason: String| PlanError::Internal { planner: planner.name(), reason };
    let Some(plan) = &outcome.plan else { return Ok(outcome) };
    if let Some(violation) = chain::check(chain, plan, request.budget).first() {
        return Err(internal(violation.to_string()));
    }
    let timeline = chain::simulate(chain, plan);
    if (timeline.peak_bytes, timeline.makespan) != (outcome.peak_bytes, outcome.makespan) {
        return Err(internal("claims another peak or makespan than its plan has".to_owned()));
    }
    judge_bound(outcome.lower_bound, outcome.makespan).map_err(internal)?;
    Ok(outcome)
}

/// A lower bound above the plan is a defect. Bounds come from floating-point solvers: they are allowed their rounding.
fn judge_bound(bound: Option<f64>, makespan: f64) -> Result<(), String> {
    match bound.filter(|&bound| bound > makespan * (1.0 + 1e-6) + 1e-9) {
        Some(bound) => Err(format!("claims the lower bound {bound} of a plan that costs {makespan}")),
        None => Ok(()),
    }
}
