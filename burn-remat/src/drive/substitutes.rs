//! Substitutes: what is kept of an evicted tensor for operations that need less than its numbers.
//!
//! Burn's backward of a ReLU reads what the forward pass read, but needs only its signs; that of a pooling or an interpolation needs only the shape. So
//! an evicted tensor can leave its signs, one bit for each element, or nothing but its shape. When such an operation reads it, a temporary tensor takes
//! its place while the operation runs: one with the same signs, or one with the same shape and no numbers. The elements of this tensor are in order, so
//! only tensors in order leave substitutes.

use std::time::Instant;

use burn_backend::DType;
use burn_ir::{HandleKind, IrVisitorMut, OperationIr, TensorHandle, TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Failure, Need, Substitute};
use rustc_hash::FxHashMap;

use super::code::Code;
use super::compress::{Compressor, may_be_packed};
use super::executor::Executor;
use super::operation::weak_input;
use super::tensors::{bare, fresh_id};
use crate::backend::{BufferId, RematBackend};
use crate::panics::caught;

/// Substitutes of tensors, by the tensors' numbers.
#[derive(Default)]
pub(super) struct Substitutes {
    /// The signs, if they may be needed.
    packed: FxHashMap<u64, Vec<u8>>,
}

impl Substitutes {
    /// Leaves a substitute for a tensor that is about to be evicted. Returns its size, and the time that this took.
    pub fn leave<B: RematBackend>(
        &mut self,
        executor: &mut Executor<B>,
        compression: &mut Compressor,
        id: u64,
        need: Need,
    ) -> Option<(u64, u64)> {
        let start = Instant::now();
        let packed = match need {
            Need::Signs => {
                let handle = executor.handle(&bare(id)).ok()?;
                // Only if they are in order, as in the temporary tensor.
                let bytes = B::host_bytes(&handle)?;
                let packed = Code::Signs.pack(bytes, DType::F32);
                compression.learn(Code::Signs, 0, bytes.len() as u64, start.elapsed());
                packed
            }
            Need::Shape => Vec::new(),
        };
        let bytes = packed.len() as u64;
        self.packed.insert(id, packed);
        Some((bytes, if need == Need::Signs { start.elapsed().as_nanos() as u64 } else { 0 }))
    }

    /// Drops the substitute of a tensor.
    pub fn discard(&mut self, id: u64) {
        self.packed.remove(&id);
    }

    /// Replaces an input of an operation by a temporary tensor, which the operation consumes. Returns its number and size.
    pub fn stand_in<B: RematBackend>(
        &self,
        executor: &mut Executor<B>,
        compression: &mut Compressor,
        op: &mut OperationIr,
        (replaced, need): (u64, Need),
    ) -> Result<(TensorId, u64), Failure> {
        let lost = "internal error: a substitute does not hold what it should";
        let (ir, _) = weak_input(op).ok_or(lost)?;
        let stand_in = TensorIr { id: fresh_id(), status: TensorStatus::ReadWrite, ..ir.clone() };
        let packed = self.packed.get(&replaced).ok_or(lost)?;
        let start = Instant::now();
        let bytes = match need {
            Need::Signs => {
                let data = Code::Signs.unpack(packed, stand_in.shape.clone(), stand_in.dtype).ok_or(lost)?;
                let bytes = data.as_bytes().len() as u64;
                caught(|| executor.upload(stand_in.id, data))?;
                compression.learn(Code::Signs, 1, bytes, start.elapsed());
                bytes
            }
            Need::Shape => {
                let shape = stand_in.shape.clone();
                let handle = B::without_data(&shape, stand_in.dtype).ok_or(lost)?;
                let bytes = B::buffer(&handle).bytes();
                executor.import(&stand_in, HandleKind::Float(B::float_tensor(TensorHandle { handle, shape })));
                bytes
            }
        };
        op.visit_mut(&mut Rename { from: TensorId::new(replaced), to: stand_in.id });
        Ok((stand_in.id, bytes))
    }
}

/// The substitute that a resident input of an operation could have.
pub(super) fn substitute<B: RematBackend>(
    executor: &mut Executor<B>,
    compression: &mut Compressor,
    ir: &TensorIr,
    need: Need,
) -> Option<Substitute> {
    let ir = TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() };
    if !B::IS_HOST || ir.dtype != DType::F32 || !may_be_packed(executor, &ir) {
        return None;
    }
    let bytes = executor.facts(&ir).bytes;
    Some(match need {
        Need::Signs => {
            compression.measure(executor, Code::Signs, &ir);
            let packed = Code::Signs.bytes(ir.shape.num_elements(), ir.dtype) as u64;
            Substitute { need, bytes: packed, stand_in: bytes, cost_ns: compression.cost_ns(Code::Signs, bytes) }
        }
        Need::Shape => {
            let BufferId::Known { bytes, .. } = B::buffer(&B::without_data(&ir.shape, ir.dtype)?) else { return None };
            Substitute { need, bytes: 0, stand_in: bytes, cost_ns: 0 }
        }
    })
}

/// Replaces an input of an operation by a copy with its whole buffer, which the operation consumes. Returns its number and size.
pub(super) fn lend_copy<B: RematBackend>(
    executor: &mut Executor<B>,
    op: &mut OperationIr,
    id: TensorId,
) -> Result<(TensorId, u64), Failure> {
    let ir = op.inputs().find(|ir| ir.id == id).ok_or("internal error: an input was lost")?;
    let source = TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() };
    let copy = TensorIr { id: fresh_id(), ..source.clone() };
    caught(|| executor.copy(&source, &copy))?;
    let bytes = executor.buffer_of_new(copy.id.value())?.bytes();
    op.visit_mut(&mut Rename { from: id, to: copy.id });
    Ok((copy.id, bytes))
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
