//! The planners with a solver behind them, which may not look at the clock, under the [guard](crate::guard) of their limit.

use crate::error::PlanError;
use crate::graph::Graph;
use crate::guard::{self, Ended};
use crate::planner::{Outcome, Request};

/// The latest outcome of work under way.
pub(super) type Latest = guard::Latest<Outcome>;

/// The result of `work`, or its latest outcome soon after the request's limit.
pub(super) fn within_limit(
    name: &'static str,
    graph: &Graph,
    request: &Request,
    work: impl FnOnce(&Graph, &Request, &Latest) -> Result<Outcome, PlanError> + Send + 'static,
) -> Result<Outcome, PlanError> {
    let graph = graph.clone();
    Ok(match guard::within_limit(name, request, move |request, latest| work(&graph, request, latest))? {
        Ended::Done(outcome) => outcome,
        Ended::Left(outcome) => outcome.unwrap_or_else(|| Outcome::without_plan(name, None)),
    })
}
