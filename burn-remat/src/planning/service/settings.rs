//! How plans are made.

use std::path::PathBuf;
use std::time::Duration;

use super::cache::{CacheFile, CacheKey};
use super::dry_runs::{DryRuns, For};
use super::folder::{self, Folder};
use super::state::Ready;
use crate::planning::chosen::ChosenPlanner;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct PlanSettings {
    /// `None` to plan nothing.
    pub planner: Option<ChosenPlanner>,
    pub time_limit: Duration,
    pub cache: Option<PathBuf>,
    /// Plans to begin with, in the order of their steps. Their costs are guesses: once they have been followed a few times, their steps are planned anew
    /// with what was measured.
    pub ready: Vec<Ready>,
}

impl PlanSettings {
    /// The planner, for callers that plan in any case.
    pub fn any_planner(&self) -> ChosenPlanner {
        self.planner.clone().unwrap_or_default()
    }

    /// The file of a device's plan for steps of this signature and this budget, if plans are stored.
    pub(super) fn cache_file(&self, device: &str, signature: u64, budget: u64) -> Option<CacheFile> {
        let DryRuns { folder, of: For { device, planner, planner_version } } = self.dry_runs(device)?;
        Some(CacheFile { folder, key: CacheKey { signature, device, budget, planner, planner_version } })
    }

    /// The files with the dry runs of a device, if they are stored.
    pub(super) fn dry_runs(&self, device: &str) -> Option<DryRuns> {
        let (folder, planner) = (Folder::inside(self.cache.as_deref()?), self.any_planner());
        let (name, planner_version) = (planner.name().to_owned(), planner.version());
        Some(DryRuns { folder, of: For { device: device.to_owned(), planner: name, planner_version } })
    }
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            planner: Some(ChosenPlanner::auto()),
            time_limit: Duration::from_secs(10),
            cache: folder::default_folder(),
            ready: Vec::new(),
        }
    }
}
