//! `search` on chains: schedules that need not be persistent.
//!
//! Larger than the rule: `chain_of`, because its rows are those of a table.

mod chain_support;

use burn_remat_plan::chain::{self, Chain, ChainStage};
use burn_remat_plan::generate::random_chain;
use burn_remat_plan::planners::chain_dp::minimum_budget;
use burn_remat_plan::planners::{ChainDp, Search};
use burn_remat_plan::{ChainOutcome, PlanError, Planner, Request, Status};
use chain_support::{Class, benchmark_chains, brute_force};

/// Solves, and checks the outcome with the checker and the simulator.
fn solve(planner: &dyn Planner, chain: &Chain, budget: u64) -> Result<ChainOutcome, PlanError> {
    let outcome = planner.solve_chain(chain, &Request::new(budget))?;
    let plan = outcome.plan.as_ref().unwrap();
    assert_eq!(chain::check(chain, plan, budget), [], "{}: {:?}", chain.name(), plan.steps);
    let timeline = chain::simulate(chain, plan);
    assert_eq!((timeline.peak_bytes, timeline.makespan), (outcome.peak_bytes, outcome.makespan));
    assert!(outcome.lower_bound.unwrap() <= outcome.makespan);
    Ok(outcome)
}

/// Budgets around the range that matters, some below the persistent minimum.
fn budgets(chain: &Chain) -> Vec<u64> {
    let (least, most) = (minimum_budget(chain).0, chain.store_all_peak());
    (0..5).map(|k| (least + (most - least) * k / 4).saturating_sub(2)).collect()
}

fn equals_brute_force(seeds: std::ops::Range<u64>) {
    let mut beaten = 0;
    for seed in seeds {
        let chain = random_chain(seed, 5);
        for budget in budgets(&chain) {
            let expected = brute_force(&chain, Class::Any, budget);
            let found = solve(&Search::default(), &chain, budget);
            assert_eq!(found.as_ref().ok().map(|o| o.makespan), expected, "seed {seed} budget {budget}");
            if let Ok(outcome) = found {
                assert_eq!(outcome.status, Status::Optimal);
                let persistent = solve(&ChainDp, &chain, budget).map_or(f64::INFINITY, |o| o.makespan);
                beaten += u32::from(outcome.makespan < persistent);
            }
        }
    }
    println!("persistent schedules were beaten {beaten} times");
}

#[test]
fn on_short_chains_the_optimum_over_all_schedules_is_found() {
    equals_brute_force(0..80);
}

/// Chains in which a saved set may be smaller than the activation it contains.
#[test]
fn where_saving_makes_smaller_the_optimum_over_all_schedules_is_found() {
    let mut smaller = 0;
    for seed in 0..120 {
        let drawn = random_chain(20_000 + seed, 5);
        let turn = |(i, stage): (usize, &ChainStage)| {
            let saved_bytes = if i % 2 == 0 { stage.activation_bytes / 2 } else { stage.saved_bytes };
            ChainStage { saved_bytes, ..stage.clone() }
        };
        let stages = drawn.stages().iter().enumerate().map(turn).collect();
        let chain = Chain::new("smaller", drawn.input_bytes(), drawn.input_gradient_bytes(), stages).unwrap();
        for budget in budgets(&chain) {
            let expected = brute_force(&chain, Class::Any, budget);
            let found = solve(&Search::default(), &chain, budget).ok().map(|outcome| outcome.makespan);
            assert_eq!(found, expected, "seed {seed} budget {budget}");
            smaller += u32::from(expected.is_some());
        }
    }
    assert!(smaller > 100, "{smaller} feasible cases");
}

/// Sizes `(forward cost, backward cost, activation, saved, gradient, scratch forward, scratch backward)`.
fn chain_of(input: u64, input_gradient: u64, stages: &[(f64, f64, u64, u64, u64, u64, u64)]) -> Chain {
    let stage =
        |&(forward_cost, backward_cost, activation_bytes, saved_bytes, gradient_bytes, forward, backward)| ChainStage {
            forward_cost,
            backward_cost,
            activation_bytes,
            saved_bytes,
            gradient_bytes,
            forward_scratch_bytes: forward,
            backward_scratch_bytes: backward,
        };
    Chain::new("given", input, input_gradient, stages.iter().map(stage).collect()).unwrap()
}

