//! Which operations belong to the training step, where several threads use one device.
//!
//! Data loaders prepare batches and metrics are computed on threads of their own, at no particular place among the
//! operations of a step. Written down with it, they would make every step another one. So the thread that updates parameters
//! is taken for the one that trains (until there is an update, the one that marks steps, or any), and what other threads do is
//! *aside*: it is executed and counted like everything else, and may be evicted, but is neither traced nor compared with a
//! plan. What the step reads of it counts as uploaded. A plan leaves room for as much as was held aside at once.

use burn_std::id::StreamId;
use rustc_hash::FxHashMap;

use super::Engine;
use super::table::TensorKey;
use crate::backend::RematBackend;

/// The thread that trains, and what others do meanwhile.
#[derive(Default)]
pub(super) struct Aside {
    trainer: Option<StreamId>,
    /// Parameter updates by thread.
    updates: FxHashMap<StreamId, u64>,
    /// Whether the operation being served is another thread's.
    pub now: bool,
    /// Bytes made aside and held now.
    pub bytes: u64,
    /// Most of them at once.
    pub peak: u64,
}

impl Aside {
    /// Whether what this thread does is no part of the step.
    pub fn is_other_thread(&self) -> bool {
        self.trainer.is_some_and(|trainer| trainer != StreamId::current())
    }
}

impl<B: RematBackend> Engine<B> {
    /// This thread marks a step.
    pub(super) fn note_mark(&mut self) {
        if self.aside.updates.is_empty() {
            self.aside.trainer = Some(StreamId::current());
        }
    }

    /// This thread has updated a parameter.
    pub(super) fn note_update(&mut self) {
        let stream = StreamId::current();
        let updates = self.aside.updates.entry(stream).or_default();
        *updates += 1;
        let updates = *updates;
        let trainer = self.aside.trainer;
        if trainer == Some(stream) {
            return;
        }
        if trainer.is_none_or(|trainer| self.aside.updates.get(&trainer).is_none_or(|&most| updates > most)) {
            self.aside.trainer = Some(stream);
            if trainer.is_some() {
                // What was taken for the step at hand was another thread's.
                self.forget_step();
            }
        }
    }

    /// A tensor is aside no longer: the step reads it, or it goes. Whether it was.
    pub(super) fn leave_aside(&mut self, key: TensorKey) -> bool {
        let tensor = &mut self.tensors[key];
        let was_aside = std::mem::take(&mut tensor.aside);
        if was_aside {
            self.aside.bytes -= tensor.bytes;
        }
        was_aside
    }

    /// Counts what an operation of another thread has made.
    pub(super) fn note_aside(&mut self, outputs: &[TensorKey]) {
        for &output in outputs {
            let tensor = &mut self.tensors[output];
            let Some(storage) = tensor.storage else { continue };
            if self.storages.get(storage).owners.len() == 1 {
                tensor.aside = true;
                self.aside.bytes += tensor.bytes;
            }
        }
        self.aside.peak = self.aside.peak.max(self.aside.bytes);
    }
}
