//! Schedules without the repeats that they can do without.

use super::anneal::Walk;
use super::problem::Problem;
use super::state::State;
use crate::choice::Choice;
use crate::deadline::Deadline;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::sequence::{choices_of, plan_of_choices};

/// A schedule that fits, without repeats that it can do without and in cheaper implementations where they fit.
pub(super) fn polished(problem: &Problem<'_>, order: &[Choice], late: Deadline) -> Vec<Choice> {
    let mut walk = Walk::new(State::new(problem, order), 0);
    walk.polish(|| late.passed());
    walk.best.map_or_else(|| order.to_vec(), |(_, order)| order)
}

/// The same for a plan that holds at most `peak_bytes`.
pub(crate) fn polished_plan(graph: &Graph, plan: &Plan, peak_bytes: u64, late: Deadline) -> Plan {
    plan_of_choices(graph, &polished(&Problem::new(graph, peak_bytes), &choices_of(plan), late))
}
