//! `search`, `minimum` and `lower_bound` against brute force and on generated graphs.

mod brute_force;

use std::time::{Duration, Instant};

use brute_force::{assert_honest, cheapest};
use burn_remat_plan::generate::{NAMES, Options, RandomGraphOptions, by_name, random_graph};
use burn_remat_plan::lower_bound::{Effort, lower_bound};
use burn_remat_plan::planners::{Auto, Search};
use burn_remat_plan::registry::planner;
use burn_remat_plan::sequence::plan_from_order;
use burn_remat_plan::{Graph, PlanError, Planner, Request, check, minimum, simulate, solve};

fn request(budget: u64, milliseconds: u64) -> Request {
    Request { time_limit: Duration::from_millis(milliseconds), threads: 2, ..Request::new(budget) }
}

fn store_all_peak(graph: &Graph) -> u64 {
    simulate(graph, &plan_from_order(graph, &(0..graph.ops().len()).collect::<Vec<_>>())).peak_bytes
}

/// Plans `count` random graphs at a random budget and compares with brute force. Returns how many optima were missed.
fn compare_with_brute_force(first: u64, count: u64, most_ops: usize) -> u64 {
    let knobs = RandomGraphOptions { alternative: 0.0, ..RandomGraphOptions::ops(4, most_ops) };
    let mut missed = 0;
    for seed in first..first + count {
        let graph = random_graph(seed, &knobs);
        if graph.values().len() > 20 {
            continue;
        }
        let least = minimum(&graph);
        let peak = store_all_peak(&graph);
        let budget = least.lower_bound + (peak - least.lower_bound) * (seed % 5) / 5;
        let brute = cheapest(&graph, budget);
        if budget < least.lower_bound {
            assert_eq!(brute, None, "seed {seed}: the minimum's bound is wrong");
        }
        if budget >= least.achieved {
            assert!(brute.is_some(), "seed {seed}: the minimum's plan is wrong");
        }
        if let Some(brute) = brute {
            let effort = Effort { iterations: 1000, ..Effort::time(Duration::from_secs(10)) };
            assert!(lower_bound(&graph, budget, effort) <= brute as f64, "seed {seed}: a false bound");
        }
        let start = Instant::now();
        let found = solve(&Search::default(), &graph, &request(budget, 100));
        let took = start.elapsed();
        match (found, brute) {
            (Ok(found), Some(brute)) => {
                let outcome = found.outcome;
                assert_honest(&outcome, brute, seed);
                missed += u64::from(outcome.makespan > brute as f64 || took > Duration::from_millis(110));
            }
            (Err(PlanError::Infeasible { .. }), None) => {}
            (Err(_), Some(_)) => missed += 1,
            (found, brute) => panic!("seed {seed}: {found:?} where brute force finds {brute:?}"),
        }
    }
    missed
}

#[test]
fn small_graphs_get_their_optimum() {
    assert_eq!(compare_with_brute_force(0, 60, 8), 0);
}

/// Run with `cargo test --release -p burn-remat-plan --test search -- --ignored`.
#[test]
#[ignore = "minutes: two thousand brute forces"]
fn graphs_to_twelve_ops_get_their_optimum_in_99_of_100_cases() {
    let missed = compare_with_brute_force(1000, 2000, 12);
    println!("missed {missed} of 2000");
    assert!(missed <= 20);
}

