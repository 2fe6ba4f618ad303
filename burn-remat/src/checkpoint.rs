//! Checkpointing by hand: a program says which of its results are kept.
//!
//! With a budget, the planner decides what to keep, and usually decides better. These functions are for programs that come from PyTorch's `checkpoint`,
//! and for the rare case in which you know better than the planner. Code that is called with a policy is a [stage](crate::RematExt::remat_stage): the
//! policy is sent with the stage's mark.

use burn_remat_core::CheckpointPolicy;

use crate::stage::{HasTensors, Seen, Stage, StageName, enter};

static CHECKPOINT: StageName = StageName::new("checkpoint");

fn open<T: HasTensors>(policy: CheckpointPolicy, inputs: &T) -> Stage {
    enter(&CHECKPOINT, Some(policy), |seen: &mut Seen| inputs.show(seen))
}

/// Calls `function` and keeps only its result: the backward pass computes the rest again.
///
/// This is PyTorch's `checkpoint`. It acts on the remat device of the tensors in `inputs` (tensors, or tuples, arrays, vectors and options of them); on
/// any other device it only calls the function. With a budget it is rarely needed: see [`CheckpointPolicy`]. Results and gradients are the same with and
/// without it.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_remat::{RematExt, checkpoint};
///
/// let device = Device::flex().remat("unlimited")?.autodiff();
/// let x = Tensor::<2>::ones([64, 64], &device).require_grad();
/// let y = checkpoint(|x: Tensor<2>| x.sin().exp().tanh(), x.clone());
/// let gradients = y.sum().backward();
/// assert!(x.grad(&gradients).is_some());
/// assert!(device.remat_report()?.recomputed_operations > 0);
/// # Ok::<(), burn_remat::RematError>(())
/// ```
pub fn checkpoint<I: HasTensors, O>(function: impl FnOnce(I) -> O, inputs: I) -> O {
    checkpoint_with(CheckpointPolicy::MustRecompute, function, inputs)
}

/// Calls `function` as a stage with a policy; see [`checkpoint`].
pub fn checkpoint_with<I: HasTensors, O>(policy: CheckpointPolicy, function: impl FnOnce(I) -> O, inputs: I) -> O {
    let _stage = open(policy, &inputs);
    function(inputs)
}

/// Calls `functions` one after the other, in `segments` groups of equal size (the last may be larger). Of each group but the last, only the result is
/// kept.
///
/// This is PyTorch's `checkpoint_sequential`: with n functions and √n segments, memory grows with √n, at the cost of one more forward
/// pass (Chen et al.). `segments` is clamped between 1, which keeps everything, and the number of functions.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use burn_remat::{RematExt, checkpoint_sequential};
///
/// let device = Device::flex().remat("unlimited")?.autodiff();
/// let layers: Vec<Linear> = (0..9).map(|_| LinearConfig::new(16, 16).init(&device)).collect();
/// let functions: Vec<_> = layers.iter().map(|layer| |x: Tensor<2>| layer.forward(x).tanh()).collect();
/// let y = checkpoint_sequential(&functions, 3, Tensor::ones([4, 16], &device));
/// assert_eq!(y.dims(), [4, 16]);
/// # Ok::<(), burn_remat::RematError>(())
/// ```
pub fn checkpoint_sequential<T: HasTensors>(functions: &[impl Fn(T) -> T], segments: usize, input: T) -> T {
    let segments = segments.clamp(1, functions.len().max(1));
    let size = functions.len() / segments;
    let (kept_short, last) = functions.split_at(size * (segments - 1));
    let x = kept_short.chunks(size.max(1)).fold(input, |x, segment| checkpoint(|x| in_turn(segment, x), x));
    in_turn(last, x)
}

fn in_turn<T>(functions: &[impl Fn(T) -> T], input: T) -> T {
    functions.iter().fold(input, |x, function| function(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_all_functions_in_order() {
        type Digits = Vec<f32>;
        let functions: Vec<Box<dyn Fn(Digits) -> Digits>> = (0..7)
            .map(|digit| -> Box<dyn Fn(Digits) -> Digits> { Box::new(move |list| [list, vec![digit as f32]].concat()) })
            .collect();
        for segments in [0, 1, 2, 3, 7, 100] {
            let digits = checkpoint_sequential(&functions, segments, Vec::new());
            assert_eq!(digits, [0., 1., 2., 3., 4., 5., 6.], "{segments}");
        }
        let none: [fn(Digits) -> Digits; 0] = [];
        assert_eq!(checkpoint_sequential(&none, 3, vec![1.0]), [1.0]);
    }
}
