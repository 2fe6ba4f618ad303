//! Against brute force over all sets of checkpoints, by the definition in the planner's header.

use std::time::Duration;

use super::*;
use crate::generate::{NAMES, Options, Pass, RandomGraphOptions, by_name, random_graph, random_training_graph};
use crate::graph::{GraphBuilder, Op};
use crate::planners::StoreAll;
use crate::simulate::simulate;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Vertices with sizes; `edges[v]` are the vertices that v reads. Vertex 0 is the source, the last one the target.
struct Shape {
    sizes: Vec<u64>,
    edges: Vec<Vec<usize>>,
}

impl Shape {
    /// A random graph in which every vertex lies on a path from the first to the last.
    fn random(seed: u64, vertices: usize, density: f64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut edges: Vec<Vec<usize>> = vec![Vec::new()];
        for v in 1..vertices {
            let near = rng.random_range(v.saturating_sub(3)..v);
            let mut reads: Vec<usize> = (0..v).filter(|&u| u == near || rng.random_bool(density)).collect();
            if v + 1 == vertices {
                reads.extend((0..v).filter(|u| !edges.iter().any(|others| others.contains(u))));
                reads.sort_unstable();
                reads.dedup();
            }
            edges.push(reads);
        }
        let sizes = (0..vertices).map(|_| if rng.random_bool(0.1) { 0 } else { rng.random_range(1..20) }).collect();
        Self { sizes, edges }
    }

    /// As a forward pass; with `input`, the source is an input of the graph.
    fn graph(&self, input: bool) -> Graph {
        let mut builder = GraphBuilder::new("shape");
        let values: Vec<_> = self.sizes.iter().map(|&bytes| builder.value(bytes, "")).collect();
        for (v, reads) in self.edges.iter().enumerate().skip(usize::from(input)) {
            builder.op(Op::new("", 1.0, reads.clone(), vec![values[v]]));
        }
        builder.build().unwrap()
    }

    /// Fewest bytes of interior checkpoints and the largest segment.
    fn brute_force(&self) -> u64 {
        let count = self.sizes.len();
        (0..1u32 << count.saturating_sub(2)).filter_map(|set| self.value_of(set)).min().unwrap()
    }

    /// The objective of a set of interior checkpoints (bit k stands for vertex k + 1), if its pieces are segments.
    fn value_of(&self, set: u32) -> Option<u64> {
        let count = self.sizes.len();
        let kept = |v: usize| v == 0 || v == count - 1 || set >> (v - 1) & 1 == 1;
        // Name of the piece of each vertex: the smallest vertex in it, by repeated merging.
        let mut piece: Vec<usize> = (0..count).collect();
        loop {
            let before = piece.clone();
            for (v, reads) in self.edges.iter().enumerate() {
                for &u in reads {
                    if !kept(u) && !kept(v) {
                        let name = piece[u].min(piece[v]);
                        (piece[u], piece[v]) = (name, name);
                    }
                }
            }
            if piece == before {
                break;
            }
        }
        let mut largest = 0;
        for name in 1..count {
            if kept(name) || piece[name] != name {
                continue;
            }
            let (mut entries, mut exits, mut bytes) = (Vec::new(), Vec::new(), 0);
            for v in (0..count).filter(|&v| !kept(v) && piece[v] == name) {
                bytes += self.sizes[v];
                entries.extend(self.edges[v].iter().copied().filter(|&u| kept(u)));
                exits.extend((0..count).filter(|&w| kept(w) && self.edges[w].contains(&v)));
            }
            let all_same = |ends: &[usize]| ends.iter().all(|&end| end == ends[0]);
            if !all_same(&entries) || !all_same(&exits) {
                return None;
            }
            largest = largest.max(bytes);
        }
        Some((1..count - 1).filter(|&v| kept(v)).map(|v| self.sizes[v]).sum::<u64>() + largest)
    }
}

fn solve(graph: &Graph) -> Outcome {
    FengHuang.solve(graph, &Request::new(u64::MAX)).unwrap()
}

fn agrees_with_brute_force(cases: u64, most: usize) {
    for seed in 0..cases {
        let vertices = 2 + (seed as usize) % (most - 1);
        let density = [0.0, 0.05, 0.15, 0.4][(seed / 7 % 4) as usize];
        let shape = Shape::random(seed, vertices, density);
        let expected = shape.brute_force();
        for input in [false, true] {
            let outcome = solve(&shape.graph(input));
            let found = outcome.checkpoints.unwrap();
            assert_eq!(found.bytes, expected, "seed {seed}: {:?} {:?}", shape.sizes, shape.edges);
            let set = found.values.iter().fold(0, |set, &v| set | 1 << (v - 1));
            assert_eq!(shape.value_of(set), Some(expected), "seed {seed}: the checkpoints themselves are worse");
            assert_eq!(outcome.stop_reason, StopReason::Proved);
        }
    }
}

#[test]
fn the_checkpoints_equal_brute_force_on_graphs_of_up_to_ten_vertices() {
    agrees_with_brute_force(1500, 10);
}

