//! A transformer encoder that recognises which document a passage comes from, trained by Burn's `Learner` with its dashboard.

use std::path::PathBuf;
use std::process::ExitCode;

use burn::optim::AdamConfig;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{Learner, SupervisedTraining};
use burn_remat::{MemoryMetric, RecomputingMetric, RematExt};
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::Passages;
use burn_remat_examples::learner::loader;
use burn_remat_examples::models::TextClassifier;
use burn_remat_examples::tasks::SEED;
use clap::Parser;

/// Train a transformer encoder to distinguish documents. In a terminal it shows Burn's dashboard.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Keep metrics and records in this folder. Default: a temporary one.
    #[arg(long)]
    artifacts: Option<PathBuf>,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let common = &arguments.common;
    // The line that burn-remat needs. What follows is plain Burn, apart from two metrics.
    let device = common.device()?.remat(common.config("32 MiB"))?;

    let passages = Passages::documents();
    let classes = passages.classes();
    let (mut train, valid) = passages.split();
    if common.is_quick() {
        train.truncate(320);
    }
    let batch_size = common.batch_size(16);
    let epochs = common.steps(300).div_ceil(train.len().div_ceil(batch_size));
    let temporary = std::env::temp_dir().join(format!("burn-remat-text-{}", std::process::id()));
    let folder = arguments.artifacts.as_ref().unwrap_or(&temporary);
    device.seed(SEED);
    let model = TextClassifier::new(classes, &device.clone().autodiff());
    let result = SupervisedTraining::new(folder, loader(train, batch_size), loader(valid, batch_size))
        .metrics((
            AccuracyMetric::new(),
            LossMetric::new(),
            MemoryMetric::new(&device)?,
            RecomputingMetric::new(&device)?,
        ))
        // `cli::main` has already set up a logger.
        .with_application_logger(None)
        .with_default_checkpointers()
        .num_epochs(epochs)
        .summary()
        .launch(Learner::new(model, AdamConfig::new().init(), 1e-3));

    if arguments.artifacts.is_none() {
        std::fs::remove_dir_all(&temporary)?;
    }
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }
    // The renderer prints its summary when it is dropped.
    drop(result.renderer);
    let report = device.remat_report()?;
    println!("\n{report}\n{}", report.summary());
    Ok(())
}
