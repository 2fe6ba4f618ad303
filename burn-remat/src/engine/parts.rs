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
//! On a GPU only such parts count that have gaps: the tokens of a sequence without its first, say. Sums over several dimensions join them where
//! no gap lies between.
//!
//! Source: burn-flex 0.22.1, `ops/unary.rs`, `ops/binary.rs`, `ops/mask.rs`, and `layout_covers_storage_once` in `ops/reduce.rs`;
//! burn-cubecl 0.22.1, `kernel/index/slice.rs` and `reduce_dims` in `kernel/reduce/base.rs`.

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use smallvec::SmallVec;

use super::layout::Taken;
use super::operation::{is_view, mark_read_only};
use super::table::{Description, TensorKey};
use super::{Engine, Failure, Keys, fresh_id};
use crate::backend::{Extent, RematBackend};

impl<B: RematBackend> Engine<B> {
    /// Has an operation about to run only read what is a part of a larger buffer, on a GPU and where later kernels give the same
    /// bits either way: its result would keep the whole buffer alive, or not, by what else the engine keeps of it, and no plan
    /// could say which.
    pub(super) fn keep_parts(&mut self, op: &mut OperationIr, inputs: &[TensorKey], consumed: &mut Keys) {
        if !B::LAYOUT_FOLLOWS_REUSE || self.light || self.extent_read(op, inputs) != Extent::Part {
            return;
        }
        let parts: Keys = consumed.iter().copied().filter(|&key| self.extent_of(op, key) == Extent::Part).collect();
        self.only_read(op, consumed, |key| parts.contains(&key));
    }

    /// Lets an operation about to run write over what plain Burn lets it write over, where one of its inputs is a part of a
    /// buffer by which later kernels choose their order. What stands in for another input is pinned until the operation is done.
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
        if self.extent_read(op, inputs) != Extent::TellingPart {
            return Ok(());
        }
        let mut kept = Keys::new();
        for (at, &input) in inputs.iter().enumerate().take(Taken::BITS as usize) {
            let Some(storage) = self.tensors[input].storage else { continue };
            let is_alone = self.storages.get(storage).owners.len() == 1;
            match (taken >> at & 1 == 1, consumed.contains(&input) && is_alone) {
                (false, true) => kept.push(input),
                (true, false) => lent.push(self.lend_copy(op, input, consumed)?),
                _ => {}
            }
        }
        self.only_read(op, consumed, |key| kept.contains(&key));
        Ok(())
    }

    /// The most telling extent of what an operation reads and may write over.
    fn extent_read(&mut self, op: &OperationIr, inputs: &[TensorKey]) -> Extent {
        if !B::PARTS_FOLLOW_REUSE || is_view(op) {
            return Extent::Whole;
        }
        inputs.iter().map(|&input| self.extent_of(op, input)).max().unwrap_or(Extent::Whole)
    }

    /// What an input takes of its buffer, if a result may be written over it.
    fn extent_of(&mut self, op: &OperationIr, input: TensorKey) -> Extent {
        if !self.is_smaller(input) {
            return Extent::Whole;
        }
        let id = self.tensors[input].id;
        let may_hold = |ir: &&TensorIr| op.outputs().any(|out| out.shape == ir.shape && out.dtype == ir.dtype);
        let ir = op.inputs().find(|ir| ir.id == id).filter(may_hold);
        ir.map_or(Extent::Whole, |ir| self.executor.extent(ir))
    }

    /// Whether a tensor has fewer bytes than its buffer, whose padding counts here.
    pub(super) fn is_smaller(&self, input: TensorKey) -> bool {
        let tensor = &self.tensors[input];
        tensor.storage.is_some_and(|storage| self.storages.get(storage).bytes > tensor.bytes)
    }

    /// Has an operation about to run leave some of what it would consume.
    fn only_read(&self, op: &mut OperationIr, consumed: &mut Keys, keep: impl Fn(TensorKey) -> bool) {
        let mut kept: SmallVec<[TensorId; 2]> = SmallVec::new();
        consumed.retain(|&mut key| {
            let keeps = keep(key);
            kept.extend(keeps.then(|| self.tensors[key].id));
            !keeps
        });
        if !kept.is_empty() {
            mark_read_only(op, &kept);
        }
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
