//! Search over general schedules.

pub(crate) mod anneal;
pub(crate) mod construct;
pub(crate) mod exact;
pub(crate) mod state;

use std::time::{Duration, Instant};

use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::minimum::{lower_half, minimum};
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};
use crate::sequence::{order_of, plan_of};
use crate::simulate::simulate;
use anneal::Walk;
use construct::{Policy, construct};
use exact::{Exact, exact};
use state::{Problem, State};

/// The anytime planner over general schedules: see the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Search {
    iterations: Option<u64>,
}

impl Search {
    /// The name of the planner.
    pub const NAME: &str = "search";

    /// Limits the search to so many moves per thread, so that the same request gives the same plan on any machine
    /// that is fast enough for the time limit.
    #[must_use]
    pub fn with_iterations(mut self, moves: u64) -> Self {
        self.iterations = Some(moves);
        self
    }
}

impl Planner for Search {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let start = Instant::now();
        let store_all: Vec<OpId> = (0..graph.ops().len()).collect();
        let plan = plan_of(graph, &store_all);
        if simulate(graph, &plan).peak_bytes <= request.budget {
            let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Optimal, StopReason::Proved);
            outcome.lower_bound = Some(outcome.makespan);
            return Ok(outcome);
        }
        let (bound, _) = lower_half(graph);
        if request.budget < bound {
            return Err(infeasible(graph, request.budget));
        }
        match exact(graph, request.budget, STATES, start.checked_add(request.time_limit)) {
            Exact::Optimal(order) => {
                let plan = plan_of(graph, &order);
                let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Optimal, StopReason::Proved);
                outcome.lower_bound = Some(outcome.makespan);
                return Ok(outcome);
            }
            Exact::Infeasible => return Err(infeasible(graph, request.budget)),
            Exact::GaveUp => {}
        }
        let problem = Problem::new(graph, request.budget);
        let seeds = seeds(graph, request.budget);
        let run = Run { start, limit: request.time_limit, moves: self.iterations };
        let threads = request.threads.clamp(1, 64);
        let found: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|thread| {
                    let (problem, seeds, run) = (&problem, &seeds, &run);
                    let seed = request.seed.wrapping_mul(1_000_003).wrapping_add(thread as u64);
                    scope.spawn(move || run.walk(problem, seeds, seed))
                })
                .collect();
            handles.into_iter().filter_map(|handle| handle.join().ok().flatten()).collect()
        });
        let best = found.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((_, order)) => {
                let outcome = Outcome::of_plan(
                    Self::NAME,
                    graph,
                    plan_of(graph, &order),
                    Status::Feasible,
                    StopReason::TimeLimit,
                );
                request.report(Progress { incumbent: Some(outcome.makespan), lower_bound: None });
                Ok(outcome)
            }
            None => Err(infeasible(graph, request.budget)),
        }
    }
}

/// Most states of the exact search: beyond that annealing does better.
const STATES: usize = 60_000;

fn infeasible(graph: &Graph, budget: u64) -> PlanError {
    let least = minimum(graph);
    PlanError::Infeasible { budget, minimum: Some(least.achieved), blocking_op: Some(least.blocking_op) }
}

/// Orders that fit in the budget, cheapest first; none where no pass succeeds.
fn seeds(graph: &Graph, budget: u64) -> Vec<Vec<OpId>> {
    let step_limit = 40 * graph.ops().len() + 20_000;
    let mut found: Vec<(f64, Vec<OpId>)> = Vec::new();
    for (cost, distance) in [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (1.0, 2.0), (0.0, 1.0), (2.0, 1.0)] {
        if let Some(order) = construct(graph, budget, Policy { cost, distance, step_limit }) {
            found.push((order.iter().map(|&op| graph.ops()[op].cost).sum(), order));
        }
    }
    if found.is_empty() {
        let least = minimum(graph);
        if least.achieved <= budget {
            found.push((0.0, order_of(&least.plan)));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found.into_iter().map(|(_, order)| order).collect()
}

/// How often each thread anneals, and between which temperatures, in mean costs of an op.
const ROUNDS: usize = 2;
const HOT: f64 = 1.0;
const COLD: f64 = 0.01;

struct Run {
    start: Instant,
    limit: Duration,
    moves: Option<u64>,
}

impl Run {
    fn fraction(&self, done: u64) -> f64 {
        let time = self.start.elapsed().as_secs_f64() / self.limit.as_secs_f64().max(1e-9);
        self.moves.map_or(0.0, |moves| done as f64 / moves as f64).max(time)
    }

    fn walk(&self, problem: &Problem<'_>, seeds: &[Vec<OpId>], seed: u64) -> Option<(f64, Vec<OpId>)> {
        let ops = problem.graph.ops();
        let store_all: Vec<OpId> = (0..ops.len()).collect();
        let first = if seeds.is_empty() { &store_all } else { &seeds[seed as usize % seeds.len().min(2)] };
        let mut walk = Walk::new(State::new(problem, first), seed);
        if walk.is_stuck() {
            return walk.best;
        }
        let mean = ops.iter().map(|op| op.cost).sum::<f64>() / ops.len() as f64;
        let mut done = 0;
        for round in 0..ROUNDS {
            let (from, to) = (round as f64 / ROUNDS as f64, (round + 1) as f64 / ROUNDS as f64);
            let heat = HOT * 0.5f64.powi(round as i32);
            if round > 0
                && let Some((_, best)) = walk.best.clone()
            {
                walk.state.load(&best);
            }
            loop {
                let at = (self.fraction(done) - from) / (to - from);
                if at >= 1.0 {
                    break;
                }
                let temperature = mean * heat * (COLD / heat).powf(at.max(0.0));
                walk.run(256, temperature.max(1e-12));
                done += 256;
            }
            if let Some((_, best)) = walk.best.clone() {
                walk.state.load(&best);
                walk.polish();
            }
        }
        log::debug!("search: {done} moves");
        walk.best
    }
}
