//! The schedule without recomputation, and where a schedule has its peak.

use super::{Chain, ChainPlan, ChainStep, StageId, simulate};

/// The stage at which `plan` has its peak.
pub(crate) fn peak_stage(chain: &Chain, plan: &ChainPlan) -> StageId {
    let timeline = simulate(chain, plan);
    let at = timeline.bytes.iter().position(|&bytes| bytes == timeline.peak_bytes);
    at.map_or(chain.stages().len() - 1, |at| plan.steps[at].stage())
}

impl Chain {
    /// The plan that saves everything: each operation runs once.
    pub fn store_all_plan(&self) -> ChainPlan {
        let n = self.stages().len();
        ChainPlan { steps: (0..n).map(ChainStep::SaveAll).chain((0..n).rev().map(ChainStep::Backward)).collect() }
    }

    /// Peak of [`store_all_plan`](Self::store_all_plan) in bytes.
    pub fn store_all_peak(&self) -> u64 {
        simulate(self, &self.store_all_plan()).peak_bytes
    }

    /// Makespan of [`store_all_plan`](Self::store_all_plan): no plan is cheaper.
    pub fn store_all_makespan(&self) -> f64 {
        simulate(self, &self.store_all_plan()).makespan
    }
}