#[test]
#[ignore = "10,000 graphs of up to 12 vertices: ten seconds in dev"]
fn the_checkpoints_equal_brute_force_on_graphs_of_up_to_twelve_vertices() {
    agrees_with_brute_force(10_000, 12);
}

#[test]
fn a_graph_without_any_independent_segment_keeps_nothing_or_everything() {
    // Every vertex reads all before it.
    let edges: Vec<Vec<usize>> = (0..8).map(|v| (0..v).collect()).collect();
    let shape = Shape { sizes: vec![5; 8], edges };
    assert_eq!(solve(&shape.graph(true)).checkpoints.unwrap().bytes, 30);
    assert_eq!(shape.brute_force(), 30);
}

#[test]
fn parallel_branches_between_the_same_checkpoints_are_separate_segments() {
    // Four branches of 10 from vertex 1 to vertex 6, which weigh 1.
    let edges = vec![vec![], vec![0], vec![1], vec![1], vec![1], vec![1], vec![2, 3, 4, 5], vec![6]];
    let shape = Shape { sizes: vec![0, 1, 10, 10, 10, 10, 1, 0], edges };
    let found = solve(&shape.graph(true)).checkpoints.unwrap();
    assert_eq!((found.values, found.bytes), (vec![1, 6], 12));
}

#[test]
fn a_branch_closed_beside_one_that_leaks_is_a_segment() {
    // 1 -> {2, 3} -> 4, where 3 also leads to 5: vertex 2 alone lies between 1 and 4.
    let edges = vec![vec![], vec![0], vec![1], vec![1], vec![2, 3], vec![3, 0], vec![4, 5]];
    let shape = Shape { sizes: vec![0, 1, 9, 1, 1, 1, 0], edges };
    assert_eq!(solve(&shape.graph(true)).checkpoints.unwrap().bytes, shape.brute_force());
}

#[test]
fn a_chain_of_equal_vertices_costs_twice_the_square_root() {
    let edges: Vec<Vec<usize>> = (0..102).map(|v: usize| v.checked_sub(1).into_iter().collect()).collect();
    let shape = Shape { sizes: vec![1; 102], edges };
    // k checkpoints leave k + 1 segments of (100 - k) / (k + 1): the best is 9 + 10 (rounded up), or another as good.
    let best = (0..100u64).map(|k| k + (100 - k).div_ceil(k + 1)).min().unwrap();
    assert_eq!(solve(&shape.graph(true)).checkpoints.unwrap().bytes, best);
}

fn is_valid(graph: &Graph, outcome: &Outcome) {
    let plan = outcome.plan.as_ref().unwrap();
    crate::check::check(graph, plan, u64::MAX).unwrap();
}

#[test]
fn plans_are_valid_and_compute_no_op_more_than_twice() {
    for seed in 0..400 {
        for graph in [
            random_graph(seed, &RandomGraphOptions::default()),
            random_training_graph(seed, &RandomGraphOptions::ops(1, 14)),
        ] {
            let outcome = solve(&graph);
            is_valid(&graph, &outcome);
            let plain = simulate(&graph, &StoreAll::plan(&graph)).makespan;
            assert!(outcome.makespan <= 2.0 * plain);
        }
    }
}

#[test]
fn a_budget_below_the_plan_is_infeasible_and_names_the_peak() {
    let graph = by_name("linear", &Options::default()).unwrap();
    let peak = solve(&graph).peak_bytes;
    assert!(FengHuang.solve(&graph, &Request::new(peak)).is_ok());
    let error = FengHuang.solve(&graph, &Request::new(peak - 1)).unwrap_err();
    assert!(
        matches!(error, PlanError::Infeasible { minimum: Some(minimum), blocking_op: Some(_), .. } if minimum == peak)
    );
}

#[test]
fn training_steps_of_deep_networks_get_lighter() {
    for name in ["linear", "residual", "inception", "vgg16", "resnet50", "densenet161", "mobilenet"] {
        let graph = by_name(name, &Options { depth: 20, ..Options::default() }).unwrap();
        let outcome = solve(&graph);
        let plain = simulate(&graph, &StoreAll::plan(&graph));
        assert!(outcome.peak_bytes < plain.peak_bytes, "{name}: {} of {}", outcome.peak_bytes, plain.peak_bytes);
    }
}

#[test]
fn every_generated_forward_pass_is_solved_to_the_end() {
    for (name, _) in NAMES {
        let graph = by_name(name, &Options { pass: Pass::Forward, depth: 8, ..Options::default() }).unwrap();
        let outcome = solve(&graph);
        assert_eq!(outcome.stop_reason, StopReason::Proved, "{name}");
        let whole: u64 = graph.values().iter().map(|value| value.bytes).sum();
        assert!(outcome.checkpoints.unwrap().bytes <= whole);
    }
}

#[test]
fn no_time_at_all_still_gives_a_plan() {
    for (name, _) in NAMES {
        let graph = by_name(name, &Options { depth: 6, ..Options::default() }).unwrap();
        let request = Request { time_limit: Duration::ZERO, ..Request::new(u64::MAX) };
        is_valid(&graph, &FengHuang.solve(&graph, &request).unwrap());
    }
}
