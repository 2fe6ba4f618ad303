//! The stage view and the planner on it: against the checker, against the exact program, and against chain planners.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::descent::{Mode, State};
use super::*;
use crate::check::check;
use crate::choice::implementations;
use crate::generate::{Options, RandomGraphOptions, by_name, random_graph, random_training_graph};
use crate::graph::{GraphBuilder, Op, Phase};
use crate::plan::Step;
use crate::planners::{ChenGreedy, StoreAll};
use crate::sequence::compute_order;
use crate::views::stages_of::StageView;

/// `graph` with a stage's name on its first `forward` ops, a new one wherever `change` says so.
fn named(graph: &Graph, forward: usize, mut change: impl FnMut() -> bool) -> Graph {
    let mut stage = 0;
    let named = graph.with_ops(|(id, op)| {
        stage += usize::from(change());
        let phase = if id < forward { Phase::Forward } else { Phase::Backward };
        Op { phase: Some(phase), stage: Some(format!("block#{stage}")), ..op.clone() }
    });
    named.unwrap()
}

/// Graphs with everything in them: random ones cut in two, and training steps with random stages.
fn cases(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Graph> {
    seeds.map(|seed| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let knobs =
            RandomGraphOptions { once_only: if seed % 4 < 2 { 0.0 } else { 0.15 }, ..RandomGraphOptions::ops(2, 30) };
        if seed % 2 == 0 {
            let graph = random_graph(seed, &knobs);
            let forward = graph.ops().len().div_ceil(2);
            named(&graph, forward, || rng.random_bool(0.3))
        } else {
            let graph = random_training_graph(seed, &RandomGraphOptions { most_ops: 15, ..knobs });
            let forward = graph.ops().iter().take_while(|op| op.phase == Some(Phase::Forward)).count();
            named(&graph, forward, || rng.random_bool(0.3))
        }
    })
}

#[test]
fn a_schedule_of_the_stages_is_a_valid_plan_that_costs_and_holds_no_more() {
    let (mut alternatives, mut repeats) = (0, 0);
    for (seed, graph) in cases(0..600).enumerate() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
        for most in [2, 4, 16] {
            for view in StageView::candidates(&graph, most) {
                let coarse = view.graph();
                let stages = Stages::new(coarse);
                for _ in 0..6 {
                    let mode = |rng: &mut ChaCha8Rng| [Mode::Kept, Mode::Again, Mode::Never][rng.random_range(0..3)];
                    let modes = (0..coarse.values().len()).map(|_| mode(&mut rng)).collect();
                    let ways = coarse.ops().iter().map(|op| rng.random_range(0..implementations(op))).collect();
                    let found = State { modes, ways }.candidate(coarse, &stages);
                    let plan = plan_of_choices(coarse, &found.choices);
                    check(coarse, &plan, found.timeline.peak_bytes).unwrap();
                    let fine = view.plan(&graph, &plan);
                    let checked = check(&graph, &fine, found.timeline.peak_bytes)
                        .unwrap_or_else(|wrong| panic!("case {seed}, {most} stages: {wrong}\n{graph:#?}\n{coarse:#?}"));
                    assert!(checked.makespan() <= found.timeline.makespan + 1e-9, "case {seed}");
                    alternatives += found.choices.iter().filter(|choice| choice.implementation > 0).count();
                    repeats += compute_order(&fine).len() - graph.ops().len();
                }
            }
        }
    }
    assert!(alternatives > 1000 && repeats > 1000, "{alternatives} alternatives, {repeats} repeated ops");
}

fn request(budget: u64, seconds: f64) -> Request {
    Request { threads: 1, time_limit: Duration::from_secs_f64(seconds), ..Request::new(budget) }
}

/// The best plan by stages.
fn by_stages(graph: &Graph, request: &Request) -> Option<Candidate> {
    let start = heuristic::store_all(graph, &Stages::new(graph), request.budget);
    let (latest, deadline) = (Latest::default(), request.deadline());
    let mut run = Attempt::new(graph, request, &latest, deadline, start);
    on_stages::offer(&mut run, deadline);
    run.start.best
}

