//! Operations in boxes that are used again. An operation is some 600 bytes large and passes through several hands, and allocating a box for
//! each would show in steps of small operations.

use burn_ir::OperationIr;
use slab::Slab;

use super::tensors::bare;

/// How many empty boxes are kept.
const LIMIT: usize = 8192;

/// Boxes without an operation.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "the boxes themselves are what is kept")]
pub(crate) struct Boxes(Vec<Box<OperationIr>>);

impl Boxes {
    /// Moves an operation into a box. It is swapped for what is left there: given by value, it would be copied twice.
    #[inline]
    pub fn fill(&mut self, op: &mut OperationIr) -> Box<OperationIr> {
        match self.0.pop() {
            Some(mut empty) => {
                std::mem::swap(&mut *empty, op);
                empty
            }
            None => Box::new(take(op)),
        }
    }

    /// Keeps a box, and drops what is still in it.
    #[inline]
    pub fn keep(&mut self, mut spent: Box<OperationIr>) {
        if !matches!(*spent, OperationIr::Drop(_)) {
            take(&mut spent);
        }
        if self.0.len() < LIMIT {
            self.0.push(spent);
        }
    }

    /// Moves all boxes over to `other`.
    pub fn give(&mut self, other: &mut Self) {
        other.0.append(&mut self.0);
        other.0.truncate(LIMIT);
    }
}

/// The operations of a driver.
#[derive(Default)]
pub(crate) struct Operations {
    /// Those that were recorded.
    pub(super) kept: Slab<Box<OperationIr>>,
    /// Boxes of those that are done or forgotten.
    pub boxes: Boxes,
}

/// Takes an operation out of its place.
#[inline]
pub(super) fn take(op: &mut OperationIr) -> OperationIr {
    std::mem::replace(op, OperationIr::Drop(bare(0)))
}
