//! Runs planners that do not check the clock everywhere under the [guard](crate::guard) of their limit.

use crate::chain::{Chain, ChainOutcome};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::guard::{self, Ended};
use crate::planner::{Outcome, Planner, Request};

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

/// The result of `work` on a chain, or none soon after the request's limit.
pub(super) fn chain_within_limit(
    name: &'static str,
    chain: &Chain,
    request: &Request,
    work: impl FnOnce(&Chain, &Request) -> Result<ChainOutcome, PlanError> + Send + 'static,
) -> Result<ChainOutcome, PlanError> {
    if chain.stages().len() <= EASY_STAGES {
        return work(chain, request);
    }
    let chain = chain.clone();
    Ok(match guard::within_limit(name, request, move |request, _| work(&chain, &shorter(request)))? {
        Ended::Done(outcome) => outcome,
        Ended::Left(_) => ChainOutcome::without_plan(name, None),
    })
}

/// Up to this many stages, or this many ops, work of cubic size takes next to no time: a thread would take longer.
const EASY_STAGES: usize = 60;
const EASY_OPS: usize = 150;

/// The request with a tenth less time, so that the planner can end by itself.
fn shorter(request: &Request) -> Request {
    Request { time_limit: request.time_limit.mul_f64(0.9), ..request.clone() }
}

/// A planner that is abandoned soon after its limit if it has not ended by then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guarded<P>(pub P);

impl<P: Planner + Copy + 'static> Planner for Guarded<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn version(&self) -> u32 {
        self.0.version()
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        if graph.ops().len() <= EASY_OPS {
            return self.0.solve(graph, request);
        }
        let planner = self.0;
        within_limit(self.name(), graph, request, move |graph, request, _| planner.solve(graph, &shorter(request)))
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        let planner = self.0;
        chain_within_limit(self.name(), chain, request, move |chain, request| planner.solve_chain(chain, request))
    }
}
