//! Substitutes: what is left of an evicted tensor for operations that need less of it than its numbers.
//!
//! Burn's backward of a ReLU reads what the forward pass read, but needs only the sign of it; that of a pooling or an
//! interpolation needs only the shape. So an evicted tensor can leave its signs, one bit for each element, or nothing but itself;
//! and when such an operation reads it, a stand-in takes its place for as long as the operation runs: a tensor with the same signs,
//! or one that has the same shape and no numbers. The stand-in lies in order, so only tensors that do leave substitutes.

use std::time::Instant;

use burn_backend::DType;
use burn_ir::{HandleKind, IrVisitorMut, OperationIr, TensorHandle, TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Buffer, Failure, Need, Substitute};

use super::code::Code;
use super::failures::caught;
use super::operation::weak_input;
use super::{Drive, bare};
use crate::backend::{BufferId, RematBackend, fresh_id};

/// What is left of a tensor.
pub(super) struct Left {
    /// Its signs, where they may be needed.
    packed: Vec<u8>,
}

impl<B: RematBackend> Drive<B> {
    /// What could stand in for an input of the operation at hand.
    pub(super) fn possible_substitute(&mut self, id: u64, need: Need) -> Option<Substitute> {
        let inputs = self.prepared.as_ref()?.op.inputs();
        let ir = inputs.into_iter().find(|ir| ir.id.value() == id)?.clone();
        let allowed = B::IS_HOST && self.settings.alternatives.allows(need.alternative()) && ir.dtype == DType::F32;
        let ir = TensorIr { status: TensorStatus::ReadOnly, ..ir };
        if !allowed || !self.may_be_packed(&ir) {
            return None;
        }
        let bytes = super::operation::facts(&ir, self.padding).bytes;
        Some(match need {
            Need::Signs => {
                self.measure(Code::Signs, &ir);
                let packed = Code::Signs.bytes(ir.shape.num_elements(), ir.dtype) as u64;
                Substitute {
                    need,
                    bytes: packed,
                    stand_in: bytes,
                    cost_ns: self.compression.cost_ns(Code::Signs, bytes),
                }
            }
            Need::Shape => {
                let BufferId::Known { bytes, .. } = B::buffer(&B::shell(&ir.shape, ir.dtype)?) else { return None };
                Substitute { need, bytes: 0, stand_in: bytes, cost_ns: 0 }
            }
        })
    }

    /// Leaves a substitute of a tensor that is about to be evicted.
    pub(super) fn make_substitute(&mut self, id: u64, need: Need) -> Option<(u64, u64)> {
        let start = Instant::now();
        let packed = match need {
            Need::Signs => {
                let handle = self.executor.handle(&bare(id)).ok()?;
                // Only where they lie in order, as the stand-in will.
                let bytes = B::host_bytes(&handle)?;
                let packed = Code::Signs.pack(bytes, DType::F32);
                self.compression.learn(Code::Signs, 0, bytes.len() as u64, start.elapsed());
                packed
            }
            Need::Shape => Vec::new(),
        };
        let bytes = packed.len() as u64;
        self.substitutes.insert(id, Left { packed });
        Some((bytes, if need == Need::Signs { start.elapsed().as_nanos() as u64 } else { 0 }))
    }

    /// Puts a stand-in for an input into an operation, which consumes it: its number and bytes.
    pub(super) fn stand_in(
        &mut self,
        op: &mut OperationIr,
        replaced: TensorId,
        need: Need,
    ) -> Result<(TensorId, u64), Failure> {
        let lost = "internal error: a substitute does not hold what it should";
        let (ir, _) = weak_input(op).ok_or(lost)?;
        let stand_in = TensorIr { id: fresh_id(), status: TensorStatus::ReadWrite, ..ir.clone() };
        let left = self.substitutes.get(&replaced.value()).ok_or(lost)?;
        let start = Instant::now();
        let executor = &mut self.executor;
        let bytes = match need {
            Need::Signs => {
                let data = Code::Signs.unpack(&left.packed, stand_in.shape.clone(), stand_in.dtype).ok_or(lost)?;
                let bytes = data.as_bytes().len() as u64;
                caught(|| executor.upload(stand_in.id, data))?;
                self.compression.learn(Code::Signs, 1, bytes, start.elapsed());
                bytes
            }
            Need::Shape => {
                let shape = stand_in.shape.clone();
                let handle = B::shell(&shape, stand_in.dtype).ok_or(lost)?;
                let bytes = B::buffer(&handle).bytes();
                executor.import(&stand_in, HandleKind::Float(B::float_tensor(TensorHandle { handle, shape })));
                bytes
            }
        };
        op.visit_mut(&mut Rename { from: replaced, to: stand_in.id });
        Ok((stand_in.id, bytes))
    }

    /// Puts a copy of an input, buffer and all, into an operation, which consumes it: its number and bytes.
    pub(super) fn lend_copy(&mut self, op: &mut OperationIr, id: TensorId) -> Result<(TensorId, u64), Failure> {
        let ir = op.inputs().find(|ir| ir.id == id).ok_or("internal error: an input was lost")?;
        let source = TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() };
        let copy = TensorIr { id: fresh_id(), ..source.clone() };
        caught(|| self.executor.copy(&source, &copy))?;
        let buffer = self.buffer_of_new(copy.id.value())?;
        op.visit_mut(&mut Rename { from: id, to: copy.id });
        let bytes = match buffer {
            Buffer::Known { bytes, .. } => bytes,
            Buffer::Unknown => 0,
        };
        Ok((copy.id, bytes))
    }
}

/// Gives an input of an operation another number, and lets the operation consume it.
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
