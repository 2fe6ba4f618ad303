//! The graph in the units of the search, with the ways in which each op may run.
//!
//! A *way* is an op in one of its implementations, among those that no other makes superfluous. Ways are numbered op by op,
//! so an op with a single implementation is one way, and a graph without alternatives has as many ways as ops.

use std::ops::Range;

use crate::choice::{Choice, beats, implementation, implementations, useful_implementations};
use crate::graph::{Graph, OpId, ValueId};

/// Number of a way.
pub(crate) type WayId = usize;

/// An op in one of its implementations.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub choice: Choice,
    pub cost: f64,
    /// Ascending.
    pub inputs: Vec<ValueId>,
    pub scratch: i64,
}

impl Way {
    pub fn reads(&self, value: ValueId) -> bool {
        self.inputs.binary_search(&value).is_ok()
    }
}

/// The graph in the units of the search.
pub(crate) struct Problem<'g> {
    pub graph: &'g Graph,
    pub budget: i64,
    pub constant: i64,
    /// What a position over the budget counts in addition to its excess bytes: about what an op computes. Otherwise a few bytes too many
    /// would cost a walk next to nothing, at however many positions they are held.
    pub step: i64,
    bytes: Vec<i64>,
    outputs: Vec<i64>,
    ways: Vec<Way>,
    /// Per op its first way, and the number of all ways at the end.
    first_way: Vec<WayId>,
    is_read: Vec<bool>,
}

impl<'g> Problem<'g> {
    /// Sizes are counted in bytes, or if the sum over all values exceeds 64 TiB in larger units (sizes rounded up,
    /// budget down), so that sums over positions fit.
    pub fn new(graph: &'g Graph, budget: u64) -> Self {
        let scratch = |k: Choice| implementation(&graph.ops()[k.op], k.implementation).2;
        let all = (0..graph.ops().len()).flat_map(|op| {
            (0..implementations(&graph.ops()[op])).map(move |implementation| Choice { op, implementation })
        });
        let total = graph.values().iter().map(|v| v.bytes).sum::<u64>()
            + graph.constant_bytes()
            + all.map(scratch).max().unwrap_or(0);
        let shift = (64 - total.leading_zeros()).saturating_sub(46);
        let unit = 1u64 << shift;
        let up = |bytes: u64| bytes.div_ceil(unit) as i64;
        let bytes: Vec<i64> = graph.values().iter().map(|v| up(v.bytes)).collect();
        let mut ways: Vec<Way> = Vec::with_capacity(graph.ops().len());
        let mut first_way = Vec::with_capacity(graph.ops().len() + 1);
        let mut is_read = vec![false; bytes.len()];
        for (op, node) in graph.ops().iter().enumerate() {
            let first = ways.len();
            first_way.push(first);
            ways.extend(useful_implementations(node).into_iter().map(|k| {
                let (inputs, cost, scratch) = implementation(node, k);
                Way { choice: Choice { op, implementation: k }, cost, inputs: inputs.to_vec(), scratch: up(scratch) }
            }));
            ways[first..].iter().flat_map(|way| &way.inputs).for_each(|&value| is_read[value] = true);
        }
        first_way.push(ways.len());
        let outputs: Vec<i64> = graph.ops().iter().map(|op| op.outputs.iter().map(|&v| bytes[v]).sum()).collect();
        let mut sizes: Vec<i64> = outputs.iter().copied().filter(|&bytes| bytes > 0).collect();
        sizes.sort_unstable();
        Self {
            graph,
            budget: (budget >> shift).min(1 << 48) as i64,
            constant: up(graph.constant_bytes()),
            step: sizes.get(sizes.len() / 2).copied().unwrap_or(0),
            outputs,
            bytes,
            ways,
            first_way,
            is_read,
        }
    }

    pub fn bytes(&self, value: ValueId) -> i64 {
        self.bytes[value]
    }

    /// Bytes of all outputs of `op`.
    pub fn output_bytes(&self, op: OpId) -> i64 {
        self.outputs[op]
    }

    pub fn way(&self, way: WayId) -> &Way {
        &self.ways[way]
    }

    /// The ways of `op`; at least one.
    pub fn ways_of(&self, op: OpId) -> Range<WayId> {
        self.first_way[op]..self.first_way[op + 1]
    }

    /// The way of a choice or, if that is superfluous, one that needs no more than the choice.
    pub fn way_of(&self, choice: Choice) -> WayId {
        let ways = self.ways_of(choice.op);
        let is = |&way: &WayId| self.ways[way].choice == choice;
        let node = &self.graph.ops()[choice.op];
        let better = |&way: &WayId| beats(node, self.ways[way].choice.implementation, choice.implementation);
        ways.clone().find(is).or_else(|| ways.clone().find(better)).unwrap_or(ways.start)
    }

    /// Whether some way of some op reads `value`.
    pub fn is_read(&self, value: ValueId) -> bool {
        self.is_read[value]
    }

    /// Ops with more ways than one, ascending.
    pub fn choosers(&self) -> Vec<OpId> {
        (0..self.graph.ops().len()).filter(|&op| self.ways_of(op).len() > 1).collect()
    }
}
