//! Boxes for operations that are used again. An operation takes about 600 bytes and is passed on several times. Allocating a box for each would be
//! noticeable in steps of small operations.

use burn_ir::OperationIr;
use slab::Slab;

use super::tensors::bare;

/// How many empty boxes are kept.
const LIMIT: usize = 8192;

/// Empty boxes.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "the boxes themselves are what is kept")]
pub(crate) struct Boxes(Vec<Box<OperationIr>>);

impl Boxes {
    /// Moves an operation into a box. It is swapped with what is left in the box: passed by value, it would be copied twice.
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
    /// Recorded operations.
    pub(super) kept: Slab<Box<OperationIr>>,
    /// Boxes of operations that are done or forgotten.
    pub boxes: Boxes,
}

/// Takes an operation out of its place.
#[inline]
pub(super) fn take(op: &mut OperationIr) -> OperationIr {
    std::mem::replace(op, OperationIr::Drop(bare(0)))
}
