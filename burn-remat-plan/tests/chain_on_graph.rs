//! Chain planners on graphs: whatever the graph, the checker accepts the plan.

use burn_remat_plan::generate::{self, RandomGraphOptions};
use burn_remat_plan::planners::{ChainDp, Revolve, StoreAll};
use burn_remat_plan::views::chain_of::ChainView;
use burn_remat_plan::{Graph, GraphBuilder, Op, Phase, PlanError, Planner, Request, solve};

fn store_all_peak(graph: &Graph) -> u64 {
    StoreAll.solve(graph, &Request::new(u64::MAX)).unwrap().peak_bytes
}

/// Plans at eight budgets; returns for how many there was a plan.
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
    for seed in 0..100 {
        plans += plan_at_many_budgets(&generate::random_graph(seed, &RandomGraphOptions::ops(1, 40)));
        plans += plan_at_many_budgets(&generate::random_training_graph(seed, &RandomGraphOptions::ops(1, 40)));
    }
    assert!(plans > 350, "{plans}");
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

/// Two lanes that exchange values in every block, so that no place is crossed by a single value; blocks named or not.
fn two_lanes(named: bool) -> Graph {
    let blocks = 6;
    let mut graph = GraphBuilder::new("two lanes");
    let mut lanes = [graph.value(100, "left"), graph.value(100, "right")];
    let mut saved = Vec::new();
    let add = |graph: &mut GraphBuilder, name: String, block: usize, phase, inputs: Vec<usize>, bytes| {
        let value = graph.value(bytes, name.clone());
        let mut op = Op::new(name, 1.0, inputs, vec![value]);
        op.phase = Some(phase);
        op.stage = named.then(|| format!("block#{block}"));
        graph.op(op);
        value
    };
    for block in 0..blocks {
        let [left, right] = lanes;
        let hidden = add(&mut graph, format!("hidden{block}"), block, Phase::Forward, vec![left, right], 300);
        let left = add(&mut graph, format!("left{block}"), block, Phase::Forward, vec![hidden, right], 100);
        let right = add(&mut graph, format!("right{block}"), block, Phase::Forward, vec![hidden, left], 100);
        saved.push((lanes, hidden));
        lanes = [left, right];
    }
    let mut gradient = add(&mut graph, "loss".into(), blocks, Phase::Backward, lanes.to_vec(), 100);
    for (block, (lanes, hidden)) in saved.into_iter().enumerate().rev() {
        let inputs = vec![gradient, hidden, lanes[0], lanes[1]];
        gradient = add(&mut graph, format!("backward{block}"), block, Phase::Backward, inputs, 100);
    }
    graph.build().unwrap()
}

#[test]
fn named_stages_make_a_chain_where_no_single_value_does() {
    let (plain, named) = (two_lanes(false), two_lanes(true));
    // The view with nothing pinned.
    assert!(ChainView::candidates(&plain)[0].stages().len() < 6);
    assert!(ChainView::candidates(&named).iter().any(|view| view.stages().len() == 6));
    let request = Request::new(store_all_peak(&named) * 7 / 10);
    // Whole saved sets at cuts find nothing; stages that drop a part of theirs do.
    assert!(solve(&Revolve, &plain, &request).is_err());
    assert!(solve(&ChainDp, &plain, &request).is_ok());
    let planned = solve(&ChainDp, &named, &request).unwrap().outcome;
    assert!(planned.peak_bytes <= request.budget);
    #[cfg(feature = "highs")]
    {
        let exact = solve(&burn_remat_plan::planners::Monet, &named, &request).unwrap().outcome;
        assert!(exact.peak_bytes <= request.budget);
        // A stage of three ops is computed again as a whole at worst.
        let most = exact.makespan + 6.0;
        assert!(exact.makespan <= planned.makespan && planned.makespan <= most, "{planned:?} {exact:?}");
    }
}
