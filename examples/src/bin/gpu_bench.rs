//! What a memory budget costs on a device, beside plain Burn and Burn's own checkpointing: memory and step time of a
//! ResNet-50, a U-Net and a transformer of GPT-2's small size, as a table and as JSON.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_remat::{DisplayBytes, RematConfig, RematExt, RematReport, largest_batch};
use burn_remat_examples::cli::{self, Outcome};
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

/// On a CPU device memory is the process's heap.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Measure what memory budgets cost on a device, beside plain Burn and Burn's balanced checkpointing.
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
    /// Steps before those; at their end the run waits for the planner.
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
    /// Small models, to see that everything works.
    #[arg(long)]
    quick: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let percent: f64 = text.trim_end_matches('%').parse().map_err(|_| "write shares as `50%`".to_owned())?;
    if percent > 0.0 && percent <= 100.0 { Ok(percent / 100.0) } else { Err("between 0% and 100%".to_owned()) }
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

    /// Trains on `device`, which is one with autodiff, on the same made-up data in every step.
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

/// Numbers below `most`, each as often as the others.
fn labels<const D: usize>(shape: [usize; D], most: usize) -> TensorData {
    let count = shape.iter().product::<usize>() as i64;
    TensorData::new((0..count).map(|at| at * 7919 % most as i64).collect::<Vec<_>>(), shape)
}

/// One way of training, measured.
struct Row {
    name: String,
    step_ms: f64,
    digest: u64,
    /// Whether all results are, to the last bit, those of what runs the same kernels without a budget.
    identical: bool,
    /// Most bytes of tensors at once, as an engine counts them.
    tensors: Option<u64>,
    /// Most bytes of the device's memory: the heap on a CPU device, what the pool has reserved elsewhere.
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
    for &model in models {
        let batch = arguments.batch_size.map_or(model.batch_size(arguments.quick), |batch| batch as usize);
        let bench = Bench { arguments, device: &device, model, batch };
        results.push(bench.run()?);
    }
    if let Some(file) = &arguments.json {
        let text = format!("{:#}\n", json!({ "device": arguments.device, "results": results }));
        std::fs::write(file, text).map_err(|error| format!("--json {}: {error}", file.display()))?;
    }
    Ok(())
}

/// The measurements of one model.
struct Bench<'a> {
    arguments: &'a Arguments,
    device: &'a Device,
    model: Model,
    batch: usize,
}

