//! `ap-sqrt` and `ap-greedy`: Chen's heuristics on the articulation points of the forward pass (Checkmate, B.1).
//!
//! Problem: in a forward pass with branches, an arbitrary op is a poor checkpoint, because ops after it still need values
//! from before it. After an articulation point, no op does.
//!
//! Method: an op is a candidate if no forward op after it uses a value made before it; one pass that tracks the furthest
//! use finds them all. `ap-sqrt` takes every √k-th of the k candidates, `ap-greedy` those at which the outputs since
//! the last checkpoint exceed a segment budget b, with a search over b. The cheapest recomputation for the
//! checkpoints follows from the graph (`segments`).
//!
//! Departures: the paper looks for cut vertices of the undirected graph. The test here checks for the property
//! that they are wanted for, in execution order: it leaves out a vertex that merely cuts off a dead end or a second source,
//! and needs no depth-first search. If one op comes first and one last, with a source before the first and a target after
//! the last, both find the same: an edge that jumps over an op is a way around it, and without such an edge there is none.
//! On a path, every op is a candidate, so the planners equal `chen-*` there.
//!
//! Complexity: candidates O(ops + uses); at most 50 sets, each linear in the steps of its plan.

use super::segments::Segments;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request};

/// Every √k-th of the k articulation points is a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApSqrt;

/// Checkpoints at articulation points, in segments of about equal size, with a search over that size.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApGreedy;

impl Planner for ApSqrt {
    fn name(&self) -> &'static str {
        "ap-sqrt"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let segments = Segments::at_articulation_points(graph);
        segments.best(self.name(), request, segments.sqrt_sets())
    }
}

impl Planner for ApGreedy {
    fn name(&self) -> &'static str {
        "ap-greedy"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let segments = Segments::at_articulation_points(graph);
        segments.best(self.name(), request, segments.greedy_sets())
    }
}
