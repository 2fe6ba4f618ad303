//! Teaches a frozen language model a new text with low-rank adapters (LoRA), three times on the same data: on plain Burn, on a remat device without
//! a limit (store-all), and on a remat device under the budget.
//!
//! The model is a decoder like Llama at character level: RMS norm, rotary positions, SwiGLU, a causal mask. First all its parameters learn the
//! repository's documents, on plain Burn. Then they are frozen (with `--quantized` also rounded to four bits each, as in QLoRA), and
//! adapters beside the projections of attention (with `--feed-forward` beside all projections) learn another text. `--burn-adapters` uses Burn's own
//! adapters, which are added to the weights rather than to the outputs of projections.
//!
//! At the end the adapters are saved, loaded into a fresh model and merged into its weights. The program prints:
//!
//! - a table like that of `train`, and whether losses, gradients and parameters are those of plain Burn, to the last bit;
//! - what activations and gradients take: the peak minus what is held between steps (the base, adapters, the optimizer's state);
//! - the loss on a batch of the text that was not trained on, before and after;
//! - whether the loaded model has the outputs of the trained one, bit for bit, and how much those of the merged one differ. The merged model computes
//!   another sum of the same terms, `x (W + s A B)` for `x W + s (x A) B`, so it may differ by the accumulated rounding errors: at most the largest
//!   output, times the spacing of its floats, times the number of terms in a sum, for every layer.
//!
//! The exit code is 2 if any of these is wrong.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::module::Module;
use burn::tensor::Device;
use burn_remat::{Budget, RematConfig, RematExt};
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::comparison::{Comparison, Measured, Protocol, bytes};
use burn_remat_examples::data::Text;
use burn_remat_examples::device::runs_other_kernels;
use burn_remat_examples::models::{Adapt, AdapterSize, Llama, TransformerSize};
use burn_remat_examples::tasks::{Beside, FineTuning, SEED, Tuning, load_adapters, save_adapters};
use clap::Parser;
use peak_alloc::PeakAlloc;

/// Counts the heap, so that the budget can be compared with what the process really held.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Steps before the ones that are timed.
const WARMUP: usize = 6;

/// Fine-tune a frozen language model with adapters inside a memory budget, and compare with plain Burn.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Instead of a budget: the memory for activations and gradients, as a share of what plain Burn uses, above 0 and at most 1.
    #[arg(long, conflicts_with = "budget", value_parser = share)]
    activations: Option<f64>,
    /// A text file to learn. Default: the repository's measurements.
    #[arg(long)]
    text: Option<PathBuf>,
    #[command(flatten)]
    size: Size,
    /// Round the base to four bits per number (QLoRA).
    #[arg(long)]
    quantized: bool,
    /// Also add adapters to the projections of the feed-forward parts.
    #[arg(long)]
    feed_forward: bool,
    /// Use Burn's own adapters, which are added to the weights.
    #[arg(long)]
    burn_adapters: bool,
    /// Steps in which the base learns the repository's documents before it is frozen. Default: 40, in a quick run 10.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    base_steps: Option<u32>,
    /// Keep the trained adapters in this file. Default: a temporary file.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// Write the result as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The size of the model.
#[derive(clap::Args)]
struct Size {
    /// Layers. Default: 4, in a quick run 2.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Numbers per character; a multiple of twice the heads.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    width: u32,
    /// Attention heads.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    heads: u32,
    /// Characters per sequence.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    length: u32,
    /// Numbers between the two factors of an adapter.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    rank: u32,
}

/// By what share of the largest output the merged model may differ: the spacing of floats, for each term of a sum and each layer.
fn tolerance(size: &TransformerSize) -> f64 {
    f64::from(f32::EPSILON) * (size.width * size.layers) as f64
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0 and at most 1".to_owned()) }
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let common = &arguments.common;
    let plain = common.device()?;
    let text = match &arguments.text {
        Some(file) => Text::open(Some(file))?,
        None => Text::measurements(),
    };
    let base_steps = arguments.base_steps.map_or(if common.is_quick() { 10 } else { 40 }, |steps| steps as usize);
    plain.seed(SEED);
    let task = FineTuning::new(tuning(arguments)?, base_steps, text, &plain)?;

    let protocol = Protocol { steps: common.steps(40), warmup: WARMUP, time_limit: common.time_limit() };
    let (comparison, model) = compare(arguments, &task, &protocol, &plain)?;
    let checked = Checked::new(arguments.checkpoint.as_deref(), &task, &model, protocol.steps, &plain)?;
    print(&title(&task.tuning, protocol.steps), &comparison, &checked);
    if let Some(file) = &arguments.json {
        cli::save_json(file, &to_json(common.device_name(), &task.tuning, &comparison, &checked))?;
    }
    if !comparison.is_as_asked() {
        return Err("training under the budget did not give the results of plain Burn".into());
    }
    checked.verdict()
}

