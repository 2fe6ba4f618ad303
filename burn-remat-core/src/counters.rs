//! What has happened so far, for the report. Nothing is decided by these: they may be reset at any time.
//!
//! Larger than the rule: `Counters`, because it is a record: nothing is decided by its fields.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::facts::{Alternative, Failure, Kind};
use crate::keys::PathId;

/// A most, and the operation that set it.
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
    /// Of the program's operations.
    pub compute: u64,
    /// Of what ran again, and of compressing and bringing back.
    pub recompute: u64,
    /// Of all operations in the steps that went by a plan.
    pub followed: u64,
    /// Of what ran again in those.
    pub followed_recompute: u64,
}

/// What has been done in one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounts {
    /// Operations of the program.
    pub operations: u64,
    /// Their time.
    pub compute_ns: u64,
    /// Operations that ran again.
    pub recomputed: u64,
    /// Their time.
    pub recompute_ns: u64,
    /// Bytes that they wrote.
    pub recomputed_bytes: u64,
}

/// What has been done in one alternative way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlternativeCounts {
    /// Tensors, each as often as it was evicted so.
    pub tensors: u64,
    /// Their bytes.
    pub from: u64,
    /// Bytes that they took then.
    pub to: u64,
    /// Time that it took.
    pub ns: u64,
}

/// What has happened so far.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Operations of the program.
    pub operations: u64,
    /// Operations that ran again.
    pub recomputed: u64,
    /// Buffers evicted.
    pub evictions: u64,
    /// Steps that have ended.
    pub steps: u64,
    /// Steps that held more than the budget at some point.
    pub steps_over_budget: u64,
    /// Times.
    pub times: Times,
    /// Most bytes held.
    pub peak: Most,
    /// Most bytes that could not be evicted when an operation needed more.
    pub floor: Most,
    /// Most bytes that an operation allocated beside its tensors.
    pub scratch: Most,
    /// Kinds of operations that are not repeated, because they might give other bits.
    pub varying: SmallVec<[Kind; 2]>,
    /// By path of the stage.
    pub stages: Vec<StageCounts>,
    /// By alternative.
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