#[test]
fn plans_by_stages_fit_the_budget_on_random_graphs() {
    let mut tight = 0;
    for (case, graph) in cases(1000..1250).enumerate() {
        let peak = StoreAll::peak(&graph);
        for budget in [peak * 6 / 10, peak * 8 / 10, peak * 9 / 10] {
            if let Some(found) = by_stages(&graph, &request(budget, 0.2)) {
                let checked = check(&graph, &plan_of_choices(&graph, &found.choices), budget);
                checked.unwrap_or_else(|wrong| panic!("case {case}: {wrong}"));
                tight += 1;
            }
        }
    }
    assert!(tight > 50, "{tight} plans below the store-all peak");
}

/// A path of layers whose backward ops read the layers' inputs, each layer a stage.
fn path(seed: u64) -> Graph {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut builder = GraphBuilder::new("path");
    let op = |name: String, layer: usize, phase, cost: u32, inputs, outputs| Op {
        phase: Some(phase),
        stage: Some(format!("layer#{layer}")),
        ..Op::new(name, f64::from(cost), inputs, outputs)
    };
    let mut values = vec![builder.value(rng.random_range(1..9), "x")];
    for layer in 0..5 {
        values.push(builder.value(rng.random_range(1..9), ""));
        let cost = rng.random_range(1..9);
        let ends = (vec![values[layer]], vec![values[layer + 1]]);
        builder.op(op(format!("f{layer}"), layer, Phase::Forward, cost, ends.0, ends.1));
    }
    let mut gradient = None;
    for layer in (0..5).rev() {
        let bytes = builder.value(rng.random_range(1..9), "");
        let reads = gradient.into_iter().chain([values[layer], values[layer + 1]]).collect();
        builder.op(op(format!("b{layer}"), layer, Phase::Backward, rng.random_range(1..9), reads, vec![bytes]));
        gradient = Some(bytes);
    }
    builder.build().unwrap()
}

#[test]
fn where_every_stage_is_one_op_the_plan_is_the_exact_one() {
    let mut tight = 0;
    for seed in 0..30 {
        let graph = path(seed);
        let peak = StoreAll::peak(&graph);
        for budget in [peak - 1, peak * 9 / 10, peak * 8 / 10, peak * 7 / 10] {
            let request = request(budget, 20.0);
            let found = by_stages(&graph, &request).map(|found| found.timeline.makespan);
            let known = Monet.solve(&graph, &request).ok().map(|outcome| outcome.makespan);
            assert_eq!(found, known, "path {seed} within {budget}");
            tight += usize::from(known.is_some_and(|cost| cost > StoreAll::makespan(&graph)));
        }
    }
    assert!(tight > 20, "{tight} budgets that need recomputation");
}

/// A conv, a dropout with its mask, and a conv, `blocks` times.
fn dropouts(blocks: usize) -> Graph {
    let mut builder = GraphBuilder::new("dropout");
    let mut x = builder.value(10, "x");
    let mut saved = Vec::new();
    let op = |name: &str, block: usize, phase, cost, inputs, outputs| Op {
        phase: Some(phase),
        stage: Some(format!("block#{block}")),
        ..Op::new(name, cost, inputs, outputs)
    };
    for block in 0..blocks {
        let [a, mask, b, y] = [100, 5, 100, 10].map(|bytes| builder.value(bytes, ""));
        builder.op(op("up", block, Phase::Forward, 10.0, vec![x], vec![a]));
        let mut random = op("mask", block, Phase::Forward, 1.0, vec![], vec![mask]);
        random.recomputable = false;
        builder.op(random);
        builder.op(op("drop", block, Phase::Forward, 1.0, vec![a, mask], vec![b]));
        builder.op(op("down", block, Phase::Forward, 10.0, vec![b], vec![y]));
        saved.push((x, a, mask, b));
        x = y;
    }
    for (block, (input, a, mask, b)) in saved.into_iter().enumerate().rev() {
        let gradient = builder.value(10, "");
        builder.op(op("grad", block, Phase::Backward, 40.0, vec![x, input, a, mask, b], vec![gradient]));
        x = gradient;
    }
    builder.build().unwrap()
}

