//! What the examples share on the command line: flags, progress, errors.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use burn_remat::{Budget, RematConfig, RematExt};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::device;

/// How long the planner may take unless something else is asked for: less in a quick run.
pub fn plan_time(is_quick: bool) -> Duration {
    if is_quick { Duration::from_millis(300) } else { Duration::from_secs(10) }
}

/// The result of an example.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Runs an example: turns on logging, prints errors in words to the error stream, and then returns exit code 2.
pub fn main(run: impl FnOnce() -> Outcome) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn,highs=error")).init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The flags of every example.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Memory budget: `512 MiB`, `8GB`, bytes, a share of what the first step takes such as `60%`, of what is free such as
    /// `80% free`, or `unlimited`. Default: less than the example would take.
    #[arg(long, allow_hyphen_values = true)]
    budget: Option<Budget>,
    /// Samples per step. Default: the example's own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Training steps. Default: the example's own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
    /// A few steps, to check that everything works.
    #[arg(long)]
    quick: bool,
}

impl Common {
    /// The requested device, without a budget.
    ///
    /// # Errors
    ///
    /// What the name should have been, or which feature to build with.
    pub fn device(&self) -> Result<Device, String> {
        device::by_name(&self.device)
    }

    /// The name of the requested device.
    pub fn device_name(&self) -> &str {
        &self.device
    }

    /// The requested budget, or `usual`, with the engine's defaults; a quick run plans for one second and leaves no plan on
    /// disk.
    pub fn config(&self, usual: &str) -> RematConfig {
        self.planned(self.budget.map_or_else(|| RematConfig::new(usual), RematConfig::new))
    }

    /// The requested budget.
    pub fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// `config` with the time for planning; a quick run leaves no plan on disk.
    pub fn planned(&self, config: RematConfig) -> RematConfig {
        let config = config.with_time_limit(self.time_limit());
        if self.quick { config.without_cache() } else { config }
    }

    /// The time limit of the planner: see [`plan_time`].
    pub fn time_limit(&self) -> Duration {
        plan_time(self.quick)
    }

    /// Whether a few steps are enough.
    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// Samples per step: as requested, or `usual`.
    pub fn batch_size(&self, usual: usize) -> usize {
        self.batch_size.map_or(usual, |batch_size| batch_size as usize)
    }

    /// Training steps: as requested, or `usual`; ten in a quick run.
    pub fn steps(&self, usual: usize) -> usize {
        self.steps.map_or(if self.quick { 10 } else { usual }, |steps| steps as usize)
    }

    /// A progress bar over training steps on `device`.
    pub fn progress(&self, device: &Device, steps: usize) -> Progress {
        let bar = ProgressBar::new(steps as u64).with_style(style("{bar:30} step {pos}/{len}  {msg}  {elapsed}"));
        Progress { bar, device: device.clone(), waits: self.quick }
    }
}

/// A style for `indicatif`, which rejects only malformed templates.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows the loss of every step.
pub struct Progress {
    bar: ProgressBar,
    device: Device,
    waits: bool,
}

impl Progress {
    /// After this many steps the engine has seen the step and is planning it.
    const WARMUP: u64 = 6;

    /// Reads the loss of a finished step, and shows it.
    ///
    /// # Errors
    ///
    /// What the device reports, such as a strict budget that is exceeded.
    pub fn step(&self, loss: Tensor<1>) -> Result<f32, String> {
        let loss = read(loss)?;
        self.bar.set_message(format!("loss {loss:.4}"));
        self.bar.inc(1);
        if self.waits && self.bar.position() == Self::WARMUP {
            // A quick run would end before there is a plan.
            self.device.remat_wait_for_plan(Duration::from_secs(30)).map_err(|error| error.to_string())?;
        }
        Ok(loss)
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: impl AsRef<str>) {
        // Without a terminal the bar is hidden, and would swallow the line.
        self.bar.suspend(|| println!("{}", line.as_ref()));
    }
}

/// Writes the file that an option `--json` names.
///
/// # Errors
///
/// A file that cannot be written.
pub fn save_json(file: &Path, value: &Value) -> Result<(), String> {
    std::fs::write(file, format!("{value:#}\n")).map_err(|error| format!("--json {}: {error}", file.display()))
}

/// Reads a loss.
///
/// # Errors
///
/// What the device reports.
pub fn read(loss: Tensor<1>) -> Result<f32, String> {
    let data = loss.try_into_data().map_err(|error| error.to_string())?;
    Ok(data.iter::<f32>().next().unwrap_or(f32::NAN))
}
