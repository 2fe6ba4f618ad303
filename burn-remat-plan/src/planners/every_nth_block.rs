//! `every-nth-block`: activation checkpointing of every n-th block of the model, as training scripts set it by hand.
//!
//! Problem: the user wraps blocks in checkpoints. A wrapped block keeps nothing from inside it in the forward pass and
//! runs again as a whole when the backward pass reaches it; what does n cost, and which n fits?
//!
//! Method: blocks are the stages of the forward pass that the graph names or, without names, what lies between its cuts
//! (places crossed by a single value). The first of every n blocks is wrapped. Values that leave a block stay (they are
//! the inputs of checkpoints), and so does what cannot be computed again. All n up to `MOST_STEPS` are tried, then
//! each twice the one before; the cheapest plan that fits wins, so n is the largest that fits.
//!
//! Invariants: n = 1 wraps everything; as n grows, less is computed again.
//!
//! Complexity: O(ops + uses) for each n.
//!
//! Source: `checkpoint_wrapper` of PyTorch, with the selective option of TorchTitan ("every n-th layer") and the
//! `checkpoint_activations` of other libraries. Departure: a block from which the backward pass reads nothing does not run again,
//! and neither do ops of a block whose results nothing needs.

use super::incumbent::Incumbent;
use super::saved_values::{Step, When};
use crate::error::PlanError;
use crate::graph::{Graph, OpId, ValueId};
use crate::planner::{Outcome, Planner, Request, Status, StopReason};
use crate::views::chain_of::{cuts, marks};

/// All n up to this are tried.
const MOST_STEPS: usize = 64;

/// The planner `every-nth-block`.
#[derive(Clone, Copy, Debug, Default)]
pub struct EveryNthBlock;

impl EveryNthBlock {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "every-nth-block";
}

impl Planner for EveryNthBlock {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let step = Step::new(graph);
        let blocks = Blocks::new(graph, &step);
        let mut incumbent = Incumbent::new(graph, request.budget);
        let deadline = request.deadline();
        let (mut n, mut reason) = (1, StopReason::Heuristic);
        while n <= blocks.count {
            // The plan for n = 1, which holds few bytes, is always tried.
            if n > 1 && deadline.passed() {
                reason = StopReason::TimeLimit;
                break;
            }
            incumbent.offer(&blocks.order(&step, n));
            n = if n < MOST_STEPS { n + 1 } else { 2 * n };
        }
        let outcome = incumbent.outcome(Self::NAME, Status::Feasible, reason, None)?;
        outcome.ok_or_else(|| incumbent.infeasible())
    }
}

/// The forward pass in blocks.
struct Blocks<'a> {
    graph: &'a Graph,
    /// Block of each forward op.
    of_op: Vec<usize>,
    count: usize,
}

impl<'a> Blocks<'a> {
    fn new(graph: &'a Graph, step: &Step<'_>) -> Self {
        let mut starts = marks(graph, step.split);
        if starts.is_empty() {
            starts = cuts(graph, step.split, &vec![false; graph.values().len()]);
        }
        let of_op = (0..step.split).map(|op| starts.partition_point(|&start| start <= op)).collect();
        Self { graph, of_op, count: starts.len() + 1 }
    }

    /// The block in which `value` is made, if no forward op outside of the block reads it.
    fn is_inside(&self, value: ValueId) -> Option<usize> {
        let block = *self.of_op.get(self.graph.producer(value)?)?;
        let outside = |&op: &OpId| self.of_op.get(op).is_some_and(|&other| other != block);
        (!self.graph.consumers(value).iter().any(outside)).then_some(block)
    }

    /// The order of computations if the first of every `n` blocks is wrapped.
    fn order(&self, step: &Step<'_>, n: usize) -> Vec<OpId> {
        let saved = |value: ValueId| self.is_inside(value).is_none_or(|block| block % n != 0);
        step.order(saved, &When::BlockNeeded(&self.of_op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op, Phase};
    use crate::planners::StoreAll;

    /// `blocks` blocks of two ops each; the gradients read what the ops of their block make.
    fn chain(blocks: usize) -> Graph {
        let mut builder = GraphBuilder::new("");
        let mut add = |block: usize, phase, cost, inputs: Vec<ValueId>, bytes| {
            let value = builder.value(bytes, "");
            let stage = Some(format!("block{block}"));
            builder.op(Op { phase: Some(phase), stage, ..Op::new("", cost, inputs, vec![value]) });
            value
        };
        let mut made = Vec::new();
        for block in 0..blocks {
            let before = made.last().map(|&(_, out)| out).into_iter().collect();
            let inside = add(block, Phase::Forward, 3.0, before, 10);
            made.push((inside, add(block, Phase::Forward, 1.0, vec![inside], 1)));
        }
        let mut gradient = Vec::new();
        for (block, (inside, out)) in made.into_iter().enumerate().rev() {
            let inputs = gradient.iter().copied().chain([inside, out]).collect();
            gradient = vec![add(block, Phase::Backward, 8.0, inputs, 1)];
        }
        builder.build().unwrap()
    }

    #[test]
    fn the_first_of_every_n_blocks_runs_again_where_the_backward_pass_reaches_it() {
        let graph = chain(4);
        let step = Step::new(&graph);
        let blocks = Blocks::new(&graph, &step);
        assert_eq!(blocks.count, 4);
        // Ops 0 to 7 forward, 8 to 11 backward from the last block on. What leaves a block stays; nothing leaves the last.
        assert_eq!(blocks.order(&step, 1), [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 4, 9, 2, 10, 0, 11]);
        assert_eq!(blocks.order(&step, 2), [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 9, 10, 0, 11]);
        assert_eq!(blocks.order(&step, 4), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 11]);
    }

    #[test]
    fn less_memory_asks_for_a_smaller_n() {
        let graph = chain(4);
        let cost = |budget| EveryNthBlock.solve(&graph, &Request::new(budget)).map(|outcome| outcome.makespan);
        // Store-all holds four insides of 10, four outputs and a gradient: 45. Each wrapped block takes 10 less and costs 3 more.
        assert_eq!(StoreAll::peak(&graph), 45);
        assert_eq!([cost(45), cost(44), cost(35), cost(34)], [48.0, 51.0, 51.0, 54.0].map(Ok));
        assert!(matches!(cost(14), Err(PlanError::Infeasible { minimum: Some(_), .. })));
    }
}
