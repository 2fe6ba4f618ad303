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

use burn_ir::{OperationIr, TensorIr, TensorStatus};
use smallvec::SmallVec;

use super::Engine;
use super::operation::overwrites;
use super::table::{Description, TensorKey};
use crate::backend::{MemoryOrder, RematBackend};

/// Which of the inputs that an operation may write over the program lets it take: a bit for each, in the order of [`overwrites`].
pub(super) type Taken = u8;

/// How a result is to lie.
pub(super) struct Layout {
    pub out: TensorIr,
    pub order: MemoryOrder,
}

impl<B: RematBackend> Engine<B> {
    /// What an operation of the program may write over, its inputs resident.
    pub(super) fn taken(&self, op: &OperationIr) -> Taken {
        let Some(overwrites) = B::LAYOUT_FOLLOWS_REUSE.then(|| overwrites(op)).flatten() else { return 0 };
        let mut taken = 0;
        for (at, input) in overwrites.inputs.iter().enumerate() {
            let is_last = input.status == TensorStatus::ReadWrite;
            let is_once = op.inputs().filter(|other| other.id == input.id).count() == 1;
            taken |= Taken::from(is_last && is_once && self.is_only_name(input)) << at;
        }
        taken
    }

    /// Whether the program has no other tensor in this one's buffer.
    fn is_only_name(&self, tensor: &TensorIr) -> bool {
        let storage = self.index.get(&tensor.id).and_then(|&key| self.tensors[key].storage);
        storage.is_some_and(|storage| {
            let owners = self.storages.get(storage).owners.iter();
            owners.filter(|&&owner| self.tensors[owner].alive).count() <= 1
        })
    }

    /// How the result of an operation about to run has to lie, where that depends on what it may write over; and room for
    /// laying it so.
    pub(super) fn layout(&mut self, op: &OperationIr, taken: Taken, consumed: &[TensorKey]) -> Option<Layout> {
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
        let target = orders.iter().enumerate().find(|(at, order)| taken >> at & 1 == 1 && order.is_some());
        let order = match target {
            Some((_, order)) => order.clone()?,
            None => (0..first.len()).collect(),
        };
        let out = TensorIr { status: TensorStatus::ReadOnly, ..op.outputs().next()?.clone() };
        let lies_so = target.is_some_and(|(at, _)| {
            let key = self.index.get(&overwrites.inputs[at].id);
            key.is_some_and(|key| consumed.contains(key))
        });
        if !lies_so {
            self.make_room(2 * self.padded(Description::of(&out).bytes));
        }
        Some(Layout { out, order })
    }
}
