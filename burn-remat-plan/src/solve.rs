//! Runs a planner and returns only plans that the checker accepts.

use std::sync::Arc;
use std::time::Instant;

use crate::chain::{self, Chain, ChainOutcome};
use crate::check::{CheckedPlan, check};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::guard::{Ended, isolated, within_limit};
use crate::planner::{Outcome, Planner, Request, Status};

/// What a planner found, and its plan as accepted by the checker.
#[derive(Clone, Debug, PartialEq)]
pub struct Solved {
    /// The outcome, with the time the planner took.
    pub outcome: Outcome,
    /// The plan of the outcome; `None` only if the planner found none before a limit.
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
/// The planner's own error; [`PlanError::Internal`] if it panics, if its plan fails the check or costs something other than the outcome
/// claims, or if its bound exceeds the cost of its plan.
pub fn solve(planner: &dyn Planner, graph: &Graph, request: &Request) -> Result<Solved, PlanError> {
    let start = Instant::now();
    let mut outcome = isolated(planner.name(), || planner.solve(graph, request))?;
    outcome.solve_time = start.elapsed();
    judged(planner.name(), graph, request.budget, outcome)
}

/// As [`solve`], for a planner that may not return: it runs on a thread of its own and is abandoned soon after the time
/// limit, usually within a twentieth of it. The thread goes on until the planner returns, which costs processor time and
/// memory but blocks nothing else.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use burn_remat_plan::{Graph, GraphBuilder, Op, Outcome, PlanError, Planner, Request, solve_guarded};
///
/// struct Asleep;
///
/// impl Planner for Asleep {
///     fn name(&self) -> &'static str {
///         "asleep"
///     }
///
///     fn solve(&self, _: &Graph, _: &Request) -> Result<Outcome, PlanError> {
///         loop {
///             std::thread::sleep(Duration::from_secs(3600));
///         }
///     }
/// }
///
/// let mut builder = GraphBuilder::new("one op");
/// let x = builder.value(100, "x");
/// builder.op(Op::new("f", 1.0, vec![], vec![x]));
/// let request = Request { time_limit: Duration::from_millis(10), ..Request::new(300) };
/// let found = solve_guarded(Arc::new(Asleep), &builder.build()?, &request);
/// assert!(matches!(found, Err(PlanError::Overdue { planner: "asleep", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`solve`]; [`PlanError::Overdue`] if the planner does not return.
pub fn solve_guarded(planner: Arc<dyn Planner>, graph: &Graph, request: &Request) -> Result<Solved, PlanError> {
    let (start, name) = (Instant::now(), planner.name());
    let owned = graph.clone();
    let mut outcome = match within_limit(name, request, move |request, _| planner.solve(&owned, request))? {
        Ended::Done(outcome) => outcome,
        Ended::Left(_) => return Err(PlanError::Overdue { planner: name, limit: request.time_limit }),
    };
    outcome.solve_time = start.elapsed();
    judged(name, graph, request.budget, outcome)
}

/// An outcome without a plan has to say so.
fn without_plan(planner: &'static str, status: Status) -> Result<(), PlanError> {
    if status == Status::NoSolution {
        return Ok(());
    }
    Err(PlanError::Internal { planner, reason: format!("it claims to be {status:?}, but gives no plan") })
}

/// Passes an outcome on if everything that it claims is true.
fn judged(planner: &'static str, graph: &Graph, budget: u64, outcome: Outcome) -> Result<Solved, PlanError> {
    let internal = |reason: String| PlanError::Internal { planner, reason };
    let Some(plan) = &outcome.plan else {
        without_plan(planner, outcome.status)?;
        return Ok(Solved { outcome, checked: None });
    };
    let checked = check(graph, plan, budget).map_err(|violations| internal(violations.to_string()))?;
    if (checked.peak_bytes(), checked.makespan()) != (outcome.peak_bytes, outcome.makespan) {
        return Err(internal(format!(
            "it claims a peak of {} bytes and a makespan of {}, but the plan has {} and {}",
            outcome.peak_bytes,
            outcome.makespan,
            checked.peak_bytes(),
            checked.makespan()
        )));
    }
    outcome.bound().map_or(Ok(()), |bound| bound.below(outcome.makespan).map(drop)).map_err(internal)?;
    log::info!(
        "{}: makespan {}, peak {} of {} bytes, {:?}, after {:?}",
        outcome.planner,
        outcome.makespan,
        outcome.peak_bytes,
        budget,
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
    let mut outcome = isolated(planner.name(), || planner.solve_chain(chain, request))?;
    outcome.solve_time = start.elapsed();
    let internal = |reason: String| PlanError::Internal { planner: planner.name(), reason };
    let Some(plan) = &outcome.plan else {
        without_plan(planner.name(), outcome.status)?;
        return Ok(outcome);
    };
    if let Some(violation) = chain::check(chain, plan, request.budget).first() {
        return Err(internal(violation.to_string()));
    }
    let timeline = chain::simulate(chain, plan);
    if (timeline.peak_bytes, timeline.makespan) != (outcome.peak_bytes, outcome.makespan) {
        return Err(internal("it claims a peak or makespan that its plan does not have".to_owned()));
    }
    outcome.bound().map_or(Ok(()), |bound| bound.below(outcome.makespan).map(drop)).map_err(internal)?;
    Ok(outcome)
}
