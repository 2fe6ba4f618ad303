//! What comes from the host or another device and what goes there: uploads, tensors of other devices, reads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_backend::{ExecutionError, TensorData};
use burn_ir::{TensorId, TensorIr, TensorStatus};
use burn_std::future::DynFut;

use super::failures::{panic_message, watched};
use super::table::{Description, Tensor, TensorKey};
use super::{Engine, Failure, GENERATOR};
use crate::backend::{RematBackend, lock};

impl<B: RematBackend> Engine<B> {
    /// Takes data of the host as tensor `id`.
    pub fn upload(&mut self, id: TensorId, data: TensorData) {
        self.clock += 1;
        self.serving = 0;
        self.aside.now = self.aside.is_other_thread();
        let ir = TensorIr { id, shape: data.shape().clone(), dtype: data.dtype(), status: TensorStatus::ReadOnly };
        let about = Description::of(&ir);
        self.make_room(self.allocated(&ir));
        let executor = &mut self.executor;
        match catch_unwind(AssertUnwindSafe(|| executor.upload(id, data))) {
            Ok(()) => self.adopt(about, None),
            Err(payload) => {
                let failure = self.circumstances().explain("upload", panic_message(&*payload)).into();
                self.register_failed(smallvec::smallvec![about], failure);
            }
        }
    }

    /// Counts a tensor whose handle the interpreter has already.
    fn adopt(&mut self, about: Description, source: Option<TensorKey>) {
        let aside = self.aside.is_other_thread();
        let key = self.insert(about, 0, None);
        // Before the storage of the source has one owner more.
        let place = source.filter(|_| !aside).and_then(|source| self.place_of(source));
        let settled = self.settle(&[key], &[], &[], false, 0);
        if let Some(source) = source {
            self.share_names(&[source], &[self.tensors[source].storage], &[key], true);
        }
        if aside {
            self.note_aside(&[key]);
        } else {
            self.trace_arrival(key, place);
        }
        if let Err(failure) = settled {
            self.remember(&failure);
            self.fail(key, failure);
        }
    }

    /// Takes a tensor of the same backend, moved to this engine's device, as `ir`.
    pub fn import(&mut self, ir: TensorIr, tensor: burn_ir::HandleKind<B>) {
        self.executor.import(&ir, tensor);
        self.adopt(Description::of(&ir), None);
    }

    /// Makes `new` a second name for the buffer of `source`.
    pub fn alias(&mut self, new: TensorId, source: TensorId) {
        let Some(&key) = self.index.get(&source) else { return };
        let Tensor { dtype, shape, bytes, .. } = self.tensors[key];
        let about = Description { id: new, dtype, shape, bytes };
        self.tensors[key].pins += 1;
        match self.ensure(key) {
            Ok(()) => {
                self.executor.alias(new, source);
                self.adopt(about, Some(key));
            }
            Err(failure) => self.register_failed(smallvec::smallvec![about], failure),
        }
        self.unpin(key);
    }

    /// Reads a tensor. The future does not hold the engine.
    pub fn read(&mut self, ir: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let result = self.with_resident(&ir, |engine, ir| {
            let executor = &mut engine.executor;
            let read = catch_unwind(AssertUnwindSafe(|| executor.read(ir)));
            let circumstances = engine.circumstances();
            match read {
                Ok(read) => Ok(watched(read, circumstances, engine.late.clone())),
                Err(payload) => Err(circumstances.explain("read", panic_message(&*payload)).into()),
            }
        });
        result.unwrap_or_else(|failure| {
            let error = ExecutionError::with_context(failure.to_string());
            Box::pin(std::future::ready(Err(error)))
        })
    }

    /// The backend's handle of a tensor.
    pub fn handle(&mut self, ir: &TensorIr) -> Result<B::Handle, Failure> {
        self.with_resident(ir, |engine, ir| {
            engine.executor.handle(&ir).ok_or_else(|| "a dry device holds no data".into())
        })
    }

    fn with_resident<T>(
        &mut self,
        ir: &TensorIr,
        action: impl FnOnce(&mut Self, TensorIr) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.clock += 1;
        self.serving = 0;
        let Some(&key) = self.index.get(&ir.id) else {
            return Err(format!("tensor {} is not on this device", ir.id).into());
        };
        self.trace_read(key);
        self.tensors[key].pins += 1;
        let result = self.ensure(key).and_then(|()| {
            self.tensors[key].used = self.clock;
            action(self, TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() })
        });
        if ir.status == TensorStatus::ReadWrite {
            self.kill(key);
        }
        self.unpin(key);
        result
    }

    /// Waits for all work; reports the first failure since the last call.
    pub fn sync(&mut self) -> Result<(), ExecutionError> {
        self.executor.sync().map_err(|error| self.circumstances().name_memory("sync", error))?;
        match self.unsynced_failure.take() {
            Some(failure) => Err(ExecutionError::with_context(failure.to_string())),
            None => Ok(()),
        }
    }

    /// Seeds the backend's generator and the engine's own.
    pub fn seed(&mut self, seed: u64) {
        self.seeds = seed;
        let _alone = lock(&GENERATOR);
        self.executor.seed(seed);
    }
}
