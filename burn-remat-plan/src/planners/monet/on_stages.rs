//! Graphs too large for the program over all ops: the same program over the [stages](crate::views::stages_of).
//!
//! Method. The coarse graphs of the stage view have an op or two per stage and one per backward share, with
//! alternatives that recompute inside. For each, `descent` and the usual start (`heuristic`) give a first schedule, and
//! MONeT's program is solved from it, to the optimum of the view or the end of its share of the time. The schedule
//! becomes a plan of the graph, whose cost and peak are simulated there. Cheaper implementations of single ops are used
//! where they fit. The best plan within the budget wins.
//!
//! Invariants: every plan offered is valid and measured on the graph itself. Nothing here proves a bound: the optimum of a
//! coarse graph is no bound for schedules that break up a stage.
//!
//! Complexity: that of the coarse programs; a view has as many stages as keep its program below [`LARGEST_VIEW`] entries.
//!
//! Source: Shah et al. 2020 (MONeT), with the operator as a stage of the model. Departure: the paper solves over all
//! operators, for up to 24 hours.

use super::heuristic::{self, improve};
use super::model::estimated_entries;
use super::stages::{Candidate, Stages};
use super::{Attempt, Monet, descent};
use crate::choice::Choice;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::planner::{Request, StopReason};
use crate::planners::limited::Latest;
use crate::sequence::{compute_order, plan_of_choices};
use crate::views::stages_of::StageView;

/// Most entries of a coarse graph's program.
const LARGEST_VIEW: u64 = 150_000;
/// Numbers of stages to try, until the program is small enough.
const STAGES: [usize; 6] = [48, 32, 24, 16, 12, 8];

/// The views of `graph` with as many stages as their programs allow, the smaller program first.
fn views(graph: &Graph) -> Vec<StageView> {
    let entries = |view: &StageView| estimated_entries(view.graph(), &Stages::new(view.graph()));
    let fitting = |kind: usize| {
        let of_kind = |most| StageView::candidates(graph, most).into_iter().nth(kind);
        STAGES.into_iter().filter_map(of_kind).find(|view| entries(view) <= LARGEST_VIEW)
    };
    let mut views: Vec<StageView> = (0..2).filter_map(fitting).collect();
    views.sort_by_key(entries);
    views
}

/// Adds the plans of the views to what `run` has found, until `deadline`, and returns why the last solver stopped.
pub(super) fn offer(run: &mut Attempt<'_>, deadline: Deadline) -> StopReason {
    let views = views(run.graph);
    let mut reason = StopReason::Heuristic;
    for (at, view) in views.iter().enumerate() {
        if deadline.passed() {
            return StopReason::TimeLimit;
        }
        // A larger program needs more time.
        let share = if at + 1 == views.len() { 1.0 } else { 0.35 };
        let time_limit = deadline.left().mul_f64(share);
        let request = Request { time_limit, progress: None, ..run.request.clone() };
        match solve(run, view, &request) {
            Ok(stopped @ StopReason::TimeLimit) => reason = stopped,
            Ok(_) => {}
            Err(error) => log::debug!("{}: no plan from {} stage ops: {error}", Monet::NAME, view.graph().ops().len()),
        }
    }
    reason
}

/// The program over a view's graph.
fn solve(run: &mut Attempt<'_>, view: &StageView, request: &Request) -> Result<StopReason, PlanError> {
    let (graph, stages) = (view.graph(), Stages::new(view.graph()));
    let deadline = request.deadline();
    let mut start = heuristic::start(graph, &stages, request, deadline);
    descent::offer(graph, &stages, request, deadline.within(request.time_limit / 4), &mut start);
    if let Some(best) = &start.best {
        // The solver may check its clock too late.
        add(run, view, &plan_of_choices(graph, &best.choices));
    }
    let latest = Latest::default();
    let coarse = Attempt::new(graph, request, &latest, deadline, start);
    if coarse.need > request.budget {
        return Err(coarse.infeasible());
    }
    let outcome = coarse.solve()?;
    if let Some(plan) = &outcome.plan {
        add(run, view, plan);
    }
    Ok(outcome.stop_reason)
}

/// Offers the plan of a view's graph as a schedule of the graph itself.
fn add(run: &mut Attempt<'_>, view: &StageView, plan: &Plan) {
    let ops = compute_order(&view.plan(run.graph, plan));
    let choices = ops.into_iter().map(Choice::default_of).collect();
    let found = improve(run.graph, &Candidate::new(run.graph, choices), run.request.budget);
    log::debug!("{}: cost {} from {} stage ops", Monet::NAME, found.timeline.makespan, view.graph().ops().len());
    if run.start.offer(found, run.request.budget) {
        run.report();
    }
}
