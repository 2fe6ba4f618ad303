//! Search over general schedules.

pub(crate) mod anneal;
pub(crate) mod construct;
pub(crate) mod exact;
mod rounds;
mod seeds;
pub(crate) mod state;

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::lower_bound::{Effort, hints, joint_bound};
use crate::minimum::{lower_half, minimum};
use crate::plan::Plan;
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};
use crate::sequence::plan_of;
use crate::simulate::simulate;
use exact::{Exact, exact};
use rounds::Clock;
use state::Problem;

/// The anytime planner over general schedules: see the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Search {
    iterations: Option<u64>,
}

impl Search {
    /// The name of the planner.
    pub const NAME: &str = "search";

    /// Limits the search to so many moves per thread: then the same request gives the same plan wherever the time limit
    /// is not reached first.
    #[must_use]
    pub fn with_iterations(mut self, moves: u64) -> Self {
        self.iterations = Some(moves);
        self
    }

    fn anneal(self, graph: &Graph, request: &Request, start: Instant) -> Result<Outcome, PlanError> {
        let limit = request.time_limit.min(Duration::from_secs(86_400 * 365));
        let problem = Problem::new(graph, request.budget);
        let mut clock = Clock { start, limit, moves: self.iterations, gap: request.gap, bound: AtomicU64::new(0) };
        // The bound may work on the clock alone, or with a limit on moves on iterations alone.
        let effort = |share: f64| match self.iterations {
            None => Effort { time_limit: clock.left().min(limit.mul_f64(share)), ..Effort::time(limit) },
            Some(_) => Effort { iterations: 1000, ..Effort::time(clock.left()) },
        };
        let feasible = seeds::feasible(graph, request.budget, start + limit.mul_f64(0.1));
        let (bound, hints) = hints(graph, request.budget, effort(0.1));
        let mut starts: Vec<Vec<OpId>> = hints.iter().take(1).map(|hint| seeds::follow(graph, hint)).collect();
        starts.extend(feasible.clone());
        if starts.is_empty() {
            starts.push((0..graph.ops().len()).collect());
        }
        let joint = effort(0.15);
        *clock.bound.get_mut() = bound.to_bits();
        let aside = || {
            clock.raise(joint_bound(graph, request.budget, joint));
            request.report(Progress { incumbent: None, lower_bound: Some(clock.bound()) });
        };
        let threads = request.threads.clamp(1, 64);
        let found = rounds::walk(&problem, &clock, &starts, (request.seed, threads), aside);
        match found.map(|(_, order)| order).or(feasible) {
            Some(order) => Ok(self.outcome(graph, plan_of(graph, &order), request, &clock)),
            None => Err(infeasible(graph, request.budget)),
        }
    }

    fn outcome(self, graph: &Graph, plan: Plan, request: &Request, clock: &Clock) -> Outcome {
        let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Feasible, StopReason::TimeLimit);
        if clock.is_proven(outcome.makespan) {
            outcome.status = Status::Optimal;
            let exactly = outcome.makespan <= clock.bound() * (1.0 + 1e-9);
            outcome.stop_reason = if exactly { StopReason::Proved } else { StopReason::Gap };
        } else if self.iterations.is_some() && !clock.left().is_zero() {
            outcome.stop_reason = StopReason::Heuristic;
        }
        // Rounding in a sum must not put the bound above the plan that meets it.
        let bound = clock.bound().min(outcome.makespan);
        outcome.lower_bound = Some(bound);
        request.report(Progress { incumbent: Some(outcome.makespan), lower_bound: Some(bound) });
        outcome
    }
}

impl Planner for Search {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let start = Instant::now();
        let proven = |order: &[OpId]| {
            let plan = plan_of(graph, order);
            let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Optimal, StopReason::Proved);
            outcome.lower_bound = Some(outcome.makespan);
            outcome
        };
        let store_all: Vec<OpId> = (0..graph.ops().len()).collect();
        if simulate(graph, &plan_of(graph, &store_all)).peak_bytes <= request.budget {
            return Ok(proven(&store_all));
        }
        if request.budget < lower_half(graph).0 {
            return Err(infeasible(graph, request.budget));
        }
        match exact(graph, request.budget, STATES, start.checked_add(request.time_limit)) {
            Exact::Optimal(order) => Ok(proven(&order)),
            Exact::Infeasible => Err(infeasible(graph, request.budget)),
            Exact::GaveUp => self.anneal(graph, request, start),
        }
    }
}

/// Most states of the exact search: beyond that annealing does better.
const STATES: usize = 60_000;

fn infeasible(graph: &Graph, budget: u64) -> PlanError {
    let least = minimum(graph);
    PlanError::Infeasible { budget, minimum: Some(least.achieved), blocking_op: Some(least.blocking_op) }
}
