//! The planners that call no other planner. A new planner goes here, unless it starts from what others find.

use super::entry::{Entry, Role};
use crate::planners;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        name: planners::StoreAll::NAME,
        purpose: "the baseline: every op runs once, every value stays until its last use",
        source: "the program itself",
        role: Role::Quick { most_ops: usize::MAX },
        make: || Box::new(planners::StoreAll),
    },
    Entry {
        name: "chen-sqrt",
        purpose: "linear forward pass: every √n-th op a checkpoint",
        source: "Chen et al. 2016",
        role: Role::Frugal,
        make: || Box::new(planners::ChenSqrt),
    },
    Entry {
        name: "chen-greedy",
        purpose: "linear forward pass: segments of about equal size, found by search",
        source: "Chen et al. 2016",
        role: Role::Quick { most_ops: 2000 },
        make: || Box::new(planners::ChenGreedy),
    },
    Entry {
        name: "ap-sqrt",
        purpose: "any graph: √n of its articulation points as checkpoints",
        source: "Checkmate, appendix B.1",
        role: Role::Frugal,
        make: || Box::new(planners::ApSqrt),
    },
    Entry {
        name: "ap-greedy",
        purpose: "any graph: articulation points, segments of about equal size, found by search",
        source: "Checkmate, appendix B.1",
        role: Role::Quick { most_ops: 2000 },
        make: || Box::new(planners::ApGreedy),
    },
    Entry {
        name: "linear-sqrt",
        purpose: "any graph read as a path: every √n-th op a checkpoint",
        source: "Checkmate, appendix B.2",
        role: Role::Frugal,
        make: || Box::new(planners::LinearSqrt),
    },
    Entry {
        name: "linear-greedy",
        purpose: "any graph read as a path: segments of about equal size, found by search",
        source: "Checkmate, appendix B.2",
        role: Role::Quick { most_ops: 2000 },
        make: || Box::new(planners::LinearGreedy),
    },
    Entry {
        name: planners::Online::NAME,
        purpose: "the engine's own policy, which does not look ahead; a baseline, and a plan in milliseconds",
        source: "Kirisame et al. 2021, with bytes^2 * age / cost as the score",
        role: Role::Quick { most_ops: usize::MAX },
        make: || Box::new(planners::Online),
    },
    Entry {
        name: planners::MinCut::NAME,
        purpose: "a baseline: the compiler's cut that saves the fewest bytes, with a knapsack over expensive ops",
        source: "PyTorch, activation_memory_budget",
        role: Role::Alone,
        make: || Box::new(planners::Guarded(planners::MinCut)),
    },
    Entry {
        name: planners::HloRemat::NAME,
        purpose: "a baseline: a pass over the program that drops and recomputes what frees the most bytes for its cost",
        source: "XLA, HloRematerialization",
        role: Role::Alone,
        make: || Box::new(planners::Guarded(planners::HloRemat)),
    },
    Entry {
        name: planners::EveryNthBlock::NAME,
        purpose: "a baseline: checkpoints around every n-th block, the largest n that fits",
        source: "PyTorch and TorchTitan, selective activation checkpointing",
        role: Role::Alone,
        make: || Box::new(planners::Guarded(planners::EveryNthBlock)),
    },
    Entry {
        name: planners::FengHuang::NAME,
        purpose: "no budget: fewest bytes of checkpoints plus largest independent segment",
        source: "Feng & Huang 2018",
        role: Role::Frugal,
        make: || Box::new(planners::FengHuang),
    },
    Entry {
        name: planners::Revolve::NAME,
        purpose: "chains of stages: checkpoints are inputs of stages only",
        source: "Griewank and Walther 2000",
        role: Role::Frugal,
        make: || Box::new(planners::Guarded(planners::Revolve)),
    },
    Entry {
        name: planners::ChainDp::NAME,
        purpose: "chains of stages: the cheapest persistent schedule",
        source: "Beaumont et al. 2019",
        role: Role::Quick { most_ops: 300 },
        make: || Box::new(planners::Guarded(planners::ChainDp)),
    },
];

/// All of them.
pub(crate) fn simple() -> &'static [Entry] {
    ENTRIES
}