#[test]
fn a_stage_with_a_dropout_is_computed_again_but_for_its_mask() {
    let graph = dropouts(6);
    let view = &StageView::candidates(&graph, 16)[0];
    let once = view.graph().ops().iter().filter(|op| !op.recomputable).count();
    assert_eq!(once, 6, "the masks are ops of their own");
    let budget = 400;
    assert!(StoreAll::peak(&graph) > 3 * budget);
    let found = by_stages(&graph, &request(budget, 10.0)).expect("a block holds 230 bytes");
    let order: Vec<OpId> = found.choices.iter().map(|choice| choice.op).collect();
    let repeated: BTreeSet<&str> = (0..graph.ops().len())
        .filter(|&id| order.iter().filter(|&&op| op == id).count() > 1)
        .map(|id| graph.ops()[id].name.as_str())
        .collect();
    assert_eq!(repeated, BTreeSet::from(["drop", "up"]), "the end of a block is never needed again");
    check(&graph, &plan_of_choices(&graph, &found.choices), budget).unwrap();
}

#[test]
fn what_is_cheap_is_computed_again_inside_the_stage_before_what_is_dear() {
    // Without the 100 bytes after each dropout, which cost 1: the expensive 100 may stay.
    let graph = dropouts(6);
    let found = by_stages(&graph, &request(900, 10.0)).unwrap();
    assert_eq!(found.timeline.makespan - StoreAll::makespan(&graph), 5.0);
    let view = &StageView::candidates(&graph, 16)[0];
    let last = view.graph().ops().last().unwrap();
    assert!(last.alternatives.iter().any(|other| other.cost == last.cost + 1.0), "{last:?}");
}

#[test]
fn a_network_of_150_ops_is_planned_far_cheaper_than_by_segments() {
    let graph = by_name("mobilenet", &Options { batch: 32, ..Options::default() }).unwrap();
    assert!(graph.ops().len() > 150);
    let base = StoreAll::makespan(&graph);
    for percent in [50, 60, 70] {
        let request = request(StoreAll::peak(&graph) / 100 * percent, 2.0);
        let outcome = Monet.solve(&graph, &request).unwrap();
        check(&graph, outcome.plan.as_ref().unwrap(), request.budget).unwrap();
        assert_eq!(outcome.status, Status::Feasible);
        assert!(outcome.lower_bound.unwrap() >= base * (1.0 - 1e-9), "every op runs at least once");
        let Ok(other) = ChenGreedy.solve(&graph, &request) else { continue };
        let (ours, theirs) = (outcome.makespan - base, other.makespan - base);
        assert!(ours < 0.7 * theirs, "{ours} against {theirs} at {percent}%");
    }
}

#[test]
fn skips_across_several_stages_are_no_obstacle() {
    let graph = by_name("unet416x608", &Options { batch: 32, ..Options::default() }).unwrap();
    let base = StoreAll::makespan(&graph);
    let request = request(StoreAll::peak(&graph) / 100 * 60, 4.0);
    let found = by_stages(&graph, &request).unwrap();
    check(&graph, &plan_of_choices(&graph, &found.choices), request.budget).unwrap();
    // A chain of stages that keep one set each has to pin the skips or carry them through every stage: 24% more. This takes 8%.
    assert!(found.timeline.makespan < 1.12 * base, "{}", found.timeline.makespan / base);
}

#[test]
fn a_program_too_large_for_memory_is_planned_by_stages_or_refused() {
    let graph = by_name("residual", &Options { batch: 8, depth: 170, ..Options::default() }).unwrap();
    let entries = estimated_entries(&graph, &Stages::new(&graph));
    assert!(entries > largest_model(&Request::new(0)), "{} ops have {entries} entries", graph.ops().len());
    let peak = StoreAll::peak(&graph);
    let outcome = Monet.solve(&graph, &request(peak / 10 * 6, 12.0)).unwrap();
    check(&graph, outcome.plan.as_ref().unwrap(), peak / 10 * 6).unwrap();
    let steps = &outcome.plan.as_ref().unwrap().steps;
    assert!(steps.iter().filter(|step| matches!(step, Step::Compute(_))).count() > graph.ops().len());
    let (need, _) = largest(&graph);
    assert!(matches!(Monet.solve(&graph, &request(need - 1, 60.0)), Err(PlanError::Infeasible { .. })));
    assert!(matches!(Monet.solve(&graph, &request(need, 60.0)), Err(PlanError::Unsupported { .. })));
}
