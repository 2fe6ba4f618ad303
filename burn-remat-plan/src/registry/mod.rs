//! The graph planners by name.
//!
//! [`planners()`] lists all of them, including those that need a cargo feature which this build lacks: asking for one of these
//! gives a planner that fails every solve with [`PlanError::FeatureMissing`](crate::PlanError::FeatureMissing).
//!
//! A new planner is a file and an entry here. There are three lists, because a planner may call those of the lists before
//! its own: the simple ones call none, `search` and the solvers begin with plans of simple ones, and `auto` calls all. An
//! entry's [`Role`] says when.

mod choice;
mod composed;
mod entry;
mod simple;

use std::sync::LazyLock;

use crate::planner::Planner;
use crate::planners;

pub use choice::PlannerChoice;
pub(crate) use composed::composed;
pub use entry::{Entry, Role};
pub(crate) use simple::simple;

const AUTO: Entry = Entry {
    name: planners::Auto::NAME,
    purpose: "any input: runs the planners that suit it and the time, returns the best plan and says whose it is",
    source: "this project",
    role: Role::Alone,
    make: || Box::new(planners::Auto::default()),
};

static ALL: LazyLock<Vec<Entry>> = LazyLock::new(|| [simple(), composed(), &[AUTO]].concat());

/// All graph planners, in the order of the documentation.
pub fn planners() -> &'static [Entry] {
    &ALL
}

/// Whether there is a graph planner called `name`; can be called at compile time. Takes time in proportion to the registry.
///
/// ```
/// use burn_remat_plan::registry::is_planner;
///
/// const _: () = assert!(is_planner("chain-dp") && !is_planner("chain"));
/// ```
pub const fn is_planner(name: &str) -> bool {
    entry::are_called(simple::ENTRIES, name) || entry::are_called(composed::ENTRIES, name) || AUTO.is_called(name)
}

/// The graph planner called `name`.
///
/// ```
/// assert_eq!(burn_remat_plan::registry::planner("store-all").unwrap().name(), "store-all");
/// assert!(burn_remat_plan::registry::planner("no-such-planner").is_none());
/// ```
pub fn planner(name: &str) -> Option<Box<dyn Planner>> {
    planners().iter().find(|entry| entry.name == name).map(Entry::planner)
}
