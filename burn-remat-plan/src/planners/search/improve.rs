//! From the first schedules to the walks and to the outcome.
//!
//! The bound of the relaxation takes about as long as the first schedules, and neither needs the other: with several threads they are found
//! side by side.

use super::polish::polished;
use super::problem::Problem;
use super::rounds::{Clock, MOST_LADDER_OPS, Walkers};
use super::seeds::{self, Quick};
use super::settings::Settings;
use crate::choice::{Choice, has_alternatives};
use crate::clock::beside;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::lower_bound::{Effort, Hint, StateEffort, hints, joint_bound, state_bound};
use crate::minimum::{Minimum, minimum_within};
use crate::planner::{Bound, Outcome, Progress, Request, Status, StopReason};
use crate::sequence::{choices_of, plan_of_choices};
use crate::simulate::simulate;

const NAME: &str = "search";

/// Shares of the time: for the relaxations with one moment and with several, for the minimum if no schedule is known, and for polishing
/// the first schedules.
const HINT_SHARE: f64 = 0.1;
const JOINT_SHARE: f64 = 0.15;
/// The share of the time for the search of states for a bound if its thread is not the only one; a third of it if it is.
const STATES_SHARE: f64 = 0.3;
/// States of that search if the search is limited by moves.
const STATES: usize = 500;
const MINIMUM_SHARE: f64 = 0.4;
const POLISH_SHARE: f64 = 0.3;
const JOINT_POLISH_SHARE: f64 = 0.1;
/// Iterations of a relaxation if the search is limited by moves: then the bound must not depend on the clock.
const ITERATIONS: u64 = 1000;

/// How far above the budget an order may be for a lone walk to begin there.
const MOST_OVER: f64 = 1.3;

/// The search of states takes no more than this.
const MOST_STATE_BYTES: usize = 1 << 28;
/// Relaxations, and the search of states, may take one part in this many of the memory limit.
const RELAXATION_SHARE: u64 = 4;

/// Where to begin.
pub(super) struct Beginning {
    /// Schedules that fit.
    pub known: Vec<Vec<Choice>>,
    /// How to find one in default implementations; with `None`, none is looked for.
    pub quick: Option<Quick>,
}

/// The cheapest schedule that walks find from `start` within the request's limits.
pub(super) fn improve(
    graph: &Graph,
    request: &Request,
    settings: Settings,
    start: Beginning,
) -> Result<Outcome, PlanError> {
    let clock = Clock::start(request, settings.moves);
    let problem = Problem::new(graph, request.budget);
    let (mut known, (bound, hints), smallest) = begin(graph, request, start, &clock);
    if has_alternatives(graph) || graph.ops().len() > MOST_LADDER_OPS {
        let share = if has_alternatives(graph) { JOINT_POLISH_SHARE } else { POLISH_SHARE };
        let late = clock.deadline(share);
        known.iter_mut().for_each(|order| *order = polished(&problem, order, late));
    }
    let cost = |order: &Vec<Choice>| order.iter().map(|choice| choice.cost(graph)).sum::<f64>();
    known.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let starts = starts(graph, request, settings, &hints, &known);
    clock.raise(bound);
    // In a short time walks gain more than a bound.
    let worth = clock.limit.as_secs_f64().min(1.0);
    let joint = effort(&clock, request, JOINT_SHARE * worth);
    let states = StateEffort {
        states: if settings.moves.is_some() { STATES } else { usize::MAX },
        bytes: usize::try_from(request.memory_limit / RELAXATION_SHARE).unwrap_or(usize::MAX).min(MOST_STATE_BYTES),
        enough: known.first().map_or(f64::INFINITY, cost),
        ..StateEffort::time(
            effort(&clock, request, worth * if request.threads > 1 { STATES_SHARE } else { STATES_SHARE / 3.0 })
                .time_limit,
        )
    };
    let aside = || {
        clock.raise(state_bound(graph, request.budget, states));
        if clock.bound() >= states.enough {
            return;
        }
        clock.raise(joint_bound(graph, request.budget, joint));
        request.report(Progress { incumbent: None, lower_bound: Some(clock.bound()) });
    };
    let report = |cost| {
        request.report(Progress { incumbent: Some(cost), lower_bound: Some(clock.bound()) });
    };
    let walkers = Walkers::new(&problem, &starts, request, &settings);
    let found = walkers.walk(&clock, aside, report);
    // Not every start has a walk of its own.
    let least = known.into_iter().next().map(|order| (cost(&order), order));
    match (found.into_iter().chain(least).min_by(|a, b| a.0.total_cmp(&b.0)), smallest) {
        (Some((_, order)), _) => outcome(graph, &order, request, &clock),
        (None, Some(least)) => Err(shortage(&least, request.budget, false)),
        (None, None) => Err(infeasible(graph, &Request { time_limit: clock.left(), ..request.clone() }, false)),
    }
}

