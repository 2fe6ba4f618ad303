//! What can go wrong when a remat device is made.

use crate::budget::BudgetError;
use crate::grammar::{PLANNERS, nearest};

/// Why there is no remat device.
///
/// What goes wrong later, while a program trains, reaches it through Burn: the read or the sync that needs the missing
/// data returns Burn's `ExecutionError` with the cause in words.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RematError {
    /// The budget cannot be read.
    #[error(transparent)]
    Budget(BudgetError),
    /// The recomputation limit is no number.
    #[error(
        "a recomputation limit of {times} cannot be: give how many times its own compute time a step may recompute"
    )]
    RecomputeLimit {
        /// The limit asked for.
        times: f64,
    },
    /// There is no such planner.
    #[error(
        "there is no planner `{name}`{}: `remat-plan list` shows those that there are; `auto` suits most",
        meant(name)
    )]
    UnknownPlanner {
        /// The name asked for.
        name: String,
    },
    /// This build lacks the planner.
    #[error(
        "the planner `{name}` needs the feature `{feature}` of burn-remat (and cmake, a C++ compiler and libclang to build \
         it): enable it, or use `auto`"
    )]
    PlannerFeature {
        /// The planner asked for.
        name: String,
        /// The cargo feature that brings it.
        feature: &'static str,
    },
    /// Only a budget in bytes will do.
    #[error(
        "give the budget in bytes, such as \"8 GiB\": a share of a peak that nobody has seen yet is no number; a share of free memory, \"80% free\", is one"
    )]
    BudgetInBytes,
    /// A share of free memory on a device that does not tell how much that is.
    #[error("{device} does not tell how much of its memory is free: give the budget in bytes, such as \"8 GiB\"")]
    FreeMemory {
        /// The device.
        device: String,
    },
    /// No whole training step was seen.
    #[error(
        "no whole training step was seen: do at least three optimizer steps, or call `device.remat_mark_step()` at the \
         beginning of each and once at the end"
    )]
    NoSteps,
    /// Not even a batch of one fits.
    #[error("a batch of one needs {minimum} bytes, set by `{op}`: more than the budget of {budget} bytes, or too slow")]
    NothingFits {
        /// The budget, in bytes.
        budget: u64,
        /// The smallest budget for a batch of one, in bytes.
        minimum: u64,
        /// The operation that sets it.
        op: String,
    },
    /// No plan is known for so small a budget.
    #[error("no plan is known for {budget} bytes: the minimum is {minimum} bytes, or take a smaller batch")]
    BelowMinimum {
        /// The budget, in bytes.
        budget: u64,
        /// The smallest budget for which one is, in bytes.
        minimum: u64,
    },
    /// The device cannot carry a budget.
    #[error("{device} cannot be a remat device: {reason}")]
    UnsupportedDevice {
        /// The device.
        device: String,
        /// Why, and what to use.
        reason: String,
    },
    /// Too many devices in one process.
    #[error("this process has made 32,767 remat devices: make one and clone it")]
    TooManyDevices,
    /// The device has no engine in this process.
    #[error("{device} is no remat device of this process: make one with `device.remat(\"8 GiB\")`")]
    NotRemat {
        /// The device.
        device: String,
    },
    /// What the program asks for cannot be written down.
    #[error("no recording: {reason}")]
    Recording {
        /// Why.
        reason: String,
    },
    /// The server failed.
    #[cfg(feature = "serve")]
    #[error("the remat device could not be served: {reason}")]
    Serve {
        /// What happened.
        reason: String,
    },
}

/// A guess at the planner that a name was to be.
fn meant(name: &str) -> String {
    nearest(name, &PLANNERS).map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)"))
}
