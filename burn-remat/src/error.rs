//! Errors of making a remat device, and of requests to one.

use std::fmt;

use burn_remat_grammar::nearest;
use burn_remat_plan::registry::planners;

use crate::budget::{Budget, BudgetError};

/// Why a remat device could not be made, or could not answer.
///
/// Errors that happen later, while a program trains, reach it through Burn: the read or the sync that needs the missing data returns Burn's
/// `ExecutionError`, whose text says the cause.
///
/// `Debug` gives the same text as `Display`. A program that ends with the error, in `main` or by `unwrap`, shows it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RematError {
    /// The budget cannot be parsed.
    #[error(transparent)]
    Budget(BudgetError),
    /// The recomputation limit is negative or not a number.
    #[error(
        "the recomputation limit {times} is not valid: give the time that a step may spend on recomputation, as a multiple of \
         its own compute time"
    )]
    RecomputeLimit {
        /// The limit asked for.
        times: f64,
    },
    /// There is no such planner.
    #[error(
        "there is no planner `{name}`{}: `remat-plan list` shows all planners; `auto` suits most programs",
        meant(name)
    )]
    UnknownPlanner {
        /// The name asked for.
        name: String,
    },
    /// This build does not contain the planner.
    #[error(
        "the planner `{name}` needs the feature `{feature}` of burn-remat (and cmake, a C++ compiler and libclang to build \
         it): enable it, or use `auto`"
    )]
    PlannerFeature {
        /// The planner asked for.
        name: String,
        /// The cargo feature that adds it.
        feature: &'static str,
    },
    /// The budget must be a number of bytes here.
    #[error(
        "the budget `{budget}` is not known in bytes before the first step: give it in bytes, such as \"8 GiB\", or as a share of \
         free memory, such as \"80% free\""
    )]
    BudgetInBytes {
        /// The budget asked for.
        budget: Budget,
    },
    /// The budget is a share of free memory, and the device does not report how much memory is free.
    #[error("{device} does not report how much of its memory is free: give the budget in bytes, such as \"8 GiB\"")]
    FreeMemory {
        /// The device.
        device: String,
    },
    /// No whole training step was seen.
    #[error(
        "no whole training step was seen: do at least three optimizer steps, or call `device.remat_mark_step()` at the \
         beginning of each step and once at the end. A program whose training depends on what it reads may skip its steps in a dry run, \
         where every read gives zeros: record it while it trains (`remat_record`) and ask `RecordedProgram::minimum_budget`"
    )]
    NoSteps,
    /// The program panicked during a dry run.
    #[error(
        "the program panicked during the dry run: {reason}. A dry run computes nothing, and every read gives zeros, so it does not work for a \
         program that depends on what it reads (the number of rows in a mask, for example). Record it while it trains (`remat_record`) and ask \
         `RecordedProgram::minimum_budget`, or train it for a few steps under a budget, and read the report"
    )]
    DryRun {
        /// What the panic said.
        reason: String,
    },
    /// What the program did on a dry device cannot be replayed.
    #[error(
        "what the program did in the dry run cannot be followed ({reason}). If it keeps tensors from one call of the function to the next, in a \
         static for example, make them anew in each call; otherwise please report this"
    )]
    Unfollowed {
        /// The first call that cannot be followed, and why.
        reason: String,
    },
    /// Even a batch of one does not fit within the budget and the limit on recomputation.
    #[error(
        "a batch of one needs {minimum} bytes, set by `{op}`: that is more than the budget of {budget} bytes, or recomputation would \
         take longer than allowed. Raise the budget or the overhead limit"
    )]
    NothingFits {
        /// The budget, in bytes.
        budget: u64,
        /// The smallest budget for a batch of one, in bytes.
        minimum: u64,
        /// The operation that sets it.
        op: String,
    },
    /// No plan is known for such a small budget.
    #[error("no plan is known for a budget of {budget} bytes: set at least {minimum} bytes, or use a smaller batch")]
    BelowMinimum {
        /// The budget, in bytes.
        budget: u64,
        /// The smallest budget for which a plan is known, in bytes.
        minimum: u64,
    },
    /// This kind of device cannot have a budget.
    #[error("{device} cannot be a remat device: {reason}")]
    UnsupportedDevice {
        /// The device.
        device: String,
        /// Why, and what to use.
        reason: String,
    },
    /// This process has made too many remat devices.
    #[error("this process has made 32,767 remat devices, the most that it can have: make one and clone it")]
    TooManyDevices,
    /// The device has no engine in this process.
    #[error("{device} is not a remat device of this process: make one with `device.remat(\"8 GiB\")`")]
    NotRemat {
        /// The device.
        device: String,
    },
    /// The program cannot be recorded.
    #[error("the program cannot be recorded: {reason}")]
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

impl fmt::Debug for RematError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A guess at the planner that was meant.
fn meant(name: &str) -> String {
    let names: Vec<&str> = planners().iter().map(|entry| entry.name).collect();
    nearest(name, &names).map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)"))
}
