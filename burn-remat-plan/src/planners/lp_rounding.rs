//! `lp-rounding`: the LP relaxation of problem (9), rounded in two phases (Checkmate, section 5).
//!
//! Problem: (9) is an integer program; beyond a few hundred ops only its relaxation can be solved.
//!
//! Method: solve the relaxation with the budget (1 - ε) B. Phase one rounds the retention S alone; phase two gives it
//! its cheapest computations R ([`computations`], Algorithm 2), so that only the budget can still be violated, which an
//! exact simulation checks. S is rounded
//! - deterministically, retained where S > θ, for thresholds θ from 0.02 to 0.98;
//! - at random: each entry with probability S, as in the paper's appendix D, and with one threshold for all stages of a
//!   value, which keeps spans of stages together; the draws depend on the request's seed;
//! - step by step: the fractions nearest to 1 are rounded up, the relaxation is solved again from its basis, and so on,
//!   for at most as long as the first solve took. Once S is whole, the relaxation's R is the cheapest for it.
//!
//! The allowance ε grows from 0 in steps up to 0.4, each solve starting from the basis of the last, and stops when the
//! relaxation itself costs as much as the best plan. The relaxation at ε = 0 is a lower bound for every schedule of
//! (9).
//!
//! Departures: the paper uses ε = 0.1 and θ = 0.5 and proposes the search; the formulation is that of
//! [`checkmate`](super::checkmate), whose relaxation is tighter.
//!
//! Complexity: a handful of LPs with O(ops (values + uses)) entries; each rounding is linear in the size of S plus the
//! steps of its plan. A graph whose program would not fit in memory is refused.

use std::time::Duration;

use highs::HighsStatus;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::checkmate::answers::{failed, largest_model, too_large};
use super::checkmate::model::{Knapsacks, Model, estimated_entries};
use super::checkmate::solver::{Relaxation, RelaxationSolver, Relaxed};
use super::incumbent::Incumbent;
use super::limited::{Latest, within_limit};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::frontier::computations;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};

const NAME: &str = "lp-rounding";

/// Shares of the budget that the relaxation does not get, in the order in which they are tried.
const ALLOWANCES: [f64; 9] = [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4];

/// Thresholds of the deterministic rounding, in hundredths.
const THRESHOLDS: [u32; 15] = [50, 40, 60, 30, 70, 20, 80, 10, 90, 5, 95, 2, 98, 45, 55];

/// One part in this many of the fractions is rounded up in each step of a dive.
const DIVE_PART: usize = 8;

/// Dead ends after which a dive gives up.
const MOST_FAILURES: usize = 12;

/// Draws of each kind of random rounding, per allowance.
const DRAWS: usize = 24;

/// Rounds the relaxation of problem (9).
#[derive(Clone, Copy, Debug, Default)]
pub struct LpRounding;

impl Planner for LpRounding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        within_limit(NAME, graph, request, solve)
    }
}

fn solve(graph: &Graph, request: &Request, latest: &Latest) -> Result<Outcome, PlanError> {
    let start = Moment::now();
    let deadline = request.deadline();
    let mut incumbent = Incumbent::new(graph, request.budget);
    if let Some(outcome) = incumbent.outcome(NAME, Status::Optimal, StopReason::Proved, None)? {
        return Ok(outcome);
    }
    if estimated_entries(graph) > largest_model(request) {
        return Err(too_large(NAME, graph, request));
    }
    let least = (request.budget as f64 * (1.0 - ALLOWANCES[ALLOWANCES.len() - 1])) as u64;
    let model = Model::new(graph, request.budget, least, Knapsacks::Omit);
    let mut solver = RelaxationSolver::new(&model, request, deadline).map_err(|status| failed(NAME, status))?;
    let mut bound = None;
    let mut reason = StopReason::Heuristic;
    for allowance in ALLOWANCES {
        let shortfall = allowance * request.budget as f64;
        match solver.solve(shortfall).map_err(|status| failed(NAME, status))? {
            Relaxed::Infeasible if bound.is_none() => return Err(incumbent.infeasible()),
            Relaxed::Infeasible => break,
            Relaxed::OutOfTime => {
                reason = StopReason::TimeLimit;
                break;
            }
            Relaxed::Solved(relaxation) => {
                let bound = *bound.get_or_insert(relaxation.cost);
                if incumbent.cost().is_some_and(|cost| relaxation.cost >= cost) {
                    break;
                }
                round(graph, &model, &relaxation, &mut incumbent, request, deadline);
                if allowance == 0.0 {
                    let limit = deadline.within(start.elapsed().max(Duration::from_secs(1)));
                    dive(graph, &model, &mut solver, &relaxation, &mut incumbent, limit)
                        .map_err(|status| failed(NAME, status))?;
                }
                let stopped = incumbent.outcome(NAME, Status::Feasible, StopReason::TimeLimit, Some(bound))?;
                latest
                    .set(stopped.unwrap_or_else(|| Outcome::without_plan(NAME, incumbent.general_bound(Some(bound)))));
                request.report(Progress { incumbent: incumbent.cost(), lower_bound: Some(bound) });
                log::debug!("{NAME}: allowance {allowance}: relaxed {}, best {:?}", relaxation.cost, incumbent.cost());
            }
        }
    }
    match incumbent.outcome(NAME, Status::Feasible, reason, bound)? {
        Some(outcome) => Ok(outcome),
        None if reason == StopReason::TimeLimit => Ok(Outcome::without_plan(NAME, incumbent.general_bound(bound))),
        None => Err(incumbent.infeasible()),
    }
}

