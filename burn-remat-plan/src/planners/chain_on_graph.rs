//! Chain planners on graphs: plan the [chain of stages](crate::views::chain_of), turn the schedule back, keep the best.
//!
//! Every candidate view is planned. The plan of a view is measured on the graph itself, so what the view counts twice
//! costs opportunities, never validity. Where even keeping everything fits, that is the plan.
//!
//! Where saved sets may be kept, stages with several saved sets each ([`chain_sets`]) are planned
//! too. The cheapest of all is never dearer, and much cheaper where stages hold what costs little to compute again.

use super::StoreAll;
use super::chain_persistent::{EASY_CELLS, least_memory_schedule, solve_terms};
use super::chain_sets;
use super::chain_table::Choices;
use super::store_all::peak_op;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::need::is_too_little;
use crate::plan::Plan;
use crate::planner::{Outcome, Planner, Request, Status, StopReason};
use crate::views::chain_of::ChainView;

/// Cells of the table where only inputs may be kept: a quick baseline, which a view of the graph limits more than slots do.
const QUICK_CELLS: usize = 1 << 20;

/// The schedules of least memory of every candidate view, with inputs of stages as checkpoints and with saved sets.
/// Their peaks on the graph may differ from what the view counts. After the deadline no more are found.
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
        let reason = "no place in its forward part is crossed by a single value, so it is no chain of stages; use \
                      `search` or `checkmate`";
        return Err(PlanError::Unsupported { planner: name, reason: reason.to_owned() });
    }
    let deadline = request.deadline();
    let rest = |budget: u64| Request { budget, time_limit: deadline.left(), ..request.clone() };
    let bytes_for_values = request.budget.saturating_sub(graph.constant_bytes());
    let cells = if choices == Choices::InputsOnly { QUICK_CELLS } else { EASY_CELLS };
    let mut best: Option<Outcome> = None;
    let mut least: Option<(u64, Plan)> = None;
    for view in &views {
        if deadline.passed() {
            break;
        }
        let (steps, reason) = match solve_terms(view.terms(), choices, &rest(bytes_for_values), cells) {
            Ok(Some(found)) => (found.steps, found.stop_reason),
            Ok(None) => break,
            Err(shortage) => (shortage.steps, StopReason::Heuristic),
        };
        let reason = if reason == StopReason::TimeLimit { reason } else { StopReason::Heuristic };
        let outcome = Outcome::of_plan(name, graph, view.plan(graph, &steps), Status::Feasible, reason);
        if outcome.peak_bytes <= request.budget {
            if best.as_ref().is_none_or(|best| outcome.makespan < best.makespan) {
                best = Some(outcome);
            }
        } else if least.as_ref().is_none_or(|least| outcome.peak_bytes < least.0) {
            least = outcome.plan.map(|plan| (outcome.peak_bytes, plan));
        }
    }
    if choices == Choices::SavedAndInputs
        && let Some((makespan, plan)) = chain_sets::best_plan(graph, &rest(request.budget))
        && best.as_ref().is_none_or(|best| makespan < best.makespan)
    {
        best = Some(Outcome::of_plan(name, graph, plan, Status::Feasible, StopReason::Heuristic));
    }
    let proven = is_too_little(graph, request.budget);
    match best {
        Some(best) => Ok(best),
        None if deadline.passed() && !proven => Ok(Outcome::without_plan(name, None)),
        None => Err(PlanError::Infeasible {
            budget: request.budget,
            minimum: least.as_ref().map(|least| least.0),
            blocking_op: least.and_then(|(_, plan)| peak_op(graph, &plan)),
            proven,
        }),
    }
}
