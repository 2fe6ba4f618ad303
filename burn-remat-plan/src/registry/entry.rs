//! One line of the registry.

use crate::planner::Planner;

/// A planner by name.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name that the command takes for the planner.
    pub name: &'static str,
    /// What it is for, in one line.
    pub purpose: &'static str,
    /// Where the method comes from.
    pub source: &'static str,
    /// When planners that combine others ask it.
    pub role: Role,
    pub(super) make: fn() -> Box<dyn Planner>,
}

/// What `auto` and `search` ask a planner for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Gives a plan within milliseconds for up to `most_ops` ops: asked first; for larger graphs asked as [`Role::Frugal`].
    Quick {
        /// The largest graph that it plans quickly.
        most_ops: usize,
    },
    /// Sometimes finds a plan if the quick ones find none: asked then.
    Frugal,
    /// Gives the cheapest plan of its class: worth a part of the time for up to `most_ops` ops.
    Exact {
        /// The largest graph for which it is worth the time.
        most_ops: usize,
    },
    /// Chooses implementations: worth a part of the time if ops have alternatives.
    Chooses,
    /// Not asked.
    Alone,
}

/// Whether one of `entries` is called `name`.
pub(super) const fn are_called(entries: &[Entry], name: &str) -> bool {
    // Code that runs at compile time has neither iterators nor string comparison.
    let mut at = 0;
    while at < entries.len() {
        if entries[at].is_called(name) {
            return true;
        }
        at += 1;
    }
    false
}

impl Entry {
    /// Whether `name` is that of the planner.
    pub(super) const fn is_called(&self, name: &str) -> bool {
        let (own, name) = (self.name.as_bytes(), name.as_bytes());
        let mut at = 0;
        while at < own.len() && at < name.len() && own[at] == name[at] {
            at += 1;
        }
        at == own.len() && at == name.len()
    }

    /// A new planner with its default settings.
    pub fn planner(&self) -> Box<dyn Planner> {
        (self.make)()
    }

    /// Whether it is [quick](Role::Quick) for this many ops.
    pub fn is_quick(&self, ops: usize) -> bool {
        matches!(self.role, Role::Quick { most_ops } if ops <= most_ops)
    }

    /// Whether it is asked for this many ops if the quick ones find nothing.
    pub fn is_last_resort(&self, ops: usize) -> bool {
        self.role == Role::Frugal || matches!(self.role, Role::Quick { most_ops } if ops > most_ops)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).finish_non_exhaustive()
    }
}
