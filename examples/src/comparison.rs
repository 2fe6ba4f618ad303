//! Training on three devices, side by side: plain Burn, a remat device without a limit (store-all), and one under a budget.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{Budget, DisplayBytes, PlanReport, RematExt, RematReport};
use indicatif::ProgressBar;

use crate::cli;
use crate::clock::processor_time;
use crate::heap::Heap;
use crate::training::{Run, adds_by_chance, median};

/// The largest share of a loss by which a run with other kernels may differ; beyond that it is a failure.
pub const SMALL_DIFFERENCE: f64 = 0.01;

/// The length of a training run, and when it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Training steps.
    pub steps: usize,
    /// Steps before the timed ones. At their end the run waits for the planner.
    pub warmup: usize,
    /// The time limit of the planner.
    pub time_limit: Duration,
}

/// What the heap of the process held, in bytes above what it held before the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapUse {
    /// Most during the timed steps.
    pub peak_bytes: u64,
    /// After the last step of the warmup: parameters, optimizer state and anything else that outlives a step.
    pub held_bytes: u64,
}

/// A finished run and what its device held.
pub struct Measured {
    /// What it computed, and how long it took.
    pub run: Run,
    /// The report of a remat device; `None` on a plain device.
    pub report: Option<RematReport>,
    /// Bytes of tensors after the last step of the warmup: parameters, optimizer state and anything else that outlives a step. `None` on a plain
    /// device.
    pub held_bytes: Option<u64>,
    /// What the process held, if its allocator is [`PeakAlloc`](peak_alloc::PeakAlloc).
    pub heap: HeapUse,
    /// Median over the timed steps of the processor time of all threads, in ms. Other programs on the machine affect it less than wall
    /// time.
    pub processor_ms: f64,
}

impl Measured {
    /// The plan that a remat device has made.
    pub fn plan(&self) -> Option<&PlanReport> {
        self.report.as_ref()?.plan.as_ref()
    }

    /// Most bytes of tensors at once, on a remat device.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.report.as_ref().map(|report| report.peak_bytes)
    }

    /// Most bytes of tensors in addition to those that outlive a step, on a remat device: what activations and gradients take.
    pub fn activation_bytes(&self) -> Option<u64> {
        Some(self.peak_bytes()?.saturating_sub(self.held_bytes?))
    }
}

impl Protocol {
    /// Runs `train` on `device` with a progress bar called `name`. `train` must call its second argument after every step, with the step's
    /// number and loss.
    ///
    /// # Errors
    ///
    /// Those of `train`, with the device's report.
    pub fn measure(
        &self,
        device: &Device,
        name: &'static str,
        train: impl FnOnce(&Device, &mut dyn FnMut(usize, f32)) -> Result<Run, String>,
    ) -> Result<Measured, String> {
        let style = cli::style("{msg:18} {bar:30} step {pos}/{len}  {elapsed}");
        let bar = ProgressBar::new(self.steps as u64).with_style(style).with_message(name);
        let before = Heap::start();
        let above = |bytes: usize| bytes.saturating_sub(before) as u64;
        let (mut held_bytes, mut heap) = (None, HeapUse::default());
        let (mut processor_ms, mut begun) = (Vec::new(), processor_time());
        let run = train(device, &mut |step, _| {
            processor_ms.push((processor_time() - begun).as_secs_f64() * 1e3);
            bar.set_position(step as u64 + 1);
            if step + 1 == self.warmup && step + 1 < self.steps {
                self.wait_for_plan(device, &bar, name);
                held_bytes = device.remat_report().ok().map(|report| report.live_bytes);
                // From here on the planner holds no memory.
                heap.held_bytes = above(Heap::start());
            }
            begun = processor_time();
        });
        heap.peak_bytes = above(Heap::most());
        bar.finish_and_clear();
        let report = device.remat_report().ok();
        let run = run.map_err(|error| match &report {
            Some(report) => format!("{name}: {error}\n\n{report}"),
            None => format!("{name}: {error}"),
        })?;
        Ok(Measured { run, report, held_bytes, heap, processor_ms: median(&processor_ms, self.warmup) })
    }

    /// Waits until the planner is done, and shows that it is planning.
    fn wait_for_plan(&self, device: &Device, bar: &ProgressBar, name: &'static str) {
        let start = Instant::now();
        // A planner may take a little longer than its limit.
        while start.elapsed() < self.time_limit + Duration::from_secs(5) {
            match device.remat_wait_for_plan(Duration::from_millis(200)) {
                Ok(false) => bar.set_message(format!("{name}, planning")),
                _ => break,
            }
            bar.tick();
        }
        bar.set_message(name);
    }
}

/// The same training on the three devices.
pub struct Comparison {
    /// On plain Burn.
    pub plain: Measured,
    /// On a remat device without a limit.
    pub store_all: Measured,
    /// On a remat device under a budget.
    pub budgeted: Measured,
    /// Whether plain Burn computes something else than a remat device (other kernels, or another random stream). If so, the results must equal those of
    /// store-all.
    pub plain_is_other: bool,
    /// Steps that are not timed.
    pub warmup: usize,
}

