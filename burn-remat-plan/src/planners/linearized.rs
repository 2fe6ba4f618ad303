//! `linear-sqrt` and `linear-greedy`: Chen's heuristics on any graph, read as a path (Checkmate, B.2).
//!
//! Problem: a forward pass with few articulation points, such as U-Net's, offers few safe checkpoints.
//!
//! Method: take the forward ops in execution order as if each needed only the one before it, choose checkpoints as on
//! a path (every √n-th, or greedily by a segment budget b with a search over b), and let the optimal recomputation
//! supply whatever else the real dependencies need (`segments`).
//!
//! Complexity: at most 50 sets of checkpoints, each linear in the steps of its plan.

use super::segments::Segments;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request};

/// Every √n-th forward op is a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearSqrt;

/// Checkpoints at segments of about equal size in execution order, with a search over that size.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearGreedy;

impl Planner for LinearSqrt {
    fn name(&self) -> &'static str {
        "linear-sqrt"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let segments = Segments::new(graph);
        segments.best(self.name(), request, segments.sqrt_sets())
    }
}

impl Planner for LinearGreedy {
    fn name(&self) -> &'static str {
        "linear-greedy"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let segments = Segments::new(graph);
        segments.best(self.name(), request, segments.greedy_sets())
    }
}
