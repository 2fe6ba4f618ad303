//! Results lie in memory as plain Burn lays them, whatever the engine keeps.
//!
//! On a GPU, a kernel that goes through tensors element by element writes over an input that it may consume, and its result lies as
//! that input does: channels last behind a convolution, say. A result in a buffer of its own lies otherwise where the inputs do
//! not lie alike, or in the order of its indices. Sums over it then add in another order and give other bits.
//!
//! What an operation may consume depends on what the engine keeps for a plan, or brings back for one use only. So the core remembers
//! what the program let the operation take. Where that decides how the result lies, and it came to lie otherwise, it is copied into
//! the order in which plain Burn has it, before anything reads it.
//!
//! Source: burn-cubecl 0.22.1, `kernel/memory_order.rs`, `kernel/binary.rs` and `kernel/mask`. Operations that are made of several
//! kernels (the backward passes of GELU and sigmoid, say) write over their own intermediate results and need none of this.

use burn_ir::{TensorIr, TensorStatus};
use burn_remat_core::{Failure, Reused};
use smallvec::SmallVec;

use super::executor::{Executor, Layout};
use super::operation::{Overwrites, overwrites};
use super::prepared::Prepared;
use crate::backend::{MemoryOrder, RematBackend};

/// How the inputs lie over which an operation may write.
type Orders = SmallVec<[Option<MemoryOrder>; 2]>;

/// How the result of an operation about to run has to lie, where that depends on what it may write over; and bytes that
/// laying it so takes.
///
/// # Errors
///
/// What the backend panics with when it is asked.
pub(super) fn layout<B: RematBackend>(
    executor: &mut Executor<B>,
    prepared: &Prepared,
    reused: Reused,
) -> Result<Option<(Layout, u64)>, Failure> {
    if !B::LAYOUT_FOLLOWS_REUSE || executor.is_dry() {
        return Ok(None);
    }
    let Some(overwrites) = overwrites(&prepared.op) else { return Ok(None) };
    let orders: Result<Orders, Failure> = overwrites.inputs.iter().map(|input| executor.memory_order(input)).collect();
    let found = wanted(prepared, &overwrites, &orders?, reused);
    Ok(found.map(|(layout, lies_so)| {
        let bytes = if lies_so { 0 } else { 2 * executor.facts(&layout.out).buffer_bytes };
        (layout, bytes)
    }))
}

/// How the result has to lie, where it is known how what may be written over lies; and whether it comes to lie so by itself.
fn wanted(prepared: &Prepared, overwrites: &Overwrites<'_>, orders: &Orders, reused: Reused) -> Option<(Layout, bool)> {
    let mut known = orders.iter().flatten();
    let first = known.next()?;
    let is_plain = |order: &MemoryOrder| order.iter().enumerate().all(|(at, &axis)| at == axis);
    let is_alike = known.all(|other| other == first);
    if is_alike && (overwrites.walks || is_plain(first)) {
        return None;
    }
    let target = overwrites.inputs.iter().zip(orders).find_map(|(input, order)| {
        let expected = prepared.bit_of(input.id, reused.expected);
        Some((input, order.as_ref().filter(|_| expected)?))
    });
    let order = target.map_or_else(|| (0..first.len()).collect(), |(_, order)| order.clone());
    let out = TensorIr { status: TensorStatus::ReadOnly, ..prepared.op.outputs().next()?.clone() };
    let lies_so = target.is_some_and(|(input, _)| input.status == TensorStatus::ReadWrite);
    Some((Layout { out, order }, lies_so))
}
