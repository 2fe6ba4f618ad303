//! The layout of a tensor's elements in its buffer, for tensors without data.

use burn_backend::Shape;
use burn_ir::{BaseOperationIr, OperationIr};
use smallvec::SmallVec;

use super::operation::base;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Lies {
    /// Steps from one element to the next along each axis, in elements.
    strides: SmallVec<[isize; 4]>,
    /// Whether the first element is the first of the buffer.
    pub at_start: bool,
}

impl Lies {
    /// In the order of the indices.
    pub fn in_order(shape: &Shape) -> Self {
        let mut strides: SmallVec<[isize; 4]> = SmallVec::from_elem(1, shape.num_dims());
        for axis in (1..shape.num_dims()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(shape[axis] as isize);
        }
        Self { strides, at_start: true }
    }

    /// The same layout with two axes exchanged.
    pub fn swapped(mut self, one: usize, other: usize) -> Self {
        self.strides.swap(one, other);
        self
    }

    /// Whether this has as many axes as the shape.
    pub fn suits(&self, shape: &Shape) -> bool {
        self.strides.len() == shape.num_dims()
    }

    /// Whether the elements of a tensor of this shape are in order.
    pub fn is_in_order(&self, shape: &Shape) -> bool {
        let ordered = Self::in_order(shape);
        let alike =
            |axis: usize| shape[axis] == 1 && self.strides[axis] > 0 || self.strides[axis] == ordered.strides[axis];
        shape.num_elements() == 0 || self.suits(shape) && (0..shape.num_dims()).all(alike)
    }

    /// Whether some axis runs backwards.
    pub fn is_flipped(&self) -> bool {
        self.strides.iter().any(|&stride| stride < 0)
    }

    /// The layout of the result of a view, if it is known. A tensor that is reshaped must be in order.
    pub fn seen_through(&self, op: &OperationIr) -> Option<Self> {
        let view = base(op)?;
        if !self.suits(&op.inputs().next()?.shape) {
            return None;
        }
        let (mut strides, mut at_start) = (self.strides.clone(), self.at_start);
        match view {
            BaseOperationIr::Reshape(op) => strides = Self::in_order(&op.out.shape).strides,
            BaseOperationIr::SwapDims(op) => return Some(self.clone().swapped(op.dim1, op.dim2)),
            BaseOperationIr::Permute(op) => strides = op.axes.iter().map(|&axis| self.strides[axis]).collect(),
            BaseOperationIr::Flip(op) => {
                op.axes.iter().for_each(|&axis| strides[axis] = -strides[axis]);
                at_start = false;
            }
            BaseOperationIr::Slice(op) => {
                strides
                    .iter_mut()
                    .zip(&op.ranges)
                    .for_each(|(stride, range)| *stride = stride.saturating_mul(range.step));
                at_start &= op.ranges.iter().all(|range| range.start == 0 && range.step > 0);
            }
            BaseOperationIr::Expand(op) => {
                let (from, to) = (&op.input.shape, &op.out.shape);
                let new = to.num_dims().checked_sub(from.num_dims())?;
                let repeated = |axis: usize| axis < new || from[axis - new] != to[axis];
                strides =
                    (0..to.num_dims()).map(|axis| if repeated(axis) { 0 } else { self.strides[axis - new] }).collect();
            }
            _ => return None,
        }
        Some(Self { strides, at_start })
    }
}
