//! Alternative implementations for the ops of a network, modelled on those that MONeT chooses from.
//!
//! - A 3x3 convolution with stride 1 has two faster algorithms, forward and backward: Winograd's on 6x6 tiles, whose
//!   transformed input and output take 36/16 of their bytes, and the same with an eighth of the batch at a time.
//! - Any other convolution larger than 1x1 has one: a multiplication of patches, an eighth of the batch at a time.
//! - The backward op of a batch normalization may read the output instead of the input (Bulò et al. 2018), at a quarter
//!   more cost: two operations per number to undo the affine map, in addition to eight.
//! - The backward op of a ReLU may read the input instead of the output, at the same cost.
//!
//! The defaults stay as they are, without scratch, so the graph without its alternatives is the graph as published.
//! Bytes follow from the shapes. How much faster an algorithm is (`FASTEST`, `FASTER`) is assumed, not measured.

use super::net::{BackwardVariant, Kind, Layer, Net, Variant};

/// Cost of an algorithm with its whole workspace, as a fraction of the default's cost.
const FASTEST: f64 = 0.75;
/// Cost if the batch goes through the workspace in eight parts.
const FASTER: f64 = 0.85;
/// Number of parts of the batch.
const PARTS: u64 = 8;

/// Adds the alternatives to every layer of `net` whose kind has any.
pub fn add(net: &mut Net) {
    for node in 0..net.layers.len() {
        let input_bytes = net.layers[node].inputs.first().map_or(0, |&input| net.layers[input].bytes);
        let layer = &mut net.layers[node];
        match layer.kind {
            Kind::Convolution(window) if (window.size, window.stride) == (3, 1) => {
                let tiles = (input_bytes.saturating_add(layer.bytes) / 16).saturating_mul(36);
                add_algorithm(layer, "winograd", FASTEST, tiles);
                add_algorithm(layer, "winograd_in_parts", FASTER, tiles / PARTS);
            }
            Kind::Convolution(window) if window.size > 1 => {
                let taps = window.size * window.size;
                let patches = (input_bytes / (window.stride * window.stride)).saturating_mul(taps);
                add_algorithm(layer, "patches_in_parts", FASTER, patches / PARTS);
            }
            Kind::BatchNorm => layer.backward_variants.push(backward("by_output", 1.25, (false, true))),
            Kind::Relu => layer.backward_variants.push(backward("by_input", 1.0, (true, false))),
            Kind::Convolution(_) | Kind::Other => {}
        }
    }
}

fn add_algorithm(layer: &mut Layer, name: &'static str, cost_factor: f64, scratch_bytes: u64) {
    layer.variants.push(Variant { cost: layer.cost * cost_factor, scratch_bytes });
    let super::net::Backward::Op { reads_inputs, reads_output } = layer.backward else { return };
    let same = backward(name, cost_factor, (reads_inputs, reads_output));
    layer.backward_variants.push(BackwardVariant { scratch_bytes, ..same });
}

fn backward(name: &'static str, cost_factor: f64, (reads_inputs, reads_output): (bool, bool)) -> BackwardVariant {
    BackwardVariant { name, cost_factor, reads_inputs, reads_output, scratch_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::super::{Implementations, Options, by_name};
    use crate::views::without_alternatives;

    #[test]
    fn the_graph_without_its_alternatives_is_the_published_one() {
        for name in ["resnet50", "mobilenet", "unet416x608", "densenet161"] {
            let published = by_name(name, &Options::default()).unwrap();
            let options = Options { implementations: Implementations::Several, ..Options::default() };
            let several = by_name(name, &options).unwrap();
            let choices = several.ops().iter().filter(|op| !op.alternatives.is_empty()).count();
            assert!(choices * 4 > several.ops().len(), "{name}: {choices} ops with alternatives");
            assert_eq!(without_alternatives(&several), published);
        }
    }
}
