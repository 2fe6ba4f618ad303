//! `lp-rounding`: the LP relaxation of problem (9), rounded in two phases (Checkmate, section 5).
//!
//! Problem: (9) is an integer program; beyond a few hundred ops only its relaxation can be solved.
//!
//! Method: solve the relaxation with the budget (1 - ε) B. Phase one rounds the retention S alone; phase two gives it
//! its cheapest computations R ([`computations`], Algorithm 2), so that only the budget can still be violated, which an
//! exact simulation decides. S is rounded
//! - deterministically, retained where S > θ, for thresholds θ from 0.02 to 0.98;
//! - at random: each entry with probability S, as in the paper's appendix D, and with one threshold for all stages of a
//!   value, which keeps spans of stages together; the draws follow the request's seed.
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

use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::checkmate::model::{Knapsacks, Model, estimated_entries};
use super::checkmate::solver::{Deadline, Relaxation, RelaxationSolver, Relaxed};
use super::checkmate::{LARGEST_MODEL, failed, too_large};
use super::incumbent::Incumbent;
use crate::error::PlanError;
use crate::frontier::computations;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};

const NAME: &str = "lp-rounding";

/// Shares of the budget that the relaxation does not get, in the order in which they are tried.
const ALLOWANCES: [f64; 9] = [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4];

/// Thresholds of the deterministic rounding, in hundredths.
const THRESHOLDS: [u32; 15] = [50, 40, 60, 30, 70, 20, 80, 10, 90, 5, 95, 2, 98, 45, 55];

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
        let deadline = Deadline::new(Instant::now(), request.time_limit);
        let mut incumbent = Incumbent::new(graph, request.budget);
        if let Some(outcome) = incumbent.outcome(NAME, Status::Optimal, StopReason::Proved, None) {
            return Ok(outcome);
        }
        if estimated_entries(graph) > LARGEST_MODEL {
            return Err(too_large(NAME, graph));
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
                    request.report(Progress { incumbent: incumbent.cost(), lower_bound: Some(bound) });
                    log::debug!(
                        "{NAME}: allowance {allowance}: relaxed {}, best {:?}",
                        relaxation.cost,
                        incumbent.cost()
                    );
                }
            }
        }
        match incumbent.outcome(NAME, Status::Feasible, reason, bound) {
            Some(outcome) => Ok(outcome),
            None if reason == StopReason::TimeLimit => Ok(super::checkmate::no_solution(NAME, bound)),
            None => Err(incumbent.infeasible()),
        }
    }
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
