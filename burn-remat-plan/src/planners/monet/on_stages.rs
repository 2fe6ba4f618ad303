//! Graphs too large for the program over all ops: the same program over the [stages](crate::views::stages_of).
//!
//! Method. The coarse graphs of the stage view have an op or two per stage and one per backward share, with
//! alternatives that recompute inside. For each, `descent` and the start of every graph give a first schedule, and
//! MONeT's program is solved from it, to the optimum of the view or the end of its share of the time. The schedule
//! becomes a plan of the graph, whose cost and peak are simulated there. Cheaper implementations of single ops go in
//! where they fit. The best plan within the budget counts.
//!
//! Invariants: what is offered is valid and measured on the graph itself. Nothing here proves a bound: the optimum of a
//! coarse graph is no bound for schedules that break up a stage.
//!
//! Complexity: that of the coarse programs; a view has as many stages as keep its program below [`LARGEST_VIEW`] entries.
//!
//! Source: Shah et al. 2020 (MONeT), with the operator as a stage of the model. Departure: the paper solves over all
//! operators, for up to 24 hours.

use std::time::{Duration, Instant};

use super::heuristic::{self, Start, improve};
use super::model::estimated_entries;
use super::stages::{Candidate, Choice, Stages};
use super::{Deadline, Run, descent};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::planner::{Outcome, Request, StopReason};
use crate::planners::limited::Latest;
use crate::sequence::order_of;
use crate::views::stages_of::StageView;

/// Most entries of a coarse graph's program.
const LARGEST_VIEW: u64 = 150_000;
/// Numbers of stages to try, until the program is small enough.
const STAGES: [usize; 6] = [48, 32, 24, 16, 12, 8];

/// The views of `graph` with as many stages as their programs allow, the smaller program first.
pub(super) fn views(graph: &Graph) -> Vec<StageView> {
    let entries = |view: &StageView| estimated_entries(view.graph(), &Stages::new(view.graph()));
    let fitting = |kind: usize| {
        let of_kind = |most| StageView::candidates(graph, most).into_iter().nth(kind);
        STAGES.into_iter().filter_map(of_kind).find(|view| entries(view) <= LARGEST_VIEW)
    };
    let mut views: Vec<StageView> = (0..2).filter_map(fitting).collect();
    views.sort_by_key(entries);
    views
}

/// Offers the plans of the views until `deadline`, and tells why the last solver stopped.
pub(super) fn offer(graph: &Graph, request: &Request, deadline: Deadline, start: &mut Start) -> StopReason {
    let views = views(graph);
    let mut reason = StopReason::Heuristic;
    for (at, view) in views.iter().enumerate() {
        if deadline.passed() {
            return StopReason::TimeLimit;
        }
        let time_limit = Duration::from_secs_f64(deadline.seconds_left() / (views.len() - at) as f64);
        let coarse = Request { time_limit, progress: None, ..request.clone() };
        let outcome = match solve(view.graph(), &coarse) {
            Ok(outcome) => outcome,
            Err(error) => {
                log::debug!("monet: no plan by {} stage ops: {error}", view.graph().ops().len());
                continue;
            }
        };
        if outcome.stop_reason == StopReason::TimeLimit {
            reason = StopReason::TimeLimit;
        }
        let Some(plan) = outcome.plan else { continue };
        let found = improve(graph, &candidate(graph, view, &plan), request.budget);
        log::debug!(
            "monet: {} stage ops give {} ({} in the view, {:?})",
            view.graph().ops().len(),
            found.timeline.makespan,
            outcome.makespan,
            outcome.stop_reason
        );
        start.offer(found, request.budget);
    }
    reason
}

/// The program over a coarse graph.
pub(super) fn solve(graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
    let end = Instant::now().checked_add(request.time_limit);
    let stages = Stages::new(graph);
    let mut start = heuristic::start(graph, &stages, request, end);
    let soon = Instant::now().checked_add(request.time_limit / 4);
    descent::offer(graph, &stages, request, soon, &mut start);
    let latest = Latest::default();
    let run = Run::new(graph, request, &latest, Deadline::until(end), start);
    if run.need > request.budget { Err(run.infeasible()) } else { run.solve() }
}

/// The plan of a view's graph as a schedule of `graph`.
fn candidate(graph: &Graph, view: &StageView, plan: &Plan) -> Candidate {
    let ops = order_of(&view.plan(graph, plan));
    Candidate::new(graph, ops.into_iter().map(|op| Choice { op, implementation: 0 }).collect())
}
