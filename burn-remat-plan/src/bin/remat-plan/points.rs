//! The results of a sweep.

use burn_remat_plan::format::PlanFile;

/// One planner at one budget.
pub struct Point {
    /// Name of the planner asked for.
    pub planner: String,
    /// Bytes allowed.
    pub budget: u64,
    /// `optimal`, `feasible`, `infeasible`, `no_solution` or `unsupported`.
    pub status: &'static str,
    /// The planner's answer, if it has a plan or a known minimum.
    pub file: Option<PlanFile>,
}

/// A whole sweep.
pub struct Sweep {
    /// Title of the picture.
    pub title: String,
    /// The smallest budget known to be feasible.
    pub minimum: u64,
    /// Peak without recomputation.
    pub store_all_peak: u64,
    /// Sorted by planner in the order asked for, then by ascending budget.
    pub points: Vec<Point>,
}
