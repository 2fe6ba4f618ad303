//! Graphs to plan for: network families, published networks, and random cases.
//!
//! Four kinds, all deterministic:
//!
//! - **Families** ([`linear`], [`residual`], [`unet`], [`dense`], [`inception`], [`random`]): small convolutional nets,
//!   each with one structure, in any depth.
//! - **Large families** ([`gpt`] in three styles, [`mixture_of_experts`], [`encoder_decoder`], [`vit`],
//!   [`diffusion_unet`], [`lstm`]): published sizes in any depth, up to thousands of ops.
//! - **Published networks** ([`vgg16`], [`vgg19`], [`mobilenet`], [`resnet50`], [`unet416x608`], [`densenet161`]): layer
//!   tables from the papers, on 224x224 images (416x608 for U-Net, as in Checkmate).
//! - **Nasty cases** ([`random_graph`], [`random_training_graph`], [`random_chain`]): every feature that a graph may have, including zero sizes and costs, for tests.
//!
//! All but the last are described layer by layer ([`net`]) and lowered to a graph ([`lower`]) for the
//! forward pass alone or for a whole training step. Costs are floating-point operations (a multiply-add counts as two),
//! computed from the shapes; sizes are bytes of `f32` times the batch. Parameters, and in a training step their
//! gradients, belong to the graph's constant bytes, as in Checkmate: a planner cannot evict them.
//!
//! ```
//! use burn_remat_plan::generate::{Options, by_name};
//!
//! let graph = by_name("vgg16", &Options { batch: 32, ..Options::default() })?;
//! assert_eq!(graph.name(), "vgg16-b32");
//! # Ok::<(), burn_remat_plan::generate::GenerateError>(())
//! ```

pub mod alternatives;
mod chains;
mod diffusion;
mod families;
pub mod lower;
pub mod net;
pub mod net_tokens;
mod nets;
mod nets_large;
mod random;
mod recurrent;
mod transformers;

pub use chains::random_chain;
pub use diffusion::diffusion_unet;
pub use families::{dense, inception, linear, random, residual, unet};
pub use nets::{mobilenet, unet416x608, vgg16, vgg19};
pub use nets_large::{densenet161, resnet50};
pub use random::{RandomGraphOptions, random_graph, random_training_graph};
pub use recurrent::lstm;
pub use transformers::{GptStyle, encoder_decoder, gpt, mixture_of_experts, vit};

use crate::error::GraphError;
use crate::graph::Graph;
use net::Kernels;
use net_tokens::Attention;

/// How much of a training step a graph covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The forward pass alone; its result is the loss.
    Forward,
    /// Forward and backward pass.
    Training,
    /// Forward and backward pass, and one update per layer with parameters.
    TrainingWithUpdate,
}

/// Which implementations the ops of a graph have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Implementations {
    /// As published: one per op, except that the backward op of a ReLU in VGG may read the output instead of the input.
    Published,
    /// Several, modelled on MONeT's: see [`alternatives`].
    Several,
}

/// Options of [`by_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Images or sequences per step.
    pub batch: u64,
    /// Which part of a training step to generate.
    pub pass: Pass,
    /// Depth of a family, in its own unit (layers, blocks or levels); the published networks ignore it.
    pub depth: usize,
    /// Seed of the random family; the others ignore it.
    pub seed: u64,
    /// Which implementations the ops have.
    pub implementations: Implementations,
}

impl Default for Options {
    /// One image, forward and backward, depth 8, seed 0, ops as published.
    fn default() -> Self {
        Self { batch: 1, pass: Pass::Training, depth: 8, seed: 0, implementations: Implementations::Published }
    }
}

/// Why there is no such graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A name that is not in [`NAMES`].
    #[error("there is no graph called `{name}`; known names: {}", names_text())]
    UnknownName {
        /// The name asked for.
        name: String,
    },
    /// A batch or depth of zero or above its maximum.
    #[error("`{field}` is {number}: it must be from 1 to {most}")]
    OutOfRange {
        /// The option.
        field: &'static str,
        /// The number asked for.
        number: u64,
        /// The largest number allowed.
        most: u64,
    },
    /// Sizes beyond what a graph can hold.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The names that [`by_name`] knows, each with a short description.
pub const NAMES: [(&str, &str); 20] = [
    ("linear", "a chain of convolutions; depth: layers"),
    ("residual", "blocks of two convolutions with a skip connection; depth: blocks"),
    ("unet", "encoder and decoder with skip connections between them; depth: levels, at most 8"),
    ("dense", "every layer reads all layers before it; depth: layers, at most 64"),
    ("inception", "blocks of four parallel branches; depth: blocks"),
    ("random", "a random net of convolutions, sums and concatenations; depth: layers"),
    ("vgg16", "Simonyan & Zisserman 2014, configuration D, 224x224"),
    ("vgg19", "Simonyan & Zisserman 2014, configuration E, 224x224"),
    ("mobilenet", "Howard et al. 2017, width 1.0, 224x224"),
    ("resnet50", "He et al. 2015, 224x224"),
    ("unet416x608", "Ronneberger et al. 2015 with padded convolutions, 416x608"),
    ("densenet161", "Huang et al. 2016, growth 48, 224x224"),
    ("gpt", "GPT-2 with dropout, scores in memory, width 1024; depth: layers, at most 1000 (medium: 24)"),
    ("gpt-flash", "gpt with flash attention"),
    ("gpt-elementary", "gpt with norms, softmax, GELU and dropout split into several ops each"),
    ("encoder-decoder", "Vaswani et al. 2017, base, with dropout; depth: layers per side, at most 1000 (published: 6)"),
    ("diffusion-unet", "Stable Diffusion 1 U-Net with attention; depth: blocks per level, at most 100 (published: 2)"),
    ("vit", "ViT-B/16, 224x224; depth: layers, at most 1000 (published: 12)"),
    ("lstm", "language model with one LSTM layer, unrolled; depth: steps, at most 10000"),
    ("mixture-of-experts", "gpt-flash with eight experts in every second layer; depth: layers, at most 1000"),
];

