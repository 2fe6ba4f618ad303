//! A U-Net that finds the pixels of a figure in a noisy image.

use std::process::ExitCode;

use burn::module::Module;
use burn::tensor::Tensor;
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::{Images, picture};
use burn_remat_examples::models::UNet;
use burn_remat_examples::tasks::{SEED, Segmentation, Task};
use clap::Parser;

/// Train a U-Net to separate figure from background.
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
    let device = common.device()?.remat(common.config("16 MiB"))?;

    let (train, valid) = Images::digits()?.split(32);
    let steps = common.steps(100);
    device.seed(SEED);
    let mut task = Segmentation::new(train, &device.clone().autodiff());
    let progress = common.progress(&device, steps);
    for step in 0..steps {
        let loss;
        (task, loss) = task.step(step, common.batch_size(32));
        progress.step(loss)?;
    }

    let (images, _) = valid.batch(0, valid.len(), &device);
    let (figure, noisy) = UNet::example(images);
    let found = task.model.valid().forward(noisy.clone()).greater_elem(0.5).float();
    let first = [&noisy, &found, &figure].map(|images| images.clone().narrow(0, 0, 1));
    progress.say("input, prediction, and truth:");
    progress.say(picture(Tensor::cat(first.to_vec(), 0), 3)?);
    let both = cli::read((found.clone() * figure.clone()).sum())?;
    let either = cli::read((found + figure).clamp_max(1.0).sum())?;
    println!("predicted and true figure overlap by {:.1}% (intersection over union)\n", 100.0 * both / either.max(1.0));
    println!("{}", device.remat_report()?);
    Ok(())
}
