//! Stubs: what is left of an evicted tensor for operations that need less of it than its numbers.
//!
//! Burn's backward of a ReLU reads what the forward pass read, but needs only the sign of it; that of a pooling or an
//! interpolation needs only the shape. Where a plan says so, a tensor that is evicted leaves its signs, one bit for each element, or
//! nothing but itself; and when such an operation reads it, a stand-in with the same signs and shape takes its place for as long as
//! the operation runs. Whoever else needs the tensor gets the tensor itself, computed again.
//!
//! The stand-in lies in order, so only tensors that do leave stubs: see `forms.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn_backend::DType;
use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};

use super::failures::panic_message;
use super::operation::weak_input;
use super::table::{Description, TensorKey};
use super::{Engine, Failure, Keys, fresh_id};
use crate::alternatives::Alternative;
use crate::backend::RematBackend;
use crate::planning::{Need, Place, TracedStub};

/// What is left of a tensor.
pub(super) struct Stub {
    need: Need,
    packed: Vec<u8>,
}

impl Stub {
    fn serves(&self, need: Need) -> bool {
        self.need == need || need == Need::Shape
    }

    /// Bytes of the device that it takes.
    fn bytes(&self) -> u64 {
        match self.need {
            Need::Signs => self.packed.len() as u64,
            Need::Shape => 0,
        }
    }
}

impl<B: RematBackend> Engine<B> {
    /// The input that an operation about to run could do without, and what it would need instead, for the trace.
    pub(super) fn traced_stub(&mut self, op: &OperationIr) -> Option<(TensorKey, TracedStub)> {
        let (ir, need) = weak_input(op)?;
        let allowed = B::IS_HOST && self.config.alternatives.allows(need.alternative()) && ir.dtype == DType::F32;
        let key = *self.index.get(&ir.id).filter(|_| allowed)?;
        if !self.may_be_packed(key) {
            return None;
        }
        let code = need.code();
        self.measure_form(key, code, ir.shape.clone());
        let bytes = match need {
            Need::Signs => code.bytes(ir.shape.num_elements(), ir.dtype) as u64,
            Need::Shape => 0,
        };
        Some((key, TracedStub { place: 0, need, bytes, cost_ns: self.forms.cost_ns(code, self.tensors[key].bytes) }))
    }

    /// Leaves a stub of a storage that is about to be evicted.
    pub(super) fn leave_stub(&mut self, place: Place, need: Need) {
        let Some(&(key, _)) = self.owners_of(place).first() else { return };
        if self.tensors[key].stub.is_some() || !self.may_be_packed(key) {
            return;
        }
        let start = Instant::now();
        let bare = self.tensors[key].bare(TensorStatus::ReadOnly);
        let Some((packed, _)) = self.packed(bare, need.code()) else { return };
        let stub = Stub { need, packed };
        self.storages.add_small(stub.bytes());
        let _ = self.account(self.storages.rooted, self.serving);
        self.count_packed(need.alternative(), self.tensors[key].bytes, stub.bytes());
        self.tensors[key].stub = Some(Box::new(stub));
        self.count_packing(need.alternative(), need.code(), 0, self.tensors[key].bytes, start);
    }

    /// The input that an operation can do without now: it is evicted and has left what is needed.
    pub(super) fn spared(&self, op: &OperationIr) -> Option<TensorKey> {
        self.follow.as_ref()?;
        let (ir, need) = weak_input(op)?;
        let key = *self.index.get(&ir.id)?;
        let tensor = &self.tensors[key];
        let is_gone = tensor.storage.is_none() && !tensor.is_packed();
        (is_gone && tensor.stub.as_ref().is_some_and(|stub| stub.serves(need))).then_some(key)
    }

    /// Puts a stand-in for `spared` into an operation, which consumes it. It is pinned until the operation is done.
    pub(super) fn lend(
        &mut self,
        op: &mut OperationIr,
        spared: TensorKey,
        consumed: &mut Keys,
    ) -> Result<TensorKey, Failure> {
        let lost = "internal error: a stub does not hold what it should";
        let (ir, _) = weak_input(op).ok_or(lost)?;
        let (known, stand_in) = (ir.id, TensorIr { id: fresh_id(), status: TensorStatus::ReadWrite, ..ir.clone() });
        let stub = self.tensors[spared].stub.as_deref().ok_or(lost)?;
        let (need, start) = (stub.need, Instant::now());
        let data = need.code().unpack(&stub.packed, stand_in.shape.clone(), stand_in.dtype).ok_or(lost)?;
        let (executor, about) = (&mut self.executor, Description::of(&stand_in));
        catch_unwind(AssertUnwindSafe(|| executor.upload(about.id, data)))
            .map_err(|payload| self.circumstances().explain("stand-in", panic_message(&*payload)))?;
        let key = self.insert(about, 0, None);
        (self.tensors[key].alive, self.tensors[key].pins) = (false, 1);
        if let Err(failure) = self.settle(&[key], &[], &[], false, self.serving) {
            self.unpin(key);
            return Err(failure);
        }
        op.visit_mut(&mut Rename { from: known, to: stand_in.id });
        consumed.retain(|other| *other != spared);
        consumed.push(key);
        self.count_packing(need.alternative(), need.code(), 1, about.bytes, start);
        Ok(key)
    }

    /// Drops the stub of a tensor that the program has let go of.
    pub(super) fn drop_stub(&mut self, key: TensorKey) {
        if let Some(stub) = self.tensors[key].stub.take() {
            self.storages.take_small(stub.bytes());
        }
    }
}

impl Need {
    pub(super) fn alternative(self) -> Alternative {
        match self {
            Self::Signs => Alternative::SignBits,
            Self::Shape => Alternative::ShapeOnly,
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
