//! Results that Burn cuts from larger ones if a backend has no kernel of its own: gradients of convolution weights.
//!
//! Such a gradient is computed by a convolution with stride and dilation exchanged, over inputs whose first two axes are swapped. If the stride leaves a
//! remainder, its result is larger than the weight. The first two axes of the result are swapped, too.
//!
//! Source: burn-backend 0.23.0-pre.1, `backend/ops/modules/conv.rs`.

use burn_backend::Shape;
use burn_ir::{ModuleOperationIr, OperationIr, TensorIr};

/// A convolution as seen by its weight: `x`, over which a kernel of the weight's size moves, and the tensor of the kernel's positions.
struct Walk<'a> {
    x: &'a TensorIr,
    places: &'a TensorIr,
    stride: &'a [usize],
    /// Both sides together.
    padding: Vec<usize>,
    dilation: &'a [usize],
    groups: usize,
}

fn walk(op: &ModuleOperationIr) -> Option<Walk<'_>> {
    let twice = |padding: &[usize]| padding.iter().map(|padding| 2 * padding).collect::<Vec<_>>();
    let both = |padding: &[(usize, usize)]| padding.iter().map(|(before, after)| before + after).collect::<Vec<_>>();
    macro_rules! walk {
        ($op:expr, $x:ident, $places:ident, $padding:expr) => {
            Walk {
                x: &$op.$x,
                places: &$op.$places,
                stride: &$op.options.stride,
                padding: $padding(&$op.options.padding),
                dilation: &$op.options.dilation,
                groups: $op.options.groups,
            }
        };
    }
    Some(match op {
        ModuleOperationIr::Conv1dWeightBackward(op) => walk!(op, x, output_grad, both),
        ModuleOperationIr::Conv2dWeightBackward(op) => walk!(op, x, output_grad, both),
        ModuleOperationIr::Conv3dWeightBackward(op) => walk!(op, x, output_grad, twice),
        ModuleOperationIr::ConvTranspose1dWeightBackward(op) => walk!(op, output_grad, x, twice),
        ModuleOperationIr::ConvTranspose2dWeightBackward(op) => walk!(op, output_grad, x, twice),
        ModuleOperationIr::ConvTranspose3dWeightBackward(op) => walk!(op, output_grad, x, twice),
        _ => return None,
    })
}

/// The shape of the tensor that the result of an operation is cut from. The result has its first two axes swapped.
pub(super) fn cut_from(op: &OperationIr) -> Option<Shape> {
    let OperationIr::Module(op) = op else { return None };
    let Walk { x, places, stride, padding, dilation, groups } = walk(op)?;
    let size = |axis: usize| {
        let padded = x.shape[axis + 2] + padding[axis];
        let covered = stride[axis] * (places.shape[axis + 2].max(1) - 1) + 1;
        padded.saturating_sub(covered) / dilation[axis].max(1) + 1
    };
    let channels = [x.shape[1], places.shape[1]];
    (groups == 1).then(|| channels.into_iter().chain((0..stride.len()).map(size)).collect::<Vec<_>>().into())
}