/// Rounds up the entries of S that are nearest to 1, an eighth of the fractions at a time, and solves the relaxation
/// again, until S is whole, it costs too much, or time is up. Leaves the columns free as they were.
pub(super) fn dive(
    graph: &Graph,
    model: &Model,
    solver: &mut RelaxationSolver<'_>,
    relaxation: &Relaxation,
    incumbent: &mut Incumbent<'_>,
    deadline: Deadline,
) -> Result<(), HighsStatus> {
    let decisions: Vec<usize> = model.retained_columns().collect();
    let mut numbers = relaxation.numbers.clone();
    let mut failures = 0;
    while failures < MOST_FAILURES && !deadline.passed() {
        let is_fraction = |number: f64| (1e-6..=1.0 - 1e-6).contains(&number);
        let mut fractions: Vec<usize> = decisions.iter().copied().filter(|&c| is_fraction(numbers[c])).collect();
        if fractions.is_empty() {
            break;
        }
        fractions.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]).then(a.cmp(&b)));
        fractions.truncate(fractions.len().div_ceil(DIVE_PART));
        solver.bound(&fractions, 1.0, 1.0);
        let mut result = solver.solve_again(deadline)?;
        if matches!(result, Relaxed::Infeasible) {
            // Too many at once, or the very first one cannot be retained: exclude that one.
            failures += 1;
            solver.bound(&fractions, 0.0, 1.0);
            solver.bound(&fractions[..1], 0.0, 0.0);
            result = solver.solve_again(deadline)?;
        }
        let Relaxed::Solved(next) = result else { break };
        numbers = next.numbers;
        for threshold in [0.5, 0.3, 0.7] {
            incumbent.offer(&computations(graph, &model.retention(&numbers, |number, _, _| number > threshold)));
        }
        if incumbent.cost().is_some_and(|cost| next.cost >= cost) {
            break;
        }
    }
    solver.bound(&decisions, 0.0, 1.0);
    Ok(())
}

/// Offers the roundings of one relaxation.
pub(super) fn round(
    graph: &Graph,
    model: &Model,
    relaxation: &Relaxation,
    incumbent: &mut Incumbent<'_>,
    request: &Request,
    deadline: Deadline,
) {
    let numbers = &relaxation.numbers;
    for threshold in THRESHOLDS {
        let threshold = f64::from(threshold) / 100.0;
        incumbent.offer(&computations(graph, &model.retention(numbers, |number, _, _| number > threshold)));
        if deadline.passed() {
            return;
        }
    }
    let mut random = ChaCha8Rng::seed_from_u64(request.seed);
    for _ in 0..DRAWS {
        incumbent
            .offer(&computations(graph, &model.retention(numbers, |number, _, _| random.random::<f64>() < number)));
        let thresholds: Vec<f64> = graph.values().iter().map(|_| random.random()).collect();
        incumbent.offer(&computations(
            graph,
            &model.retention(numbers, |number, _, value| number > thresholds[value].max(1e-6)),
        ));
        if deadline.passed() {
            return;
        }
    }
}
