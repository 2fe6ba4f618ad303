//! From a set of saved forward values to the order of a training step that recomputes the others.
//!
//! The baselines of the frameworks have this in common: the forward pass runs once; the values that they save stay, the
//! others are evicted after their last forward use; the backward pass computes what is missing, each op once, and keeps it
//! until its last use. [`plan_from_order`](crate::sequence::plan_from_order) adds the evictions.
//!
//! Invariants: an order is executable whatever is saved: roots (inputs of the graph, outputs of ops that may run only
//! once) count as saved. Complexity: O(ops + uses).

use std::collections::BTreeSet;

use crate::graph::{Graph, OpId, ValueId};
use crate::views::passes::forward_length;

/// When a missing value is computed.
pub(super) enum When<'a> {
    /// Right before the first op that reads it.
    Needed,
    /// With everything else that the backward pass reads from the same block, given for each forward op.
    BlockNeeded(&'a [usize]),
}

/// The forward pass of a graph and what the rest reads from it.
pub(super) struct Step<'a> {
    graph: &'a Graph,
    /// The first op that is not part of the forward pass.
    pub split: OpId,
}

impl<'a> Step<'a> {
    /// Splits the graph where the [forward pass](forward_length) ends.
    pub fn new(graph: &'a Graph) -> Self {
        Self { graph, split: forward_length(graph).min(graph.ops().len()) }
    }

    /// Whether a forward op makes `value`.
    pub fn is_forward(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_some_and(|op| op < self.split)
    }

    /// Whether an op after the forward pass reads `value`.
    pub fn is_read_later(&self, value: ValueId) -> bool {
        self.graph.consumers(value).last().is_some_and(|&op| op >= self.split)
    }

    /// The order of computations if the values of `saved` stay.
    pub fn order(&self, saved: impl Fn(ValueId) -> bool, when: &When<'_>) -> Vec<OpId> {
        let graph = self.graph;
        let stays = |value: ValueId| !self.is_forward(value) || graph.is_root(value) || graph.is_result(value);
        let mut present: Vec<bool> = (0..graph.values().len()).map(|value| stays(value) || saved(value)).collect();
        let mut targets: Vec<Vec<ValueId>> = Vec::new();
        if let When::BlockNeeded(block_of) = when {
            targets = vec![Vec::new(); block_of.iter().max().map_or(0, |&last| last + 1)];
            for value in (0..graph.values().len()).filter(|&value| !present[value] && self.is_read_later(value)) {
                graph.producer(value).into_iter().for_each(|op| targets[block_of[op]].push(value));
            }
        }
        let mut order: Vec<OpId> = (0..self.split).collect();
        for op in self.split..graph.ops().len() {
            let mut wanted: Vec<ValueId> = Vec::new();
            for &value in graph.ops()[op].inputs.iter().filter(|&&value| !present[value]) {
                wanted.push(value);
                if let (When::BlockNeeded(block_of), Some(maker)) = (when, graph.producer(value)) {
                    wanted.append(&mut targets[block_of[maker]]);
                }
            }
            order.extend(self.missing(wanted, &mut present));
            order.push(op);
        }
        order
    }

    /// The forward ops that compute `wanted`, ascending; their outputs are then present.
    fn missing(&self, mut wanted: Vec<ValueId>, present: &mut [bool]) -> BTreeSet<OpId> {
        let mut again = BTreeSet::new();
        while let Some(value) = wanted.pop() {
            if let Some(maker) = self.graph.producer(value).filter(|_| !present[value])
                && again.insert(maker)
            {
                wanted.extend(&self.graph.ops()[maker].inputs);
            }
        }
        let outputs = again.iter().flat_map(|&op| &self.graph.ops()[op].outputs);
        outputs.for_each(|&value| present[value] = true);
        again
    }
}
