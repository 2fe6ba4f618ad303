//! Makes results fill their buffers, or not, as in plain Burn, whatever the engine keeps.
//!
//! On the CPU backend, a tensor in order may be a *part* of its buffer: the first rows of another tensor, for example. A kernel that may write over it
//! gives a result that is such a part too; one that may not gives a result in a buffer of exactly its size. Later kernels depend on that: the sum of all
//! elements of a transposed tensor goes through the buffer if the tensor fills it, and otherwise goes by indices, which adds in another order.
//!
//! What an operation may write over depends on what the engine keeps for a plan, or brings back for one use only. So if an operation reads a part, it is
//! given what plain Burn gives it: it only reads what it must not write over, and in place of what it should write over, but others still need, it gets a
//! copy of the whole buffer.
//!
//! On a GPU, only parts with gaps count: the tokens of a sequence without the first one, for example. Sums over several dimensions merge them if there is
//! no gap in between.
//!
//! Source: burn-flex 0.22.1, `ops/unary.rs`, `ops/binary.rs`, `ops/mask.rs`, and `layout_covers_storage_once` in `ops/reduce.rs`;
//! burn-cubecl 0.22.1, `kernel/index/slice.rs` and `reduce_dims` in `kernel/reduce/base.rs`.

use burn_ir::{TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Failure, Reused};
use smallvec::SmallVec;

use super::executor::Executor;
use super::operation::{is_view, may_hold};
use super::prepared::Prepared;
use crate::backend::{Extent, RematBackend};

/// Makes the prepared operation only read inputs that are parts of larger buffers, on a GPU and if later kernels give the same bits either way. Otherwise
/// it would depend on what else is kept of a buffer whether the result keeps all of it alive, and no plan could predict that.
pub(super) fn keep_parts<B: RematBackend>(
    executor: &mut Executor<B>,
    prepared: &mut Prepared,
    reused: Reused,
) -> Result<(), Failure> {
    if !B::LAYOUT_FOLLOWS_REUSE || !reused.records || extent_read(executor, prepared)? != Extent::Part {
        return Ok(());
    }
    let taken = prepared.op.inputs().filter(|input| input.status == TensorStatus::ReadWrite);
    let taken: SmallVec<[TensorIr; 2]> = taken.cloned().collect();
    let mut parts: SmallVec<[TensorId; 2]> = SmallVec::new();
    for ir in taken {
        if extent_of(executor, prepared, &ir)? == Extent::Part {
            parts.push(ir.id);
        }
    }
    prepared.only_read(|id| parts.contains(&id));
    Ok(())
}

/// Lets the prepared operation write over exactly what plain Burn lets it write over, if one of its inputs is a part by which later kernels choose their
/// order. Returns the inputs that it gets as copies, and the size of these copies.
pub(super) fn set_apart<B: RematBackend>(
    executor: &mut Executor<B>,
    prepared: &mut Prepared,
    reused: Reused,
) -> Result<(SmallVec<[TensorId; 2]>, u64), Failure> {
    let (mut copies, mut bytes) = (SmallVec::new(), 0);
    if extent_read(executor, prepared)? != Extent::LayoutDependentPart {
        return Ok((copies, bytes));
    }
    let mut kept: SmallVec<[TensorId; 2]> = SmallVec::new();
    for (at, input) in prepared.inputs().iter().enumerate().take(u8::BITS as usize) {
        if prepared.spared == Some(input.id) {
            continue;
        }
        let is = |bits: u8| bits >> at & 1 == 1;
        let taken = prepared.op.inputs().any(|ir| ir.id == input.id && ir.status == TensorStatus::ReadWrite);
        match (is(reused.expected), taken && is(reused.alone)) {
            (false, true) => kept.push(input.id),
            (true, false) => {
                bytes += executor.buffer(input.id.value())?.bytes();
                copies.push(input.id);
                if taken {
                    // The copy is consumed in its place.
                    prepared.left.push(input.id.value());
                }
            }
            _ => {}
        }
    }
    prepared.only_read(|id| kept.contains(&id));
    Ok((copies, bytes))
}

/// The extent that matters most among the inputs that an operation may write over.
fn extent_read<B: RematBackend>(executor: &mut Executor<B>, prepared: &Prepared) -> Result<Extent, Failure> {
    if !B::PARTS_FOLLOW_REUSE || is_view(&prepared.op) {
        return Ok(Extent::Whole);
    }
    let mut extents = prepared.inputs().into_iter().map(|input| extent_of(executor, prepared, &input));
    extents.try_fold(Extent::Whole, |most, extent| Ok(most.max(extent?)))
}

/// How much of its buffer an input uses, if a result may be written over it.
fn extent_of<B: RematBackend>(
    executor: &mut Executor<B>,
    prepared: &Prepared,
    input: &TensorIr,
) -> Result<Extent, Failure> {
    let may_hold = may_hold(&prepared.op, input) && prepared.spared != Some(input.id);
    if may_hold { executor.extent(input) } else { Ok(Extent::Whole) }
}