#[test]
fn the_boundary_that_a_backward_operation_leaves_behind_can_be_given_up() {
    // Two schedules that were missed once: `Fall0 Fall1 D1 Fall2 B2 D2 Fall0 Fall1 B1 B0`, and one that costs 29.
    let three = [(1., 1., 9, 1, 1, 6, 0), (1., 1., 9, 5, 0, 0, 0), (1., 1., 3, 4, 0, 0, 0)];
    assert!(solve(&Search::default(), &chain_of(0, 0, &three), 9).is_ok());
    let five = [
        (2., 1., 2, 4, 2, 0, 0),
        (2., 2., 5, 6, 1, 3, 0),
        (2., 2., 10, 7, 10, 0, 0),
        (1., 2., 3, 4, 2, 9, 0),
        (1., 1., 7, 14, 7, 1, 0),
    ];
    let found = solve(&Search::default(), &chain_of(8, 8, &five), 34).unwrap();
    assert_eq!((found.makespan, found.status), (29.0, Status::Optimal));
}

/// The full count; minutes in release.
#[test]
#[ignore = "long: run with --release -- --ignored"]
fn on_a_thousand_short_chains_the_optimum_over_all_schedules_is_found() {
    equals_brute_force(0..1000);
}

/// A chain after figure 2 of the report: an expensive first stage, a middling second one, free stages after them, and a last
/// one that leaves no room for the second one's output.
fn dear_beginning(n: usize) -> Chain {
    let stage = |forward_cost: usize, bytes: u64, scratch: u64| ChainStage {
        forward_cost: forward_cost as f64,
        activation_bytes: bytes,
        saved_bytes: bytes,
        forward_scratch_bytes: scratch,
        ..Default::default()
    };
    let mut stages = vec![stage(n - 1, 1, 0), stage(2, 2, 0)];
    stages.extend((0..n - 1).map(|_| stage(0, 2, 1)));
    stages.extend([stage(0, 2, 2), ChainStage::default()]);
    Chain::new("dear beginning", 1, 0, stages).unwrap()
}

#[test]
fn a_checkpoint_given_up_early_beats_every_persistent_schedule() {
    for n in [4, 6, 8, 12] {
        let chain = dear_beginning(n);
        let persistent = solve(&ChainDp, &chain, 8).unwrap().makespan;
        let found = solve(&Search::default(), &chain, 8).unwrap().makespan;
        // What the report's own schedule costs.
        assert!(found <= (2 * n + 2) as f64, "{n}: {found}");
        assert!(found < persistent, "{n}: {found} against {persistent}");
    }
}

#[test]
fn the_search_is_never_dearer_than_the_persistent_optimum() {
    for seed in 0..10 {
        let chain = random_chain(1000 + seed, 45);
        for budget in budgets(&chain) {
            let Ok(persistent) = solve(&ChainDp, &chain, budget) else { continue };
            let found = solve(&Search::default(), &chain, budget).unwrap();
            assert!(found.makespan <= persistent.makespan, "seed {seed} budget {budget}");
        }
    }
}

#[test]
fn real_chains_are_never_dearer_than_their_persistent_optimum() {
    let Some(folder) = benchmark_chains() else { return };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().ends_with(".chain.json") {
            let chain = Chain::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let (least, most) = (minimum_budget(&chain).0, chain.store_all_peak());
            for budget in [least, least + (most - least) / 3] {
                let persistent = solve(&ChainDp, &chain, budget).unwrap();
                let found = solve(&Search::default(), &chain, budget).unwrap();
                println!("{} at {budget}: {} to {}", chain.name(), persistent.makespan, found.makespan);
                assert!(found.makespan <= persistent.makespan);
            }
        }
    }
}
