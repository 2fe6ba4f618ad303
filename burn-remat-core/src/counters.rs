//! What has happened so far, for the report. No decision depends on these counters, so they may be reset at any time.
//!
//! Larger than the rule: `Counters`, because it is a record: no decision depends on its fields.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::facts::{Alternative, Failure, Kind};
use crate::keys::PathId;

/// A maximum, and the operation that set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most {
    /// Bytes.
    pub bytes: u64,
    /// The operation.
    pub kind: Kind,
}

impl Most {
    pub(crate) fn note(&mut self, bytes: u64, kind: Kind) {
        if bytes > self.bytes {
            *self = Self { bytes, kind };
        }
    }
}

/// Times, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time of the program's operations.
    pub compute: u64,
    /// Time of recomputation, compression and decompression.
    pub recompute: u64,
    /// Time of all operations in the steps that followed a plan.
    pub followed: u64,
    /// Time of recomputation in those steps.
    pub followed_recompute: u64,
}

/// What was done in one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    /// Operations of the program.
    pub operations: u64,
    /// Time that they took.
    pub compute_ns: u64,
    /// Operations that were recomputed.
    pub recomputed: u64,
    /// Time that this took.
    pub recompute_ns: u64,
    /// Bytes that they wrote.
    pub recomputed_bytes: u64,
}

/// What was done with one alternative to recomputation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlternativeCounts {
    /// Tensors evicted in this way; a tensor counts each time.
    pub tensors: u64,
    /// Bytes of these tensors before.
    pub from: u64,
    /// Bytes that they took afterwards.
    pub to: u64,
    /// Time that it took.
    pub ns: u64,
}

/// What has happened so far.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Operations of the program.
    pub operations: u64,
    /// Operations that were recomputed.
    pub recomputed: u64,
    /// Buffers evicted.
    pub evictions: u64,
    /// Steps that have ended.
    pub steps: u64,
    /// Steps that exceeded the budget at some point.
    pub steps_over_budget: u64,
    /// Times.
    pub times: Times,
    /// Most bytes held.
    pub peak: Most,
    /// Most bytes that could not be evicted when an operation needed more.
    pub floor: Most,
    /// Most bytes that an operation allocated beyond its tensors.
    pub scratch: Most,
    /// Kinds of operations that are not recomputed, because they might give different bits.
    pub varying: SmallVec<[Kind; 2]>,
    /// Counts of each stage, indexed by its path.
    pub stages: Vec<StageCounts>,
    /// Counts of each alternative.
    pub alternatives: [AlternativeCounts; Alternative::ALL.len()],
    /// The first failure.
    pub failure: Option<Failure>,
}

impl Counters {
    pub(crate) fn stage(&mut self, path: PathId) -> &mut StageCounts {
        let at = path as usize;
        if self.stages.len() <= at {
            self.stages.resize(at + 1, StageCounts::default());
        }
        &mut self.stages[at]
    }
}
