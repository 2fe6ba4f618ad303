//! Stands in for a planner that this build lacks: every solve says which cargo feature to enable.

use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request};

/// A planner behind a cargo feature that is off.
#[derive(Clone, Copy, Debug)]
pub struct MissingFeature {
    /// Name of the planner.
    pub planner: &'static str,
    /// The feature that it needs.
    pub feature: &'static str,
}

impl Planner for MissingFeature {
    fn name(&self) -> &'static str {
        self.planner
    }

    fn missing_feature(&self) -> Option<&'static str> {
        Some(self.feature)
    }

    fn solve(&self, _: &Graph, _: &Request) -> Result<Outcome, PlanError> {
        Err(PlanError::FeatureMissing { planner: self.planner, feature: self.feature })
    }
}
