//! `checkmate`: the cheapest frontier-advancing schedule, proved (Checkmate, problem (9)).
//!
//! Problem: n ops in n stages, stage t ending with the first computation of op t; choose which values to retain
//! between stages and which ops to compute again within them, at least cost, so that no moment exceeds the budget.
//!
//! Method, in order, each step handing its plan and bound to the next:
//! 1. The greedy segment heuristics, `online` and a short run of `search` give a plan that fits. Plans outside of (9)
//!    are replaced by the cheapest of (9) that retain the same between the stages.
//! 2. The relaxation of the program (see `model`) gives a lower bound, and its rounding
//!    and diving ([`lp_rounding`](super::lp_rounding)) often give the optimum.
//! 3. Every 0-1 column whose reduced cost lifts the bound above the best plan is fixed: what remains is often small.
//! 4. HiGHS solves the integer program from the best plan, to the requested gap or the time limit.
//!
//! The bound is that of the relaxation or of the branch and bound, whichever is higher. The plan comes from the
//! retention alone: its cheapest computations, simulated exactly. The solver works with tolerances; should its
//! schedule exceed the budget by some bytes, the program is solved again with that much less, and the result counts as
//! optimal only if it costs no more than the bound of the first program. All of it runs under `limited`, so that the
//! answer comes soon after the time limit, whatever the solver does.
//!
//! Invariants: the plan fits the budget; the bound holds for all schedules of (9), not for those that compute an op
//! twice between two first computations, which may be cheaper.
//!
//! Complexity: exponential at worst. A graph whose program would not fit in memory is refused.
//!
//! Larger than the rule: `run`, because it is the four steps above in order, each of which may be the last.

pub(super) mod answers;
pub(super) mod model;
pub(super) mod program;
pub(super) mod solver;

use std::time::Duration;

use self::answers::{failed, largest_model, too_large};
use self::model::{Knapsacks, Model, estimated_entries};
use self::program::Term;
use self::solver::{End, Relaxation, RelaxationSolver, Relaxed, solve_integer};
use super::incumbent::Incumbent;
use super::limited::{Latest, within_limit};
use super::lp_rounding::{dive, round};
use super::segments::Segments;
use super::{Online, Search};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::frontier::{computations, retention_of};
use crate::graph::Graph;
use crate::need::is_too_little;
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};
use crate::sequence::compute_order;
use crate::views::without_alternatives;

const NAME: &str = "checkmate";

/// How long `search` looks for a first plan, per entry of the program; at most a tenth of the time limit.
const SEARCH_TIME_PER_ENTRY: Duration = Duration::from_micros(4);

/// How often the program is solved again with a smaller budget if the solver's tolerance exceeded the budget.
const RETRIES: usize = 3;

/// The cheapest frontier-advancing schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checkmate;

impl Planner for Checkmate {
    fn name(&self) -> &'static str {
        NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        within_limit(NAME, graph, request, solve)
    }
}

fn solve(graph: &Graph, request: &Request, latest: &Latest) -> Result<Outcome, PlanError> {
    let deadline = request.deadline();
    let greedy = Request { time_limit: request.time_limit / 10, ..request.clone() };
    let mut incumbent = Incumbent::new(graph, request.budget);
    if let Some(outcome) = incumbent.outcome(NAME, Status::Optimal, StopReason::Proved, None)? {
        return Ok(outcome);
    }
    Segments::new(graph).offer_greedy(&mut incumbent, &greedy);
    Segments::at_articulation_points(graph).offer_greedy(&mut incumbent, &greedy);
    if is_too_little(graph, request.budget) {
        return Err(incumbent.infeasible());
    }
    let entries = estimated_entries(graph);
    if entries > largest_model(request) {
        return Err(too_large(NAME, graph, request));
    }
    let mut solve = Solve { graph, request, deadline, latest, incumbent, bound: None };
    solve.report()?;
    solve.offer_image(&Online, request.time_limit / 10);
    solve.report()?;
    solve.offer_image(&Search::default(), SEARCH_TIME_PER_ENTRY.mul_f64(entries as f64).min(request.time_limit / 10));
    solve.report()?;
    solve.run()
}

/// The steps of one solve and what they have found.
struct Solve<'a> {
    graph: &'a Graph,
    request: &'a Request,
    deadline: Deadline,
    latest: &'a Latest,
    incumbent: Incumbent<'a>,
    bound: Option<f64>,
}

