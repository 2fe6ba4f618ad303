//! The graph planners by name.
//!
//! [`planners`] lists all of them, also those that need a cargo feature which this build lacks: naming one of these
//! gives a planner whose every solve fails with [`PlanError::FeatureMissing`](crate::PlanError::FeatureMissing).

use crate::planner::Planner;
use crate::planners;

/// One line of the list.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name by which the command knows the planner.
    pub name: &'static str,
    /// What it is for, in one line.
    pub purpose: &'static str,
    /// Where the method comes from.
    pub source: &'static str,
    make: fn() -> Box<dyn Planner>,
}

impl Entry {
    /// A new planner with its default settings.
    pub fn planner(&self) -> Box<dyn Planner> {
        (self.make)()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}

const ENTRIES: &[Entry] = &[Entry {
    name: planners::StoreAll::NAME,
    purpose: "the baseline: every op once, every value to its last use",
    source: "the program itself",
    make: || Box::new(planners::StoreAll),
}];

/// All graph planners, in the order of the documentation.
pub fn planners() -> &'static [Entry] {
    ENTRIES
}

/// The graph planner called `name`.
///
/// ```
/// assert_eq!(burn_remat_plan::registry::planner("store-all").unwrap().name(), "store-all");
/// assert!(burn_remat_plan::registry::planner("no-such-planner").is_none());
/// ```
pub fn planner(name: &str) -> Option<Box<dyn Planner>> {
    ENTRIES.iter().find(|entry| entry.name == name).map(Entry::planner)
}
