//! Choosing implementations together with recomputation: against brute force, and against not choosing.
//!
//! Larger than the rule: `small_cases`, because its callers take each case apart.

mod brute_force;

use std::time::Duration;

use brute_force::{assert_honest, cheapest};
use burn_remat_plan::generate::{
    Implementations, Options, RandomGraphOptions, by_name, random_graph, random_training_graph,
};
use burn_remat_plan::lower_bound::{Effort, lower_bound};
use burn_remat_plan::planners::search::Part;
use burn_remat_plan::planners::{Auto, Search, StoreAll};
use burn_remat_plan::views::without_alternatives;
use burn_remat_plan::{Graph, PlanError, Planner, Request, check, minimum, solve};

/// Anything that a graph may hold, with alternatives on about half of its ops; in turn with training steps.
fn case(seed: u64, most_ops: usize) -> Graph {
    let knobs = RandomGraphOptions { alternative: 0.5, scratch: 0.4, ..RandomGraphOptions::ops(2, most_ops) };
    match seed % 3 {
        0 => random_training_graph(seed, &RandomGraphOptions { most_ops: most_ops / 2, ..knobs }),
        _ => random_graph(seed, &knobs),
    }
}

/// Between what is certainly needed and the store-all peak.
fn budget_of(graph: &Graph, seed: u64) -> u64 {
    let (least, peak) = (minimum(graph).lower_bound, StoreAll::peak(graph));
    least + peak.saturating_sub(least) * (seed % 5) / 5
}

fn request(budget: u64) -> Request {
    Request { time_limit: Duration::from_secs(60), threads: 1, ..Request::new(budget) }
}

/// Random graphs small enough for brute force, with a budget and the optimum.
fn small_cases(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Graph, u64, Option<u64>)> {
    seeds.map(|seed| (seed, case(seed, 10))).filter(|(_, graph)| graph.values().len() <= 16).map(|(seed, graph)| {
        let budget = budget_of(&graph, seed);
        let brute = cheapest(&graph, budget);
        (seed, graph, budget, brute)
    })
}

/// Of the cases that have a schedule: how many `search` solves to the optimum, how many there are, and how many of the optima choose
/// an alternative or recompute something.
fn optima(search: &Search, seeds: std::ops::Range<u64>) -> (u64, u64, u64) {
    let (mut met, mut all, mut tight) = (0, 0, 0);
    for (seed, graph, budget, brute) in small_cases(seeds) {
        match (solve(search, &graph, &request(budget)), brute) {
            (Ok(found), Some(brute)) => {
                let outcome = found.outcome;
                assert_honest(&outcome, brute, seed);
                met += u64::from(outcome.makespan == brute as f64);
                all += 1;
                tight += u64::from(brute as f64 != StoreAll::makespan(&graph));
            }
            (Err(PlanError::Infeasible { .. }), None) => {}
            (Err(_), Some(_)) => all += 1,
            (found, brute) => panic!("seed {seed}: {found:?} where brute force finds {brute:?}"),
        }
    }
    println!("{met} of {all} optima, {tight} of them other than store-all");
    (met, all, tight)
}

#[test]
fn small_graphs_get_their_joint_optimum() {
    let (met, all, tight) = optima(&Search::default(), 0..150);
    assert!(met == all && all > 80 && tight > 50, "{met} of {all}, {tight} tight");
}

#[test]
fn the_walk_alone_reaches_nearly_all_joint_optima() {
    let search = Search::default().with_iterations(2000).without(Part::Exact);
    let (met, all, tight) = optima(&search, 1000..1200);
    assert!(met * 100 >= all * 97 && tight > 60, "{met} of {all}, {tight} tight");
}

/// Run with `cargo test --release -p burn-remat-plan --test joint -- --ignored --nocapture`.
#[test]
#[ignore = "minutes: three thousand brute forces"]
fn the_walk_alone_reaches_98_of_100_joint_optima() {
    let search = Search::default().with_iterations(2000).without(Part::Exact);
    let (met, all, _) = optima(&search, 10_000..13_000);
    assert!(met * 100 >= all * 98, "{met} of {all}");
}

