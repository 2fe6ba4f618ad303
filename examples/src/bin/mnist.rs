//! Handwritten digits and a convolutional network: the usual first example, inside a memory budget.

use std::path::PathBuf;
use std::process::ExitCode;

use burn::module::Module;
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::{Images, MnistSet};
use burn_remat_examples::tasks::{Mnist, SEED, Task, accuracy};
use clap::Parser;

/// Train a small convolutional network on handwritten digits.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// A folder with the files of MNIST, such as the cache of Burn's loader. Default: the digits in the repository.
    #[arg(long)]
    mnist: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let common = &arguments.common;
    // The line that burn-remat needs. Everything after it is plain Burn.
    let device = common.device()?.remat(common.config("18 MiB"))?;

    let (train, valid) = match &arguments.mnist {
        Some(folder) => (Images::mnist(folder, MnistSet::Train)?, Images::mnist(folder, MnistSet::Test)?.split(1024).1),
        None => Images::digits()?.split(256),
    };
    let (steps, batch_size) = (common.steps(200), common.batch_size(64));
    device.seed(SEED);
    let mut task = Mnist::new(train, &device.clone().autodiff());
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