fn tuning(arguments: &Arguments) -> Result<Tuning, String> {
    let Size { layers, width, heads, length, rank } = arguments.size;
    let layers = layers.unwrap_or(if arguments.common.is_quick() { 2 } else { 4 });
    if width % (2 * heads) != 0 {
        return Err(format!("--width {width}: must be a multiple of twice the heads, {}", 2 * heads));
    }
    let size = |number: u32| number as usize;
    Ok(Tuning {
        size: TransformerSize {
            layers: size(layers),
            width: size(width),
            heads: size(heads),
            length: size(length),
            symbols: 256,
        },
        adapters: AdapterSize { rank: size(rank), alpha: 2.0 * f64::from(rank) },
        adapt: if arguments.feed_forward { Adapt::AttentionAndFeedForward } else { Adapt::Attention },
        beside: if arguments.burn_adapters { Beside::Weights } else { Beside::Outputs },
        quantized: arguments.quantized,
        batch_size: arguments.common.batch_size(8),
    })
}

/// Trains on the three devices. Also returns the model that was trained under the budget.
fn compare(
    arguments: &Arguments,
    task: &FineTuning,
    protocol: &Protocol,
    plain_device: &Device,
) -> Outcome<(Comparison, Llama)> {
    let common = &arguments.common;
    let mut trained = None;
    let mut measure = |device: &Device, name| {
        // The previous run's model must not take memory in this one.
        trained = None;
        protocol.measure(device, name, |device, seen| {
            let (run, model) = task.train(device, protocol.steps, SEED, seen)?;
            trained = Some(model);
            Ok(run)
        })
    };
    let remat = |budget: Budget| plain_device.remat(common.planned(RematConfig::new(budget)));
    let plain = measure(plain_device, "plain Burn")?;
    let store_all = measure(&remat(Budget::Unlimited)?, "store-all")?;
    let budget = match arguments.activations {
        Some(share) => for_activations(share, &store_all)?,
        None => Comparison::resolved(common.budget().unwrap_or(Budget::Share(0.6)), &store_all),
    };
    let budgeted = measure(&remat(budget)?, "under the budget")?;
    let plain_is_other = runs_other_kernels(plain_device, false);
    let comparison = Comparison { plain, store_all, budgeted, plain_is_other, warmup: protocol.warmup };
    Ok((comparison, trained.ok_or("nothing was trained")?))
}

/// The budget that leaves `share` of what activations take in `store_all`.
fn for_activations(share: f64, store_all: &Measured) -> Result<Budget, String> {
    let held = store_all.held_bytes.ok_or_else(|| format!("--activations: needs more than {WARMUP} --steps"))?;
    let activations = store_all.activation_bytes().unwrap_or(0);
    Ok(Budget::Bytes(held + (activations as f64 * share) as u64))
}

/// Results of checking the trained adapters.
struct Checked {
    /// Loss on a batch that was not trained on, without adapters and with them.
    losses: [f32; 2],
    /// Size of the adapters' checkpoint.
    checkpoint_bytes: u64,
    /// Whether a model with loaded adapters has the same outputs, bit for bit.
    is_same_after_loading: bool,
    /// The largest output of the adapted model.
    largest_output: f64,
    /// The largest change of an output by the adapters.
    adapters_change: f64,
    /// The largest difference between outputs of the merged model and those of base and adapters.
    merged_difference: f64,
    /// How large that difference may be.
    tolerance: f64,
}

impl Checked {
    /// Saves the adapters of `model` in `kept` or a temporary file, loads and merges them on `device`, and compares the outputs on batch
    /// number `step`.
    fn new(kept: Option<&Path>, task: &FineTuning, model: &Llama, step: usize, device: &Device) -> Outcome<Self> {
        if let Some(file) = kept {
            return Self::by_way_of(file, task, model, step, device);
        }
        let file = std::env::temp_dir().join(format!("burn-remat-adapters-{}.bpk", std::process::id()));
        let checked = Self::by_way_of(&file, task, model, step, device);
        // Only now: Burn reads a tensor from the file when it is first needed.
        std::fs::remove_file(&file)?;
        checked
    }

    fn by_way_of(file: &Path, task: &FineTuning, model: &Llama, step: usize, device: &Device) -> Outcome<Self> {
        save_adapters(model, file)?;
        let fresh = task.model(device)?;
        let loaded = load_adapters(fresh.clone(), file)?;
        let trained = model.valid().to_device(device);
        let merged = loaded.clone().merged();

        let outputs = |model: &Llama| task.outputs(model, step, device);
        let expected = outputs(&trained)?;
        let largest_output = expected.iter().map(|output| f64::from(output.abs())).fold(0.0, f64::max);
        let loss = |model: &Llama| cli::read(task.loss(model, step, device));
        Ok(Self {
            losses: [loss(&fresh)?, loss(&loaded)?],
            checkpoint_bytes: std::fs::metadata(file)?.len(),
            is_same_after_loading: bits(&outputs(&loaded)?) == bits(&expected),
            largest_output,
            adapters_change: largest_difference(&outputs(&fresh)?, &expected),
            merged_difference: largest_difference(&outputs(&merged)?, &expected),
            tolerance: largest_output * tolerance(&task.tuning.size),
        })
    }

    /// Whether the merged model has the outputs of base and adapters. If the adapters changed nothing, this would prove nothing.
    fn merged_agrees(&self) -> bool {
        self.merged_difference <= self.tolerance && self.adapters_change > 10.0 * self.tolerance
    }

