//! The cost of a remat device, compared with plain Burn and with Burn's own group of one device.

use std::process::ExitCode;

use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::overhead::{PLAN_TIME, SHARES, StepProtocol, per_operation, per_step, usual_batch_size};
use burn_remat_examples::training::ModelKind;
use clap::Parser;

/// Measure the cost of a remat device, compared with plain Burn.
#[derive(Parser)]
struct Arguments {
    /// Rounds: measured steps of each device.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only this model. Default: all, and the cost of an operation.
    #[arg(long, value_enum)]
    model: Option<ModelKind>,
    /// Samples per step. Default: 16 for the LSTM, 64 for the multilayer perceptron, 32 for the others.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Only devices that evict nothing: plain Burn, the group of one, and the ample budget.
    #[arg(long)]
    ample: bool,
    /// Write the figures to this file as JSON.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let mut figures = Vec::new();
    let rounds = arguments.rounds as usize;
    if arguments.model.is_none() {
        println!("per operation: a chain of 24 layers (forward, backward and update) at the level of backends");
        for (width, rows) in [(16, 4), (64, 32)] {
            let cost = per_operation(width, rows, 8 * rounds)?;
            print!("{cost}");
            figures.push(cost.json());
        }
    }
    let shares = if arguments.ample { &[][..] } else { &SHARES };
    for model in ModelKind::ALL.into_iter().filter(|&model| arguments.model.is_none_or(|only| only == model)) {
        let batch_size = arguments.batch_size.map_or(usual_batch_size(model), |batch_size| batch_size as usize);
        let cost = per_step(model, StepProtocol { batch_size, rounds, shares, plan_time: PLAN_TIME })?;
        print!("{cost}");
        figures.push(cost.json());
    }
    if let Some(file) = &arguments.json {
        cli::save_json(file, &figures.into())?;
    }
    Ok(())
}
