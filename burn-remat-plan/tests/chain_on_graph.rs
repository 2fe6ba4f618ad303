//! Chain planners on graphs: whatever the graph, the checker accepts the plan.

use burn_remat_plan::generate::{self, Knobs};
use burn_remat_plan::planners::{ChainDp, Revolve, StoreAll};
use burn_remat_plan::views::chain_of::ChainView;
use burn_remat_plan::{Graph, PlanError, Planner, Request, solve};

fn store_all_peak(graph: &Graph) -> u64 {
    StoreAll.solve(graph, &Request::new(u64::MAX)).unwrap().peak_bytes
}

/// Plans at eight budgets; returns how many had a plan.
fn plan_at_many_budgets(graph: &Graph) -> usize {
    let peak = store_all_peak(graph);
    let mut plans = 0;
    for planner in [&ChainDp as &dyn Planner, &Revolve] {
        let mut smallest = None;
        for k in (1..=8).rev() {
            match solve(planner, graph, &Request::new(peak / 8 * k)) {
                Ok(_) => plans += 1,
                Err(PlanError::Infeasible { minimum, .. }) => smallest = minimum,
                Err(PlanError::Unsupported { .. }) => {}
                Err(error) => panic!("{}: {error}", graph.name()),
            }
        }
        if let Some(budget) = smallest {
            solve(planner, graph, &Request::new(budget)).unwrap();
        }
    }
    plans
}

#[test]
fn every_random_graph_gets_a_valid_plan_or_a_clear_no() {
    let mut plans = 0;
    for seed in 0..150 {
        plans += plan_at_many_budgets(&generate::random_graph(seed, &Knobs::ops(1, 40)));
        plans += plan_at_many_budgets(&generate::random_training_graph(seed, &Knobs::ops(1, 40)));
    }
    assert!(plans > 500, "{plans}");
}

#[test]
fn families_of_networks_get_plans_below_the_store_all_peak() {
    for (name, least_stages, least_plans) in
        [("mobilenet", 80, 12), ("resnet50", 30, 12), ("vgg16", 20, 4), ("linear", 10, 2)]
    {
        let graph = generate::by_name(name, &generate::Options { batch: 64, ..Default::default() }).unwrap();
        let stages = ChainView::candidates(&graph)[0].stages().len();
        assert!(stages >= least_stages, "{name}: {stages} stages");
        let plans = plan_at_many_budgets(&graph);
        assert!(plans >= least_plans, "{name}: {plans} plans");
    }
}