    fn verdict(&self) -> Outcome {
        match (self.is_same_after_loading, self.merged_agrees()) {
            (true, true) => Ok(()),
            (false, _) => Err("the loaded model does not have the outputs of the trained one".into()),
            (_, false) => Err("the merged model does not have the outputs of base and adapters".into()),
        }
    }
}

fn bits(outputs: &[f32]) -> Vec<u32> {
    outputs.iter().map(|output| output.to_bits()).collect()
}

/// Infinite if one of them is not a number.
fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    let differences = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    differences.map(|difference| if difference.is_nan() { f64::INFINITY } else { difference }).fold(0.0, f64::max)
}

fn title(tuning: &Tuning, steps: usize) -> String {
    let TransformerSize { layers, width, length, .. } = tuning.size;
    format!(
        "{}{} layers of width {width}, {} of rank {}, length {length}, batch size {}, {steps} steps",
        if tuning.quantized { "a four-bit base, " } else { "" },
        layers,
        if tuning.beside == Beside::Weights { "Burn's own adapters" } else { "adapters" },
        tuning.adapters.rank,
        tuning.batch_size
    )
}

fn print(title: &str, comparison: &Comparison, checked: &Checked) {
    comparison.print_table(title);
    comparison.print_verdict();
    let Comparison { plain, store_all, budgeted, warmup, .. } = comparison;
    if let (Some(all), Some(under)) = (store_all.activation_bytes(), budgeted.activation_bytes()) {
        println!(
            "activations and gradients: {} of {} ({:.0}%), in addition to {} held between steps",
            bytes(Some(under)),
            bytes(Some(all)),
            100.0 * under as f64 / all as f64,
            bytes(budgeted.held_bytes),
        );
        println!(
            "compared with plain Burn: time {:.2}x, processor time {:.2}x",
            budgeted.run.median_ms(*warmup) / plain.run.median_ms(*warmup),
            budgeted.processor_ms / plain.processor_ms,
        );
    }
    let [before, after] = checked.losses;
    println!("loss on a batch not trained on: {before:.4} before, {after:.4} after");
    println!(
        "checkpoint of the adapters: {}, {}",
        bytes(Some(checked.checkpoint_bytes)),
        if checked.is_same_after_loading { "loaded again: the same outputs, to the last bit" } else { "NOT THE SAME" }
    );
    println!(
        "merged into the base: outputs differ by at most {:.1e} of {:.1} (allowed {:.1e}; adapters change them by {:.1e})",
        checked.merged_difference, checked.largest_output, checked.tolerance, checked.adapters_change
    );
    if let Some(report) = &budgeted.report {
        println!("\n{report}");
    }
}

fn to_json(device: &str, tuning: &Tuning, comparison: &Comparison, checked: &Checked) -> serde_json::Value {
    let Comparison { plain, store_all, budgeted, warmup, .. } = comparison;
    serde_json::json!({
        "device": device,
        "quantized": tuning.quantized,
        "burn_adapters": tuning.beside == Beside::Weights,
        "feed_forward": tuning.adapt == Adapt::AttentionAndFeedForward,
        "layers": tuning.size.layers,
        "width": tuning.size.width,
        "length": tuning.size.length,
        "rank": tuning.adapters.rank,
        "batch_size": tuning.batch_size,
        "plain_burn": measured_to_json(plain, *warmup),
        "store_all": measured_to_json(store_all, *warmup),
        "budgeted": measured_to_json(budgeted, *warmup),
        "identical": comparison.is_identical(),
        "loss_before": checked.losses[0],
        "loss_after": checked.losses[1],
        "checkpoint_bytes": checked.checkpoint_bytes,
        "checkpoint_identical": checked.is_same_after_loading,
        "largest_output": checked.largest_output,
        "adapters_change": checked.adapters_change,
        "merged_difference": checked.merged_difference,
        "merged_tolerance": checked.tolerance,
    })
}

/// One run; what only a remat device reports is `null` for a plain one.
fn measured_to_json(measured: &Measured, warmup: usize) -> serde_json::Value {
    let (report, plan) = (measured.report.as_ref(), measured.plan());
    serde_json::json!({
        "losses": measured.run.losses,
        "step_ms": measured.run.median_ms(warmup),
        "processor_ms": measured.processor_ms,
        "heap_peak_bytes": measured.heap.peak_bytes,
        "heap_held_bytes": measured.heap.held_bytes,
        "peak_bytes": measured.peak_bytes(),
        "held_bytes": measured.held_bytes,
        "activation_bytes": measured.activation_bytes(),
        "budget_bytes": report.and_then(|report| report.budget_bytes),
        "floor_bytes": report.map(|report| report.floor_bytes),
        "recomputed_ops": report.map(|report| report.recomputed_operations),
        "predicted_overhead": plan.map(|plan| plan.predicted_overhead),
        "measured_overhead": plan.and_then(|plan| plan.measured_overhead),
        "lower_bound": plan.and_then(|plan| plan.lower_bound),
        "planned_steps": plan.map(|plan| plan.steps_followed),
    })
}