fn names_text() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

/// Largest batch that [`by_name`] accepts.
const MOST_BATCH: u64 = 1 << 40;
/// Largest depth of the families whose size grows in proportion to it.
const MOST_DEPTH: u64 = 100_000;

/// The graph called `name`: one of [`NAMES`].
///
/// # Errors
///
/// An unknown name, an option out of range, or sizes that add up to more than 2^63 - 1 bytes.
pub fn by_name(name: &str, options: &Options) -> Result<Graph, GenerateError> {
    let deepest = match name {
        "unet" => 8,
        "dense" => 64,
        "diffusion-unet" => 100,
        "gpt" | "gpt-flash" | "gpt-elementary" | "encoder-decoder" | "vit" | "mixture-of-experts" => 1000,
        "lstm" => 10_000,
        _ => MOST_DEPTH,
    };
    check_range("batch", options.batch, MOST_BATCH)?;
    check_range("depth", options.depth as u64, deepest)?;
    let (batch, depth) = (options.batch, options.depth);
    let style = |attention, kernels| gpt(name, batch, depth, GptStyle { attention, kernels });
    let mut net = match name {
        "linear" => linear(batch, depth),
        "residual" => residual(batch, depth),
        "unet" => unet(batch, depth),
        "dense" => dense(batch, depth),
        "inception" => inception(batch, depth),
        "random" => random(batch, depth, options.seed),
        "vgg16" => vgg16(batch),
        "vgg19" => vgg19(batch),
        "mobilenet" => mobilenet(batch),
        "resnet50" => resnet50(batch),
        "unet416x608" => unet416x608(batch),
        "densenet161" => densenet161(batch),
        "gpt" => style(Attention::Plain, Kernels::Fused),
        "gpt-flash" => style(Attention::Flash, Kernels::Fused),
        "gpt-elementary" => style(Attention::Plain, Kernels::Elementary),
        "encoder-decoder" => encoder_decoder(batch, depth),
        "diffusion-unet" => diffusion_unet(batch, depth),
        "vit" => vit(batch, depth),
        "lstm" => lstm(batch, depth),
        "mixture-of-experts" => mixture_of_experts(batch, depth),
        _ => return Err(GenerateError::UnknownName { name: name.to_owned() }),
    };
    if options.implementations == Implementations::Several {
        alternatives::add(&mut net);
    }
    Ok(lower::lower(&net, options.pass)?)
}

fn check_range(field: &'static str, number: u64, most: u64) -> Result<(), GenerateError> {
    if (1..=most).contains(&number) { Ok(()) } else { Err(GenerateError::OutOfRange { field, number, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Phase;

    #[test]
    fn every_name_gives_a_graph_for_every_pass() {
        for (name, _) in NAMES {
            for pass in [Pass::Forward, Pass::Training, Pass::TrainingWithUpdate] {
                let options = Options { batch: 2, pass, depth: 4, seed: 1, ..Options::default() };
                let graph = by_name(name, &options).unwrap_or_else(|error| panic!("{name} {pass:?}: {error}"));
                let backward = graph.ops().iter().filter(|op| op.phase == Some(Phase::Backward)).count();
                assert_eq!(backward > 0, pass != Pass::Forward, "{name} {pass:?}");
                assert!(graph.ops().iter().all(|op| op.phase.is_some() && op.stage.is_some()), "{name}");
            }
        }
    }

    #[test]
    fn an_unknown_name_and_a_batch_beyond_measure_are_errors() {
        assert!(matches!(by_name("vgg", &Options::default()), Err(GenerateError::UnknownName { .. })));
        for batch in [0, u64::MAX] {
            let options = Options { batch, ..Options::default() };
            assert!(matches!(by_name("vgg16", &options), Err(GenerateError::OutOfRange { .. })));
        }
        let options = Options { batch: MOST_BATCH, ..Options::default() };
        assert!(matches!(by_name("vgg16", &options), Err(GenerateError::Graph(GraphError::TooLarge { .. }))));
    }

    #[test]
    fn bytes_grow_with_the_batch_and_constants_do_not() {
        let at = |batch| by_name("resnet50", &Options { batch, ..Options::default() }).unwrap();
        let (one, four) = (at(1), at(4));
        assert_eq!(one.constant_bytes(), four.constant_bytes());
        assert!(one.values().iter().zip(four.values()).all(|(a, b)| b.bytes == 4 * a.bytes));
    }
}
