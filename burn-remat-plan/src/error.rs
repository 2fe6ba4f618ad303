//! What can be wrong with a graph or a chain, and why a plan could not be made.

use std::time::Duration;

use crate::format::FormatError;
use crate::ids::{OpId, ValueId};

/// Why a graph is not valid: the message names the field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// No operation.
    #[error("`ops` is empty: a graph needs at least one operation")]
    Empty,
    /// An index of a value that does not exist.
    #[error("`{field}` contains index {index}, but there are only {count} values (0 to {})", count.saturating_sub(1))]
    IndexOutOfRange {
        /// The field, such as `ops[3].inputs`.
        field: String,
        /// The index found.
        index: usize,
        /// How many values there are.
        count: usize,
    },
    /// A negative, infinite or undefined cost.
    #[error("`{field}` is {number}: it must be finite and not negative")]
    BadNumber {
        /// The field, such as `ops[3].cost`.
        field: String,
        /// The number found.
        number: f64,
    },
    /// A value that two ops (or one op twice) compute.
    #[error(
        "`ops[{second}].outputs` contains value {value}, which `ops[{first}].outputs` already contains: a value has only one producer"
    )]
    TwoProducers {
        /// The value.
        value: ValueId,
        /// The first op.
        first: OpId,
        /// The second op.
        second: OpId,
    },
    /// Ops that depend on each other.
    #[error("cycle: `{field}` contains value {value}, which depends on the outputs of op {op} itself")]
    Cycle {
        /// An op on the cycle.
        op: OpId,
        /// The value that closes it.
        value: ValueId,
        /// The field that contains it, such as `ops[3].alternatives[0].inputs`.
        field: String,
    },
    /// A use before the value is computed.
    #[error(
        "`{field}` contains value {value}, which op {producer} computes only later: `ops` must be in execution order"
    )]
    OutOfOrder {
        /// The op that uses the value.
        op: OpId,
        /// The value.
        value: ValueId,
        /// The op that computes it.
        producer: OpId,
        /// The field that contains the value, such as `ops[3].alternatives[0].inputs`.
        field: String,
    },
    /// Sizes that do not fit in 63 bits.
    #[error("`values[..].bytes`, `constant_bytes` and scratch add up to {total} bytes: more than 2^63 - 1")]
    TooLarge {
        /// The sum.
        total: u128,
    },
    /// Costs whose sum is not finite if each op runs as often as there are ops.
    #[error("the costs `ops[..].cost` add up to {total}: too large for a plan that recomputes")]
    CostOverflow {
        /// The sum.
        total: f64,
    },
    /// A file with the wrong structure.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A file that cannot be read or written.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// The system's error message.
        message: String,
    },
}

/// Why a chain is not valid: the message names the field.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// No stage.
    #[error("`stages` is empty: a chain needs at least one stage, the loss")]
    Empty,
    /// A negative, infinite or undefined cost.
    #[error("`{field}` is {number}: it must be finite and not negative")]
    BadNumber {
        /// The field, such as `stages[3].forward_cost`.
        field: String,
        /// The number found.
        number: f64,
    },
    /// Sizes that do not fit in 63 bits.
    #[error("all sizes add up to {total} bytes: more than 2^63 - 1")]
    TooLarge {
        /// The sum.
        total: u128,
    },
    /// Costs whose sum is not finite if each stage runs as often as there are stages.
    #[error("`stages[..].forward_cost` and `backward_cost` add up to {total:e}: too large for a plan that recomputes")]
    CostOverflow {
        /// The sum.
        total: f64,
    },
    /// Text that is not JSON, or JSON with the wrong structure.
    #[error("`{field}`: {message}")]
    Json {
        /// Path of the field, such as `stages[3].saved_bytes`; `.` is the file as a whole.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// A file in another format.
    #[error("`format` is `{found}`, not `remat-chain/1`")]
    Format {
        /// The tag found.
        found: String,
    },
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No schedule within the planner's reach fits the budget.
    #[error(
        "{}{}{}",
        shortage_text(*budget, *proven),
        minimum_text(*minimum),
        blocking_text(*blocking_op)
    )]
    Infeasible {
        /// The budget asked for.
        budget: u64,
        /// The smallest budget known to be feasible (for this planner), if one is known.
        minimum: Option<u64>,
        /// The op that needs it; for a chain, the stage.
        blocking_op: Option<OpId>,
        /// Whether it is proved that no schedule fits; if not, the planner just found none.
        proven: bool,
    },
    /// The planner does not handle this kind of input.
    #[error("planner `{planner}` cannot plan this input: {reason}")]
    Unsupported {
        /// Name of the planner.
        planner: &'static str,
        /// What it cannot handle and what to use instead.
        reason: String,
    },
    /// The planner is not part of this build.
    #[error(
        "planner `{planner}` needs the cargo feature `{feature}`: build with `--features {feature}` (it needs cmake, a C++ compiler and libclang)"
    )]
    FeatureMissing {
        /// Name of the planner.
        planner: &'static str,
        /// Name of the feature.
        feature: &'static str,
    },
    /// The planner did not return in time and was abandoned. Its thread may still be running.
    #[error("planner `{planner}` did not return within its limit of {limit:?}")]
    Overdue {
        /// Name of the planner.
        planner: &'static str,
        /// Its time limit.
        limit: Duration,
    },
    /// A planner or its solver failed; the input is not the cause.
    #[error("planner `{planner}` failed: {reason}; please report this with the input file")]
    Internal {
        /// Name of the planner.
        planner: &'static str,
        /// What happened.
        reason: String,
    },
}

impl PlanError {
    /// No plan within `budget` was found, and nothing is known about other budgets.
    pub fn no_plan(budget: u64) -> Self {
        Self::Infeasible { budget, minimum: None, blocking_op: None, proven: false }
    }
}

fn shortage_text(budget: u64, proven: bool) -> String {
    if proven { format!("no plan fits in {budget} bytes") } else { format!("found no plan within {budget} bytes") }
}

fn minimum_text(minimum: Option<u64>) -> String {
    minimum.map_or_else(String::new, |bytes| format!("; the smallest budget with a known plan is {bytes} bytes"))
}

fn blocking_text(op: Option<OpId>) -> String {
    op.map_or_else(String::new, |op| format!(", needed by op {op}"))
}
