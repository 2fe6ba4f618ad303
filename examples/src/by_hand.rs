//! Gradient checkpointing as a user of Burn writes it by hand, using what `burn` exports and nothing from this repository.
//!
//! The forward pass goes through a copy of the model that tracks no gradients, and keeps only the inputs of each block. The backward pass takes the
//! blocks from the last to the first: it runs each again from a detached copy of its inputs, and continues with the gradients of these. In Burn a
//! backward pass must begin at a scalar, so a block's outputs are multiplied by their gradients and summed. The cost is one extra forward pass without
//! the end of the chain; the most that is held is the inputs of all blocks and the inside of one.
//!
//! What it handles, and what it cannot:
//! - A block that runs twice updates the statistics of its BatchNorm twice. The copy has statistics of its own, which are discarded with it.
//! - Random operations give different numbers when they run again. No model here has dropout.
//! - If several blocks share a parameter or a tensor, its gradients are added block by block. Burn adds them use by use, which may differ in the last bits.

use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Gradients, Tensor};

use crate::models::Blocks;

/// The loss of `model` on `batch`, and the gradients of its parameters.
pub fn loss_and_gradients<const D: usize, M: Blocks<D>>(model: &M, batch: &M::Batch) -> (Tensor<1>, GradientsParams) {
    let (mut inputs, last) = forward(model, batch);
    let mut all = GradientsAccumulator::new();
    let mut collect = |mut gradients: Gradients, leaves: &[Tensor<D>]| -> Vec<Option<Tensor<D>>> {
        let below = leaves.iter().map(|leaf| leaf.grad_remove(&mut gradients)).collect();
        all.accumulate(model, GradientsParams::from_grads(gradients, model));
        below
    };

    let leaves = with_gradients(last);
    let loss = model.leave(leaves.clone(), batch);
    let mut below = collect(loss.backward(), &leaves);
    drop(leaves);
    for at in (0..model.count()).rev() {
        let input = inputs.pop().unwrap_or_default();
        // Nothing before the first block is trained, so no gradients need to be passed on.
        let input = if at > 0 || model.learns_to_enter() { with_gradients(input) } else { input };
        let end = seeded(model.block(at, input.clone(), batch), below);
        below = collect(end.backward(), &input);
    }
    if model.learns_to_enter() {
        collect(seeded(model.enter(batch), below).backward(), &[]);
    }
    (loss.detach(), all.grads())
}

/// The inputs of each block, and the outputs of the last one.
fn forward<const D: usize, M: Blocks<D>>(model: &M, batch: &M::Batch) -> (Vec<Vec<Tensor<D>>>, Vec<Tensor<D>>) {
    let copy = model.clone().valid().train().no_grad();
    let mut state = copy.enter(batch);
    let mut inputs = Vec::with_capacity(copy.count());
    for at in 0..copy.count() {
        inputs.push(state.clone());
        state = copy.block(at, state, batch);
    }
    (inputs, state)
}

fn with_gradients<const D: usize>(state: Vec<Tensor<D>>) -> Vec<Tensor<D>> {
    state.into_iter().map(|tensor| tensor.detach().require_grad()).collect()
}

/// A scalar whose gradients with respect to `outputs` are `gradients`.
///
/// # Panics
///
/// If there is no gradient at all.
fn seeded<const D: usize>(outputs: Vec<Tensor<D>>, gradients: Vec<Option<Tensor<D>>>) -> Tensor<1> {
    let pairs = outputs.into_iter().zip(gradients);
    let seeds = pairs.filter_map(|(output, gradient)| Some((output * Tensor::from_inner(gradient?)).sum()));
    seeds.reduce(|a, b| a + b).expect("the loss depends on the outputs of the block")
}
