//! Planners under limits, on graphs designed to be difficult, and planners that misbehave.

mod brute_force;
mod chain_support;
mod hostile;
mod judge;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use burn_remat_plan::chain;
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::planner;
use burn_remat_plan::{
    Bound, ChainOutcome, Graph, Outcome, Plan, PlanError, Planner, Request, SetBy, Status, StopReason, minimum_within,
    simulate, solve, solve_chain, solve_guarded,
};
use chain_support::equal_stages;
use hostile::{KINDS, graph};
use judge::{judge, quick};

#[test]
fn no_planner_breaks_on_graphs_made_to_hurt() {
    for kind in KINDS {
        for size in [3, 20, 61, 300] {
            judge(&graph(kind, size, 1), &quick(Duration::from_millis(20), 64 << 20), &mut |_, work| work());
        }
    }
}

#[test]
fn planners_do_with_hardly_any_memory_or_time() {
    for kind in KINDS {
        judge(&graph(kind, 60, 2), &quick(Duration::from_millis(10), 1000), &mut |_, work| work());
        judge(&graph(kind, 60, 2), &quick(Duration::ZERO, u64::MAX), &mut |_, work| work());
    }
}

/// Misbehaves in one way.
struct Bad(Way, Sender<()>);

#[derive(Clone, Copy)]
enum Way {
    Panics,
    LiesAboutPeak,
    LiesAboutBound,
    GivesNoPlan,
    ClaimsWithoutPlan,
    NeverReturns,
}

impl Planner for Bad {
    fn name(&self) -> &'static str {
        "bad"
    }

    fn solve(&self, graph: &Graph, _: &Request) -> Result<Outcome, PlanError> {
        let honest = Outcome::of_plan("bad", graph, StoreAll::plan(graph), Status::Feasible, StopReason::Heuristic);
        match self.0 {
            Way::Panics => panic!("of no use"),
            Way::LiesAboutPeak => Ok(Outcome { peak_bytes: 1, ..honest }),
            Way::LiesAboutBound => Ok(Outcome { lower_bound: Some(2.0 * honest.makespan), ..honest }),
            Way::GivesNoPlan => Ok(Outcome { plan: Some(Plan::default()), ..honest }),
            Way::ClaimsWithoutPlan => Ok(Outcome { plan: None, status: Status::Optimal, ..honest }),
            Way::NeverReturns => {
                // Until the test is over.
                while self.1.send(()).is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(honest)
            }
        }
    }
}

#[test]
fn a_planner_that_misbehaves_is_an_error_that_names_it() {
    let graph = graph("deep", 12, 0);
    let request = Request { time_limit: Duration::from_secs(60), ..Request::new(u64::MAX) };
    let (alive, _over) = channel();
    for (way, told) in [
        (Way::Panics, "of no use"),
        (Way::LiesAboutPeak, "claims a peak"),
        (Way::LiesAboutBound, "claims the lower bound"),
        (Way::GivesNoPlan, "not valid"),
        (Way::ClaimsWithoutPlan, "gives no plan"),
    ] {
        let bad = Arc::new(Bad(way, alive.clone()));
        for error in [solve(&*bad, &graph, &request).unwrap_err(), solve_guarded(bad, &graph, &request).unwrap_err()] {
            assert!(matches!(error, PlanError::Internal { planner: "bad", .. }), "{error}");
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}

/// The persistent planner looks at the clock after 16 stages. What it has by then is no plan, and costs nothing.
#[test]
fn a_chain_planner_whose_time_is_up_claims_nothing() {
    let chain = equal_stages("short of time", 40);
    let least = chain::minimum(&chain).achieved;
    for time_limit in [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(300), Duration::MAX] {
        for name in ["chain-dp", "revolve", "search", "auto"] {
            for budget in [1, least, chain.store_all_peak() - 1] {
                let request = Request { time_limit, ..Request::new(budget) };
                let case = format!("{name}, {budget}, {time_limit:?}");
                match solve_chain(&*planner(name).unwrap(), &chain, &request) {
                    Ok(ChainOutcome { plan: None, status, .. }) => assert_eq!(status, Status::NoSolution, "{case}"),
                    Ok(found) => {
                        assert!(budget >= least && found.makespan > chain.store_all_makespan(), "{case}: {found:?}")
                    }
                    Err(error) => assert!(matches!(error, PlanError::Infeasible { .. }), "{case}: {error}"),
                }
            }
        }
    }
}

#[test]
fn a_planner_that_never_returns_is_left_behind() {
    let graph = graph("deep", 12, 0);
    let (alive, over) = channel();
    let request = Request { time_limit: Duration::from_millis(20), ..Request::new(u64::MAX) };
    let found = solve_guarded(Arc::new(Bad(Way::NeverReturns, alive)), &graph, &request);
    assert!(matches!(found, Err(PlanError::Overdue { planner: "bad", .. })));
    // It has begun, or the machine is very busy and it begins now; it ends once there is no receiver.
    over.recv().unwrap();
    drop(over);
}

#[test]
fn a_bound_is_refused_above_its_plan_by_more_than_rounding() {
    assert_eq!(Bound::for_all_schedules(3.0).below(4.0).unwrap().value, 3.0);
    assert_eq!(Bound::for_all_schedules(4.0 + 1e-9).below(4.0).unwrap().value, 4.0);
    for bound in [4.1, f64::INFINITY, f64::NAN] {
        assert!(Bound::for_own_class(bound).below(4.0).is_err(), "{bound}");
    }
}

#[test]
fn a_minimum_that_is_cut_short_says_so_and_is_a_plan() {
    let graph = graph("skips", 200, 0);
    let least = minimum_within(&graph, &Request { time_limit: Duration::ZERO, ..Request::new(0) });
    assert_eq!(least.stop_reason, StopReason::TimeLimit);
    assert_eq!(simulate(&graph, &least.plan).peak_bytes, least.achieved);
    assert!(matches!(least.set_by, SetBy::Op(_) | SetBy::Start | SetBy::End));
}
