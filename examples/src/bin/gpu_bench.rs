//! What a memory budget costs on a device, compared with plain Burn and Burn's own checkpointing: memory and step time of a
//! ResNet-50, a U-Net and a transformer of GPT-2's small size, as a table and as JSON.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_remat::{AdvancedConfig, DisplayBytes, RematConfig, RematExt, RematReport, largest_batch};
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::contenders::labels;
use burn_remat_examples::device;
use burn_remat_examples::heap::Heap;
use burn_remat_examples::models::{CharTransformer, ResNet50, TransformerSize, UNet};
use burn_remat_examples::tasks::SEED;
use burn_remat_examples::training::{Run, train};
use clap::{Parser, ValueEnum};
use indicatif::ProgressBar;
use peak_alloc::PeakAlloc;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

/// On a CPU device, memory is the heap of the process.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Measure what memory budgets cost on a device, compared with plain Burn and Burn's balanced checkpointing.
#[derive(Parser)]
struct Arguments {
    /// flex, wgpu, vulkan or cuda.
    #[arg(long, default_value = "flex")]
    device: String,
    /// A model; may be given several times. Default: all three.
    #[arg(long, value_enum)]
    model: Vec<Model>,
    /// Images or sequences per step. Default: 64, 16 and 8, or 4 with `--quick`.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Budgets, as shares of what a step holds without one.
    #[arg(long, value_delimiter = ',', default_value = "70%,50%,33%", value_parser = share)]
    budgets: Vec<f64>,
    /// Steps that are timed. Default: 10, or 2 with `--quick`.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Steps before the timed ones; at their end the run waits for the planner.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(6..))]
    warmup: u32,
    /// Seconds for planning. Default: 10, or 1 with `--quick`.
    #[arg(long)]
    time_limit: Option<u64>,
    /// Also find the largest batch within this memory, such as `16 GiB`.
    #[arg(long)]
    memory: Option<String>,
    /// Write the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Run the remat devices' operations through Burn's kernel fusion (on a GPU, in a build with the feature `fusion`).
    #[arg(long)]
    fusion: bool,
    /// Small models, to check that everything works.
    #[arg(long)]
    quick: bool,
}

impl Arguments {
    fn timed_steps(&self) -> usize {
        self.steps.unwrap_or(if self.quick { 2 } else { 10 }) as usize
    }
}

fn share(text: &str) -> Result<f64, String> {
    let percent: f64 = text.trim_end_matches('%').parse().map_err(|_| "write shares like `50%`".to_owned())?;
    if percent > 0.0 && percent <= 100.0 { Ok(percent / 100.0) } else { Err("must be from 0% to 100%".to_owned()) }
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    /// ResNet-50 on images of 224 pixels.
    Resnet50,
    /// U-Net on images of 256 pixels.
    Unet,
    /// A transformer of GPT-2's small size on sequences of 512 symbols.
    Gpt2,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Self::Resnet50 => "resnet50",
            Self::Unet => "unet",
            Self::Gpt2 => "gpt2",
        }
    }

    fn batch_size(self, quick: bool) -> usize {
        match self {
            _ if quick => 4,
            Self::Resnet50 => 64,
            Self::Unet => 16,
            Self::Gpt2 => 8,
        }
    }

    /// Trains on `device`, which has autodiff, with the same artificial data in every step.
    fn train(
        self,
        quick: bool,
        batch: usize,
        steps: usize,
        device: &Device,
        seen: &mut dyn FnMut(usize, f32),
    ) -> Result<Run, String> {
        let mut random = StdRng::seed_from_u64(SEED);
        device.seed(SEED);
        match self {
            Self::Resnet50 => {
                let (side, width, classes) = if quick { (32, 8, 10) } else { (224, 64, 1000) };
                let images =
                    TensorData::random::<f32, _, _>([batch, 3, side, side], Distribution::Default, &mut random);
                let labels = labels([batch], classes);
                train(ResNet50::new(classes, width, device), steps, seen, |model, _| {
                    let labels = Tensor::<1, Int>::from_data(labels.clone(), device);
                    model.loss(Tensor::from_data(images.clone(), device), labels)
                })
            }
            Self::Unet => {
                let (side, levels) =
                    if quick { (32, &[8, 16, 32, 64][..]) } else { (256, &[64, 128, 256, 512, 1024][..]) };
                let images =
                    TensorData::random::<f32, _, _>([batch, 1, side, side], Distribution::Default, &mut random);
                train(UNet::with_channels(levels, device), steps, seen, |model, _| {
                    model.loss(Tensor::from_data(images.clone(), device))
                })
            }
            Self::Gpt2 => {
                let size = if quick {
                    TransformerSize { layers: 3, width: 64, heads: 4, length: 64, symbols: 256 }
                } else {
                    TransformerSize { layers: 12, width: 768, heads: 12, length: 512, symbols: 50257 }
                };
                let text = labels([batch, size.length], size.symbols);
                train(CharTransformer::with_size(&size, device), steps, seen, |model, _| {
                    let text = Tensor::<2, Int>::from_data(text.clone(), device);
                    model.loss(text.clone(), text)
                })
            }
        }
    }
}