impl Bench<'_> {
    fn run(&self) -> Outcome<Value> {
        let plain = self.device.clone().autodiff();
        let balanced = plain.clone().gradient_checkpointing();
        let mut rows = vec![self.measure("plain Burn", &plain)?];
        let mut own = self.measure("Burn's balanced checkpointing", &balanced)?;
        let store_all = self.measure("remat, unlimited", &self.remat("unlimited".into())?)?;
        let Some(peak) = store_all.tensors else { return Err("the device gives no report".into()) };
        rows[0].tensors = Some(peak);
        // What Burn's own checkpointing holds, counted by an engine that evicts nothing.
        let counting = self.remat("unlimited".into())?.gradient_checkpointing();
        self.train(3, &counting, &mut |_, _| {})?;
        own.tensors = Some(counting.remat_report()?.peak_bytes);

        let mut budgets: Vec<(String, u64)> = Vec::new();
        if let Some(bytes) = own.tensors.filter(|&bytes| bytes < peak) {
            budgets.push(("remat, as much as balanced".to_owned(), bytes));
        }
        for share in &self.arguments.budgets {
            budgets.push((format!("remat, {:.0}%", 100.0 * share), (peak as f64 * share) as u64));
        }
        rows.extend([own, store_all]);
        for (name, budget) in budgets {
            let config = RematConfig::new(budget).with_time_limit(self.time_limit()).without_cache();
            rows.push(self.measure(&name, &self.remat(config)?)?);
        }
        // Fused kernels are others than those of single operations.
        let kernels_differ = device::runs_other_kernels(self.device, self.arguments.fusion);
        let digests = [rows[0].digest, rows[2].digest];
        for (at, row) in rows.iter_mut().enumerate() {
            row.identical = row.digest == digests[usize::from(kernels_differ && at >= 2)];
        }
        self.print(&rows);
        let largest = self.arguments.memory.as_deref().map(|memory| self.largest(memory)).transpose()?;
        Ok(self.to_json(&rows, largest))
    }

    fn remat(&self, config: RematConfig) -> Outcome<Device> {
        let config = if self.arguments.fusion { config.with_fusion() } else { config };
        Ok(self.device.remat(config)?.autodiff())
    }

    fn time_limit(&self) -> Duration {
        Duration::from_secs(self.arguments.time_limit.unwrap_or(if self.arguments.quick { 1 } else { 10 }))
    }

    fn train(&self, steps: usize, device: &Device, seen: &mut dyn FnMut(usize, f32)) -> Result<Run, String> {
        self.model.train(self.arguments.quick, self.batch, steps, device, seen)
    }

    /// Trains on `device`.
    fn measure(&self, name: &str, device: &Device) -> Outcome<Row> {
        let warmup = self.arguments.warmup as usize;
        let steps = self.arguments.steps.unwrap_or(if self.arguments.quick { 2 } else { 10 }) as usize;
        let bar = ProgressBar::new_spinner().with_message(format!("{}, {name}", self.model.name()));
        bar.enable_steady_tick(Duration::from_millis(200));
        self.device.memory_cleanup();
        let before = Heap::start();
        let run = self.train(warmup + steps, device, &mut |step, _| {
            if step + 1 == warmup {
                // A device without an engine has nothing to wait for.
                let _ = device.remat_wait_for_plan(self.time_limit() + Duration::from_secs(60));
                // What the first steps and autotune took and no longer use is nobody's.
                self.device.memory_cleanup();
                Heap::start();
            }
        })?;
        bar.finish_and_clear();
        let pool = self.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        let report = device.remat_report().ok();
        Ok(Row {
            name: name.to_owned(),
            // The plan is in force from the step after the wait on.
            step_ms: run.median_ms(warmup + 1),
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
            "{:32}{:>12}{:>12}{:>8}{:>14}{:>14}{:>12}{:>10}{:>7}",
            "", "tensors", "ms/step", "", "overhead", "at least", "memory", "", "bits"
        );
        let first = &rows[0];
        for row in rows {
            let share = 100.0 * row.memory as f64 / first.memory.max(1) as f64;
            let plan = row.report.as_ref().and_then(|report| report.plan.as_ref());
            let percent = |share: f64| format!("{:.1}%", 100.0 * share);
            let overhead = plan.and_then(|plan| plan.measured_overhead).map_or_else(String::new, percent);
            let bound = plan.and_then(|plan| plan.lower_bound).map_or_else(String::new, percent);
            println!(
                "{:32}{:>12}{:>12.1}{:>7.2}x{overhead:>14}{bound:>14}{:>12}{:>10}{:>7}",
                row.name,
                row.tensors.map_or_else(String::new, |bytes| DisplayBytes(bytes).to_string()),
                row.step_ms,
                row.step_ms / first.step_ms,
                DisplayBytes(row.memory).to_string(),
                format!("{share:.0}%"),
                if row.identical { "same" } else { "other" }
            );
        }
        println!();
    }

    /// The largest batch within `memory`, without and with recomputation of at most a whole step.
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
        let row = |row: &Row| {
            json!({
                "name": row.name,
                "step_ms": row.step_ms,
                "tensor_peak_bytes": row.tensors,
                "memory_peak_bytes": row.memory,
                "identical": row.identical,
                "report": row.report,
            })
        };
        json!({
            "model": self.model.name(),
            "batch_size": self.batch,
            "rows": rows.iter().map(row).collect::<Vec<_>>(),
            "largest_batch": largest,
        })
    }
}
