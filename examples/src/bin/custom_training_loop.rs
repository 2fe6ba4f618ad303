//! A custom training loop: gradients accumulated over several backward passes, validation on the plain device, records
//! saved on the way, and a run that resumes from them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::module::Module;
use burn::tensor::Device;
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::Images;
use burn_remat_examples::models::ResNet;
use burn_remat_examples::tasks::{Accumulation, SEED, Task, accuracy};
use clap::Parser;

/// Train a residual network in a custom training loop. Run it again with `--records` to continue where it stopped.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Keep records in this folder, and resume from them. Default: a temporary folder, and a resumed run at the end.
    #[arg(long)]
    records: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let common = &arguments.common;
    let plain = common.device()?;
    // The line that burn-remat needs.
    let device = plain.remat(common.config("40 MiB"))?;

    let steps = common.steps(60);
    match &arguments.records {
        Some(folder) => train(common, &device, &plain, steps, folder)?,
        None => {
            let folder = std::env::temp_dir().join(format!("burn-remat-records-{}", std::process::id()));
            // The second run finds the records of the first.
            let runs = [steps / 2, steps - steps / 2].map(|steps| train(common, &device, &plain, steps, &folder));
            std::fs::remove_dir_all(&folder)?;
            runs.into_iter().collect::<Outcome<Vec<()>>>()?;
        }
    }
    println!("\n{}", device.remat_report()?);
    Ok(())
}

fn train(common: &Common, device: &Device, plain: &Device, steps: usize, folder: &Path) -> Outcome {
    let (train, valid) = Images::digits()?.split(200);
    device.seed(SEED);
    let mut task = Accumulation::new(train, &device.clone().autodiff());
    let first = load(&mut task, folder)?;

    let progress = common.progress(device, steps);
    for step in first..first + steps {
        // Without this line the engine finds the steps by itself; with it, it knows where each begins.
        device.remat_mark_step();
        let loss;
        (task, loss) = task.step(step, common.batch_size(32));
        progress.step(loss)?;
        if (step + 1) % 20 == 0 || step + 1 == first + steps {
            save(&task, step + 1, folder)?;
            progress.say(format!("step {:3}: {:.1}% correct", step + 1, 100.0 * validate(&task.model, &valid, plain)?));
        }
    }
    Ok(())
}

/// Validation needs no gradients and little memory: it runs on the plain device.
fn validate(model: &ResNet, images: &Images, plain: &Device) -> Outcome<f32> {
    let model = model.valid().to_device(plain);
    Ok(accuracy(images, 50, plain, |images| model.forward(images))?)
}

fn save(task: &Accumulation, steps: usize, folder: &Path) -> Outcome {
    std::fs::create_dir_all(folder)?;
    task.model.clone().save_file(folder.join("model"))?;
    task.optimizer.save(folder.join("optimizer"))?;
    std::fs::write(folder.join("steps"), steps.to_string())?;
    Ok(())
}

/// Loads the records in `folder`, if there are any, and returns the number of steps that were trained before.
fn load(task: &mut Accumulation, folder: &Path) -> Outcome<usize> {
    let Ok(steps) = std::fs::read_to_string(folder.join("steps")) else { return Ok(0) };
    let steps = steps.trim().parse().map_err(|error| format!("{}: {error}", folder.join("steps").display()))?;
    task.model = task.model.clone().try_load_file(folder.join("model"))?;
    task.optimizer = task.optimizer.clone().load(folder.join("optimizer"))?;
    println!("resuming after step {steps}");
    Ok(steps)
}
