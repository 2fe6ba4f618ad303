//! Search over general schedules: any value may be evicted and computed again, anywhere and any number of times, and every
//! computation, first or later, may be by any implementation of its op; only first computations keep the program's order.
//!
//! 1. *Trivial cases.* Where the store-all schedule in the cheapest implementations fits, it is the answer; a budget below
//!    the certified half of [`minimum`](mod@crate::minimum) has none.
//! 2. *Small graphs* are solved exactly (`exact.rs`): Dijkstra over resident sets, to 60,000 states and 64 values.
//! 3. *Starts.* Constructive passes (`construct.rs`) run the program once and evict by cost, size and next use: they
//!    and the quick planners `online` and (to 2,000 ops) `ap-greedy`, `linear-greedy` and `chain-dp` give a plan that
//!    fits, so that the answer is never worse than what they reach in a tenth of the time. Beyond 300 ops a table over the chain of
//!    the network's blocks gives another (`spine.rs`). The relaxation behind
//!    [`lower_bound`](mod@crate::lower_bound), for the single most telling moment, says which values to keep there, and
//!    which implementations to choose from there on: following it (`seeds.rs`) gives an order that is nearly optimal and
//!    may be a little over the budget. Where ops have alternatives, the whole search first plans the graph without them
//!    (`joint.rs`), and that plan takes the place of the constructive passes.
//! 4. *Walks* (`anneal.rs`) from both, on every thread, at several temperatures that trade places (parallel tempering,
//!    `rounds.rs`). A move changes a handful of computations; memory and cost follow in time little more than
//!    proportional to the change (`state.rs`, `blocks.rs`). Where there is a choice, three moves in ten change the
//!    implementation of a computation (`problem.rs` has the *ways* in which an op may run). How much a move may lose is drawn before it is made, so
//!    that one which is sure to lose more ends before it costs much: that halves the time of a move.
//! 5. *Bound.* The last thread first spends up to 30% of the time (10% where it is the only one) on the search of states
//!    and up to 15% on the joint relaxation of several moments, both in [`lower_bound`](mod@crate::lower_bound). The
//!    search ends when a plan meets the bound.
//!
//! A plan computes every op. So one that only an alternative reads (to pack a value, say) runs once even where nothing
//! chooses that alternative; its outputs then go at once.
//!
//! Only orders of computations, each with its implementation, are searched: evictions follow from them (see
//! [`sequence`](mod@crate::sequence)), so nothing is ever resident longer than of use.
//!
//! Invariants: a plan is returned only if it fits; where the constructive pass, `revolve`, `chain-dp`, `online` or `minimum`
//! finds one, there is one. With
//! [`Search::with_iterations`] the plan depends on graph, budget, seed and threads alone as long as the time limit is
//! not met; with a time limit alone it depends on the machine too. So limited, it is never dearer than the plan for the
//! graph without its alternatives.
//!
//! Complexity: anytime. Memory O(threads x (ops + uses)) and that of the relaxation (some 60 bytes per entry).
//!
//! Beyond 3,000 ops a thread has one walk, which begins at the best of these plans, polished; the relaxation's order only where it is nearly
//! within the budget.
//!
//! Idea of intervals and of a wider class than Checkmate's problem (9): Bartan et al. 2023 (Moccasin) and this project;
//! parallel tempering: Swendsen & Wang 1986, Geyer 1991. What each part contributes (BENCHMARKS.md has the table):
//! `cargo run --release --example search_tables -- ablation FOLDER`.

pub(crate) mod anneal;
mod blocks;
pub(crate) mod construct;
pub(crate) mod exact;
mod joint;
mod problem;
mod rounds;
mod seeds;
pub(crate) mod spine;
pub(crate) mod state;

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::chain_search;
use crate::chain::{Chain, ChainOutcome};
use crate::choice::{Choice, has_alternatives};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::lower_bound::{Effort, StateEffort, hints, joint_bound, state_bound};
use crate::minimum::{Minimum, is_too_little, minimum};
use crate::plan::Plan;
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};
use crate::sequence::{choices_of, plan_of_choices};
use crate::simulate::simulate;
use anneal::Without;
use exact::{Exact, exact};
use problem::Problem;
use rounds::{Clock, MOST_LADDER_OPS};

