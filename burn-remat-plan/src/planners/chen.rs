//! `chen-sqrt` and `chen-greedy`: segments of a linear forward pass (Chen et al. 2016, as in Checkmate's table 1).
//!
//! Problem: the forward pass is a path. Keep some of its results, the checkpoints; drop the others, and when the
//! backward pass reaches a segment between two checkpoints, compute that segment again and keep it while it is needed.
//!
//! Method: `chen-sqrt` makes every √n-th op a checkpoint. `chen-greedy` walks along the path and places a checkpoint
//! whenever the outputs since the last one exceed a segment budget b; the search over b gives it its range of memory
//! needs, and the cheapest plan that fits is taken. `segments` turns checkpoints into plans.
//!
//! Departures: the last segment is not computed twice, a checkpoint is evicted after its last use, √n is tried rounded
//! down and up, and a budget in which everything can be kept gives the store-all plan. A graph whose forward pass is
//! not a path is refused: the generalizations are `ap-*` and `linear-*`.
//!
//! Complexity: at most 50 sets of checkpoints, each linear in the steps of its plan.

use super::segments::Segments;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request};

/// Every √n-th op of a linear forward pass is a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChenSqrt;

/// Checkpoints at segments of about equal size on a linear forward pass, with a search over that size.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChenGreedy;

fn path(name: &'static str, graph: &Graph, instead: &str) -> Result<(), PlanError> {
    match Segments::new(graph).branching_op() {
        None => Ok(()),
        Some(op) => Err(PlanError::Unsupported {
            planner: name,
            reason: format!(
                "the forward pass is not a path: op {op} depends on more than the op before it; use `ap-{instead}` or \
                 `linear-{instead}`"
            ),
        }),
    }
}

impl Planner for ChenSqrt {
    fn name(&self) -> &'static str {
        "chen-sqrt"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        path(self.name(), graph, "sqrt")?;
        let segments = Segments::new(graph);
        segments.best(self.name(), request, segments.sqrt_sets())
    }
}

impl Planner for ChenGreedy {
    fn name(&self) -> &'static str {
        "chen-greedy"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        path(self.name(), graph, "greedy")?;
        let segments = Segments::new(graph);
        segments.best(self.name(), request, segments.greedy_sets())
    }
}
