//! Models as chains of blocks: what a program needs to checkpoint a model by hand at every block.

use burn::module::Module;
use burn::tensor::Tensor;

/// A model that enters a chain of blocks, passes through one after the other, and leaves with a loss. Tensors of `D` dimensions go from block to block.
/// A block passes on unchanged what only a later one reads, such as the skip connections of a U-Net.
pub trait Blocks<const D: usize>: Module {
    /// Inputs of a step, and what all blocks read, such as a mask.
    type Batch;

    /// The inputs of the first block.
    fn enter(&self, batch: &Self::Batch) -> Vec<Tensor<D>>;

    /// Whether [`enter`](Self::enter) has parameters that are trained.
    fn learns_to_enter(&self) -> bool {
        true
    }

    /// The number of blocks.
    fn count(&self) -> usize;

    /// Passes through block number `at`.
    fn block(&self, at: usize, state: Vec<Tensor<D>>, batch: &Self::Batch) -> Vec<Tensor<D>>;

    /// The loss, from the outputs of the last block.
    fn leave(&self, state: Vec<Tensor<D>>, batch: &Self::Batch) -> Tensor<1>;
}

/// The loss of `model` on `batch`: the forward pass through the whole chain.
pub fn loss_of_blocks<const D: usize, M: Blocks<D>>(model: &M, batch: &M::Batch) -> Tensor<1> {
    let state = (0..model.count()).fold(model.enter(batch), |state, at| model.block(at, state, batch));
    model.leave(state, batch)
}

/// What goes from block to block in a model without skip connections.
///
/// # Panics
///
/// If it is not a single tensor.
pub(super) fn single<const D: usize>(state: Vec<Tensor<D>>) -> Tensor<D> {
    match <[Tensor<D>; 1]>::try_from(state) {
        Ok([x]) => x,
        Err(state) => panic!("{} tensors between two blocks, but one is expected", state.len()),
    }
}