/// The anytime planner over general schedules: see the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Search {
    starts: Vec<Plan>,
    iterations: Option<u64>,
    without: Without,
    without_hints: bool,
    without_exact: bool,
}

/// A part of the search that can be left out, to see what it contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The exact solution of small graphs.
    Exact,
    /// The start from the solution of the relaxation.
    Hints,
    /// Moves that keep one value and evict another at once.
    Swaps,
    /// Moves of a repeat to another position.
    Shifts,
    /// Having repeats that run early because a value goes wait, once it stays.
    Postponing,
    /// Dropping the later repeats that a new one can stand in for.
    Merges,
    /// Exchanging many repeats for one at low temperature.
    Repacking,
    /// Walks at several temperatures that trade places; without, each thread has one that cools.
    Ladder,
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

    /// Leaves out a part, for ablations.
    #[must_use]
    pub fn without(mut self, part: Part) -> Self {
        match part {
            Part::Exact => self.without_exact = true,
            Part::Hints => self.without_hints = true,
            Part::Swaps => self.without.swap = true,
            Part::Shifts => self.without.shift = true,
            Part::Postponing => self.without.postpone = true,
            Part::Merges => self.without.merge = true,
            Part::Repacking => self.without.repack = true,
            Part::Ladder => self.without.ladder = true,
        }
        self
    }

    /// Has the walks start from these plans too, as far as they fit: the answer is no dearer than any of them.
    #[must_use]
    pub fn from_plans(mut self, plans: Vec<Plan>) -> Self {
        self.starts = plans;
        self
    }

    fn anneal(&self, graph: &Graph, request: &Request, start: Instant) -> Result<Outcome, PlanError> {
        let limit = request.time_limit.min(Duration::from_secs(86_400 * 365));
        let is_joint = has_alternatives(graph);
        let fitting = self.starts.iter().filter(|plan| simulate(graph, plan).peak_bytes <= request.budget);
        let mut feasible: Vec<Vec<Choice>> = fitting.map(choices_of).collect();
        feasible.extend(if is_joint {
            joint::start(self, graph, &Request { time_limit: limit.mul_f64(joint::PLAIN_SHARE), ..request.clone() })
        } else {
            seeds::feasible(graph, request, start + limit.mul_f64(0.1)).map(seeds::by_default)
        });
        let smallest = feasible.is_empty().then(|| minimum(graph));
        let fits = smallest.iter().filter(|least| least.achieved <= request.budget);
        feasible.extend(fits.map(|least| choices_of(&least.plan)));
        // What choosing comes on top of has had its time.
        let start = if is_joint { Instant::now() } else { start };
        let limit = if is_joint { limit.mul_f64(1.0 - joint::PLAIN_SHARE) } else { limit };
        let problem = Problem::new(graph, request.budget);
        let cost = |order: &Vec<Choice>| order.iter().map(|choice| choice.cost(graph)).sum::<f64>();
        if is_joint || graph.ops().len() > MOST_LADDER_OPS {
            let late = start + limit.mul_f64(if is_joint { 0.1 } else { 0.3 });
            feasible.iter_mut().for_each(|order| *order = seeds::polished(&problem, order, late));
        }
        feasible.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        let mut clock = Clock { start, limit, moves: self.iterations, gap: request.gap, bound: AtomicU64::new(0) };
        // The bound may work on the clock alone, or with a limit on moves on iterations alone.
        let effort = |share: f64| match self.iterations {
            None => Effort { time_limit: clock.left().min(limit.mul_f64(share)), ..Effort::time(limit) },
            Some(_) => Effort { iterations: 1000, ..Effort::time(clock.left()) },
        };
        let (bound, hints) = hints(graph, request.budget, effort(0.1));
        let hints = hints.iter().take(usize::from(!self.without_hints));
        let mut starts: Vec<Vec<Choice>> = hints.map(|hint| seeds::follow(graph, hint)).collect();
        if graph.ops().len() > MOST_LADDER_OPS && !feasible.is_empty() {
            // A walk by itself has no time to bring within the budget what is far above it.
            let most = request.budget as f64 * MOST_OVER;
            starts.retain(|order| simulate(graph, &plan_of_choices(graph, order)).peak_bytes as f64 <= most);
        }
        starts.extend_from_slice(&feasible);
        if starts.is_empty() {
            starts.push((0..graph.ops().len()).map(Choice::default_of).collect());
        }
        let joint = effort(0.15);
        let share = if request.threads > 1 { STATES_SHARE } else { STATES_SHARE / 3.0 };
        let states = StateEffort {
            states: if self.iterations.is_some() { 500 } else { usize::MAX },
            enough: feasible.first().map_or(f64::INFINITY, cost),
            ..StateEffort::time(effort(share).time_limit)
        };
        *clock.bound.get_mut() = bound.to_bits();
        let aside = || {
            clock.raise(state_bound(graph, request.budget, states));
            if clock.bound() < states.enough {
                clock.raise(joint_bound(graph, request.budget, joint));
            }
            request.report(Progress { incumbent: None, lower_bound: Some(clock.bound()) });
        };
        let threads = request.threads.clamp(1, 64);
        let report = |cost| {
            request.report(Progress { incumbent: Some(cost), lower_bound: Some(clock.bound()) });
        };
        let walks = (request.seed, threads, self.without);
        let found = rounds::walk(&problem, &clock, &starts, walks, aside, report);
        // Not every start has a walk of its own.
        let least = feasible.into_iter().next().map(|order| (cost(&order), order));
        match found.into_iter().chain(least).min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, order)) => Ok(self.outcome(graph, plan_of_choices(graph, &order), request, &clock)),
            None => Err(infeasible(&smallest.unwrap_or_else(|| minimum(graph)), request.budget, false)),
        }
    }

    fn outcome(&self, graph: &Graph, plan: Plan, request: &Request, clock: &Clock) -> Outcome {
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
        let proven = |order: &[Choice]| {
            let plan = plan_of_choices(graph, order);
            let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Optimal, StopReason::Proved);
            outcome.lower_bound = Some(outcome.makespan);
            outcome
        };
        let cheapest = seeds::cheapest(graph);
        if simulate(graph, &plan_of_choices(graph, &cheapest)).peak_bytes <= request.budget {
            return Ok(proven(&cheapest));
        }
        if is_too_little(graph, request.budget) {
            return Err(infeasible(&minimum(graph), request.budget, true));
        }
        let states = if self.without_exact { 0 } else { STATES };
        match exact(graph, request.budget, states, start.checked_add(request.time_limit)) {
            Exact::Optimal(order) => Ok(proven(&order)),
            Exact::Infeasible => Err(infeasible(&minimum(graph), request.budget, true)),
            Exact::GaveUp => self.anneal(graph, request, start),
        }
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        chain_search::solve_chain(Self::NAME, chain, request)
    }
}

/// The part of the time that the last of several threads spends on the search of states for a bound.
const STATES_SHARE: f64 = 0.3;

/// How far above the budget an order may be for a walk that has no others beside it to begin there.
const MOST_OVER: f64 = 1.3;

/// Most states of the exact search: beyond that annealing does better.
const STATES: usize = 60_000;

/// No plan was found; `exhausted` where all schedules were tried.
fn infeasible(least: &Minimum, budget: u64, exhausted: bool) -> PlanError {
    PlanError::Infeasible {
        budget,
        minimum: Some(least.achieved),
        blocking_op: least.op(),
        proven: exhausted || budget < least.lower_bound,
    }
}
