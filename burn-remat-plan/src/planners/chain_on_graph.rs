//! Chain planners on graphs: plan the [chain of stages](crate::views::chain_of), turn the schedule into a plan of the graph, keep the best.
//!
//! Every candidate view is planned. The plan of a view is measured on the graph itself, so values that the view counts twice
//! may cost a better plan, but never make a plan invalid. If keeping everything fits, that is the plan.
//!
//! If saved sets may be kept, stages with several saved sets each ([`chain_sets`]) are planned first, which gives much
//! cheaper plans where stages hold values that cost little to compute again. Views with whole saved sets then get a coarse
//! table, and the fine one, in which equal stages share no rows, only if the coarse plan comes near the best.

use super::StoreAll;
use super::chain_persistent::{EASY_CELLS, coarse_steps, least_memory_schedule, solve_terms};
use super::chain_sets;
use super::chain_table::Choices;
use super::store_all::peak_op;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::need::is_too_little;
use crate::plan::Plan;
use crate::planner::{Outcome, Planner, Request, Status, StopReason};
use crate::simulate::simulate;
use crate::views::chain_of::ChainView;

/// Cells of the table if only inputs may be kept: a quick baseline, limited more by the view of the graph than by the slots.
const QUICK_CELLS: usize = 1 << 20;

/// The share of the time in which stages with several saved sets are planned.
const SETS_TIME: f64 = 0.6;
/// If a view's coarse plan costs more than the best by this share, its fine plan is taken to cost more too.
const NEAR: f64 = 0.02;

/// The schedules of least memory of every candidate view: with inputs of stages as checkpoints, and with saved sets.
/// Their peaks on the graph may differ from what the view counts. None is added after the deadline.
pub(crate) fn least_memory_plans(graph: &Graph, deadline: Deadline) -> Vec<Plan> {
    let views = ChainView::candidates(graph);
    let views = views.iter().filter(|view| view.stages().len() > 1);
    let cases = views.flat_map(|view| [(view, Choices::InputsOnly), (view, Choices::SavedAndInputs)]);
    let steps = |(view, choices): (&ChainView, Choices)| least_memory_schedule(view.terms(), choices, deadline);
    cases.filter_map(|case| Some(case.0.plan(graph, &steps(case)?))).collect()
}

/// Plans `graph` as a chain for the planner called `name`.
pub(super) fn solve(
    name: &'static str,
    choices: Choices,
    graph: &Graph,
    request: &Request,
) -> Result<Outcome, PlanError> {
    if let Ok(outcome) = StoreAll.solve(graph, request) {
        return Ok(Outcome { planner: name.to_owned(), ..outcome });
    }
    let views = ChainView::candidates(graph);
    if views.iter().all(|view| view.stages().len() < 2) {
        let reason = "its forward pass has no place that only a single value crosses, so it is not a chain of stages; \
                      use `search` or `checkmate`";
        return Err(PlanError::Unsupported { planner: name, reason: reason.to_owned() });
    }
    let mut contest = Contest { name, choices, graph, request, deadline: request.deadline(), best: None, least: None };
    if choices == Choices::SavedAndInputs {
        contest.try_saved_sets();
    }
    for view in &views {
        if contest.deadline.passed() || (!contest.is_hopeless(view) && contest.try_whole_sets(view).is_none()) {
            break;
        }
    }
    contest.end()
}

/// The plans of the views, and the request that they are for.
struct Contest<'a> {
    name: &'static str,
    choices: Choices,
    graph: &'a Graph,
    request: &'a Request,
    deadline: Deadline,
    /// The cheapest plan within the budget.
    best: Option<Outcome>,
    /// Peak and plan of the one with the lowest peak, among those above the budget.
    least: Option<(u64, Plan)>,
}

impl Contest<'_> {
    /// The request with the time that is left and the part of the budget that is left for a chain's values.
    fn rest(&self) -> Request {
        let budget = self.request.budget.saturating_sub(self.graph.constant_bytes());
        Request { budget, time_limit: self.deadline.left(), ..self.request.clone() }
    }

    fn offer(&mut self, outcome: Outcome) {
        if outcome.peak_bytes > self.request.budget {
            if self.least.as_ref().is_none_or(|least| outcome.peak_bytes < least.0) {
                self.least = outcome.plan.map(|plan| (outcome.peak_bytes, plan));
            }
        } else if self.best.as_ref().is_none_or(|best| outcome.makespan < best.makespan) {
            self.best = Some(outcome);
        }
    }

    /// Tries stages with several saved sets each for a part of the time: tables of whole sets may find plans that these do not.
    fn try_saved_sets(&mut self) {
        let request = Request { time_limit: self.deadline.left().mul_f64(SETS_TIME), ..self.request.clone() };
        if let Some(plan) = chain_sets::best_plan(self.graph, &request) {
            self.offer(Outcome::of_plan(self.name, self.graph, plan, Status::Feasible, StopReason::Heuristic));
        }
    }

    /// Whether a coarse schedule of `view` shows that the whole table would not improve on the best plan.
    fn is_hopeless(&self, view: &ChainView) -> bool {
        let Some(best) = &self.best else { return false };
        if self.choices == Choices::InputsOnly {
            return false;
        }
        let Some(steps) = coarse_steps(view.terms(), self.choices, &self.rest()) else { return true };
        let plan = view.plan(self.graph, &steps);
        let makespan = simulate(self.graph, &plan).makespan;
        makespan > best.makespan * (1.0 + NEAR)
    }

    /// Tries the table of whole saved sets of `view`; `None` if there was no time for it.
    fn try_whole_sets(&mut self, view: &ChainView) -> Option<()> {
        let cells = if self.choices == Choices::InputsOnly { QUICK_CELLS } else { EASY_CELLS };
        let (steps, reason) = match solve_terms(view.terms(), self.choices, &self.rest(), cells) {
            Ok(found) => found.map(|found| (found.steps, found.stop_reason))?,
            Err(shortage) => (shortage.steps, StopReason::Heuristic),
        };
        let reason = if reason == StopReason::TimeLimit { reason } else { StopReason::Heuristic };
        let plan = view.plan(self.graph, &steps);
        self.offer(Outcome::of_plan(self.name, self.graph, plan, Status::Feasible, reason));
        Some(())
    }

    fn end(self) -> Result<Outcome, PlanError> {
        let (graph, request) = (self.graph, self.request);
        let proven = is_too_little(graph, request.budget);
        match self.best {
            Some(mut best) => {
                if self.deadline.passed() && best.stop_reason == StopReason::Heuristic {
                    best.stop_reason = StopReason::TimeLimit;
                }
                Ok(best)
            }
            None if self.deadline.passed() && !proven => Ok(Outcome::without_plan(self.name, None)),
            None => Err(PlanError::Infeasible {
                budget: request.budget,
                minimum: self.least.as_ref().map(|least| least.0),
                blocking_op: self.least.and_then(|(_, plan)| peak_op(graph, &plan)),
                proven,
            }),
        }
    }
}