impl Comparison {
    /// `budget` in bytes, if it is a share of the most that `store_all` held.
    pub fn resolved(budget: Budget, store_all: &Measured) -> Budget {
        match budget {
            Budget::Share(share) => {
                let peak = store_all.peak_bytes().unwrap_or(0);
                Budget::Bytes(((peak as f64 * share) as u64).max(1))
            }
            other => other,
        }
    }

    fn reference(&self) -> &Measured {
        if self.plain_is_other { &self.store_all } else { &self.plain }
    }

    /// Whether losses, gradients and parameters are the same, to the last bit.
    pub fn is_identical(&self) -> bool {
        self.reference().run.is_identical(&self.budgeted.run) && self.store_all.run.is_identical(&self.budgeted.run)
    }

    /// The largest difference between losses, as a share of the loss.
    pub fn difference(&self) -> f64 {
        self.reference().run.loss_difference(&self.budgeted.run)
    }

    /// Whether the results are identical, or differ for a reason that was requested or that is inherent to the device.
    pub fn is_as_asked(&self) -> bool {
        let may_differ = |report: &RematReport| {
            is_rounded(report) || ((report.fused || adds_by_chance(report)) && self.difference() <= SMALL_DIFFERENCE)
        };
        self.is_identical() || self.budgeted.report.as_ref().is_some_and(may_differ)
    }

    /// Prints a row for each device below `title`.
    pub fn print_table(&self, title: &str) {
        println!(
            "{title}\n\n{:18}{:>12}{:>12}{:>14}{:>14}{:>14}{:>12}{:>12}",
            "", "first loss", "last loss", "peak", "budget", "heap peak", "ms/step", "run again"
        );
        let rows = [("plain Burn", &self.plain), ("store-all", &self.store_all), ("under the budget", &self.budgeted)];
        for (name, measured) in rows {
            let report = measured.report.as_ref();
            println!(
                "{name:18}{:>12.6}{:>12.6}{:>14}{:>14}{:>14}{:>12.2}{:>12}",
                measured.run.losses.first().copied().unwrap_or(f32::NAN),
                measured.run.losses.last().copied().unwrap_or(f32::NAN),
                bytes(measured.peak_bytes()),
                bytes(report.and_then(|report| report.budget_bytes)),
                bytes(Some(measured.heap.peak_bytes)),
                measured.run.median_ms(self.warmup),
                report.map_or("-".to_owned(), |report| report.recomputed_operations.to_string()),
            );
        }
    }

    /// Prints whether the results are the same, whether memory keeps to the budget, and what that costs in time.
    pub fn print_verdict(&self) {
        let Some(report) = &self.budgeted.report else { return };
        let difference = self.difference();
        println!();
        if self.is_identical() {
            let reference = if self.plain_is_other { "store-all" } else { "plain Burn" };
            println!("losses, gradients and parameters: identical to {reference}'s, to the last bit");
        } else if is_rounded(report) {
            println!(
                "losses, gradients and parameters: close; some tensors were restored from rounded values, as `--compression` allows"
            );
        } else if report.fused && difference <= SMALL_DIFFERENCE {
            println!(
                "losses, gradients and parameters: not identical, losses differ by up to {difference:.1e} of their value; with fusion, kernels are fused differently when they run again"
            );
        } else if adds_by_chance(report) && difference <= SMALL_DIFFERENCE {
            println!(
                "losses, gradients and parameters: not identical, losses differ by up to {difference:.1e} of their value; this device adds in an order that varies from run to run (`nondeterministic` below), and two runs of plain Burn differ too"
            );
        } else {
            println!("losses, gradients and parameters: NOT IDENTICAL. Please report this.");
        }
        match report.budget_bytes {
            Some(budget) if report.peak_bytes <= budget => {
                println!("memory: within the budget ({} of {budget} bytes)", report.peak_bytes);
            }
            Some(budget) => println!(
                "memory: over the budget ({} of {budget} bytes). The floor is {} bytes{}: set that, or a smaller batch.",
                report.peak_bytes,
                report.floor_bytes,
                report.floor_op.as_ref().map_or_else(String::new, |op| format!(", set by {op}"))
            ),
            None => println!("memory: no limit ({} bytes)", report.peak_bytes),
        }
        let slowdown = self.budgeted.run.median_ms(self.warmup) / self.store_all.run.median_ms(self.warmup);
        println!("time: {slowdown:.2}x store-all");
    }
}

/// Bytes for people; a dash if there are none.
pub fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| DisplayBytes(bytes).to_string())
}

/// Whether tensors were restored from fewer bits than they had, as was requested.
fn is_rounded(report: &RematReport) -> bool {
    report.compression.iter().any(|form| form.largest_error.is_some())
}
