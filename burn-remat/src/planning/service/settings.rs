//! How plans are made.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{self, CacheFile, CacheKey};
use super::state::Origin;
use crate::planning::chosen::ChosenPlanner;
use crate::planning::schedule::Schedule;

/// A plan for a step, and its account of itself.
pub(crate) type Ready = (Arc<Schedule>, Origin);

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct PlanSettings {
    /// `None` to plan nothing.
    pub planner: Option<ChosenPlanner>,
    pub time_limit: Duration,
    pub cache: Option<PathBuf>,
    /// Plans to begin with, in the order of the steps for which they are. Their costs are guesses: once they have been
    /// followed a few times, their steps are planned anew with what was measured.
    pub ready: Vec<Ready>,
}

impl PlanSettings {
    /// The planner for those who plan in any case.
    pub fn any_planner(&self) -> ChosenPlanner {
        self.planner.clone().unwrap_or_default()
    }

    /// Where the plan of a device for steps of this signature and this budget is kept, if any are.
    pub(super) fn cache_file(&self, device: &str, signature: u64, budget: u64) -> Option<CacheFile> {
        let (folder, planner) = (self.cache.clone()?, self.any_planner());
        let (name, planner_version) = (planner.name().to_owned(), planner.version());
        let key = CacheKey { signature, device: device.to_owned(), budget, planner: name, planner_version };
        Some(CacheFile { folder, key })
    }
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            planner: Some(ChosenPlanner::auto()),
            time_limit: Duration::from_secs(10),
            cache: cache::default_folder(),
            ready: Vec::new(),
        }
    }
}
