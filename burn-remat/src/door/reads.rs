//! Reads on their way to the engine.
//!
//! The router gives up its hold on a tensor just before it asks for the tensor's data. If this happens on a separate thread (a server reads a tensor, or
//! sends it to another server, while the session goes on), the session may drop or consume the tensor before the read reaches the engine. So a reader
//! announces itself first, without a long wait, and an operation that ends a tensor waits until its announced reads are done.

use burn_ir::{OperationIr, TensorId, TensorStatus};
use smallvec::SmallVec;

use super::sync::{AtomicUsize, Condvar, Mutex, Ordering};

/// Tensors that are about to be read.
#[derive(Default)]
pub(super) struct Reads {
    /// How many there are. Every operation checks this.
    count: AtomicUsize,
    ids: Mutex<SmallVec<[TensorId; 4]>>,
    done: Condvar,
}

/// An announced read. Dropping this ends it.
pub(super) struct Announced<'a> {
    reads: &'a Reads,
    id: TensorId,
}

impl Reads {
    /// Announces that `id` is about to be read.
    pub fn announce(&self, id: TensorId) -> Announced<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.ids.lock().push(id);
        Announced { reads: self, id }
    }

    /// Waits until no announced read needs a tensor that `op` ends.
    pub fn let_pass(&self, op: &OperationIr) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let ended = op.inputs().filter(|input| input.status == TensorStatus::ReadWrite).map(|input| input.id);
        let ended: SmallVec<[TensorId; 4]> = ended.collect();
        let mut ids = self.ids.lock();
        while ids.iter().any(|id| ended.contains(id)) {
            self.done.wait(&mut ids);
        }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let mut ids = self.reads.ids.lock();
        if let Some(at) = ids.iter().position(|id| *id == self.id) {
            ids.swap_remove(at);
        }
        self.reads.count.fetch_sub(1, Ordering::SeqCst);
        self.reads.done.notify_all();
    }
}
