//! Indices that the books and the history share.

use smallvec::SmallVec;

/// Index of a tensor.
pub(crate) type TensorKey = usize;
/// Index of a recorded operation.
pub(crate) type RecipeKey = usize;
/// Index of a buffer.
pub(crate) type BufferKey = usize;
/// Index of the path of a stage.
pub(crate) type PathId = u32;

pub(crate) type Keys = SmallVec<[TensorKey; 4]>;

/// A few things in a list. In steps of small operations `collect` shows, which counts them first.
#[inline]
pub(crate) fn few<T, const N: usize>(things: impl Iterator<Item = T>) -> SmallVec<[T; N]>
where
    [T; N]: smallvec::Array<Item = T>,
{
    let mut few = SmallVec::new();
    for thing in things {
        few.push(thing);
    }
    few
}