#[test]
fn no_bound_exceeds_the_joint_optimum() {
    for (seed, graph, budget, brute) in small_cases(2000..2300) {
        let least = minimum(&graph);
        check(&graph, &least.plan, least.achieved).unwrap();
        assert!(cheapest(&graph, least.achieved).is_some());
        if least.lower_bound > 0 {
            assert_eq!(cheapest(&graph, least.lower_bound - 1), None, "seed {seed}: the minimum's bound is wrong");
        }
        if let Some(brute) = brute {
            let effort = Effort { iterations: 1000, ..Effort::time(Duration::from_secs(10)) };
            assert!(lower_bound(&graph, budget, effort) <= brute as f64, "seed {seed}: a false bound");
        }
    }
}

/// For `auto`, whose solvers use up their part of the limit: seconds, where the limited search takes milliseconds.
fn within_seconds(budget: u64) -> Request {
    Request { time_limit: Duration::from_secs(2), ..request(budget) }
}

/// By how much a planner that is stopped by the clock may miss, on a machine that does other things too.
const STOPPED: f64 = 1.001;

/// Plans with and without the alternatives; returns by how much choosing is cheaper, as a part of the makespan.
fn gain(planner: &dyn Planner, graph: &Graph, request: &Request, case: &str) -> f64 {
    let budget = request.budget;
    let makespan = |graph: &Graph| solve(planner, graph, request).ok().map(|found| found.outcome.makespan);
    let (joint, plain) = (makespan(graph), makespan(&without_alternatives(graph)));
    match (joint, plain) {
        (Some(joint), Some(plain)) => {
            assert!(joint <= plain * STOPPED, "{case}, budget {budget}: {joint} with alternatives, {plain} without");
            1.0 - joint / plain.max(1e-9)
        }
        (None, Some(_)) => panic!("{case}, budget {budget}: no plan with alternatives, but one without"),
        (_, None) => 0.0,
    }
}

#[test]
fn alternatives_never_make_auto_dearer_on_random_graphs() {
    let auto = Auto::default().with_iterations(1000);
    let mut gains = 0;
    for seed in 0..30 {
        let graph = case(seed, 40);
        for tenths in [7, 9] {
            let request = within_seconds(StoreAll::peak(&graph) * tenths / 10);
            gains += usize::from(gain(&auto, &graph, &request, &format!("{seed}")) > 0.0);
        }
    }
    assert!(gains > 5, "{gains} gains");
}

#[test]
fn alternatives_never_make_the_walk_dearer() {
    let search = Search::default().with_iterations(500).without(Part::Exact);
    for seed in 100..200 {
        let graph = case(seed, 30);
        for tenths in [4, 6, 8, 10] {
            gain(&search, &graph, &request(StoreAll::peak(&graph) * tenths / 10), &format!("{seed}"));
        }
    }
}

#[test]
fn alternatives_never_make_auto_dearer_on_training_steps() {
    let auto = Auto::default().with_iterations(2000);
    for name in ["residual", "unet", "inception"] {
        let implementations = Implementations::Several;
        let graph = by_name(name, &Options { implementations, depth: 4, batch: 8, ..Options::default() }).unwrap();
        let peak = StoreAll::peak(&graph);
        let gains = [10, 8, 6].map(|tenths| gain(&auto, &graph, &within_seconds(peak * tenths / 10), name));
        assert!(gains[0] > 0.05, "{name}: faster convolutions gain {gains:?}");
    }
}

#[test]
fn the_same_seed_and_iterations_choose_the_same() {
    let options = Options { implementations: Implementations::Several, depth: 6, ..Options::default() };
    let graph = by_name("residual", &options).unwrap();
    let budget = StoreAll::peak(&graph) * 2 / 3;
    let plan = || {
        let request = Request { threads: 2, ..request(budget) };
        solve(&Search::default().with_iterations(2000), &graph, &request).unwrap().outcome.plan
    };
    assert_eq!(plan(), plan());
}
