//! Every planner, every lower bound and the minimum on one graph, each against all the others.
//!
//! `solve` has each plan checked by itself. In addition, no result may contradict another: a plan that holds no more than a budget costs no less than
//! any bound for that budget, holds no less than the proved part of the minimum, and does not exist if a planner has proved that there is none. On
//! small graphs with whole costs, brute force is one more witness.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn_remat_plan::lower_bound::{Effort, StateEffort, lower_bound, lower_bound_at, state_bound};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::planners;
use burn_remat_plan::{Graph, PlanError, Request, Scope, Status, check, minimum_within, solve};

use crate::brute_force::cheapest;

/// By how much sums in another order may differ, as a part of the sum.
const ROUNDING: f64 = 1e-9;
/// Brute force tries every set of at most this many values.
const MOST_VALUES: usize = 10;

/// What has been said about a graph.
#[derive(Default)]
struct Said {
    /// Peak, makespan and planner.
    plans: Vec<(u64, f64, String)>,
    /// Budget, bound, and who gave it.
    bounds: Vec<(u64, f64, String)>,
    /// Budget and planner: no schedule fits.
    refused: Vec<(u64, String)>,
}

/// Judges the results within `request`, whose budget is not used. Each piece of work passes through `around`, with the name of who does it, so
/// that a caller can measure it.
pub fn judge(graph: &Graph, request: &Request, around: &mut dyn FnMut(&str, &mut dyn FnMut())) {
    let mut work = |what: &str, work: &mut dyn FnMut()| {
        around(what, &mut || {
            if catch_unwind(AssertUnwindSafe(&mut *work)).is_err() {
                panic!("{what} on {}: it panicked", graph.name());
            }
        });
    };
    let mut least = None;
    work("minimum", &mut || least = Some(minimum_within(graph, request)));
    let least = least.expect("it was found");
    let plan = check(graph, &least.plan, least.achieved)
        .unwrap_or_else(|violations| panic!("the plan of the minimum of {}: {violations}", graph.name()));
    let mut said = Said::default();
    said.plans.push((plan.peak_bytes(), plan.makespan(), "minimum".to_owned()));
    let most = StoreAll::peak(graph);
    let mut budgets = vec![
        least.lower_bound.saturating_sub(1),
        least.lower_bound,
        least.achieved,
        least.achieved + most.saturating_sub(least.achieved) / 4,
    ];
    budgets.dedup();
    let bytes = usize::try_from(request.memory_limit).unwrap_or(usize::MAX);
    for &budget in &budgets {
        let request = Request { budget, ..request.clone() };
        for entry in planners() {
            work(entry.name, &mut || said.ask(entry.name, graph, &request));
        }
        let time_limit = request.time_limit;
        let moments: Vec<usize> = (0..graph.ops().len()).step_by(graph.ops().len().div_ceil(3)).collect();
        let effort = Effort { bytes: request.memory_limit, ..Effort::time(time_limit) };
        let bounds: [(&str, &dyn Fn() -> f64); 3] = [
            ("lower_bound", &|| lower_bound(graph, budget, effort)),
            ("lower_bound_at", &|| lower_bound_at(graph, budget, &moments, effort)),
            ("state_bound", &|| state_bound(graph, budget, StateEffort { bytes, ..StateEffort::time(time_limit) })),
        ];
        for (name, bound) in bounds {
            work(name, &mut || said.bounds.push((budget, bound(), name.to_owned())));
        }
    }
    said.compare(graph.name(), least.lower_bound);
    said.compare_with_brute_force(graph, &budgets);
}

impl Said {
    fn ask(&mut self, name: &str, graph: &Graph, request: &Request) {
        let planner = burn_remat_plan::registry::planner(name).expect("it is in the registry");
        let who = || name.to_owned();
        match solve(&*planner, graph, request) {
            Ok(solved) => {
                let outcome = &solved.outcome;
                self.plans.extend(solved.checked.map(|plan| (plan.peak_bytes(), plan.makespan(), who())));
                if outcome.scope == Scope::AllSchedules {
                    self.bounds.extend(outcome.lower_bound.map(|bound| (request.budget, bound, who())));
                }
                // What these call optimal is optimal among all schedules.
                if outcome.status == Status::Optimal && ["auto", "search"].contains(&name) {
                    self.bounds.push((request.budget, outcome.makespan, who()));
                }
            }
            Err(PlanError::Infeasible { proven: true, .. }) => self.refused.push((request.budget, who())),
            Err(error @ PlanError::Internal { .. }) => {
                panic!("{name} on {} at {}: {error}", graph.name(), request.budget)
            }
            Err(_) => {}
        }
    }

    fn compare(&self, graph: &str, least: u64) {
        for (peak, makespan, planner) in &self.plans {
            assert!(least <= *peak, "{graph}: {planner} needs {peak} bytes, and no schedule less than {least}");
            for (budget, bound, who) in self.bounds.iter().filter(|(budget, ..)| peak <= budget) {
                let case = format!("{graph}: {who} says {bound} at {budget} bytes, {planner} needs {makespan}");
                assert!(*bound <= makespan * (1.0 + ROUNDING), "{case}");
            }
            for (budget, who) in &self.refused {
                assert!(budget < peak, "{graph}: {who} says that nothing fits in {budget}, {planner} needs {peak}");
            }
        }
    }

    fn compare_with_brute_force(&self, graph: &Graph, budgets: &[u64]) {
        let ops = graph.ops();
        let mut costs = ops.iter().flat_map(|op| op.alternatives.iter().map(|other| other.cost).chain([op.cost]));
        let is_whole = costs.all(|cost| cost.fract() == 0.0 && cost < 1e6);
        if graph.values().len() > MOST_VALUES || ops.len() > MOST_VALUES || !is_whole {
            return;
        }
        for &budget in budgets {
            let name = graph.name();
            let optimum = cheapest(graph, budget);
            for (_, bound, who) in self.bounds.iter().filter(|(at, ..)| *at == budget) {
                let holds = optimum.is_none_or(|optimum| *bound <= optimum as f64 * (1.0 + ROUNDING));
                assert!(holds, "{name}: {who} says {bound} at {budget} bytes, the optimum is {optimum:?}");
            }
            let refused = self.refused.iter().find(|(at, _)| *at == budget);
            let holds = optimum.is_none() || refused.is_none();
            assert!(holds, "{name}: {refused:?}, but there is a plan of {optimum:?}");
        }
    }
}

/// A request for a quick answer.
pub fn quick(time_limit: Duration, memory_limit: u64) -> Request {
    Request { time_limit, memory_limit, threads: 1, ..Request::new(0) }
}

#[test]
#[should_panic(expected = "false-bound says 2 at 5 bytes")]
fn a_planted_bound_above_a_plan_comes_to_light() {
    let (plans, bounds) = (vec![(5, 1.0, "honest".to_owned())], vec![(5, 2.0, "false-bound".to_owned())]);
    Said { plans, bounds, refused: Vec::new() }.compare("planted", 5);
}
