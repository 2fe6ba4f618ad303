//! Gives results the memory layout that they have in plain Burn, whatever the engine keeps.
//!
//! On a GPU, an elementwise kernel writes over an input that it may consume, and its result then has the layout of that input: channels last after a
//! convolution, for example. In a buffer of its own, the result has another layout if the inputs have different ones, or is in the order of its indices.
//! Sums over it then add in another order and give different bits. They do so even if only the stride of a dimension of size one is different: a kernel
//! uses it to decide how many numbers it takes at once.
//!
//! What an operation may consume depends on what the engine keeps for a plan, or brings back for one use only. So the core remembers what the program let
//! the operation consume. If that decides the layout, and the result got another one, then the result is given the strides that it has in plain Burn,
//! before anything reads it, and is copied if they move its elements. Gaps are not copied: see `parts.rs`.
//!
//! Source: burn-cubecl 0.23.0-pre.1, `kernel/memory_order.rs`, `kernel/binary.rs`, `kernel/unary_float.rs`, `kernel/mask` and `kernel/index`. Operations
//! that are made of several kernels (the logarithm of a sigmoid, for example) write over their own intermediate results and need none of this.

use burn_ir::{TensorIr, TensorStatus};
use burn_remat_core::{Failure, Reused};
use burn_std::Strides;
use smallvec::SmallVec;

use super::executor::{Executor, Layout};
use super::overwrites::{Overwrites, overwrites};
use super::prepared::Prepared;
use crate::backend::{Order, RematBackend, dense, lie_alike, walked};

/// An input that an operation may write over.
struct Known<'a> {
    input: &'a TensorIr,
    strides: Strides,
    order: Order,
}

/// The layout that the result of the prepared operation must have, if that depends on what it may write over, and the bytes that it takes to change the
/// layout.
///
/// # Errors
///
/// The message with which the backend panics.
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

/// The layout that the result must have, if it might get another one than in plain Burn, and whether all its elements will be in the right places anyway.
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
