//! A vision transformer (Dosovitskiy et al.): an image as a sequence of patches. Classes are read from the mean of the patches.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use super::blocks::single;
use super::{Blocks, cross_entropy};

/// The size of a [`VisionTransformer`].
#[derive(Clone, Copy, Debug)]
pub struct VisionSize {
    /// Pixels on each side of an image.
    pub side: usize,
    /// Pixels on each side of a patch.
    pub patch: usize,
    /// Layers.
    pub layers: usize,
    /// Numbers per patch.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Number of different labels.
    pub classes: usize,
}

/// Transformer layers over patches, without dropout.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    patches: Conv2d,
    positions: Param<Tensor<3>>,
    layers: TransformerEncoder,
    norm: LayerNorm,
    output: Linear,
}

impl VisionTransformer {
    /// A network of this size.
    pub fn new(size: &VisionSize, device: &Device) -> Self {
        let &VisionSize { side, patch, layers, width, heads, classes } = size;
        let length = (side / patch).pow(2);
        Self {
            patches: Conv2dConfig::new([3, width], [patch; 2]).with_stride([patch; 2]).init(device),
            positions: Initializer::Normal { mean: 0.0, std: 0.02 }.init([1, length, width], device),
            layers: TransformerEncoderConfig::new(width, 4 * width, heads, layers)
                .with_dropout(0.0)
                .with_norm_first(true)
                .init(device),
            norm: LayerNormConfig::new(width).init(device),
            output: LinearConfig::new(width, classes).init(device),
        }
    }
}

/// Images `[batch, 3, side, side]` with labels `[batch]`. Between blocks: `[batch, patches, width]`.
impl Blocks<3> for VisionTransformer {
    type Batch = (Tensor<4>, Tensor<1, Int>);

    fn enter(&self, (images, _): &Self::Batch) -> Vec<Tensor<3>> {
        let patches = self.patches.forward(images.clone()).flatten::<3>(2, 3).swap_dims(1, 2);
        vec![patches + self.positions.val()]
    }

    fn count(&self) -> usize {
        self.layers.layers.len()
    }

    fn block(&self, at: usize, state: Vec<Tensor<3>>, _: &Self::Batch) -> Vec<Tensor<3>> {
        vec![self.layers.layers[at].forward(single(state), None, None)]
    }

    fn leave(&self, state: Vec<Tensor<3>>, (_, labels): &Self::Batch) -> Tensor<1> {
        let x = self.norm.forward(single(state)).mean_dim(1).squeeze_dim::<2>(1);
        cross_entropy(self.output.forward(x), labels.clone())
    }
}
