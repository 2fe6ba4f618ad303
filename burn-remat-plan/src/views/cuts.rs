//! Ops at which a part of a graph falls apart: articulation points, separators, and the segments between checkpoints.
//!
//! A part is a set of ops, say the forward pass. Its graph has an edge from op to op wherever a value leads; inputs of
//! the graph, which are always there, connect nothing. The algorithms are petgraph's.
//!
//! | notion | taken out of the part | source |
//! | --- | --- | --- |
//! | [`articulation_points`] | the graph without directions falls into more pieces | Checkmate, appendix B.1 |
//! | [`separators`] | no path leads from a first op to a last op: every run passes here | Feng & Huang, linear segments |
//! | [`segments`] | the pieces that remain without given checkpoints | Feng & Huang, definition 1 |

use std::collections::BTreeMap;

use petgraph::algo::dominators::simple_fast;
use petgraph::graph::{DiGraph, NodeIndex, UnGraph};

use crate::graph::{Graph, OpId};

/// A connected piece between checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its ops, ascending.
    pub ops: Vec<OpId>,
    /// Checkpoints from which values lead into it, ascending.
    pub entries: Vec<OpId>,
    /// Checkpoints that use its values, ascending.
    pub exits: Vec<OpId>,
}

impl Segment {
    /// Whether it hangs between one checkpoint and one other, as Feng & Huang ask of an independent segment.
    pub fn is_independent(&self) -> bool {
        self.entries.len() == 1 && self.exits.len() == 1
    }
}

