//! An operation that is ready to run.

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use burn_remat_core::Failure;
use smallvec::SmallVec;

use super::executor::Layout;
use super::operation::mark_read_only;

/// See the [module](self).
pub(super) struct Prepared {
    pub op: Box<OperationIr>,
    /// The layout that its result must have.
    pub layout: Option<Box<Layout>>,
    /// Inputs of which it gets a copy, because others still need them.
    pub copies: SmallVec<[TensorId; 2]>,
    /// Tensors that it would have consumed and now only reads.
    pub left: SmallVec<[u64; 2]>,
    /// An evicted input that is replaced by its substitute.
    pub spared: Option<TensorId>,
    /// What the backend failed with while the operation was prepared. The operation fails with it too.
    pub failure: Option<Failure>,
}

impl Prepared {
    /// The inputs, each once, in the order of the bits of [`Reused`](burn_remat_core::Reused).
    pub fn inputs(&self) -> SmallVec<[TensorIr; 4]> {
        let mut inputs: SmallVec<[TensorIr; 4]> = SmallVec::new();
        for input in self.op.inputs() {
            if inputs.iter().all(|known| known.id != input.id) {
                inputs.push(input.clone());
            }
        }
        inputs
    }

    /// Whether the bit of an input is set.
    pub fn bit_of(&self, id: TensorId, bits: u8) -> bool {
        let at = self.inputs().iter().take(u8::BITS as usize).position(|input| input.id == id);
        at.is_some_and(|at| bits >> at & 1 == 1)
    }

    /// Makes the operation only read some of the inputs that it would consume.
    pub fn only_read(&mut self, keep: impl Fn(TensorId) -> bool) {
        let taken = self.op.inputs().filter(|input| input.status == TensorStatus::ReadWrite && keep(input.id));
        let kept: SmallVec<[TensorId; 2]> = taken.map(|input| input.id).collect();
        if !kept.is_empty() {
            mark_read_only(&mut self.op, |id| kept.contains(&id));
            self.left.extend(kept.iter().map(|id| id.value()));
        }
    }
}
