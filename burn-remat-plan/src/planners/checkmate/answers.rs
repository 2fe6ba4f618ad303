//! The answers of solver-based planners when a program is too large or the solver fails.

use highs::HighsStatus;

use super::model::estimated_entries;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::Request;

/// The most entries of a program that is worth the wait, and about how many bytes each takes with the solver's copies.
const LARGEST_MODEL: u64 = 20_000_000;
const BYTES_PER_ENTRY: u64 = 200;

/// The most entries of a program within the request's memory limit.
pub(in crate::planners) fn largest_model(request: &Request) -> u64 {
    LARGEST_MODEL.min(request.memory_limit / BYTES_PER_ENTRY)
}

pub(in crate::planners) fn failed(planner: &'static str, status: HighsStatus) -> PlanError {
    PlanError::Internal { planner, reason: format!("HiGHS returned {status:?}") }
}

pub(in crate::planners) fn too_large(planner: &'static str, graph: &Graph, request: &Request) -> PlanError {
    let reason = format!(
        "its program for {} ops would have about {} million entries, and the limit is {} million; use `search`",
        graph.ops().len(),
        estimated_entries(graph) / 1_000_000,
        largest_model(request) / 1_000_000
    );
    PlanError::Unsupported { planner, reason }
}