#[test]
fn at_the_minimum_there_is_a_plan() {
    let mut graphs: Vec<Graph> = (0..40).map(|seed| random_graph(seed, &RandomGraphOptions::ops(1, 40))).collect();
    for (name, _) in NAMES {
        // The published networks ignore the depth.
        for (depth, seed) in [(3, 0), (8, 1)] {
            graphs.push(by_name(name, &Options { depth, seed, ..Options::default() }).unwrap());
        }
    }
    graphs.retain(|graph| graph.ops().len() <= 170);
    for (number, graph) in graphs.into_iter().enumerate() {
        let least = minimum(&graph);
        check(&graph, &least.plan, least.achieved).unwrap();
        assert!(least.lower_bound <= least.achieved);
        // Little work, and enough time for it on any machine.
        let (search, auto) = (Search::default().with_iterations(400), Auto::default().with_iterations(400));
        let found = solve(&search, &graph, &request(least.achieved, 60_000))
            .unwrap_or_else(|error| panic!("{error} {least:?} {graph:?}"));
        assert!(found.outcome.peak_bytes <= least.achieved);
        // With solvers in the build, a part of its time goes to them.
        if number % 8 == 0 {
            let found = solve(&auto, &graph, &request(least.achieved, 5_000)).map(|found| found.checked);
            assert!(found.as_ref().is_ok_and(Option::is_some), "{}: {found:?}", graph.name());
        }
        if least.lower_bound > 0 {
            let error = solve(&search, &graph, &request(least.lower_bound - 1, 60_000)).unwrap_err();
            assert!(matches!(error, PlanError::Infeasible { minimum: Some(m), .. } if m == least.achieved));
        }
    }
}

#[test]
fn extreme_budgets_and_time_limits_do_no_harm() {
    for seed in 0..30 {
        let graph = random_graph(seed, &RandomGraphOptions { most_bytes: 1 << 50, ..RandomGraphOptions::ops(1, 60) });
        let half = store_all_peak(&graph) / 2;
        for (budget, limit) in [(0, 5), (1, 0), (half, 0), (half, 10), (u64::MAX, 0), (u64::MAX, 10)] {
            match solve(&Search::default(), &graph, &request(budget, limit)) {
                Ok(found) => assert!(found.outcome.peak_bytes <= budget),
                Err(error) => assert!(matches!(error, PlanError::Infeasible { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn the_same_seed_and_iterations_give_the_same_plan() {
    let graph = by_name("residual", &Options { depth: 4, ..Options::default() }).unwrap();
    let budget = store_all_peak(&graph) * 2 / 3;
    let plan = || {
        let search = Search::default().with_iterations(2000);
        solve(&search, &graph, &request(budget, 600_000)).unwrap().outcome.plan
    };
    assert_eq!(plan(), plan());
}

#[test]
#[ignore = "a minute: bounds of a large graph"]
fn large_graphs_get_the_same_plan_again_and_no_dearer_one_than_from_any_start() {
    let graph = by_name("residual", &Options { depth: 400, ..Options::default() }).unwrap();
    let request = request(minimum(&graph).achieved, 3_600_000);
    let search = Search::default().with_iterations(2_000);
    let makespan = |planner: &dyn Planner| solve(planner, &graph, &request).unwrap().outcome.makespan;
    let found = makespan(&search);
    assert_eq!(found, makespan(&search));
    assert!(found <= makespan(&*planner("online").unwrap()));
}

#[test]
fn the_minimum_is_no_more_than_what_quick_planners_reach() {
    for (family, depth, seed) in
        [("unet", 4, 0), ("random", 20, 1), ("random", 8, 0), ("random", 60, 3), ("unet", 8, 0), ("residual", 8, 0)]
    {
        let graph = by_name(family, &Options { depth, seed, ..Options::default() }).unwrap();
        let least = minimum(&graph);
        for name in ["online", "revolve", "chain-dp", "ap-greedy", "linear-greedy"] {
            let result = planner(name).unwrap().solve(&graph, &Request::new(1));
            let Err(PlanError::Infeasible { minimum: Some(reached), .. }) = result else { continue };
            assert!(least.achieved <= reached, "{family} {depth}: {name} reaches {reached}, not {}", least.achieved);
        }
    }
}

#[test]
fn what_sets_the_minimum_adds_up() {
    for seed in 0..400 {
        let knobs = RandomGraphOptions {
            alternative: if seed % 2 == 0 { 0.4 } else { 0.0 },
            input: 0.4,
            ..RandomGraphOptions::ops(1, 24)
        };
        let graph = random_graph(seed, &knobs);
        let least = minimum(&graph);
        assert!(least.bytes_together(&graph) <= least.lower_bound, "seed {seed}: {least:?}");
        if least.is_exact() {
            assert_eq!(least.bytes_together(&graph), least.achieved, "seed {seed}: {least:?}");
        }
    }
}
