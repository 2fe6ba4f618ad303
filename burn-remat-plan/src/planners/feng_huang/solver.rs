//! The checkpoints from the division tree (algorithms 1, 5 and 6).
//!
//! Both ends of the whole graph are kept. With a limit *C* on every segment, a node of the tree whose ends are kept
//! costs nothing if it weighs at most *C*; else a branch costs the sum of its children, a complicated one
//! its joints and its children, and a linear one the shortest path over its splitting vertices, where an edge from one
//! kept vertex to a later one is either a run of parts that together weigh at most *C*, or a single part that pays for
//! its own division. The paper's accessibility graph has these edges; a queue of monotone costs finds the path in
//! linear time.
//!
//! The cost falls as *C* grows, and a solution whose largest segment weighs *c* is valid for every limit of at least *c*.
//! So the limits left between two that were tried are bounded below by the smaller one plus the cost at the larger one:
//! bisection with that bound finds the best *C* without a list of all segments.

use std::collections::VecDeque;

use super::dag::Dag;
use super::division::{DivisionTree, Kind, Segment};
use crate::deadline::Deadline;

/// What the search found.
pub(super) struct Found {
    /// Kept vertices besides source and target, ascending.
    pub checkpoints: Vec<usize>,
    /// Whether the search was complete.
    pub proved: bool,
    pub limits_tried: usize,
}

/// Cheapest division for one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    /// Bytes of the checkpoints inside.
    kept: u64,
    /// Bytes of the largest segment.
    largest: u64,
}

/// The checkpoints whose bytes plus those of the largest segment are fewest.
pub(super) fn solve(tree: &DivisionTree, dag: &Dag, deadline: Deadline) -> Found {
    let mut search = LimitSearch { tree, dag, costs: vec![Cost::default(); tree.len()], tried: 0 };
    let whole = tree.nodes()[0].bytes;
    let (low, high) = (search.try_limit(0), search.try_limit(whole));
    let total = |cost: Cost| cost.kept + cost.largest;
    let mut best = (total(high), whole);
    if total(low) < best.0 {
        best = (total(low), 0);
    }
    // Each entry: a limit that was tried and its cost, and the cost of a larger one.
    let mut gaps = vec![(0, low, high)];
    let mut proved = true;
    while let Some((below, low, high)) = gaps.pop() {
        // Limits of at least `high.largest` cost what `high` costs.
        let worth = high.kept < low.kept && below + 1 < high.largest && below + 1 + high.kept < best.0;
        if !worth {
            continue;
        }
        if deadline.passed() {
            proved = false;
            break;
        }
        let middle = below + (high.largest - below) / 2;
        let cost = search.try_limit(middle);
        if total(cost) < best.0 {
            best = (total(cost), middle);
        }
        gaps.push((middle, cost, high));
        gaps.push((below, low, cost));
    }
    search.try_limit(best.1);
    let mut checkpoints = search.collect(best.1);
    checkpoints.sort_unstable();
    Found { checkpoints, proved, limits_tried: search.tried }
}

struct LimitSearch<'a> {
    tree: &'a DivisionTree,
    dag: &'a Dag,
    costs: Vec<Cost>,
    tried: usize,
}

impl LimitSearch<'_> {
    /// Fills `costs` for the limit and returns that of the whole graph.
    fn try_limit(&mut self, limit: u64) -> Cost {
        self.tried += 1;
        for index in (0..self.tree.len()).rev() {
            let node = &self.tree.nodes()[index];
            self.costs[index] = if node.bytes <= limit {
                Cost { kept: 0, largest: node.bytes }
            } else {
                match &node.kind {
                    Kind::Edge | Kind::Branch => self.sum(node, &[]),
                    Kind::Complicated(joints) => self.sum(node, joints),
                    Kind::Linear(splits) => {
                        self.path(node, splits, limit).last().map_or(Cost::default(), |end| end.cost)
                    }
                }
            };
        }
        self.costs[0]
    }

    fn sum(&self, node: &Segment, joints: &[usize]) -> Cost {
        let parts = node.children.iter().map(|&child| self.costs[child]);
        let start = Cost { kept: joints.iter().map(|&vertex| self.dag.bytes(vertex)).sum(), largest: 0 };
        parts.fold(start, |sum, part| Cost { kept: sum.kept + part.kept, largest: sum.largest.max(part.largest) })
    }

    /// Shortest path over the splitting vertices: the stops 0 (source) to `splits.len() + 1` (target).
    fn path(&self, node: &Segment, splits: &[usize], limit: u64) -> Vec<Stop> {
        let weight = |stop: usize| if stop == 0 { 0 } else { splits.get(stop - 1).map_or(0, |&v| self.dag.bytes(v)) };
        let parts = &node.children;
        let mut stops = Vec::with_capacity(parts.len() + 1);
        stops.push(Stop { cost: Cost::default(), previous: 0, divides: false });
        // `ahead` counts the bytes of everything before a stop, the stop itself left out. The queue holds the stops from
        // which a run may still reach the next one, each cheaper than those behind it.
        let mut ahead = vec![0u64];
        let mut queue: VecDeque<usize> = VecDeque::from([0]);
        for stop in 1..=parts.len() {
            let part = parts[stop - 1];
            let bytes = self.tree.nodes()[part].bytes;
            ahead.push(ahead[stop - 1] + weight(stop - 1) + bytes);
            let run = |from: usize| ahead[stop] - ahead[from] - weight(from);
            while queue.front().is_some_and(|&from| run(from) > limit) {
                queue.pop_front();
            }
            let divided = Stop {
                cost: Cost {
                    kept: stops[stop - 1].cost.kept + self.costs[part].kept,
                    largest: stops[stop - 1].cost.largest.max(self.costs[part].largest),
                },
                previous: stop - 1,
                divides: true,
            };
            let skipping = queue.front().map(|&from| Stop {
                cost: Cost { kept: stops[from].cost.kept, largest: stops[from].cost.largest.max(run(from)) },
                previous: from,
                divides: false,
            });
            let mut best = match skipping {
                Some(skipping) if skipping.cost.kept <= divided.cost.kept => skipping,
                _ => divided,
            };
            best.cost.kept += weight(stop);
            stops.push(best);
            while queue.back().is_some_and(|&from| stops[from].cost.kept > best.cost.kept) {
                queue.pop_back();
            }
            queue.push_back(stop);
        }
        stops
    }

    /// The checkpoints of the whole graph for the limit that was tried last.
    fn collect(&self, limit: u64) -> Vec<usize> {
        let mut checkpoints = Vec::new();
        let mut open = vec![0];
        while let Some(index) = open.pop() {
            let node = &self.tree.nodes()[index];
            if node.bytes <= limit {
                continue;
            }
            match &node.kind {
                Kind::Edge => {}
                Kind::Branch => open.extend(&node.children),
                Kind::Complicated(joints) => {
                    checkpoints.extend(joints);
                    open.extend(&node.children);
                }
                Kind::Linear(splits) => {
                    let stops = self.path(node, splits, limit);
                    let mut at = stops.len() - 1;
                    while at > 0 {
                        if stops[at].divides {
                            open.push(node.children[at - 1]);
                        }
                        at = stops[at].previous;
                        checkpoints.extend((at > 0).then(|| splits[at - 1]));
                    }
                }
            }
        }
        checkpoints
    }
}

/// A kept vertex on the path through a linear segment.
#[derive(Clone, Copy)]
struct Stop {
    /// Cost up to and including this vertex.
    cost: Cost,
    /// The kept vertex before it.
    previous: usize,
    /// Whether the part between them is divided further.
    divides: bool,
}
