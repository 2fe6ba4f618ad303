//! Stubs: what is left of an evicted tensor for operations that need less of it than its numbers.
//!
//! Burn's backward of a ReLU reads what the forward pass read, but needs only the sign of it; that of a pooling or an
//! interpolation needs only the shape. Where a plan says so, a tensor that is evicted leaves its signs, one bit for each element, or
//! nothing but itself; and when such an operation reads it, a stand-in takes its place for as long as the operation runs: a tensor
//! with the same signs, or a shell of the same shape without numbers. That holds whenever the operation runs, the first time or again,
//! and also when the program has let go of the tensor: the plan says when a stub goes. Whoever else needs the tensor gets the tensor itself,
//! computed again.
//!
//! The stand-in lies in order, so only tensors that do leave stubs: see `forms.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn_backend::DType;
use burn_ir::{HandleKind, IrVisitorMut, OperationIr, TensorHandle, TensorId, TensorIr, TensorStatus};

use super::code::Code;
use super::failures::panic_message;
use super::operation::weak_input;
use super::table::{Description, TensorKey};
use super::{Engine, Failure, Keys, fresh_id};
use crate::backend::{BufferId, RematBackend};
use crate::planning::{Need, Place, TracedStub};

/// What is left of a tensor.
pub(super) struct Stub {
    need: Need,
    /// Its signs, where they may be needed.
    packed: Vec<u8>,
}

impl Stub {
    fn serves(&self, need: Need) -> bool {
        self.need == need || need == Need::Shape
    }

    /// Bytes of the device that it takes.
    fn bytes(&self) -> u64 {
        self.packed.len() as u64
    }
}

impl<B: RematBackend> Engine<B> {
    /// The input that an operation about to run could do without, and what it would need instead, for the trace.
    pub(super) fn traced_stub(&mut self, op: &OperationIr) -> Option<(TensorKey, TracedStub)> {
        let (ir, need) = weak_input(op)?;
        let allowed = B::IS_HOST && self.config.alternatives.allows(need.alternative()) && ir.dtype == DType::F32;
        let key = *self.index.get(&ir.id).filter(|_| allowed)?;
        let ir = TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() };
        if !self.may_be_packed(key, &ir) {
            return None;
        }
        let bytes = self.tensors[key].bytes;
        let stub = match need {
            Need::Signs => {
                let code = Code::Signs;
                if self.is_to_be_measured(code) {
                    self.measure_form(key, code, &ir);
                }
                let packed = code.bytes(ir.shape.num_elements(), ir.dtype) as u64;
                TracedStub { place: 0, need, bytes: packed, stand_in: bytes, cost_ns: self.forms.cost_ns(code, bytes) }
            }
            Need::Shape => {
                let BufferId::Known { bytes, .. } = B::buffer(&B::shell(&ir.shape, ir.dtype)?) else { return None };
                TracedStub { place: 0, need, bytes: 0, stand_in: bytes, cost_ns: 0 }
            }
        };
        Some((key, stub))
    }

    /// Leaves a stub of a storage that is about to be evicted.
    pub(super) fn leave_stub(&mut self, place: Place, need: Need) {
        let Some(&(key, _)) = self.owners_of(place).first() else { return };
        if self.tensors[key].stub.is_some() || !self.fills_its_buffer(key) {
            return;
        }
        let start = Instant::now();
        let tensor = &self.tensors[key];
        let packed = match need {
            Need::Signs => {
                let handle = self.executor.handle(&tensor.bare(TensorStatus::ReadOnly));
                // Only where they lie in order, as the stand-in will.
                let Some(bytes) = handle.as_ref().and_then(B::host_bytes) else { return };
                Code::Signs.pack(bytes, tensor.dtype)
            }
            Need::Shape => Vec::new(),
        };
        let stub = Stub { need, packed };
        self.storages.add_small(stub.bytes());
        let _ = self.account(self.storages.rooted, self.serving);
        self.count_packed(need.alternative(), self.tensors[key].bytes, stub.bytes());
        self.tensors[key].stub = Some(Box::new(stub));
        if need == Need::Signs {
            self.count_packing(need.alternative(), Code::Signs, 0, self.tensors[key].bytes, start);
        }
    }

    /// The input that an operation can do without now: it is evicted and has left what is needed.
    pub(super) fn spared(&self, op: &OperationIr) -> Option<TensorKey> {
        self.follow.as_ref()?;
        let (ir, need) = weak_input(op)?;
        let key = *self.index.get(&ir.id)?;
        let tensor = &self.tensors[key];
        (tensor.is_evicted() && tensor.stub.as_ref().is_some_and(|stub| stub.serves(need))).then_some(key)
    }

    /// Puts a stand-in for `spared` into an operation, which consumes it. It is pinned until the operation is done.
    pub(super) fn lend(
        &mut self,
        op: &mut OperationIr,
        spared: TensorKey,
        consumed: &mut Keys,
    ) -> Result<TensorKey, Failure> {
        let lost = "internal error: a stub does not hold what it should";
        let (ir, need) = weak_input(op).ok_or(lost)?;
        let stand_in = TensorIr { id: fresh_id(), status: TensorStatus::ReadWrite, ..ir.clone() };
        let stub = self.tensors[spared].stub.as_deref().ok_or(lost)?;
        let (start, about) = (Instant::now(), Description::of(&stand_in));
        let executor = &mut self.executor;
        match need {
            Need::Signs => {
                let data = Code::Signs.unpack(&stub.packed, stand_in.shape.clone(), stand_in.dtype).ok_or(lost)?;
                catch_unwind(AssertUnwindSafe(|| executor.upload(about.id, data)))
                    .map_err(|payload| self.circumstances().explain("stand-in", panic_message(&*payload)))?;
            }
            Need::Shape => {
                let shape = stand_in.shape.clone();
                let handle = B::shell(&shape, stand_in.dtype).ok_or(lost)?;
                executor.import(&stand_in, HandleKind::Float(B::float_tensor(TensorHandle { handle, shape })));
            }
        }
        let key = self.stand_in(op, spared, about, consumed)?;
        if need == Need::Signs {
            self.count_packing(need.alternative(), Code::Signs, 1, about.bytes, start);
        }
        Ok(key)
    }

    /// Has an operation consume a tensor that the interpreter has already in place of `replaced`.
    pub(super) fn stand_in(
        &mut self,
        op: &mut OperationIr,
        replaced: TensorKey,
        about: Description,
        consumed: &mut Keys,
    ) -> Result<TensorKey, Failure> {
        let key = self.insert_unheld(about, 0);
        if let Err(failure) = self.settle(&[key], &[], &[], false, self.serving) {
            self.unpin(key);
            return Err(failure);
        }
        op.visit_mut(&mut Rename { from: self.tensors[replaced].id, to: about.id });
        consumed.retain(|other| *other != replaced);
        consumed.push(key);
        Ok(key)
    }

    /// Drops the stub of a tensor, if there is one.
    pub(super) fn drop_stub(&mut self, key: TensorKey) {
        if let Some(stub) = self.tensors[key].stub.take() {
            self.storages.take_small(stub.bytes());
        }
    }
}

/// Gives an input of an operation another id, and lets the operation consume it.
struct Rename {
    from: TensorId,
    to: TensorId,
}

impl IrVisitorMut for Rename {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        if tensor.id == self.from && tensor.status != TensorStatus::NotInit {
            (tensor.id, tensor.status) = (self.to, TensorStatus::ReadWrite);
        }
    }
}
