//! Results lie in memory as plain Burn lays them, whatever the engine keeps.
//!
//! On a GPU, a kernel that goes through tensors element by element writes over an input that it may consume, and its result lies as
//! that input does: channels last behind a convolution, say. A result in a buffer of its own lies otherwise where the inputs do
//! not lie alike, or in the order of its indices. Sums over it then add in another order and give other bits.
//!
//! What an operation may consume depends on what the engine keeps for a plan, or brings back for one use only. So the engine remembers
//! what the program let the operation take. Where that decides how the result lies, and it came to lie otherwise, it is copied into
//! the order in which plain Burn has it, before anything reads it.
//!
//! Source: burn-cubecl 0.22.1, `kernel/memory_order.rs`, `kernel/binary.rs` and `kernel/mask`. Operations that are made of several
//! kernels (the backward passes of GELU and sigmoid, say) write over their own intermediate results and need none of this.

use std::sync::Arc;

use burn_ir::{OperationIr, TensorIr, TensorStatus};
use smallvec::SmallVec;

use super::Engine;
use super::operation::overwrites;
use super::table::{StorageKey, TensorKey};
use crate::backend::{MemoryOrder, RematBackend};

/// Which of its inputs the program lets an operation write over, where that counts here or for [parts](super::parts) of buffers: a bit for
/// each of the first.
pub(super) type Taken = u8;

/// How a result is to lie.
pub(super) struct Layout {
    pub out: TensorIr,
    pub order: MemoryOrder,
}

impl<B: RematBackend> Engine<B> {
    /// What an operation of the program may write over.
    pub(super) fn taken(&self, op: &OperationIr, inputs: &[TensorKey]) -> Taken {
        let reads_parts = || B::PARTS_FOLLOW_REUSE && inputs.iter().any(|&input| self.is_smaller(input));
        if !B::LAYOUT_FOLLOWS_REUSE && !reads_parts() {
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

    /// Whether plain Burn gives an operation that is the last to read a tensor the buffer too: it reads it once, and the program has no other tensor there.
    pub(super) fn is_taken(&self, op: &OperationIr, key: TensorKey) -> bool {
        let tensor = &self.tensors[key];
        let is_only = tensor.name.as_ref().is_none_or(|name| Arc::strong_count(name) == 1);
        is_only && op.inputs().filter(|input| input.id == tensor.id).count() == 1
    }

    /// Notes which outputs of an operation of the program are other names for the buffers of its inputs, which were in `before`.
    pub(super) fn share_names(
        &mut self,
        inputs: &[TensorKey],
        before: &[Option<StorageKey>],
        outputs: &[TensorKey],
        view: bool,
    ) {
        if !B::LAYOUT_FOLLOWS_REUSE && !B::PARTS_FOLLOW_REUSE {
            return;
        }
        for &output in outputs {
            let storage = self.tensors[output].storage;
            // A consumed input has no buffer any more: what was written over it is no view of it.
            let shares = |(&input, &before): (&TensorKey, &Option<StorageKey>)| {
                (before.is_some() && before == storage && (view || self.tensors[input].storage == before))
                    .then_some(input)
            };
            if let Some(input) = inputs.iter().zip(before).find_map(shares) {
                self.tensors[output].name = Some(self.tensors[input].name.get_or_insert_default().clone());
            }
        }
    }

    /// How the result of an operation about to run has to lie, where that depends on what it may write over; and room for
    /// laying it so.
    pub(super) fn layout(
        &mut self,
        op: &OperationIr,
        inputs: &[TensorKey],
        taken: Taken,
        consumed: &[TensorKey],
    ) -> Option<Layout> {
        if !B::LAYOUT_FOLLOWS_REUSE || self.executor.is_dry() {
            return None;
        }
        let overwrites = overwrites(op)?;
        let orders: SmallVec<[Option<MemoryOrder>; 2]> =
            overwrites.inputs.iter().map(|input| self.executor.memory_order(input)).collect();
        let mut known = orders.iter().flatten();
        let first = known.next()?;
        let is_plain = |order: &MemoryOrder| order.iter().enumerate().all(|(at, &axis)| at == axis);
        let is_alike = known.all(|other| other == first);
        if is_alike && (overwrites.walks || is_plain(first)) {
            return None;
        }
        let keys = overwrites.inputs.iter().map(|input| self.index.get(&input.id).copied());
        let target = keys.zip(&orders).find_map(|(key, order)| {
            let at = inputs.iter().take(Taken::BITS as usize).position(|&input| Some(input) == key)?;
            Some((inputs[at], order.as_ref().filter(|_| taken >> at & 1 == 1)?))
        });
        let order = target.map_or_else(|| (0..first.len()).collect(), |(_, order)| order.clone());
        let out = TensorIr { status: TensorStatus::ReadOnly, ..op.outputs().next()?.clone() };
        let lies_so = target.is_some_and(|(key, _)| consumed.contains(&key));
        if !lies_so {
            self.make_room(2 * self.allocated(&out));
        }
        Some(Layout { out, order })
    }
}
