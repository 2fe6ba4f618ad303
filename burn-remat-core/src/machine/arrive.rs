//! What comes from the host or another device, and what goes there: uploads, tensors of other devices, reads.

use alloc::format;

use super::Machine;
use super::call::Made;
use crate::driver::{Buffer, World};
use crate::facts::{Failure, TensorFacts, TensorId, ThreadId};
use crate::keys::TensorKey;

impl<W: World> Machine<W> {
    /// Takes data that the world has ready as a tensor.
    pub fn upload(&mut self, thread: ThreadId, facts: TensorFacts) {
        self.begin(thread, 0);
        self.make_room(facts.buffer_bytes);
        match self.world.arrive(facts.id) {
            Ok(buffer) => self.adopt(facts, buffer, None),
            Err(cause) => {
                let failure = self.world.explain(0, &cause, self.circumstances());
                self.register_failed(&[facts], failure);
            }
        }
    }

    /// Makes `new` a second name for the buffer of `source`.
    pub fn alias(&mut self, thread: ThreadId, new: TensorId, source: TensorId) {
        let Some(key) = self.history.find(source) else { return };
        self.begin(thread, 0);
        let facts = TensorFacts { id: new, ..self.history.tensors[key].facts };
        self.pin(key);
        match self.ensure(key) {
            Ok(()) => {
                let buffer = self.world.alias(new, source);
                self.adopt(facts, buffer, Some(key));
            }
            Err(failure) => self.register_failed(&[facts], failure),
        }
        self.unpin(key);
    }

    /// Counts a tensor that the driver already has.
    fn adopt(&mut self, facts: TensorFacts, buffer: Buffer, source: Option<TensorKey>) {
        let key = self.insert(facts, None);
        // Done before the buffer of the source gets another owner.
        let place = source.filter(|_| !self.now.foreign).and_then(|source| self.place_of(source));
        let inputs: &[TensorKey] = source.as_slice();
        let made = Made { outputs: &[key], buffers: &[(buffer, None)], view: source.is_some(), ..Made::default() };
        let settled = self.settle(&made, inputs, &[]);
        if let Some(source) = source {
            self.share_aliases(&[source], None, &[key]);
        }
        if self.now.foreign {
            self.note_foreign(&[key]);
        } else {
            self.trace_arrival(key, place);
        }
        if let Err(failure) = settled {
            self.remember(&failure);
            self.fail(key, failure);
        }
    }

    /// Makes a tensor resident for `action`, which reads it. If `last`, the program then releases it.
    ///
    /// # Errors
    ///
    /// Why there is no data, or the error of `action`.
    pub fn read<T>(
        &mut self,
        thread: ThreadId,
        id: TensorId,
        last: bool,
        action: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.begin(thread, 0);
        let Some(key) = self.history.find(id) else {
            return Err(format!("tensor {id} is not on this device").into());
        };
        self.trace_read(key);
        self.note_wanted(key);
        self.pin(key);
        let result = self.ensure(key).and_then(|()| {
            self.history.tensors[key].lineage.used = self.now.clock;
            action(self)
        });
        if last {
            self.trace_drop(key);
            self.kill(key);
        }
        self.unpin(key);
        result
    }

    /// Counts what an operation of another thread has made.
    pub(super) fn note_foreign(&mut self, outputs: &[TensorKey]) {
        for &output in outputs {
            let Some(buffer) = self.history.tensors[output].buffer else { continue };
            if self.ledger.get(buffer).owners.iter().all(|owner| outputs.contains(owner)) {
                self.ledger.mark_foreign(buffer);
            }
        }
        self.threads.note(self.ledger.foreign);
    }
}
