//! The graph planners by name.
//!
//! [`planners()`] lists all of them, also those that need a cargo feature which this build lacks: naming one of these
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

const ENTRIES: &[Entry] = &[
    Entry {
        name: planners::StoreAll::NAME,
        purpose: "the baseline: every op once, every value to its last use",
        source: "the program itself",
        make: || Box::new(planners::StoreAll),
    },
    Entry {
        name: "chen-sqrt",
        purpose: "linear forward pass: every √n-th op a checkpoint",
        source: "Chen et al. 2016",
        make: || Box::new(planners::ChenSqrt),
    },
    Entry {
        name: "chen-greedy",
        purpose: "linear forward pass: segments of about equal size, searched",
        source: "Chen et al. 2016",
        make: || Box::new(planners::ChenGreedy),
    },
    Entry {
        name: "ap-sqrt",
        purpose: "any graph: √n of its articulation points as checkpoints",
        source: "Checkmate, appendix B.1",
        make: || Box::new(planners::ApSqrt),
    },
    Entry {
        name: "ap-greedy",
        purpose: "any graph: articulation points, segments of about equal size, searched",
        source: "Checkmate, appendix B.1",
        make: || Box::new(planners::ApGreedy),
    },
    Entry {
        name: "linear-sqrt",
        purpose: "any graph read as a path: every √n-th op a checkpoint",
        source: "Checkmate, appendix B.2",
        make: || Box::new(planners::LinearSqrt),
    },
    Entry {
        name: "linear-greedy",
        purpose: "any graph read as a path: segments of about equal size, searched",
        source: "Checkmate, appendix B.2",
        make: || Box::new(planners::LinearGreedy),
    },
    Entry {
        name: planners::Search::NAME,
        purpose: "any graph, any time limit: annealing over schedules that recompute anything anywhere, by any implementation",
        source: "this project",
        make: || Box::new(planners::Search::default()),
    },
    Entry {
        name: planners::Online::NAME,
        purpose: "the engine's own policy, which does not look ahead; a baseline, and a plan in no time",
        source: "Kirisame et al. 2021, with bytes^2 * age / cost as the score",
        make: || Box::new(planners::Online),
    },
    Entry {
        name: planners::FengHuang::NAME,
        purpose: "no budget: fewest bytes of checkpoints and largest independent segment",
        source: "Feng & Huang 2018",
        make: || Box::new(planners::FengHuang),
    },
    Entry {
        name: "checkmate",
        purpose: "to about 150 ops: the cheapest frontier-advancing plan, proved",
        source: "Checkmate, problem (9)",
        #[cfg(feature = "highs")]
        make: || Box::new(planners::Checkmate),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "checkmate", feature: "highs" }),
    },
    Entry {
        name: "lp-rounding",
        purpose: "to about 400 ops: rounds the relaxation of checkmate",
        source: "Checkmate, section 5, algorithm 2",
        #[cfg(feature = "highs")]
        make: || Box::new(planners::LpRounding),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "lp-rounding", feature: "highs" }),
    },
    Entry {
        name: planners::Revolve::NAME,
        purpose: "chains of stages: checkpoints are inputs of stages only",
        source: "Griewank and Walther 2000",
        make: || Box::new(planners::Revolve),
    },
    Entry {
        name: planners::ChainDp::NAME,
        purpose: "chains of stages: the cheapest persistent schedule",
        source: "Beaumont et al. 2019",
        make: || Box::new(planners::ChainDp),
    },
    Entry {
        name: "monet",
        purpose: "what to keep, compute again and by which implementation: exact when small, else by the model's stages",
        source: "Shah et al. 2020 (MONeT)",
        #[cfg(feature = "highs")]
        make: || Box::new(planners::Monet),
        #[cfg(not(feature = "highs"))]
        make: || Box::new(planners::MissingFeature { planner: "monet", feature: "highs" }),
    },
    Entry {
        name: planners::MinCut::NAME,
        purpose: "a baseline: the compiler's cut of fewest saved bytes, with a knapsack over dear ops",
        source: "PyTorch, activation_memory_budget",
        make: || Box::new(planners::MinCut),
    },
    Entry {
        name: planners::HloRemat::NAME,
        purpose: "a baseline: one pass over the program that recomputes later what frees most bytes for its cost",
        source: "XLA, HloRematerialization",
        make: || Box::new(planners::HloRemat),
    },
    Entry {
        name: planners::EveryNthBlock::NAME,
        purpose: "a baseline: checkpoints around every n-th block, the largest n that fits",
        source: "PyTorch and TorchTitan, selective activation checkpointing",
        make: || Box::new(planners::EveryNthBlock),
    },
    Entry {
        name: planners::Auto::NAME,
        purpose: "any input: runs what suits it and the time, returns the best plan and says which won",
        source: "this project",
        make: || Box::new(planners::Auto::default()),
    },
];

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