/// One way of training.
struct Row {
    name: String,
    /// Its figures, or what went wrong: usually, it ran out of memory.
    measured: Result<Figures, String>,
}

impl Row {
    fn figures(&self) -> Option<&Figures> {
        self.measured.as_ref().ok()
    }
}

/// What was measured of one way of training.
struct Figures {
    step_ms: f64,
    /// Each of the step times of which `step_ms` is the median.
    steps_ms: Vec<f64>,
    digest: u64,
    /// Whether all results are, to the last bit, those of a run of the same kernels without a budget.
    identical: bool,
    /// Most bytes of tensors at once, as an engine counts them.
    tensors: Option<u64>,
    /// Most bytes of the device's memory: the heap on a CPU device, what the pool has reserved on others.
    memory: u64,
    report: Option<RematReport>,
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let device = device::by_name(&arguments.device)?;
    let models = if arguments.model.is_empty() { Model::value_variants() } else { &arguments.model };
    let mut results = Vec::new();
    let mut failed = Vec::new();
    for &model in models {
        let batch = arguments.batch_size.map_or(model.batch_size(arguments.quick), |batch| batch as usize);
        let bench = Bench { arguments, device: &device, model, batch };
        let rows = bench.run();
        failed.extend(
            rows.iter().filter(|row| row.measured.is_err()).map(|row| format!("{}, {}", model.name(), row.name)),
        );
        bench.print(&rows);
        let largest = arguments.memory.as_deref().map(|memory| bench.largest(memory)).transpose();
        if let Err(error) = &largest {
            failed.push(format!("{}, largest batch: {error}", model.name()));
        }
        results.push(bench.to_json(&rows, largest.ok().flatten()));
        // Written after every model: what has been measured stays if a later one ends the process.
        if let Some(file) = &arguments.json {
            cli::save_json(file, &json!({ "setup": setup(arguments), "results": results }))?;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("not measured: {}", failed.join("; ")).into()) }
}

/// What the figures depend on besides the machine; the reports name the device.
fn setup(arguments: &Arguments) -> Value {
    json!({
        "device": arguments.device,
        "version": env!("CARGO_PKG_VERSION"),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "fusion_in_build": cfg!(feature = "fusion"),
        "autotune_in_build": cfg!(feature = "autotune"),
        "fusion": arguments.fusion,
        "quick": arguments.quick,
        "warmup": arguments.warmup,
        "steps": arguments.timed_steps(),
    })
}

impl Figures {
    /// Most bytes that the pool had in use, divided by those that the plan predicts for tensors.
    fn pool_of_plan(&self) -> Option<f64> {
        let report = self.report.as_ref()?;
        Some(report.device_peak_bytes? as f64 / report.plan.as_ref()?.predicted_peak_bytes.max(1) as f64)
    }
}

/// The measurements of one model.
struct Bench<'a> {
    arguments: &'a Arguments,
    device: &'a Device,
    model: Model,
    batch: usize,
}

