//! Measures everything that BENCHMARKS.md tells, on this state of the code, and writes it as JSON and as markdown.

use std::path::PathBuf;
use std::process::ExitCode;

use burn_remat_examples::benchmarks::{Effort, Settings, measure};
use burn_remat_examples::cli::{self, Outcome};
use clap::Parser;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Measure everything that BENCHMARKS.md tells. Nothing else should run on the machine meanwhile.
#[derive(Parser)]
struct Arguments {
    /// One small case of each table, to see that everything works: the figures mean nothing.
    #[arg(long, conflicts_with = "full", required_unless_present = "full")]
    quick: bool,
    /// Everything; this takes an hour or more.
    #[arg(long)]
    full: bool,
    /// Where the figures go: `FOLDER/benchmarks.json` and `FOLDER/benchmarks.md`.
    #[arg(long, value_name = "FOLDER", default_value = "target/benchmarks")]
    out: PathBuf,
    /// More graphs for the planners: a folder with `*.graph.json` files.
    #[arg(long, value_name = "FOLDER")]
    graphs: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(Arguments::parse()))
}

fn run(arguments: Arguments) -> Outcome {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let wrong = |error: std::io::Error| format!("--out {}: {error}", arguments.out.display());
    std::fs::create_dir_all(&arguments.out).map_err(wrong)?;
    let measured = measure(&Settings { effort, graphs: arguments.graphs }, |name| eprintln!("measuring {name}"))?;
    let (json, markdown) = (arguments.out.join("benchmarks.json"), arguments.out.join("benchmarks.md"));
    std::fs::write(&json, format!("{:#}\n", measured.json())).map_err(wrong)?;
    std::fs::write(&markdown, measured.markdown()).map_err(wrong)?;
    println!("{}\nThese figures are in {} and {}.", measured.markdown(), markdown.display(), json.display());
    Ok(())
}
