//! Measures everything in BENCHMARKS.md at the current commit, and writes it as JSON and as markdown.

use std::path::PathBuf;
use std::process::ExitCode;

use burn_remat_examples::benchmarks::{Effort, Machine, Settings, TABLES, measure, page};
use burn_remat_examples::cli::{self, Outcome};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Measure everything in BENCHMARKS.md. Nothing else should run on the machine meanwhile.
#[derive(Parser)]
struct Arguments {
    /// One small case of each table, to check that everything works: the figures mean nothing.
    #[arg(long, conflicts_with = "full", required_unless_present = "full")]
    quick: bool,
    /// Everything; this takes an hour.
    #[arg(long)]
    full: bool,
    /// A table; may be given several times. Default: all.
    #[arg(long, value_parser = PossibleValuesParser::new(TABLES.map(|(name, _)| name)))]
    table: Vec<String>,
    /// The folder for the figures: `FOLDER/TABLE.json` and `FOLDER/TABLE.md` for each table.
    #[arg(long, value_name = "FOLDER", default_value = "target/benchmarks")]
    out: PathBuf,
    /// A folder with the published graphs and their known results, `NAME.graph.json` and `NAME.reference.json`, for the tables that need them.
    #[arg(long, value_name = "FOLDER")]
    graphs: Option<PathBuf>,
    /// Also put each table between its marks in this page, such as BENCHMARKS.md.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(Arguments::parse()))
}

fn run(arguments: Arguments) -> Outcome {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let wrong = |error: std::io::Error| format!("--out {}: {error}", arguments.out.display());
    std::fs::create_dir_all(&arguments.out).map_err(wrong)?;
    let settings = Settings { effort, graphs: arguments.graphs };
    let is_asked = |name: &str| arguments.table.is_empty() || arguments.table.iter().any(|asked| asked == name);
    // Determined before the first table is put into a page of this repository, which changes the state of the code.
    let machine = Machine::here();
    for (name, table) in TABLES.into_iter().filter(|(name, _)| is_asked(name)) {
        eprintln!("measuring {name}");
        let Some(measured) = measure(table, &settings, &machine)? else {
            eprintln!("{name} is skipped: it needs --graphs");
            continue;
        };
        // Written at once: what has been measured stays if a later table ends the process.
        let (json, markdown) = (arguments.out.join(format!("{name}.json")), arguments.out.join(format!("{name}.md")));
        std::fs::write(&json, format!("{:#}\n", measured.json())).map_err(wrong)?;
        std::fs::write(&markdown, measured.markdown()).map_err(wrong)?;
        println!("{}\nThese figures are in {} and {}.\n", measured.markdown(), markdown.display(), json.display());
        if let Some(file) = &arguments.page {
            let wrong = |error: &dyn std::fmt::Display| format!("--page {}: {error}", file.display());
            let page = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
            let page = page::with_table(&page, name, &measured.markdown()).map_err(|error| wrong(&error))?;
            std::fs::write(file, page).map_err(|error| wrong(&error))?;
        }
    }
    Ok(())
}
