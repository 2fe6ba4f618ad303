//! A plan: a flat list of steps.
//!
//! Meaning, shared by [`simulate`](crate::simulate()) and the checker, which implement it independently:
//!
//! - At the start, the inputs of the graph are resident, and nothing else.
//! - `Compute(op)` needs every input of the op resident. While it runs, memory is the constant bytes, all resident
//!   values, its outputs and its scratch; a value counts once, even if an output is already resident. Afterwards
//!   the outputs are resident.
//! - `Evict(value)` releases a resident value. Nothing is released in any other way.
//! - The first computations of the ops come in execution order, every op is computed, and an op that is not
//!   recomputable is computed once.
//! - At the end, the results are resident.

use std::fmt;
use std::str::FromStr;

use crate::graph::{OpId, ValueId};

/// One step of a plan. Its text form is `+3` (compute op 3), `+3:0` (compute op 3 with `alternatives[0]`) or `-5`
/// (evict value 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Runs an op with its default implementation.
    Compute(OpId),
    /// Runs an op with the alternative of this index.
    ComputeAlternative(OpId, usize),
    /// Releases a value.
    Evict(ValueId),
}

impl Step {
    /// The op that the step computes, if it computes one.
    pub fn op(self) -> Option<OpId> {
        match self {
            Self::Compute(op) | Self::ComputeAlternative(op, _) => Some(op),
            Self::Evict(_) => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(op) => write!(f, "+{op}"),
            Self::ComputeAlternative(op, k) => write!(f, "+{op}:{k}"),
            Self::Evict(value) => write!(f, "-{value}"),
        }
    }
}

/// A text that is not a [`Step`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a step: write `+3` to compute op 3, `+3:0` for its alternative 0, or `-5` to evict value 5")]
pub struct ParseStepError(pub String);

impl FromStr for Step {
    type Err = ParseStepError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseStepError(text.to_owned());
        // `usize::from_str` would accept a second sign.
        let index = |digits: &str| -> Result<usize, ParseStepError> {
            if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().map_err(|_| error()) } else { Err(error()) }
        };
        match text.split_at_checked(1) {
            Some(("+", rest)) => match rest.split_once(':') {
                Some((op, k)) => Ok(Self::ComputeAlternative(index(op)?, index(k)?)),
                None => Ok(Self::Compute(index(rest)?)),
            },
            Some(("-", rest)) => Ok(Self::Evict(index(rest)?)),
            _ => Err(error()),
        }
    }
}

/// A list of steps; see the [module](self) for its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Step>,
}
