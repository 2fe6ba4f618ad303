//! Results fill their buffers where plain Burn's do, whatever the engine keeps.
//!
//! On the CPU backend a tensor that lies in order may be a *part* of its buffer: the first rows of another one, say. A kernel that may
//! write over it gives a result that is such a part too; one that may not gives a result with a buffer of just its size. Later
//! kernels look at that: a whole sum over a transposed tensor goes through the buffer where the tensor fills it, and by indices where it does
//! not, and adds in another order.
//!
//! What an operation may write over depends on what the engine keeps for a plan, or brings back for one use only. So where an operation reads a
//! part, it is given what plain Burn gives it: what it must not write over is only read, and in place of what it should write over, but others
//! still need, there is a copy of the whole buffer.
//!
//! Source: burn-flex 0.22.1, `ops/unary.rs`, `ops/binary.rs`, `ops/mask.rs`, and `layout_covers_storage_once` in `ops/reduce.rs`.

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use smallvec::SmallVec;

use super::layout::Taken;
use super::operation::mark_read_only;
use super::table::{Description, TensorKey};
use super::{Engine, Failure, Keys, fresh_id};
use crate::backend::RematBackend;

impl<B: RematBackend> Engine<B> {
    /// The part of [`taken`](Engine::taken) that is about parts of buffers: nothing where no input is one.
    pub(super) fn taken_of_parts(&self, op: &OperationIr, inputs: &[TensorKey]) -> Taken {
        if !self.may_read_parts(inputs) {
            return 0;
        }
        let mut taken = 0;
        for (at, &key) in inputs.iter().enumerate().take(Taken::BITS as usize) {
            let id = self.tensors[key].id;
            let is_last = op.inputs().any(|input| input.id == id && input.status == TensorStatus::ReadWrite);
            taken |= Taken::from(is_last && self.is_taken(op, key)) << at;
        }
        taken
    }

    /// Whether a tensor is smaller than its buffer.
    fn may_read_parts(&self, inputs: &[TensorKey]) -> bool {
        B::PARTS_FOLLOW_REUSE
            && inputs.iter().any(|&input| {
                let tensor = &self.tensors[input];
                tensor.storage.is_some_and(|storage| self.storages.get(storage).bytes > tensor.bytes)
            })
    }

    /// Lets an operation about to run write over what plain Burn lets it write over, where one of its inputs is a part of a
    /// buffer. What stands in for another input is pinned until the operation is done.
    ///
    /// # Errors
    ///
    /// A copy that could not be made.
    pub(super) fn set_apart(
        &mut self,
        op: &mut OperationIr,
        inputs: &[TensorKey],
        taken: Taken,
        consumed: &mut Keys,
        lent: &mut Keys,
    ) -> Result<(), Failure> {
        if !self.may_read_parts(inputs) || !self.reads_part_in_order(op, inputs) {
            return Ok(());
        }
        let mut kept: SmallVec<[TensorId; 2]> = SmallVec::new();
        for (at, &input) in inputs.iter().enumerate().take(Taken::BITS as usize) {
            let Some(storage) = self.tensors[input].storage else { continue };
            let is_alone = self.storages.get(storage).owners.len() == 1;
            match (taken >> at & 1 == 1, consumed.contains(&input) && is_alone) {
                (false, true) => {
                    consumed.retain(|other| *other != input);
                    kept.push(self.tensors[input].id);
                }
                (true, false) => lent.push(self.lend_copy(op, input, consumed)?),
                _ => {}
            }
        }
        if !kept.is_empty() {
            mark_read_only(op, &kept);
        }
        Ok(())
    }

    fn reads_part_in_order(&mut self, op: &OperationIr, inputs: &[TensorKey]) -> bool {
        inputs.iter().any(|&input| {
            self.may_read_parts(&[input]) && {
                let id = self.tensors[input].id;
                let ir = op.inputs().find(|ir| ir.id == id);
                ir.is_some_and(|ir| {
                    self.executor.is_in_order(&TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() })
                })
            }
        })
    }

    /// Puts a copy of an input, buffer and all, into an operation, which consumes it.
    fn lend_copy(&mut self, op: &mut OperationIr, input: TensorKey, consumed: &mut Keys) -> Result<TensorKey, Failure> {
        let id = self.tensors[input].id;
        let ir = op.inputs().find(|ir| ir.id == id).ok_or("internal error: an operation does not read its input")?;
        let source = TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() };
        let copy = TensorIr { id: fresh_id(), ..source.clone() };
        let bytes = self.tensors[input].storage.map_or(0, |storage| self.storages.get(storage).bytes);
        self.make_room(bytes);
        self.executor.copy(&source, &copy);
        self.stand_in(op, input, Description::of(&copy), consumed)
    }
}
