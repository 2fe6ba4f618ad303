//! Lower bounds on chains hold for every schedule, and "optimal" of `auto` and `search` means the best of all.

mod chain_support;

use burn_remat_plan::chain::{Chain, ChainStage};
use burn_remat_plan::generate::random_chain;
use burn_remat_plan::planners::chain_dp::minimum_budget;
use burn_remat_plan::planners::{Auto, ChainDp, Revolve, Search};
use burn_remat_plan::{ChainOutcome, PlanError, Request, Status, solve_chain};
use chain_support::{Class, brute_force};

/// The chain behind a zero-byte input.
fn without_input(chain: &Chain) -> Chain {
    Chain::new(chain.name(), 0, 0, chain.stages().to_vec()).unwrap()
}

/// A chain with a zero-byte input behind stages that cost and hold nothing: no optimum changes.
fn padded(chain: &Chain, stages: usize) -> Chain {
    let mut all = vec![ChainStage::default(); stages - chain.stages().len()];
    all.extend_from_slice(chain.stages());
    Chain::new("padded", 0, 0, all).unwrap()
}

/// Budgets around the range that matters, some below the persistent minimum.
fn budgets(chain: &Chain) -> Vec<u64> {
    let (least, most) = (minimum_budget(chain).0, chain.store_all_peak());
    (0..4).map(|k| (least + (most - least) * k / 4).saturating_sub(2)).collect()
}

/// Holds the claims of an outcome against the optimum over all schedules.
fn judge(found: &Result<ChainOutcome, PlanError>, optimum: Option<f64>, class_only: bool, case: &str) {
    let Ok(outcome) = found else { return };
    let optimum = optimum.unwrap_or_else(|| panic!("{case}: a plan where there is none"));
    assert!(outcome.makespan >= optimum, "{case}: {} beats the optimum {optimum}", outcome.makespan);
    assert!(outcome.lower_bound.unwrap() <= optimum, "{case}: bound {:?}, optimum {optimum}", outcome.lower_bound);
    if outcome.status == Status::Optimal && !class_only {
        assert_eq!(outcome.makespan, optimum, "{case}");
    }
}

#[test]
fn bounds_of_every_chain_planner_hold_for_all_schedules() {
    let mut beaten = 0;
    for seed in 0..60 {
        let short = without_input(&random_chain(seed, 6));
        let long = padded(&short, 27);
        for budget in budgets(&short) {
            let optimum = brute_force(&short, Class::Any, budget);
            let request = Request::new(budget);
            for chain in [&short, &long] {
                let case = format!("seed {seed}, {} stages, budget {budget}", chain.stages().len());
                judge(&solve_chain(&ChainDp, chain, &request), optimum, true, &case);
                judge(&solve_chain(&Revolve, chain, &request), optimum, true, &case);
                judge(&solve_chain(&Search::default(), chain, &request), optimum, false, &case);
                judge(&solve_chain(&Auto::default(), chain, &request), optimum, false, &case);
            }
            let persistent = solve_chain(&ChainDp, &short, &request).map_or(f64::INFINITY, |o| o.makespan);
            beaten += u32::from(optimum.is_some_and(|optimum| optimum < persistent));
            let exact = solve_chain(&Search::default(), &short, &request).ok().map(|outcome| outcome.makespan);
            assert_eq!(exact, optimum, "seed {seed}, budget {budget}");
        }
    }
    assert!(beaten > 0, "no case in which the classes differ");
}
