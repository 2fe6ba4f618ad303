//! A custom LSTM, with layer norm and dropout, that reads images two rows at a time.

use std::process::ExitCode;

use burn::module::Module;
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::Images;
use burn_remat_examples::tasks::{SEED, Sequences, Task, accuracy};
use clap::Parser;

/// Train a stacked LSTM on sequences of rows.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse().common))
}

fn run(common: &Common) -> Outcome {
    // The line that burn-remat needs. Everything after it is plain Burn.
    let device = common.device()?.remat(common.config("11 MiB"))?;

    let (train, valid) = Images::digits()?.split(256);
    let (steps, batch_size) = (common.steps(200), common.batch_size(64));
    device.seed(SEED);
    let mut task = Sequences::new(train, &device.clone().autodiff());
    let progress = common.progress(&device, steps);
    for step in 0..steps {
        let loss;
        (task, loss) = task.step(step, batch_size);
        progress.step(loss)?;
    }

    let model = task.model.valid();
    let right = accuracy(&valid, batch_size, &device, |images| model.forward(images))?;
    progress.say(format!("{:.1}% correct on {} unseen images\n", 100.0 * right, valid.len()));
    println!("{}", device.remat_report()?);
    Ok(())
}
