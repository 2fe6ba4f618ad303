//! Every registered planner over generated graphs: the checker accepts its plans, its claims equal the simulator's figures, the peak
//! is within the budget, and a budget of the store-all peak costs nothing.
//!
//! The default run takes a few cases per planner; `cargo test --release -p burn-remat-plan --test planners -- --ignored`
//! takes 1,000.

use std::time::Duration;

use burn_remat_plan::generate::{RandomGraphOptions, random_graph, random_training_graph};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::{Entry, planners};
use burn_remat_plan::{Graph, Plan, PlanError, Request, simulate, solve};

/// These minimise something other than the makespan within a budget.
const WITHOUT_BUDGET: [&str; 1] = ["feng-huang"];

/// Anything that a graph may hold, in turn with training steps.
fn case(seed: u64) -> Graph {
    match seed % 3 {
        0 => random_graph(seed, &RandomGraphOptions::default()),
        1 => random_graph(seed, &RandomGraphOptions::ops(10, 40)),
        _ => random_training_graph(seed, &RandomGraphOptions::plain(2, 12)),
    }
}

fn peak_without_memory(graph: &Graph) -> u64 {
    simulate(graph, &Plan::default()).peak_bytes
}

/// Solves, and judges what comes back. Returns the makespan, if there is a plan.
fn judge(entry: &Entry, graph: &Graph, budget: u64, seed: u64) -> Option<f64> {
    let name = entry.name;
    let case = format!("{name}, case {seed}, budget {budget}");
    let request = Request { time_limit: Duration::from_millis(30), seed, threads: 1, ..Request::new(budget) };
    match solve(&*entry.planner(), graph, &request) {
        Ok(solved) => {
            let plan = solved.outcome.plan.as_ref()?;
            let checked = solved.checked.unwrap_or_else(|| panic!("{case}: a plan that was not checked"));
            let timeline = simulate(graph, plan);
            assert_eq!(solved.outcome.peak_bytes, timeline.peak_bytes, "{case}");
            assert_eq!(solved.outcome.makespan, timeline.makespan, "{case}");
            assert!(timeline.peak_bytes <= budget, "{case}");
            assert_eq!(checked.plan(), plan, "{case}");
            Some(timeline.makespan)
        }
        Err(PlanError::Infeasible { budget: named, minimum, blocking_op, .. }) => {
            assert_eq!(named, budget, "{case}");
            assert!(minimum.is_none_or(|minimum| minimum > budget), "{case}: minimum {minimum:?}");
            assert!(blocking_op.is_none_or(|op| op < graph.ops().len()), "{case}: op {blocking_op:?}");
            None
        }
        Err(PlanError::Unsupported { .. } | PlanError::FeatureMissing { .. }) => None,
        Err(error) => panic!("{case}: {error}"),
    }
}

fn judge_all(seeds: std::ops::Range<u64>) {
    for entry in planners() {
        for seed in seeds.clone() {
            let graph = case(seed);
            let baseline = StoreAll::plan(&graph);
            let store_all = simulate(&graph, &baseline);
            let least = peak_without_memory(&graph);
            for tenths in [0, 3, 6, 9] {
                judge(entry, &graph, least + (store_all.peak_bytes - least) / 10 * tenths, seed);
            }
            if let Some(makespan) = judge(entry, &graph, store_all.peak_bytes, seed)
                && !WITHOUT_BUDGET.contains(&entry.name)
            {
                // An alternative may be cheaper than the default.
                assert!(makespan <= store_all.makespan, "{}, case {seed}: overhead at the store-all peak", entry.name);
            }
        }
    }
}

#[test]
fn every_planner_keeps_its_word_on_generated_graphs() {
    judge_all(0..45);
}

#[test]
#[ignore = "takes minutes; run it in release"]
fn every_planner_keeps_its_word_on_a_thousand_generated_graphs() {
    judge_all(0..1000);
}

#[test]
fn no_planner_fails_at_the_ends_of_the_budget_range() {
    for entry in planners() {
        for seed in 0..6 {
            let graph = case(seed);
            judge(entry, &graph, 0, seed);
            judge(entry, &graph, u64::MAX, seed);
        }
    }
}

#[test]
fn the_same_request_gives_the_same_plan() {
    // A time limit that none of the planners without a clock comes near.
    let clocked = ["search", "auto", "checkmate", "lp-rounding", "monet"];
    for entry in planners().iter().filter(|entry| !clocked.contains(&entry.name)) {
        for seed in 0..12 {
            let graph = case(seed);
            let budget = StoreAll::peak(&graph) / 5 * 4;
            let plan = || solve(&*entry.planner(), &graph, &Request::new(budget)).ok().and_then(|s| s.outcome.plan);
            assert_eq!(plan(), plan(), "{}, case {seed}", entry.name);
        }
    }
}

#[test]
fn names_are_unique_and_planners_know_theirs() {
    for (i, entry) in planners().iter().enumerate() {
        assert_eq!(entry.planner().name(), entry.name);
        assert!(planners()[..i].iter().all(|other| other.name != entry.name), "{} is listed twice", entry.name);
    }
}
