//! What a sweep finds.

use burn_remat_plan::format::PlanFile;

/// One planner at one budget.
pub struct Point {
    /// Name of the planner asked for.
    pub planner: String,
    /// Bytes allowed.
    pub budget: u64,
    /// `optimal`, `feasible`, `infeasible`, `no_solution` or `unsupported`.
    pub status: &'static str,
    /// What came back, if there is a plan or a known minimum.
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
    /// Planners in the order asked for, each with its budgets ascending.
    pub points: Vec<Point>,
}
