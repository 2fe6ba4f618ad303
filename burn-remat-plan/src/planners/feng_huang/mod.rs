//! `feng-huang`: the checkpoints with which a forward pass holds the fewest bytes, on graphs of any shape.
//!
//! Problem: choose vertices of the forward graph to keep, so that what is left falls apart into *independent
//! segments*, and the bytes kept plus those of the largest segment are as few as possible. A segment is a connected piece of
//! the graph without its checkpoints that is entered from one checkpoint and left to one other; two parallel branches
//! between the same checkpoints are two segments. Source and target are kept and do not count. There is no budget.
//!
//! Method: the graph is divided into a tree of segments (`division`): a linear segment at its splitting vertices, a
//! branch segment into its branches, any other into its largest proper segments. For a limit *C* on every
//! segment, the cheapest checkpoints follow from the tree bottom up (`solver`). The best *C* is then
//! searched for: both terms are monotone in *C*.
//!
//! The plan runs the forward pass, keeps the checkpoints, and computes each segment again when the backward pass first
//! needs it: no op runs more than twice. The segment that the backward pass needs first is kept from the
//! forward pass; the paper would compute it again at once. Values that cannot be computed again are kept too;
//! the objective does not count them.
//!
//! Invariants: the checkpoints are optimal unless the time limit was reached; the plan's makespan is at most that of
//! store-all plus one forward pass. So the outcome is [`Status::Feasible`] as a plan, while
//! [`StopReason::Proved`] refers to the checkpoints.
//!
//! A vertex is an op with all its outputs, or the graph's single input. If there are several inputs, they form
//! one source, connected only to ops that read nothing else: a segment may read a resident input freely. The forward
//! pass is all that comes before the first backward or update op; without phases it is the whole graph, and the plan is
//! then just the forward pass.
//!
//! Complexity: the division is O(V²E) in the worst case and near linear on deep networks; each *C* tried takes linear time.
//!
//! Source: Feng & Huang, *Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs* (algorithms 1 to 6;
//! table in each file). Departures: *C* is searched by bisection with bounds instead of over all pairs; a
//! pair of vertices also counts as a segment if only some branches between them are closed (algorithm 4 would miss
//! these); nothing assumes that a segment can be divided, so graphs without any independent segment work.

mod dag;
mod division;
mod solver;

use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::need::is_too_little;
use crate::plan::Plan;
use crate::planner::{Checkpoints, Outcome, Planner, Request, Status, StopReason};
use crate::planners::store_all::peak_op;
use crate::sequence::plan_from_order;

use dag::Dag;
use division::DivisionTree;

/// The planner `feng-huang`.
#[derive(Clone, Copy, Debug, Default)]
pub struct FengHuang;

impl FengHuang {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "feng-huang";
}

impl Planner for FengHuang {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let deadline = request.deadline();
        let dag = Dag::of_forward(graph);
        let tree = DivisionTree::new(&dag, deadline);
        let found = solver::solve(&tree, &dag, deadline);
        let pieces = dag.pieces(&found.checkpoints);
        let mut bytes_of_piece = vec![0; pieces.count];
        for (vertex, piece) in pieces.of.iter().enumerate() {
            if let Some(piece) = *piece {
                bytes_of_piece[piece] += dag.bytes(vertex);
            }
        }
        let kept: u64 = found.checkpoints.iter().map(|&vertex| dag.bytes(vertex)).sum();
        let bytes = kept + bytes_of_piece.into_iter().max().unwrap_or(0);
        let mut values: Vec<_> = found.checkpoints.iter().flat_map(|&vertex| dag.values(graph, vertex)).collect();
        values.sort_unstable();
        log::debug!(
            "feng-huang: {} vertices, {} segments in the tree, {} limits tried, {bytes} bytes",
            dag.len(),
            tree.len(),
            found.limits_tried
        );

        let plan = plan(graph, &dag, &pieces.of);
        let stop_reason = if tree.complete() && found.proved { StopReason::Proved } else { StopReason::TimeLimit };
        let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Feasible, stop_reason);
        outcome.checkpoints = Some(Checkpoints { values, bytes });
        if outcome.peak_bytes > request.budget {
            return Err(PlanError::Infeasible {
                budget: request.budget,
                minimum: Some(outcome.peak_bytes),
                blocking_op: outcome.plan.as_ref().and_then(|plan| peak_op(graph, plan)),
                proven: is_too_little(graph, request.budget),
            });
        }
        Ok(outcome)
    }
}

/// Runs the forward pass once, then each piece again when an op after the forward pass first reads one of its values.
fn plan(graph: &Graph, dag: &Dag, piece_of: &[Option<usize>]) -> Plan {
    let forward = dag.forward_ops();
    let ops = graph.ops();
    let piece = |op: OpId| dag.vertex_of(op).and_then(|vertex| piece_of[vertex]);
    let reads = |op: OpId| ops[op].inputs.iter().filter_map(|&value| graph.producer(value));
    let first_read = (forward..ops.len()).flat_map(reads).filter(|&op| op < forward).find_map(piece);
    let mut dropped: Vec<bool> = (0..ops.len())
        .map(|op| op < forward && ops[op].recomputable && piece(op).is_some_and(|piece| Some(piece) != first_read))
        .collect();
    let read_behind: Vec<bool> = (0..ops.len())
        .map(|op| {
            ops[op].outputs.iter().any(|&value| graph.consumers(value).last().is_some_and(|&last| last >= forward))
        })
        .collect();
    let mut members = vec![Vec::new(); piece_of.len()];
    for op in 0..forward {
        if let Some(piece) = piece(op) {
            members[piece].push(op);
        }
    }

    let mut order: Vec<OpId> = (0..forward).collect();
    for op in forward..ops.len() {
        let asked: Vec<usize> = reads(op).filter(|&from| dropped[from]).filter_map(piece).collect();
        let mut stack: Vec<OpId> = asked
            .into_iter()
            .flat_map(|piece| &members[piece])
            .copied()
            .filter(|&member| dropped[member] && read_behind[member])
            .collect();
        let start = order.len();
        while let Some(again) = stack.pop() {
            if std::mem::replace(&mut dropped[again], false) {
                order.push(again);
                stack.extend(reads(again).filter(|&from| dropped[from]));
            }
        }
        order[start..].sort_unstable();
        order.push(op);
    }
    plan_from_order(graph, &order)
}

#[cfg(test)]
mod tests;
