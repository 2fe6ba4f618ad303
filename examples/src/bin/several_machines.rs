//! Trains one model on several served devices, each with its own memory budget, with Burn's `Learner` and its
//! `ExecutionStrategy`. Start `serve --websocket ..` once for each device, on this machine or others, and pass their addresses.

use std::path::PathBuf;
use std::process::ExitCode;

use burn::optim::AdamConfig;
use burn::remote::RemoteHost;
use burn::tensor::Device;
use burn::tensor::distributed::{DistributedConfig, ReduceOperation};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ExecutionStrategy, Learner, LearnerSummary, MultiDeviceOptim, SupervisedTraining};
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::data::Passages;
use burn_remat_examples::learner::loader;
use burn_remat_examples::models::TextClassifier;
use burn_remat_examples::tasks::SEED;
use clap::{Parser, ValueEnum};

/// Train a transformer encoder on several served devices at once.
#[derive(Parser)]
struct Arguments {
    /// An address printed by `serve --websocket`, such as ws://127.0.0.1:3000; once for each server.
    #[arg(long = "server", required = true, value_name = "URL")]
    servers: Vec<String>,
    /// The token of the servers, if they require one (start them with the same `--token`).
    #[arg(long, env = "REMAT_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// How gradients are combined and parameters updated.
    #[arg(long, value_enum, default_value = "main")]
    strategy: Strategy,
    /// Samples per step and device.
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: u32,
    /// The number of passes through all data.
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// A few steps on part of the data.
    #[arg(long)]
    quick: bool,
    /// Keep metrics in this folder. Default: a temporary one.
    #[arg(long)]
    artifacts: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Strategy {
    /// Gradients go to the first server, which updates all parameters.
    Main,
    /// Each parameter is updated on one of the servers.
    Sharded,
    /// Every server updates a copy of its own after an all-reduce.
    Ddp,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let mut devices = Vec::new();
    for url in &arguments.servers {
        let host = RemoteHost::websocket(url);
        let host = match &arguments.token {
            Some(token) => host.with_credential(token.as_str()),
            None => host,
        };
        let device = Device::remote_options(&host).init().map_err(|error| format!("{url}: {error}"))?;
        device.remat_enable_remote_marks();
        device.seed(SEED);
        devices.push(device);
    }

    let passages = Passages::documents();
    let model = TextClassifier::new(passages.classes(), &devices[0].clone().autodiff());
    let (mut train, mut valid) = passages.split();
    if arguments.quick {
        train.truncate(96);
        valid.truncate(16);
    }
    let batch_size = arguments.batch_size as usize;
    let strategy = match arguments.strategy {
        Strategy::Main => ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimMainDevice),
        Strategy::Sharded => ExecutionStrategy::multi(devices, MultiDeviceOptim::OptimSharded),
        Strategy::Ddp => {
            let devices = devices.into_iter().map(Device::autodiff).collect();
            ExecutionStrategy::ddp(devices, DistributedConfig { all_reduce_op: ReduceOperation::Mean })
        }
    };
    let temporary = std::env::temp_dir().join(format!("burn-remat-machines-{}", std::process::id()));
    let folder = arguments.artifacts.as_ref().unwrap_or(&temporary);
    let result = SupervisedTraining::new(folder, loader(train, batch_size), loader(valid, batch_size))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        // `cli::main` has already set up a logger.
        .with_application_logger(None)
        .with_training_strategy(strategy.into())
        .num_epochs(arguments.epochs as usize)
        .launch(Learner::new(model, AdamConfig::new().init(), 1e-3));

    let summary = LearnerSummary::new(folder, &["Loss"]);
    if arguments.artifacts.is_none() {
        std::fs::remove_dir_all(&temporary)?;
    }
    if let Some(error) = result.error {
        return Err(error.to_string().into());
    }
    // The dashboard releases the terminal when it is dropped.
    drop(result.renderer);
    let metrics = summary?.metrics;
    for (split, metrics) in [("train", metrics.train), ("valid", metrics.valid)] {
        for epoch in metrics.iter().flat_map(|metric| &metric.entries) {
            println!("{split} loss of epoch {}: {}", epoch.step, epoch.value);
        }
    }
    Ok(())
}
