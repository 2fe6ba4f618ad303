//! The planners that start from what [simple](super::simple) ones find. `auto` stands above these.

use super::entry::{Entry, Role};
use crate::planners;

/// All of them.
pub(crate) fn composed() -> &'static [Entry] {
    ENTRIES
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: planners::Search::NAME,
        purpose: "any graph, any time limit: annealing over schedules that recompute anything anywhere, by any implementation",
        source: "this project",
        role: Role::Alone,
        make: || Box::new(planners::Search::default()),
    },
    Entry {
        name: "checkmate",
        purpose: "to about 150 ops: the cheapest frontier-advancing plan, proved",
        source: "Checkmate, problem (9)",
        role: Role::Exact { most_ops: 60 },
        #[cfg(feature = "highs")]
        make: || Box::new(planners::Checkmate),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "checkmate", feature: "highs" }),
    },
    Entry {
        name: "lp-rounding",
        purpose: "to about 400 ops: rounds the relaxation of checkmate",
        source: "Checkmate, section 5, algorithm 2",
        role: Role::Frugal,
        #[cfg(feature = "highs")]
        make: || Box::new(planners::LpRounding),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "lp-rounding", feature: "highs" }),
    },
    Entry {
        name: "monet",
        purpose: "what to keep, compute again and by which implementation: exact when small, else by the model's stages",
        source: "Shah et al. 2020 (MONeT)",
        role: Role::Chooses,
        #[cfg(feature = "highs")]
        make: || Box::new(planners::Monet),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "monet", feature: "highs" }),
    },
];
