//! Results lie in memory as plain Burn lays them, whatever the engine keeps.
//!
//! On a GPU, a kernel that goes through tensors element by element writes over an input that it may consume, and its result lies as
//! that input does: channels last behind a convolution, say. A result in a buffer of its own lies otherwise where the inputs do
//! not lie alike, or in the order of its indices. Sums over it then add in another order and give other bits. So they do where only the
//! stride of a dimension of one element is another: by it a kernel decides how many numbers it takes at once.
//!
//! What an operation may consume depends on what the engine keeps for a plan, or brings back for one use only. So the core remembers
//! what the program let the operation take. Where that decides how the result lies, and it came to lie otherwise, it is given the strides
//! that plain Burn gives it, and copied if they move anything, before anything reads it. Gaps are not copied: see `parts.rs`.
//!
//! Source: burn-cubecl 0.23.0-pre.1, `kernel/memory_order.rs`, `kernel/binary.rs`, `kernel/unary_float.rs`, `kernel/mask` and
//! `kernel/index`. Operations that are made of several kernels (the logarithm of a sigmoid, say) write over their own intermediate results
//! and need none of this.

use burn_ir::{TensorIr, TensorStatus};
use burn_remat_core::{Failure, Reused};
use burn_std::Strides;
use smallvec::SmallVec;

use super::executor::{Executor, Layout};
use super::overwrites::{Overwrites, overwrites};
use super::prepared::Prepared;
use crate::backend::{Order, RematBackend, dense, lie_alike, walked};

/// An input over which an operation may write.
struct Known<'a> {
    input: &'a TensorIr,
    strides: Strides,
    order: Order,
}

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
    let Some(Overwrites { inputs, walks }) = overwrites(&prepared.op) else { return Ok(None) };
    let mut known: SmallVec<[Known<'_>; 2]> = SmallVec::new();
    for input in inputs {
        if let Some(strides) = executor.strides(input)?
            && let Some(order) = walked(&input.shape, &strides)
        {
            known.push(Known { input, strides, order });
        }
    }
    let found = wanted(prepared, &known, walks, reused);
    Ok(found.map(|(layout, lies_so)| {
        let bytes = if lies_so { 0 } else { 2 * executor.facts(&layout.out).buffer_bytes };
        (layout, bytes)
    }))
}

/// How the result has to lie, where another one than plain Burn's may come about; and whether all its elements lie so by themselves.
fn wanted(prepared: &Prepared, known: &[Known<'_>], walks: bool, reused: Reused) -> Option<(Layout, bool)> {
    let Known { input, order, .. } = known.first()?;
    let shape = &input.shape;
    let as_they_lie = walks && known.iter().all(|other| other.order == *order);
    let fresh = dense(shape, &if as_they_lie { order.clone() } else { (0..shape.num_dims()).collect() });
    if known.iter().all(|known| known.strides == fresh) {
        return None;
    }
    let taken = known.iter().find(|known| known.input.status == TensorStatus::ReadWrite);
    let expected = known.iter().find(|known| prepared.bit_of(known.input.id, reused.expected));
    if taken.is_none() && expected.is_none() {
        return None;
    }
    let comes = taken.map_or(&fresh, |known| &known.strides);
    let strides = expected.map_or(&fresh, |known| &known.strides);
    let lies_so = lie_alike(shape, comes, strides);
    let out = TensorIr { status: TensorStatus::ReadOnly, ..prepared.op.outputs().next()?.clone() };
    Some((Layout { out, strides: strides.clone() }, lies_so))
}
