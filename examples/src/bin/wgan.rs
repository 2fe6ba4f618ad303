//! A Wasserstein GAN: two models, two optimizers and two losses, all inside one memory budget.

use std::process::ExitCode;

use burn::module::Module;
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::{Images, picture};
use burn_remat_examples::tasks::{SEED, Task, Wgan};
use clap::Parser;

/// Train a generator of digits against a critic.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse().common))
}

fn run(common: &Common) -> Outcome {
    // The line that burn-remat needs.
    let device = common.device()?.remat(common.config("10 MiB"))?;

    let steps = common.steps(200);
    device.seed(SEED);
    let mut task = Wgan::new(Images::digits()?, &device.clone().autodiff());
    let progress = common.progress(&device, steps);
    for step in 0..steps {
        // Several updates make up one step here: four repeated parts. With this line the engine plans them together.
        device.remat_mark_step();
        let loss;
        (task, loss) = task.step(step, common.batch_size(32));
        progress.step(loss)?;
    }

    let drawn = task.generator.valid().draw(3, &device);
    progress.say(format!("generated digits:\n{}", picture(drawn, 3)?));
    println!("{}", device.remat_report()?);
    Ok(())
}