/// Edges between ops of `part`, from producer to consumer, each once, ascending.
fn edges(graph: &Graph, part: &[OpId]) -> Vec<(OpId, OpId)> {
    let mut inside = vec![false; graph.ops().len()];
    for &op in part {
        inside[op] = true;
    }
    let mut edges: Vec<(OpId, OpId)> = part
        .iter()
        .flat_map(|&op| graph.ops()[op].inputs.iter().filter_map(move |&value| Some((graph.producer(value)?, op))))
        .filter(|&(from, _)| inside[from])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// Node of each op, and the op of each node.
struct Nodes {
    of_op: BTreeMap<OpId, NodeIndex>,
    ops: Vec<OpId>,
}

impl Nodes {
    fn new(part: &[OpId]) -> Self {
        let mut ops = part.to_vec();
        ops.sort_unstable();
        ops.dedup();
        let of_op = ops.iter().enumerate().map(|(i, &op)| (op, NodeIndex::new(i))).collect();
        Self { of_op, ops }
    }
}

/// Ops of `part` without which the rest, edges taken without direction, falls into more pieces than before; ascending.
/// Complexity: O((ops + uses) log ops).
///
/// # Panics
///
/// Where `part` names an op that the graph does not have.
pub fn articulation_points(graph: &Graph, part: &[OpId]) -> Vec<OpId> {
    let nodes = Nodes::new(part);
    let mut undirected = UnGraph::<(), ()>::new_undirected();
    for _ in &nodes.ops {
        undirected.add_node(());
    }
    for (from, to) in edges(graph, &nodes.ops) {
        undirected.add_edge(nodes.of_op[&from], nodes.of_op[&to], ());
    }
    let found = petgraph::algo::articulation_points::articulation_points(&undirected);
    let mut points: Vec<OpId> = found.into_iter().map(|node| nodes.ops[node.index()]).collect();
    points.sort_unstable();
    points
}

/// Ops of `part` through which every path from an op that reads no other op of it to an op that none reads leads;
/// ascending. Complexity: O((ops + uses) log ops) on all but adversarial graphs.
///
/// # Panics
///
/// Where `part` names an op that the graph does not have.
pub fn separators(graph: &Graph, part: &[OpId]) -> Vec<OpId> {
    let nodes = Nodes::new(part);
    let mut directed = DiGraph::<(), ()>::new();
    for _ in &nodes.ops {
        directed.add_node(());
    }
    let (source, target) = (directed.add_node(()), directed.add_node(()));
    let edges = edges(graph, &nodes.ops);
    let (mut has_producer, mut has_consumer) = (vec![false; nodes.ops.len()], vec![false; nodes.ops.len()]);
    for &(from, to) in &edges {
        let (from, to) = (nodes.of_op[&from], nodes.of_op[&to]);
        directed.add_edge(from, to, ());
        has_consumer[from.index()] = true;
        has_producer[to.index()] = true;
    }
    for i in 0..nodes.ops.len() {
        if !has_producer[i] {
            directed.add_edge(source, NodeIndex::new(i), ());
        }
        if !has_consumer[i] {
            directed.add_edge(NodeIndex::new(i), target, ());
        }
    }
    let dominators = simple_fast(&directed, source);
    let of_target = dominators.strict_dominators(target).into_iter().flatten();
    let mut found: Vec<OpId> = of_target.filter(|&node| node != source).map(|node| nodes.ops[node.index()]).collect();
    found.sort_unstable();
    found
}

/// The connected pieces of `part` without `checkpoints`, by their first op. Complexity: O((ops + uses) log ops).
///
/// # Panics
///
/// Where `part` names an op that the graph does not have.
pub fn segments(graph: &Graph, part: &[OpId], checkpoints: &[OpId]) -> Vec<Segment> {
    let nodes = Nodes::new(part);
    let mut is_checkpoint = vec![false; graph.ops().len()];
    for &op in checkpoints.iter().filter(|&op| nodes.of_op.contains_key(op)) {
        is_checkpoint[op] = true;
    }
    let edges = edges(graph, &nodes.ops);
    let mut pieces = petgraph::unionfind::UnionFind::<usize>::new(nodes.ops.len());
    for &(from, to) in edges.iter().filter(|&&(from, to)| !is_checkpoint[from] && !is_checkpoint[to]) {
        pieces.union(nodes.of_op[&from].index(), nodes.of_op[&to].index());
    }
    let mut found: Vec<Segment> = Vec::new();
    let mut of_piece: BTreeMap<usize, usize> = BTreeMap::new();
    for (i, &op) in nodes.ops.iter().enumerate().filter(|&(_, &op)| !is_checkpoint[op]) {
        let index = *of_piece.entry(pieces.find(i)).or_insert_with(|| {
            found.push(Segment { ops: Vec::new(), entries: Vec::new(), exits: Vec::new() });
            found.len() - 1
        });
        found[index].ops.push(op);
    }
    let segment_of = |op: OpId| of_piece[&pieces.find(nodes.of_op[&op].index())];
    for &(from, to) in &edges {
        match (is_checkpoint[from], is_checkpoint[to]) {
            (true, false) => found[segment_of(to)].entries.push(from),
            (false, true) => found[segment_of(from)].exits.push(to),
            _ => {}
        }
    }
    for segment in &mut found {
        for ends in [&mut segment.entries, &mut segment.exits] {
            ends.sort_unstable();
            ends.dedup();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Knobs, random_graph};
    use crate::graph::{GraphBuilder, Op};

    /// Ops by their producers.
    fn graph_of(reads: &[&[OpId]]) -> Graph {
        let mut builder = GraphBuilder::new("cuts");
        for (op, reads) in reads.iter().enumerate() {
            let out = builder.value(1, "");
            assert_eq!(out, op);
            builder.op(Op::new("", 1.0, reads.to_vec(), vec![out]));
        }
        builder.build().unwrap()
    }

    /// Pieces without directions when `without` is taken out.
    fn pieces(graph: &Graph, without: Option<OpId>) -> usize {
        let all: Vec<OpId> = (0..graph.ops().len()).collect();
        segments(graph, &all, without.as_slice()).len()
    }

    #[test]
    fn a_diamond_between_two_ops_falls_into_two_independent_segments() {
        //   0 -> 1 -> {2, 3} -> 4 -> 5
        let graph = graph_of(&[&[], &[0], &[1], &[1], &[2, 3], &[4]]);
        let all: Vec<OpId> = (0..6).collect();
        assert_eq!(articulation_points(&graph, &all), [1, 4]);
        assert_eq!(separators(&graph, &all), [0, 1, 4, 5]);
        let found = segments(&graph, &all, &[1, 4]);
        let ops: Vec<_> = found.iter().map(|segment| segment.ops.clone()).collect();
        assert_eq!(ops, [vec![0], vec![2], vec![3], vec![5]]);
        assert!(found[1].is_independent() && found[2].is_independent() && !found[0].is_independent());
        assert_eq!((&found[1].entries[..], &found[1].exits[..]), (&[1][..], &[4][..]));
    }

    #[test]
    fn a_part_knows_nothing_of_the_rest() {
        let graph = graph_of(&[&[], &[0], &[0, 1], &[2]]);
        assert_eq!(separators(&graph, &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(articulation_points(&graph, &[1, 2, 3]), [2]);
        assert!(separators(&graph, &[]).is_empty());
    }

    #[test]
    fn articulation_points_equal_brute_force() {
        for seed in 0..300 {
            let graph = random_graph(seed, &Knobs::ops(2, 14));
            let all: Vec<OpId> = (0..graph.ops().len()).collect();
            let whole = pieces(&graph, None);
            let expected: Vec<OpId> = all.iter().copied().filter(|&op| pieces(&graph, Some(op)) > whole).collect();
            assert_eq!(articulation_points(&graph, &all), expected, "case {seed}");
        }
    }

    /// Whether a path leads from a first op to a last one around `without`.
    fn leads_around(graph: &Graph, without: OpId) -> bool {
        let mut reached = vec![false; graph.ops().len()];
        let mut arrives = false;
        for (op, what) in graph.ops().iter().enumerate() {
            let mut producers = what.inputs.iter().filter_map(|&value| graph.producer(value)).peekable();
            let is_first = producers.peek().is_none();
            reached[op] = op != without && (is_first || producers.any(|producer| reached[producer]));
            let is_last = what.outputs.iter().all(|&value| graph.consumers(value).is_empty());
            arrives |= is_last && reached[op];
        }
        arrives
    }

    #[test]
    fn separators_equal_brute_force() {
        for seed in 0..300 {
            let graph = random_graph(seed, &Knobs::ops(1, 14));
            let all: Vec<OpId> = (0..graph.ops().len()).collect();
            let expected: Vec<OpId> = all.iter().copied().filter(|&op| !leads_around(&graph, op)).collect();
            assert_eq!(separators(&graph, &all), expected, "case {seed}");
        }
    }

    #[test]
    fn a_deep_graph_is_no_stack_overflow() {
        let reads: Vec<Vec<OpId>> = (0..30_000_usize).map(|op| op.checked_sub(1).into_iter().collect()).collect();
        let graph = graph_of(&reads.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let all: Vec<OpId> = (0..30_000).collect();
        assert_eq!(articulation_points(&graph, &all).len(), 29_998);
        assert_eq!(separators(&graph, &all).len(), 30_000);
    }
}
