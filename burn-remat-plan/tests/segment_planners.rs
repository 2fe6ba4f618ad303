//! The six segment heuristics on random graphs and on shapes with known answers.

mod common;

use burn_remat_plan::{GraphBuilder, Op, Phase, PlanError, Request, StopReason, registry, simulate};
use common::{random_graph, violations};
use proptest::prelude::*;

const NAMES: [&str; 6] = ["chen-sqrt", "chen-greedy", "ap-sqrt", "ap-greedy", "linear-sqrt", "linear-greedy"];

/// A training step of a path of `depth` equal ops: forward, then one gradient per op.
fn path(depth: usize) -> burn_remat_plan::Graph {
    let mut builder = GraphBuilder::new("path");
    let mut values = Vec::new();
    for i in 0..depth {
        let value = builder.value(1, "");
        let inputs = if i == 0 { vec![] } else { vec![values[i - 1]] };
        builder.op(Op { phase: Some(Phase::Forward), ..Op::new(format!("f{i}"), 1.0, inputs, vec![value]) });
        values.push(value);
    }
    let mut gradient = None;
    for i in (0..depth).rev() {
        let value = builder.value(1, "");
        let inputs = gradient.into_iter().chain([values[i]]).chain((i > 0).then(|| values[i - 1])).collect();
        builder.op(Op { phase: Some(Phase::Backward), ..Op::new(format!("b{i}"), 2.0, inputs, vec![value]) });
        gradient = Some(value);
    }
    builder.build().unwrap()
}

#[test]
fn on_a_path_of_n_ops_the_sqrt_heuristics_need_about_two_roots_of_n() {
    let graph = path(100);
    let error = registry::planner("chen-sqrt").unwrap().solve(&graph, &Request::new(0)).unwrap_err();
    let PlanError::Infeasible { minimum: Some(minimum), blocking_op: Some(_), .. } = error else { panic!("{error}") };
    assert!((19..=24).contains(&minimum), "{minimum}");
    for name in NAMES {
        let outcome = registry::planner(name).unwrap().solve(&graph, &Request::new(minimum)).unwrap();
        assert_eq!(outcome.stop_reason, StopReason::Heuristic);
        // At most one more forward pass, minus the last segment.
        assert!(outcome.makespan > 300.0 && outcome.makespan <= 390.0, "{name}: {}", outcome.makespan);
    }
}

#[test]
fn on_a_path_all_generalizations_equal_the_original() {
    let graph = path(37);
    for budget in 0..80 {
        for kind in ["sqrt", "greedy"] {
            let solve = |family: &str| {
                let solved =
                    registry::planner(&format!("{family}-{kind}")).unwrap().solve(&graph, &Request::new(budget));
                solved.map(|outcome| outcome.plan)
            };
            assert_eq!(solve("chen"), solve("ap"), "{kind} {budget}");
            assert_eq!(solve("chen"), solve("linear"), "{kind} {budget}");
        }
    }
}

#[test]
fn a_forward_pass_with_a_branch_is_refused_with_what_to_use_instead() {
    let mut builder = GraphBuilder::new("");
    let v: Vec<_> = (0..3).map(|_| builder.value(1, "")).collect();
    builder.op(Op { phase: Some(Phase::Forward), ..Op::new("a", 1.0, vec![], vec![v[0]]) });
    builder.op(Op { phase: Some(Phase::Forward), ..Op::new("b", 1.0, vec![v[0]], vec![v[1]]) });
    builder.op(Op { phase: Some(Phase::Forward), ..Op::new("c", 1.0, vec![v[0], v[1]], vec![v[2]]) });
    let graph = builder.build().unwrap();
    let error = registry::planner("chen-greedy").unwrap().solve(&graph, &Request::new(9)).unwrap_err();
    assert!(error.to_string().contains("op 2") && error.to_string().contains("linear-greedy"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_plan_is_valid_within_its_budget_and_as_dear_as_claimed(graph in random_graph(14), share in 0.0..1.2f64) {
        let everything: Vec<_> = (0..graph.ops().len()).collect();
        let store_all = simulate(&graph, &burn_remat_plan::sequence::plan_from_order(&graph, &everything));
        let budget = (store_all.peak_bytes as f64 * share) as u64;
        for name in NAMES {
            let planner = registry::planner(name).unwrap();
            match planner.solve(&graph, &Request::new(budget)) {
                Ok(outcome) => {
                    let plan = outcome.plan.clone().unwrap();
                    prop_assert_eq!(violations(&graph, &plan, budget), Vec::<String>::new(), "{}", name);
                    let timeline = simulate(&graph, &plan);
                    prop_assert_eq!(timeline.makespan, outcome.makespan);
                    prop_assert_eq!(timeline.peak_bytes, outcome.peak_bytes);
                    prop_assert!(budget < store_all.peak_bytes || outcome.makespan == store_all.makespan);
                }
                Err(PlanError::Infeasible { minimum, .. }) => {
                    // The budget that the error names is enough.
                    let minimum = minimum.unwrap();
                    prop_assert!(minimum > budget);
                    prop_assert!(planner.solve(&graph, &Request::new(minimum)).is_ok());
                }
                Err(PlanError::Unsupported { .. }) => prop_assert!(name.starts_with("chen")),
                Err(error) => prop_assert!(false, "{}: {}", name, error),
            }
        }
    }
}