impl Bench<'_> {
    fn run(&self) -> Vec<Row> {
        let plain = self.device.clone().autodiff();
        let balanced = plain.clone().gradient_checkpointing();
        let mut first = self.row("plain Burn", || Ok(plain));
        let mut own = self.row("Burn's balanced checkpointing", || Ok(balanced));
        let store_all = self.row("remat, unlimited", || self.remat("unlimited".into()));
        let peak = store_all.figures().and_then(|row| row.tensors);
        if let Ok(row) = &mut first.measured {
            row.tensors = peak;
        }
        if let Ok(row) = &mut own.measured {
            row.tensors = self.held_by_balanced();
        }
        let mut budgets: Vec<(String, u64)> = Vec::new();
        if let Some(peak) = peak {
            let bytes = own.figures().and_then(|row| row.tensors).filter(|&bytes| bytes < peak);
            budgets.extend(bytes.map(|bytes| ("remat, as much as balanced".to_owned(), bytes)));
            let share = |share: &f64| (format!("remat, {:.0}%", 100.0 * share), (peak as f64 * share) as u64);
            budgets.extend(self.arguments.budgets.iter().map(share));
        }
        let mut rows = vec![first, own, store_all];
        for (name, budget) in budgets {
            let config = RematConfig::new(budget).with_time_limit(self.time_limit()).without_cache();
            rows.push(self.row(&name, || self.remat(config)));
        }
        // Fused kernels differ from those of single operations.
        let kernels_differ = device::runs_other_kernels(self.device, self.arguments.fusion);
        let digests = [0, 2].map(|at| rows[at].figures().map(|row| row.digest));
        for (at, row) in rows.iter_mut().enumerate() {
            if let Ok(row) = &mut row.measured {
                row.identical = Some(row.digest) == digests[usize::from(kernels_differ && at >= 2)];
            }
        }
        rows
    }

    /// What Burn's own checkpointing holds, counted by an engine that evicts nothing.
    fn held_by_balanced(&self) -> Option<u64> {
        let counting = self.remat("unlimited".into()).ok()?.gradient_checkpointing();
        self.train(3, &counting, &mut |_, _| {}).ok()?;
        Some(counting.remat_report().ok()?.peak_bytes)
    }

    /// Trains on a device; plain Burn panics if memory runs out.
    fn row(&self, name: &str, device: impl FnOnce() -> Outcome<Device>) -> Row {
        let measure = || self.measure(name, &device()?);
        let measured = match catch_unwind(AssertUnwindSafe(measure)) {
            Ok(measured) => measured.map_err(|error| error.to_string()),
            Err(_) => Err("it panicked: see the message above".to_owned()),
        };
        // A spinner shows nothing if the output is not a terminal.
        match &measured {
            Ok(figures) => eprintln!("{}, {name}: {:.1} ms per step", self.model.name(), figures.step_ms),
            Err(error) => eprintln!("{}, {name}: {}", self.model.name(), in_one_line(error)),
        }
        Row { name: name.to_owned(), measured }
    }

    fn remat(&self, config: RematConfig) -> Outcome<Device> {
        let config = if self.arguments.fusion { config.advanced(AdvancedConfig::with_fusion) } else { config };
        Ok(self.device.remat(config)?.autodiff())
    }

    fn time_limit(&self) -> Duration {
        self.arguments.time_limit.map_or_else(|| cli::plan_time(self.arguments.quick), Duration::from_secs)
    }

    fn train(&self, steps: usize, device: &Device, seen: &mut dyn FnMut(usize, f32)) -> Result<Run, String> {
        self.model.train(self.arguments.quick, self.batch, steps, device, seen)
    }

    /// Trains on `device`.
    fn measure(&self, name: &str, device: &Device) -> Outcome<Figures> {
        let warmup = self.arguments.warmup as usize;
        let steps = self.arguments.timed_steps();
        let bar = ProgressBar::new_spinner().with_message(format!("{}, {name}", self.model.name()));
        bar.enable_steady_tick(Duration::from_millis(200));
        self.device.memory_cleanup();
        let before = Heap::start();
        let run = self.train(warmup + steps, device, &mut |step, _| {
            if step + 1 == warmup {
                // A device without an engine has nothing to wait for.
                let _ = device.remat_wait_for_plan(self.time_limit() + Duration::from_secs(60));
                // What the first steps and autotune took and no longer use must not count.
                self.device.memory_cleanup();
                Heap::start();
            }
            if step == warmup {
                // The plan is in force from this step on: what was held before must not count.
                let _ = device.remat_reset_report();
            }
        })?;
        bar.finish_and_clear();
        let pool = self.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        let report = device.remat_report().ok();
        Ok(Figures {
            // The plan is in force from the step after the wait.
            step_ms: run.median_ms(warmup + 1),
            steps_ms: run.step_ms.get(warmup + 1..).unwrap_or_default().to_vec(),
            digest: run.digest,
            identical: false,
            tensors: report.as_ref().map(|report| report.peak_bytes),
            memory: pool.unwrap_or_else(|| Heap::most().saturating_sub(before) as u64),
            report,
        })
    }

    fn print(&self, rows: &[Row]) {
        println!("{}, batch of {}, on {}\n", self.model.name(), self.batch, self.arguments.device);
        println!(
            "{:32}{:>12}{:>12}{:>8}{:>10}{:>10}{:>10}{:>8}{:>12}{:>8}{:>11}{:>7}",
            "", "tensors", "ms/step", "", "planned", "overhead", "at least", "/plan", "memory", "", "pool/plan", "bits"
        );
        let first = rows[0].figures();
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        let or_none = |text: Option<String>| text.unwrap_or_default();
        for row in rows {
            let figures = match &row.measured {
                Ok(figures) => figures,
                Err(error) => {
                    println!("{:32}  {}", row.name, in_one_line(error));
                    continue;
                }
            };
            let plan = figures.report.as_ref().and_then(|report| report.plan.as_ref());
            let share = first.map(|first| 100.0 * figures.memory as f64 / first.memory.max(1) as f64);
            println!(
                "{:32}{:>12}{:>12.1}{:>8}{:>10}{:>10}{:>10}{:>8}{:>12}{:>8}{:>11}{:>7}",
                row.name,
                or_none(figures.tensors.map(|bytes| DisplayBytes(bytes).to_string())),
                figures.step_ms,
                or_none(first.map(|first| format!("{:.2}x", figures.step_ms / first.step_ms))),
                or_none(plan.map(|plan| percent(plan.predicted_overhead))),
                or_none(plan.and_then(|plan| plan.measured_overhead).map(percent)),
                or_none(plan.and_then(|plan| plan.lower_bound).map(percent)),
                or_none(self.time_of_plan(rows, figures).map(|share| format!("{share:.2}x"))),
                DisplayBytes(figures.memory).to_string(),
                or_none(share.map(|share| format!("{share:.0}%"))),
                or_none(figures.pool_of_plan().map(percent)),
                if figures.identical { "same" } else { "other" }
            );
        }
        println!();
    }

    /// Step time divided by the one that follows from the plan: that of the unlimited device plus the overhead.
    fn time_of_plan(&self, rows: &[Row], figures: &Figures) -> Option<f64> {
        let plan = figures.report.as_ref()?.plan.as_ref()?;
        Some(figures.step_ms / (rows[2].figures()?.step_ms * (1.0 + plan.predicted_overhead)))
    }

    /// The largest batch within `memory`, without recomputation, and with at most a whole step's time of it.
    fn largest(&self, memory: &str) -> Outcome<Value> {
        let quick = self.arguments.quick;
        let found = largest_batch(self.device, memory, 1.0, |device, batch| {
            let device = device.clone().autodiff();
            if let Err(error) = self.model.train(quick, batch, 4, &device, &mut |_, _| {}) {
                eprintln!("{}, batch {batch}: {error}", self.model.name());
            }
        })?;
        println!(
            "largest batch within {memory}: {} without recomputation, {} with ({:.1}% overhead planned)\n",
            found.store_all_batch,
            found.batch,
            100.0 * found.predicted_overhead
        );
        Ok(serde_json::to_value(found)?)
    }

    fn to_json(&self, rows: &[Row], largest: Option<Value>) -> Value {
        let row = |row: &Row| match &row.measured {
            Err(error) => json!({ "name": row.name, "error": error }),
            Ok(figures) => json!({
                "name": row.name,
                "step_ms": figures.step_ms,
                "steps_ms": figures.steps_ms,
                "step_of_planned": self.time_of_plan(rows, figures),
                "tensor_peak_bytes": figures.tensors,
                "memory_peak_bytes": figures.memory,
                "pool_of_planned": figures.pool_of_plan(),
                "identical": figures.identical,
                "report": figures.report,
            }),
        };
        json!({
            "model": self.model.name(),
            "batch_size": self.batch,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
            "largest_batch": largest,
        })
    }
}

/// A backend's error message in one line, without its backtraces.
fn in_one_line(error: &str) -> String {
    let lines = error.lines().map(str::trim).filter(|line| !line.is_empty() && !line.contains("backtrace"));
    let mut told: Vec<&str> = lines.collect();
    told.dedup();
    told.join(" ")
}
