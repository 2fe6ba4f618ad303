//! `chain-dp` against exhaustive search, known optima and the checker.

mod chain_support;

use burn_remat_plan::chain::{self, Chain, ChainStage};
use burn_remat_plan::generate::random_chain;
use burn_remat_plan::planners::chain_dp::{ChainDp, minimum_budget};
use burn_remat_plan::{ChainOutcome, PlanError, Planner, Request, Status};
use chain_support::{Class, benchmark_chains, brute_force};

/// Solves, and checks the outcome with the checker and the simulator.
fn solve(chain: &Chain, budget: u64) -> Result<ChainOutcome, PlanError> {
    let outcome = ChainDp.solve_chain(chain, &Request::new(budget))?;
    let plan = outcome.plan.as_ref().unwrap();
    assert_eq!(chain::check(chain, plan, budget), [], "{}", chain.name());
    let timeline = chain::simulate(chain, plan);
    assert_eq!((timeline.peak_bytes, timeline.makespan), (outcome.peak_bytes, outcome.makespan));
    assert!(outcome.peak_bytes <= budget);
    Ok(outcome)
}

/// Budgets from below the minimum to the store-all peak.
fn budgets(chain: &Chain) -> Vec<u64> {
    let (least, most) = (minimum_budget(chain).0, chain.store_all_peak());
    let mut budgets: Vec<u64> = (0..=4).map(|k| least + (most - least) * k / 4).collect();
    budgets.extend(least.checked_sub(1));
    budgets.dedup();
    budgets
}

fn equals_brute_force(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let chain = random_chain(seed, 6);
        for budget in budgets(&chain) {
            let expected = brute_force(&chain, Class::Persistent, budget);
            let found = solve(&chain, budget);
            assert_eq!(found.as_ref().ok().map(|o| o.makespan), expected, "seed {seed} budget {budget}");
            match found {
                Ok(outcome) => assert_eq!(outcome.status, Status::Optimal),
                Err(error) => assert!(matches!(error, PlanError::Infeasible { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn the_optimum_equals_exhaustive_search_over_persistent_schedules() {
    equals_brute_force(0..150);
}

/// The full count; about a minute in release.
#[test]
#[ignore = "long: run with --release -- --ignored"]
fn the_optimum_equals_exhaustive_search_on_two_thousand_chains() {
    equals_brute_force(0..2000);
}

#[test]
fn known_optima_of_real_networks_come_out_exactly() {
    #[derive(serde::Deserialize)]
    struct Known {
        memory_limit: u64,
        persistent_optimum: Option<f64>,
    }
    let Some(folder) = benchmark_chains() else { return };
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.to_str().unwrap().strip_suffix(".chain.json") else { continue };
        let chain = Chain::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let known = std::fs::read_to_string(format!("{name}.reference.json")).unwrap();
        for known in serde_json::from_str::<Vec<Known>>(&known).unwrap() {
            let found = solve(&chain, known.memory_limit).ok().map(|outcome| outcome.makespan);
            assert_eq!(found, known.persistent_optimum, "{} at {}", chain.name(), known.memory_limit);
            seen += 1;
        }
    }
    assert_eq!(seen, 33);
}

#[test]
fn more_budget_never_costs_more_and_the_store_all_peak_costs_nothing() {
    for seed in 0..60 {
        let chain = random_chain(seed, 12);
        let (least, most) = (minimum_budget(&chain).0, chain.store_all_peak());
        let mut last = f64::INFINITY;
        for budget in least..=most {
            let makespan = solve(&chain, budget).unwrap().makespan;
            assert!(makespan <= last, "seed {seed} budget {budget}");
            last = makespan;
        }
        assert_eq!(last, chain.store_all_makespan(), "seed {seed}");
    }
}

#[test]
fn the_minimum_is_feasible_and_one_byte_less_is_refused_with_it() {
    for seed in 0..100 {
        let chain = random_chain(seed, 20);
        let (minimum, stage) = minimum_budget(&chain);
        assert_eq!(solve(&chain, minimum).unwrap().peak_bytes, minimum, "seed {seed}");
        let Some(budget) = minimum.checked_sub(1) else { continue };
        let error = solve(&chain, budget).unwrap_err();
        let PlanError::Infeasible { minimum: named, blocking_op, .. } = error else { panic!("seed {seed}: {error}") };
        assert_eq!((named, blocking_op), (Some(minimum), Some(stage)), "seed {seed}");
    }
}

/// The chain with sizes so large and odd that slots are needed.
fn in_bytes(chain: &Chain, factor: u64) -> Chain {
    let scale = |bytes: u64| if bytes == 0 { 0 } else { bytes * factor + bytes * 7919 % 1009 };
    let stages = chain.stages().iter().map(|stage| ChainStage {
        activation_bytes: scale(stage.activation_bytes),
        saved_bytes: scale(stage.saved_bytes),
        gradient_bytes: scale(stage.gradient_bytes),
        forward_scratch_bytes: scale(stage.forward_scratch_bytes),
        backward_scratch_bytes: scale(stage.backward_scratch_bytes),
        ..stage.clone()
    });
    let (input, gradient) = (scale(chain.input_bytes()), scale(chain.input_gradient_bytes()));
    Chain::new("bytes", input, gradient, stages.collect()).unwrap()
}

#[test]
fn slots_never_break_the_budget_and_any_feasible_budget_gets_a_plan() {
    for seed in 0..10 {
        let chain = in_bytes(&random_chain(seed, 25), 1 << 30);
        let (least, most) = (minimum_budget(&chain).0, chain.store_all_peak());
        for k in 0..=4 {
            let outcome = solve(&chain, least + (most - least) / 4 * k).unwrap();
            assert!(outcome.lower_bound.unwrap() <= outcome.makespan);
        }
    }
}

fn extreme(longest: usize) {
    let zero = ChainStage::default();
    let huge = ChainStage { activation_bytes: 1 << 55, saved_bytes: 1 << 56, forward_cost: 1e300, ..zero.clone() };
    let chains = [
        Chain::new("zero", 0, 0, vec![zero.clone(); 5]).unwrap(),
        Chain::new("huge", 1 << 60, 1 << 60, vec![huge; 20]).unwrap(),
        Chain::new("one", 1, 1, vec![zero.clone()]).unwrap(),
        Chain::new(
            "long",
            3,
            3,
            vec![ChainStage { saved_bytes: 2, activation_bytes: 1, forward_cost: 1.0, ..zero }; longest],
        )
        .unwrap(),
    ];
    for chain in chains {
        for budget in [0, 1, 40, chain.store_all_peak() / 2, chain.store_all_peak(), u64::MAX] {
            match solve(&chain, budget) {
                Ok(_) => {}
                Err(PlanError::Infeasible { minimum, .. }) => assert!(minimum.unwrap() > budget),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn extreme_chains_and_budgets_do_not_panic() {
    extreme(60);
}

/// Long enough to be planned in groups of stages.
#[test]
#[ignore = "long: run with --release -- --ignored"]
fn chains_of_thousands_of_stages_are_planned_in_groups() {
    extreme(3000);
}
