//! Models as chains of blocks: what a program needs that checkpoints a model by hand, at every block.

use burn::module::Module;
use burn::tensor::Tensor;

/// A model that enters a chain of blocks, passes one after the other, and leaves with a loss. What goes from block to block are tensors of `D`
/// dimensions; a block hands on unchanged what only a later one reads, as the skip connections of a U-Net.
pub trait Blocks<const D: usize>: Module {
    /// Inputs of a step, and what all blocks read: a mask.
    type Batch;

    /// What the first block reads.
    fn enter(&self, batch: &Self::Batch) -> Vec<Tensor<D>>;

    /// Whether [`enter`](Self::enter) has parameters that are trained.
    fn learns_to_enter(&self) -> bool {
        true
    }

    /// How many blocks there are.
    fn count(&self) -> usize;

    /// Passes block number `at`.
    fn block(&self, at: usize, state: Vec<Tensor<D>>, batch: &Self::Batch) -> Vec<Tensor<D>>;

    /// The loss, from what the last block gives.
    fn leave(&self, state: Vec<Tensor<D>>, batch: &Self::Batch) -> Tensor<1>;
}

/// The loss of `model` on `batch`: forward through the whole chain.
pub fn loss_of_blocks<const D: usize, M: Blocks<D>>(model: &M, batch: &M::Batch) -> Tensor<1> {
    let state = (0..model.count()).fold(model.enter(batch), |state, at| model.block(at, state, batch));
    model.leave(state, batch)
}

/// What goes between the blocks of a model without skip connections.
///
/// # Panics
///
/// If it is not a single tensor.
pub(super) fn single<const D: usize>(state: Vec<Tensor<D>>) -> Tensor<D> {
    match <[Tensor<D>; 1]>::try_from(state) {
        Ok([x]) => x,
        Err(state) => panic!("{} tensors between two blocks, where one is expected", state.len()),
    }
}
