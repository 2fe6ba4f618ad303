//! A graph in which every op has one implementation.
//!
//! Planners that do not support alternatives plan such a graph; what they find is a plan of the whole graph too, with every op
//! in the implementation that was fixed for it.

use crate::choice::{Choice, implementation, implementations};
use crate::graph::{Graph, Op, OpId};

/// `graph` with every op as it is by default: the graph without its alternatives. Complexity: O(values + uses).
///
/// ```
/// use burn_remat_plan::{Alternative, GraphBuilder, Op, views::without_alternatives};
///
/// let mut builder = GraphBuilder::new("two ways");
/// let x = builder.value(8, "x");
/// let mut op = Op::new("f", 1.0, vec![], vec![x]);
/// op.alternatives.push(Alternative { name: "slow".into(), cost: 2.0, inputs: vec![], scratch_bytes: 0 });
/// builder.op(op);
/// assert!(without_alternatives(&builder.build()?).ops()[0].alternatives.is_empty());
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
pub fn without_alternatives(graph: &Graph) -> Graph {
    Plain::new(graph, |_| 0).graph
}

/// A graph with a fixed implementation for each op.
pub(crate) struct Plain {
    pub graph: Graph,
    implementations: Vec<usize>,
}

impl Plain {
    /// `graph` with each op in the implementation that `choose` names.
    pub fn new(graph: &Graph, choose: impl Fn(&Op) -> usize) -> Self {
        let implementations: Vec<usize> = graph.ops().iter().map(choose).collect();
        let graph = graph.with_ops(|(id, op)| {
            let (inputs, cost, scratch_bytes) = implementation(op, implementations[id]);
            Op { inputs: inputs.to_vec(), cost, scratch_bytes, alternatives: Vec::new(), ..op.clone() }
        });
        // Every implementation of a valid graph reads only what comes before it, and its costs and sizes are part of the graph's sums.
        Self { graph: graph.expect("a part of a valid graph is valid"), implementations }
    }

    /// `graph` with each op in the implementation with the fewest bytes of inputs and scratch; among equals the cheapest.
    pub fn lightest(graph: &Graph) -> Self {
        let weigh = |op: &Op, k: usize| {
            let (inputs, cost, scratch) = implementation(op, k);
            (graph.bytes_of(inputs) + scratch, cost)
        };
        let lighter = |op: &Op, a: usize, b: usize| {
            let (a, b) = (weigh(op, a), weigh(op, b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        Self::new(graph, |op| (0..implementations(op)).min_by(|&a, &b| lighter(op, a, b)).unwrap_or(0))
    }

    /// An order of computations of this graph as one of the whole graph.
    pub fn choices(&self, order: &[OpId]) -> Vec<Choice> {
        order.iter().map(|&op| Choice { op, implementation: self.implementations[op] }).collect()
    }
}