impl Solve<'_> {
    /// Offers the frontier-advancing plan that retains between the stages what another planner's plan does.
    fn offer_image(&mut self, planner: &dyn Planner, time_limit: Duration) {
        let request = Request { time_limit, progress: None, ..self.request.clone() };
        // The model knows only the default implementations.
        let graph = without_alternatives(self.graph);
        if let Ok(Outcome { plan: Some(plan), .. }) = planner.solve(&graph, &request) {
            self.incumbent.offer(&computations(self.graph, &retention_of(self.graph, &compute_order(&plan))));
            log::debug!("{NAME}: after the plan of {}, the best cost is {:?}", planner.name(), self.incumbent.cost());
        }
    }

    fn run(mut self) -> Result<Outcome, PlanError> {
        let relaxed = Model::new(self.graph, self.request.budget, self.request.budget, Knapsacks::Omit);
        let start = Moment::now();
        let mut solver =
            RelaxationSolver::new(&relaxed, self.request, self.deadline).map_err(|status| failed(NAME, status))?;
        let relaxation = match solver.solve(0.0).map_err(|status| failed(NAME, status))? {
            Relaxed::Infeasible => return Err(self.incumbent.infeasible()),
            Relaxed::OutOfTime => return self.stopped(),
            Relaxed::Solved(relaxation) => relaxation,
        };
        self.bound = Some(relaxation.cost);
        round(self.graph, &relaxed, &relaxation, &mut self.incumbent, self.request, self.deadline);
        self.report()?;
        log::debug!("{NAME}: the relaxation costs {}, its rounding {:?}", relaxation.cost, self.incumbent.cost());
        if !self.is_closed() {
            let limit = self.deadline.within(start.elapsed().max(Duration::from_secs(1)));
            dive(self.graph, &relaxed, &mut solver, &relaxation, &mut self.incumbent, limit)
                .map_err(|status| failed(NAME, status))?;
            log::debug!("{NAME}: diving reached {:?} after {:?}", self.incumbent.cost(), start.elapsed());
            self.report()?;
        }
        drop(solver);
        if self.is_closed() {
            return self.finished();
        }
        let mut shortfall = 0;
        for attempt in 0..=RETRIES {
            if self.deadline.passed() {
                return self.stopped();
            }
            let budget = self.request.budget.saturating_sub(shortfall);
            let model = Model::new(self.graph, budget, budget, Knapsacks::Include);
            // Both models have the same decisions unless the budget differs.
            let fixings = if attempt == 0 { self.fixings(&relaxed, &model, &relaxation) } else { Vec::new() };
            let start = self.start(&model);
            let result = solve_integer(&model.program, &fixings, start.as_deref(), self.request, self.deadline)
                .map_err(|status| failed(NAME, status))?;
            if attempt == 0 {
                self.raise_bound(result.end, result.bound);
            }
            let excess = match &result.numbers {
                Some(numbers) => {
                    let retention = model.retention(numbers, |number, _, _| number > 0.5);
                    self.incumbent.offer(&computations(self.graph, &retention)).saturating_sub(self.request.budget)
                }
                None => 0,
            };
            self.report()?;
            match result.end {
                _ if self.is_closed() => return self.finished(),
                End::Limit => return self.stopped(),
                _ if excess > 0 => shortfall += excess,
                End::Infeasible if attempt == 0 && self.incumbent.best().is_none() => {
                    return Err(self.incumbent.infeasible());
                }
                _ => break,
            }
        }
        // Within the solver's tolerance of the budget, nothing more can be decided.
        match self.incumbent.outcome(NAME, Status::Feasible, StopReason::Heuristic, self.bound)? {
            Some(outcome) => Ok(outcome),
            None => Ok(Outcome::without_plan(NAME, self.incumbent.general_bound(self.bound))),
        }
    }

    /// Columns that cannot differ from their relaxed bound in any schedule cheaper than the best known.
    fn fixings(&self, relaxed: &Model, model: &Model, relaxation: &Relaxation) -> Vec<(usize, f64)> {
        let Some(cost) = self.incumbent.cost() else { return Vec::new() };
        let room = cost - relaxation.cost + 1e-6 * cost.abs();
        let mut fixings = Vec::new();
        let mut consider = |before: Term, after: Term| {
            if let (Term::Column(before), Term::Column(after)) = (before, after)
                && relaxation.reduced_costs[before].abs() > room
            {
                fixings.push((after, relaxation.numbers[before].round().clamp(0.0, 1.0)));
            }
        };
        for stage in 0..self.graph.ops().len() {
            for op in 0..=stage {
                consider(relaxed.computed(stage, op), model.computed(stage, op));
            }
            for value in 0..self.graph.values().len() {
                consider(relaxed.retained(stage, value), model.retained(stage, value));
            }
        }
        log::debug!("{NAME}: {} of {} columns fixed by reduced cost", fixings.len(), model.program.columns.len());
        fixings
    }

    /// The best plan as numbers of the columns.
    fn start(&self, model: &Model) -> Option<Vec<f64>> {
        let best = self.incumbent.best()?;
        Some(model.values_of(self.graph, &compute_order(&best.plan)))
    }

    fn raise_bound(&mut self, end: End, bound: Option<f64>) {
        // Without a solution below the best plan's cost, that cost is the optimum.
        let proved = if end == End::Infeasible { self.incumbent.cost() } else { bound };
        // Schedules that were fixed away cost at least as much as the best plan at that time.
        let proved = proved.map(|bound| self.incumbent.cost().map_or(bound, |cost| bound.min(cost)));
        self.bound = self.bound.into_iter().chain(proved).reduce(f64::max);
    }

    fn is_closed(&self) -> bool {
        let (Some(cost), Some(bound)) = (self.incumbent.cost(), self.bound) else { return false };
        cost - bound <= self.request.gap.max(1e-7) * cost.abs()
    }

    fn report(&self) -> Result<(), PlanError> {
        let bound = self.bound.unwrap_or_else(|| self.incumbent.least_cost());
        self.request.report(Progress { incumbent: self.incumbent.cost(), lower_bound: Some(bound) });
        self.latest.set(self.stopped()?);
        Ok(())
    }

    /// The outcome when the gap is closed.
    fn finished(&self) -> Result<Outcome, PlanError> {
        let (cost, bound) = (self.incumbent.cost().unwrap_or(0.0), self.bound.unwrap_or(0.0));
        let proved = cost - bound <= 1e-7 * cost.abs();
        let reason = if proved { StopReason::Proved } else { StopReason::Gap };
        let outcome = self.incumbent.outcome(NAME, Status::Optimal, reason, self.bound)?;
        outcome.ok_or_else(|| PlanError::Internal { planner: NAME, reason: "it closed a gap with no plan".to_owned() })
    }

    /// The outcome at the time limit.
    fn stopped(&self) -> Result<Outcome, PlanError> {
        let outcome = self.incumbent.outcome(NAME, Status::Feasible, StopReason::TimeLimit, self.bound)?;
        Ok(outcome.unwrap_or_else(|| Outcome::without_plan(NAME, self.incumbent.general_bound(self.bound))))
    }
}
