//! How many new bytes an operation will really take.
//!
//! Its outputs may be views of an input or be written in place. The backend decides that from facts the engine can
//! see (who owns the buffer, who consumes it) and some it cannot (strides), but the same operation in the same place of
//! a step decides the same way every time. So the engine takes the full size of the outputs until it has seen the
//! outcome for a signature, and the largest outcome from then on. Signatures are computed only when memory is tight.

use std::hash::{Hash, Hasher};

use burn_ir::OperationIr;
use rustc_hash::{FxHashMap, FxHasher};

use super::Engine;
use super::operation::operation_kind;
use super::table::TensorKey;
use crate::backend::RematBackend;

/// Outcomes by signature.
#[derive(Default)]
pub(super) struct Reuse {
    seen: FxHashMap<u64, u64>,
    /// Signature of the operation about to run, where one was computed.
    pending: Option<u64>,
}

impl Reuse {
    /// Learns what the operation just run has taken.
    pub fn learn(&mut self, bytes: u64) {
        if let Some(signature) = self.pending.take() {
            let known = self.seen.entry(signature).or_insert(bytes);
            *known = bytes.max(*known);
        }
    }
}

impl<B: RematBackend> Engine<B> {
    /// Upper estimate of the new bytes that `op` takes, all its inputs resident and `full` bytes in its outputs.
    pub(super) fn new_bytes(
        &mut self,
        op: &OperationIr,
        full: u64,
        inputs: &[TensorKey],
        consumed: &[TensorKey],
    ) -> u64 {
        self.reuse.pending = None;
        let Some(budget) = self.tensor_budget() else { return full };
        if self.storages.live.saturating_add(full) <= budget {
            return full;
        }
        let mut hasher = FxHasher::default();
        operation_kind(op).hash(&mut hasher);
        for output in op.outputs() {
            output.shape.hash(&mut hasher);
            output.dtype.hash(&mut hasher);
        }
        for &input in inputs {
            let tensor = &self.tensors[input];
            tensor.shape.hash(&mut hasher);
            tensor.dtype.hash(&mut hasher);
            tensor.made_by.hash(&mut hasher);
            consumed.contains(&input).hash(&mut hasher);
            let storage = tensor.storage.map(|storage| self.storages.get(storage));
            storage.map(|storage| (storage.owners.len() == 1, storage.bytes > tensor.bytes)).hash(&mut hasher);
        }
        let signature = hasher.finish();
        self.reuse.pending = Some(signature);
        self.reuse.seen.get(&signature).copied().unwrap_or(full)
    }
}
