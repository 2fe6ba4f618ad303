//! `remat-plan generate`.

use std::path::PathBuf;

use burn_remat_plan::generate::{Implementations, NAMES, Options, Pass, by_name};
use clap::ValueEnum;

use crate::exit::{Exit, print, write};

/// Arguments of the subcommand.
#[derive(clap::Args)]
#[command(after_help = names())]
pub struct Args {
    /// Name of the graph (see the list below)
    name: String,
    /// Images or sequences per step
    #[arg(long, default_value_t = 1)]
    batch: u64,
    /// Which part of a training step to generate
    #[arg(long, value_enum, default_value = "training")]
    pass: PassName,
    /// Depth, in the family's own unit; published networks ignore it
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Seed of the random family
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Offer alternative implementations of convolutions, batch normalizations and ReLUs
    #[arg(long)]
    alternatives: bool,
    /// File to write to; default: standard output
    #[arg(long, value_name = "GRAPH")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum PassName {
    Forward,
    Training,
    TrainingWithUpdate,
}

fn names() -> String {
    let lines: Vec<String> = NAMES.iter().map(|(name, about)| format!("  {name:18} {about}")).collect();
    format!("Names:\n{}", lines.join("\n"))
}

/// Writes the graph.
pub fn run(args: &Args) -> Result<(), Exit> {
    let pass = match args.pass {
        PassName::Forward => Pass::Forward,
        PassName::Training => Pass::Training,
        PassName::TrainingWithUpdate => Pass::TrainingWithUpdate,
    };
    let implementations = if args.alternatives { Implementations::Several } else { Implementations::Published };
    let options = Options { batch: args.batch, pass, depth: args.depth, seed: args.seed, implementations };
    let graph = by_name(&args.name, &options).map_err(|error| Exit::usage(error.to_string()))?;
    match &args.out {
        Some(path) => write(path, &graph.to_json()),
        None => print(&graph.to_json()),
    }
}