/// The schedules known to fit, the relaxation, and the minimum if no schedule was found otherwise.
#[expect(clippy::type_complexity, reason = "three things that are used once")]
fn begin(
    graph: &Graph,
    request: &Request,
    start: Beginning,
    clock: &Clock,
) -> (Vec<Vec<Choice>>, (f64, Vec<Hint>), Option<Minimum>) {
    let Beginning { mut known, quick } = start;
    let relax = || hints(graph, request.budget, effort(clock, request, HINT_SHARE));
    let find = |quick: Quick, request: &Request| seeds::feasible(graph, request, quick).map(seeds::by_default);
    let relaxed = match quick {
        Some(quick) if request.threads > 1 => {
            let rest = Request { threads: request.threads - 1, ..request.clone() };
            let (relaxed, found) = beside(relax, || find(quick, &rest));
            known.extend(found);
            relaxed
        }
        quick => {
            known.extend(quick.and_then(|quick| find(quick, request)));
            relax()
        }
    };
    let mut smallest = None;
    if known.is_empty() {
        let time_limit = clock.left().mul_f64(MINIMUM_SHARE);
        let least = minimum_within(graph, &Request { time_limit, ..request.clone() });
        known.extend((least.achieved <= request.budget).then(|| choices_of(&least.plan)));
        smallest = Some(least);
    }
    (known, relaxed, smallest)
}

/// What the bound may take: a share of the time or, with a limit on moves, a number of iterations.
fn effort(clock: &Clock, request: &Request, share: f64) -> Effort {
    let bytes = request.memory_limit / RELAXATION_SHARE;
    match clock.moves {
        None => Effort { bytes, ..Effort::time(clock.left().min(clock.limit.mul_f64(share))) },
        Some(_) => Effort { bytes, iterations: ITERATIONS, ..Effort::time(clock.left()) },
    }
}

/// Where the walks begin: at what the relaxation suggests, and at the known schedules.
fn starts(
    graph: &Graph,
    request: &Request,
    settings: Settings,
    hints: &[Hint],
    known: &[Vec<Choice>],
) -> Vec<Vec<Choice>> {
    let hints = hints.iter().take(usize::from(!settings.without.hints));
    let mut starts: Vec<Vec<Choice>> = hints.map(|hint| seeds::follow(graph, hint)).collect();
    if graph.ops().len() > MOST_LADDER_OPS && !known.is_empty() {
        // A lone walk has no time to bring an order within the budget that is far above it.
        let most = request.budget as f64 * MOST_OVER;
        starts.retain(|order| simulate(graph, &plan_of_choices(graph, order)).peak_bytes as f64 <= most);
    }
    starts.extend_from_slice(known);
    if starts.is_empty() {
        starts.push((0..graph.ops().len()).map(Choice::default_of).collect());
    }
    starts
}

fn outcome(graph: &Graph, order: &[Choice], request: &Request, clock: &Clock) -> Result<Outcome, PlanError> {
    let plan = plan_of_choices(graph, order);
    let mut outcome = Outcome::of_plan(NAME, graph, plan, Status::Feasible, StopReason::TimeLimit);
    if clock.is_proven(outcome.makespan) {
        outcome.status = Status::Optimal;
        let exactly = outcome.makespan <= clock.bound() * (1.0 + 1e-9);
        outcome.stop_reason = if exactly { StopReason::Proved } else { StopReason::Gap };
    } else if clock.moves.is_some() && !clock.left().is_zero() {
        outcome.stop_reason = StopReason::Heuristic;
    }
    let outcome = outcome.bounded(NAME, Bound::for_all_schedules(clock.bound()))?;
    request.report(Progress { incumbent: Some(outcome.makespan), lower_bound: outcome.lower_bound });
    Ok(outcome)
}

/// The error that there is no plan; `exhausted` if all schedules were tried.
pub(super) fn infeasible(graph: &Graph, request: &Request, exhausted: bool) -> PlanError {
    shortage(&minimum_within(graph, request), request.budget, exhausted)
}

fn shortage(least: &Minimum, budget: u64, exhausted: bool) -> PlanError {
    PlanError::Infeasible {
        budget,
        minimum: Some(least.achieved),
        blocking_op: least.op(),
        proven: exhausted || budget < least.lower_bound,
    }
}
