//! Lower bounds on chains hold for every schedule, and "optimal" of `auto` and `search` means the best of all.

mod chain_support;

use std::time::Duration;

use burn_remat_plan::chain::{self, Chain, ChainStage};
use burn_remat_plan::generate::random_chain;
use burn_remat_plan::planners::chain_dp::minimum_budget;
use burn_remat_plan::planners::{Auto, ChainDp, Revolve, Search, StoreAll};
use burn_remat_plan::{ChainOutcome, PlanError, Planner, Request, Status, solve_chain};
use chain_support::{Class, brute_force};

/// The chain with a zero-byte input.
fn without_input(chain: &Chain) -> Chain {
    Chain::new(chain.name(), 0, 0, chain.stages().to_vec()).unwrap()
}

/// A chain with a zero-byte input and stages before it that cost and hold nothing: no optimum changes.
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

/// Compares the claims of an outcome with the optimum over all schedules.
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

#[test]
fn only_what_is_proved_is_called_infeasible_and_padding_changes_no_answer() {
    let (mut proved, mut open) = (0, 0);
    for seed in 100..160 {
        let short = without_input(&random_chain(seed, 7));
        let long = padded(&short, 30);
        let exact = chain::minimum(&short);
        assert!(exact.is_exact());
        assert!(chain::minimum(&long).is_exact());
        assert_eq!(chain::minimum(&long).achieved, exact.achieved, "seed {seed}");
        let request = Request::new(exact.achieved);
        for planner in [&Search::default() as &dyn Planner, &Auto::default(), &ChainDp, &Revolve, &StoreAll] {
            for (chain, budget) in [(&short, exact.achieved), (&long, exact.achieved), (&long, exact.achieved - 1)] {
                let request = Request { budget, ..request.clone() };
                let case = format!("{}, seed {seed}, budget {budget}", planner.name());
                match solve_chain(planner, chain, &request) {
                    Ok(_) => assert!(budget >= exact.achieved, "{case}"),
                    Err(PlanError::Infeasible { minimum, proven, .. }) => {
                        assert!(minimum.unwrap() > budget, "{case}");
                        assert!(!proven || budget < exact.achieved, "{case}: proven, but there is a plan");
                        let knows_all = ["search", "auto"].contains(&planner.name());
                        assert!(!knows_all || (proven && minimum == Some(exact.achieved)), "{case}");
                        *(if proven { &mut proved } else { &mut open }) += 1;
                    }
                    Err(error) => panic!("{case}: {error}"),
                }
            }
        }
    }
    assert!(proved > 0 && open > 0, "{proved} proved, {open} not");
}

#[test]
fn the_minimum_of_a_chain_is_that_of_all_schedules() {
    let mut lower = 0;
    for seed in 0..120 {
        let chain = random_chain(seed, 6);
        let found = chain::minimum(&chain);
        assert!(found.is_exact(), "seed {seed}");
        assert_eq!(chain::check(&chain, &found.plan, found.achieved), [], "seed {seed}");
        assert!(brute_force(&chain, Class::Any, found.achieved).is_some(), "seed {seed}");
        if let Some(less) = found.achieved.checked_sub(1) {
            assert_eq!(brute_force(&chain, Class::Any, less), None, "seed {seed}");
        }
        lower += u32::from(found.achieved < minimum_budget(&chain).0);
    }
    assert!(lower > 0, "no case in which the classes differ");
}

#[test]
fn the_minimum_of_a_long_chain_of_equal_stages_is_exact() {
    let stage = ChainStage {
        forward_cost: 1.0,
        backward_cost: 1.0,
        activation_bytes: 10,
        saved_bytes: 10,
        ..ChainStage::default()
    };
    let chain = Chain::new("equal", 10, 0, vec![stage; 800]).unwrap();
    let found = chain::minimum(&chain);
    assert_eq!((found.lower_bound, found.achieved), (30, 30));
    for planner in [&Revolve as &dyn Planner, &ChainDp, &Search::default(), &Auto::default()] {
        solve_chain(planner, &chain, &Request::new(30)).unwrap();
    }
}

#[test]
fn one_stage_has_a_minimum() {
    let stage = ChainStage { forward_cost: 1.0, backward_cost: 1.0, saved_bytes: 1, ..ChainStage::default() };
    let found = chain::minimum(&Chain::new("one", 0, 0, vec![stage]).unwrap());
    assert_eq!((found.achieved, found.peak_stage, found.is_exact()), (1, 0, true));
}

#[test]
fn on_a_long_chain_auto_is_no_dearer_than_what_it_tries() {
    let stage = |i: usize| ChainStage {
        forward_cost: 1.0 + (i % 7) as f64,
        backward_cost: 2.0 + (i % 5) as f64,
        activation_bytes: 50_000_000 + (i * i * 7919 % 40_000_003) as u64,
        saved_bytes: 120_000_000 + (i * i * 104_729 % 70_000_027) as u64,
        gradient_bytes: 50_000_000 + (i * 7919 % 40_000_003) as u64,
        ..ChainStage::default()
    };
    let chain = Chain::new("long", 1_000_007, 1, (0..900).map(stage).collect()).unwrap();
    // On a busy machine, a planner gets little of each second.
    let limit = Duration::from_secs(10);
    let request = Request { time_limit: limit, threads: 1, ..Request::new(chain.store_all_peak() / 10 * 4) };
    let outcome = solve_chain(&Auto::default(), &chain, &request).unwrap();
    let quick = Request { time_limit: limit / 10, ..request };
    for planner in [&Revolve as &dyn Planner, &ChainDp] {
        let other = solve_chain(planner, &chain, &quick).unwrap();
        assert!(outcome.makespan <= other.makespan, "{}: {} < {}", planner.name(), other.makespan, outcome.makespan);
    }
}

#[test]
fn idle_stages_in_the_middle_of_a_chain_change_no_optimum() {
    let mut feasible = 0;
    for seed in 200..260 {
        let drawn = random_chain(seed, 4);
        let mut stages = drawn.stages().to_vec();
        let at = seed as usize % stages.len();
        // A stage that passes nothing on, whatever it saves, with idle stages after it.
        (stages[at].activation_bytes, stages[at].gradient_bytes) = (0, 0);
        let short = Chain::new("short", drawn.input_bytes(), drawn.input_gradient_bytes(), stages.clone()).unwrap();
        stages.splice(at + 1..at + 1, [ChainStage::default(), ChainStage::default()]);
        let long = Chain::new("long", drawn.input_bytes(), drawn.input_gradient_bytes(), stages).unwrap();
        for budget in budgets(&short) {
            let optimum = brute_force(&long, Class::Any, budget);
            let found = solve_chain(&Search::default(), &long, &Request::new(budget));
            assert_eq!(found.ok().map(|outcome| outcome.makespan), optimum, "seed {seed}, budget {budget}");
            if at + 1 < short.stages().len() {
                assert_eq!(brute_force(&short, Class::Any, budget), optimum, "seed {seed}, budget {budget}");
            }
            feasible += u32::from(optimum.is_some());
        }
    }
    assert!(feasible > 60, "{feasible} feasible cases");
}
