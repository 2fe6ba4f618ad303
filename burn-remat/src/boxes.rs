//! Operations in boxes that are used again. An operation is some 600 bytes large and passes through several hands, and allocating a box for
//! each would show in steps of small operations.

use burn_ir::OperationIr;

/// How many empty boxes are kept.
const LIMIT: usize = 8192;

/// Boxes without an operation.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "the boxes themselves are what is kept")]
pub(crate) struct Boxes(Vec<Box<OperationIr>>);

impl Boxes {
    /// Puts an operation into a box.
    #[inline]
    pub fn fill(&mut self, op: OperationIr) -> Box<OperationIr> {
        match self.0.pop() {
            Some(mut empty) => {
                *empty = op;
                empty
            }
            None => Box::new(op),
        }
    }

    /// Keeps a box, what is in it counts no more.
    #[inline]
    pub fn keep(&mut self, spent: Box<OperationIr>) {
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
