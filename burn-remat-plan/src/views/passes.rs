//! Where the forward pass of a training graph ends.
//!
//! The phases say so: it is all that comes before the first backward or update op. If the ops have no phases, or the graph
//! begins with such an op, it is taken to end where the plan that keeps everything holds the
//! most, since in a training step that is where the backward pass begins.
//!
//! Complexity: O(values + uses).

use crate::graph::{Graph, OpId, Phase};
use crate::sequence::plan_from_order;
use crate::simulate::simulate;

/// How many ops the forward pass has, according to the phases; `None` if these do not say.
pub fn marked_forward(graph: &Graph) -> Option<usize> {
    let later = |phase| matches!(phase, Some(Phase::Backward | Phase::Update));
    graph.ops().iter().position(|op| later(op.phase)).filter(|&at| at > 0)
}

/// How many ops the forward pass has, according to the phases or else by where most is held: at least one.
pub fn forward_length(graph: &Graph) -> usize {
    marked_forward(graph).unwrap_or_else(|| {
        let plan = plan_from_order(graph, &(0..graph.ops().len()).collect::<Vec<OpId>>());
        let timeline = simulate(graph, &plan);
        let computed = plan.steps.iter().zip(&timeline.bytes).filter_map(|(step, &bytes)| Some((step.op()?, bytes)));
        // The last of equal peaks: `max_by_key` keeps it.
        computed.max_by_key(|&(_, bytes)| bytes).map_or(1, |(op, _)| op + 1)
    })
}
