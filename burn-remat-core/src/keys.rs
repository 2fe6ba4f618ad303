//! Indices that the ledger and the history share.

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

/// Appends a few items to a list in place. In steps of small operations the cost of `extend`, which counts the items first, is measurable. So is that of a
/// list that is filled and then moved: the processor must wait until what was written item by item can be read as a whole.
#[inline]
pub(crate) fn add<T, const N: usize>(list: &mut SmallVec<[T; N]>, things: impl Iterator<Item = T>)
where
    [T; N]: smallvec::Array<Item = T>,
{
    for thing in things {
        list.push(thing);
    }
}
