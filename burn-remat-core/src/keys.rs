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

/// Adds a few things to a list, where it is. In steps of small operations `extend` shows, which counts them first. So does a list that is filled
/// and then moved: the processor waits until what was written one by one can be read as a whole.
#[inline]
pub(crate) fn add<T, const N: usize>(list: &mut SmallVec<[T; N]>, things: impl Iterator<Item = T>)
where
    [T; N]: smallvec::Array<Item = T>,
{
    for thing in things {
        list.push(thing);
    }
}
