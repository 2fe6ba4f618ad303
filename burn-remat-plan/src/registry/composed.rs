//! The planners that start from what [simple](super::simple) ones find. `auto` runs these too.

use super::entry::{Entry, Role};
use crate::planners;

/// All of them.
pub(crate) fn composed() -> &'static [Entry] {
    ENTRIES
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: planners::Search::NAME,
        purpose: "any graph, any time limit: annealing over schedules that recompute anything anywhere, with any implementation",
        source: "this project",
        role: Role::Alone,
        make: || Box::new(planners::Search::default()),
    },
    Entry {
        name: "checkmate",
        purpose: "up to about 150 ops: the cheapest frontier-advancing plan, proved",
        source: "Checkmate, problem (9)",
        role: Role::Exact { most_ops: 60 },
        #[cfg(feature = "highs")]
        make: || Box::new(planners::Checkmate),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "checkmate", feature: "highs" }),
    },
    Entry {
        name: "lp-rounding",
        purpose: "up to about 400 ops: rounds the relaxation of checkmate",
        source: "Checkmate, section 5, algorithm 2",
        role: Role::Frugal,
        #[cfg(feature = "highs")]
        make: || Box::new(planners::LpRounding),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "lp-rounding", feature: "highs" }),
    },
    Entry {
        name: "monet",
        purpose: "what to keep, what to recompute and with which implementation: exact if small, else by stages",
        source: "Shah et al. 2020 (MONeT)",
        role: Role::Chooses,
        #[cfg(feature = "highs")]
        make: || Box::new(planners::Monet),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "monet", feature: "highs" }),
    },
];
