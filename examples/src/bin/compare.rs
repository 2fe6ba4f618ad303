//! Head to head: one model trained by plain Burn, with Burn's balanced checkpointing, with checkpointing written by hand at every block, and under
//! budgets of a remat device. In bytes, time and bits.
//!
//! All ways have their bytes counted by one measure. The tensors that a program holds are counted by an engine: that of the budget, or for what Burn
//! does by itself one without a limit, which evicts nothing. The heap is what the process allocates in a step, beside what the way holds between two;
//! engine and plan are in it. Times are those of steps in turn: see `paired.rs`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{DisplayBytes, RematConfig, RematExt, RematReport, minimum_budget};
use burn_remat_examples::cli::{self, Outcome};
use burn_remat_examples::clock::Others;
use burn_remat_examples::contenders::{Contender, Pass, Scale};
use burn_remat_examples::heap::Heap;
use burn_remat_examples::paired::{Entrant, Times, take_turns};
use burn_remat_examples::training::loss_difference;
use clap::{Parser, ValueEnum};
use indicatif::ProgressBar;
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Steps before the wait for a plan: the first differs from the others, and three must have been seen.
const WARMUP: usize = 6;
/// Steps after it: a plan is in force from the second on.
const IN_FORCE: usize = 2;

/// Train each model in several ways side by side, and compare memory, time and results: plain Burn, Burn's balanced checkpointing, checkpointing by
/// hand at every block, and remat at the memory of the last two and at half of the smallest. On the CPU.
///
/// The exit code is 2 if a remat device computes other bits than plain Burn, or if a step of it goes over its budget once the plan is in force.
#[derive(Parser)]
struct Arguments {
    /// A model; may be given several times. Default: all seven.
    #[arg(long, value_enum)]
    model: Vec<Contender>,
    /// Steps of each way that are measured. Default: 10, or 3 with `--quick` and `--full`.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Small models, to see that everything works: some seconds each. Without it, models whose step is meant to take about half a
    /// second on two cores.
    #[arg(long)]
    quick: bool,
    /// Models in the sizes that are in use, such as ResNet-50 on 16 images of 224 pixels and a GPT-2 of 124 million parameters on 4 texts of 256
    /// symbols. Slow: some seventy steps each, of up to a minute on two cores, and several GiB of memory.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// A further budget: what plain Burn holds between two steps, and this share, in percent, of what a step holds beside that.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    activations: Option<u64>,
    /// Seconds for planning. Default: 10, or 1 with `--quick`.
    #[arg(long)]
    time_limit: Option<u64>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Arguments {
    fn scale(&self) -> Scale {
        match (self.quick, self.full) {
            (true, _) => Scale::Quick,
            (_, true) => Scale::Full,
            _ => Scale::Moderate,
        }
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick || self.full { 3 } else { 10 }) as usize
    }

    fn time_limit(&self) -> Duration {
        Duration::from_secs(self.time_limit.unwrap_or(if self.quick { 1 } else { 10 }))
    }
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let models = if arguments.model.is_empty() { Contender::value_variants() } else { &arguments.model };
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    for &model in models {
        let contest = Contest { arguments, model, bar: ProgressBar::new_spinner() };
        contest.bar.enable_steady_tick(Duration::from_millis(200));
        let result = contest.run()?;
        contest.bar.finish_and_clear();
        result.print(model);
        failed.extend(
            result.rows.iter().filter_map(|row| Some(format!("{}, {}: {}", model.name(), row.name, row.fault()?))),
        );
        results.push(result.to_json(model));
        // After every model: what has been measured stays if a later one ends the process.
        if let Some(file) = &arguments.json {
            let setup = json!({
                "version": env!("CARGO_PKG_VERSION"),
                "scale": format!("{:?}", arguments.scale()).to_lowercase(),
                "rounds": arguments.rounds(),
                "time_limit_seconds": arguments.time_limit().as_secs(),
            });
            cli::save_json(file, &json!({ "setup": setup, "results": results }))?;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// What Burn does by itself, and what a remat device does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Balanced,
    ByHand,
    Remat,
}

impl Way {
    fn pass(self) -> Pass {
        if self == Self::ByHand { Pass::ByHand } else { Pass::Whole }
    }

    /// `device` as this way has it.
    fn on(self, device: &Device) -> Device {
        let device = device.clone().autodiff();
        if self == Self::Balanced { device.gradient_checkpointing() } else { device }
    }
}

/// One way of training, and what was measured of it.
struct Row {
    name: String,
    way: Way,
    /// Most bytes of tensors at once.
    tensors: u64,
    /// Most bytes of the heap, with what the way holds between two steps.
    heap: u64,
    times: Times,
    losses: Vec<f32>,
    /// Of the gradients of one more step and the parameters after it, bit for bit.
    digest: u64,
    report: Option<RematReport>,
    /// Whether all results are those of plain Burn.
    identical: bool,
    /// The largest difference from plain Burn's losses, as a share of them.
    difference: f64,
}

impl Row {
    /// What must not be, on a remat device.
    fn fault(&self) -> Option<String> {
        let report = self.report.as_ref()?;
        match report.steps_over_budget {
            _ if !self.identical => Some("the results are not those of plain Burn".to_owned()),
            0 => None,
            steps => Some(format!("{steps} steps over the budget")),
        }
    }

    fn to_json(&self) -> Value {
        self.times.add_to(json!({
            "name": self.name,
            "is_remat": self.way == Way::Remat,
            "tensor_peak_bytes": self.tensors,
            "heap_peak_bytes": self.heap,
            "losses": self.losses,
            "digest": format!("{:016x}", self.digest),
            "identical": self.identical,
            "loss_difference": self.difference,
            "report": self.report,
        }))
    }
}

/// The rows of one model.
struct Contested {
    rows: Vec<Row>,
    /// The smallest budget for which a plan is known, found on a device that executes nothing.
    minimum: u64,
    /// Share of the machine's processors that other programs took.
    busy: Option<f64>,
}

impl Contested {
    fn print(&self, model: Contender) {
        println!("\n{}, smallest budget {}", model.name(), DisplayBytes(self.minimum));
        println!("{}", Others::warning(self.busy));
        println!("  {:32}{:>12}{:>12}{}{:>12}{:>6}", "", "tensors", "heap", Times::head(), "bits", "over");
        for row in &self.rows {
            let [tensors, heap] = [row.tensors, row.heap].map(|bytes| DisplayBytes(bytes).to_string());
            let bits = match row.difference {
                _ if row.identical => "same".to_owned(),
                0.0 => "losses same".to_owned(),
                share => format!("{share:.0e}"),
            };
            let over = row.report.as_ref().map_or_else(String::new, |report| report.steps_over_budget.to_string());
            println!("  {:32}{tensors:>12}{heap:>12}{}{bits:>12}{over:>6}", row.name, row.times.columns());
        }
    }

    fn to_json(&self, model: Contender) -> Value {
        json!({
            "model": model.name(),
            "minimum_budget_bytes": self.minimum,
            "others_busy": self.busy,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }
}

/// A way that trains.
struct Trained {
    way: Way,
    /// Counted before; a remat device counts by itself.
    tensors: Option<u64>,
    /// Bytes of the heap between two steps.
    held: usize,
    entrant: Entrant<'static>,
}

/// Bytes of tensors that a program holds.
#[derive(Clone, Copy)]
struct Held {
    /// Most at once.
    most: u64,
    /// Between two steps: parameters and the state of the optimizer.
    between: u64,
}

impl Held {
    fn with_activations(self, percent: u64) -> u64 {
        self.between + (self.most - self.between) / 100 * percent
    }
}

/// The measurements of one model.
struct Contest<'a> {
    arguments: &'a Arguments,
    model: Contender,
    bar: ProgressBar,
}

impl Contest<'_> {
    fn run(&self) -> Outcome<Contested> {
        let own = [Way::Plain, Way::Balanced, Way::ByHand];
        let names = ["plain Burn", "Burn's balanced checkpointing", "checkpointing by hand"];
        let mut trained = Vec::new();
        let mut counted = Vec::new();
        for (way, name) in own.into_iter().zip(names) {
            self.say(&format!("counting the bytes of {name}"));
            let held = self.count(way)?;
            counted.push(held);
            trained.push(self.trained(name, way, Some(held.most), Device::flex())?);
        }
        self.say("the smallest budget");
        let minimum = self.minimum()?;
        let half = counted.iter().map(|held| held.most).min().unwrap_or_default() / 2;
        let least =
            if half < minimum { ("remat, smallest budget", minimum) } else { ("remat, half of the smallest", half) };
        let mut budgets = vec![
            ("remat, as much as balanced", counted[1].most),
            ("remat, as much as by hand", counted[2].most),
            least,
        ];
        let asked = self.arguments.activations.map(|percent| counted[0].with_activations(percent));
        budgets.extend(asked.map(|budget| ("remat, share of the activations", budget)));
        for (name, budget) in budgets {
            let config = RematConfig::new(budget).with_time_limit(self.arguments.time_limit()).without_cache();
            trained.push(self.trained(name, Way::Remat, None, Device::flex().remat(config)?)?);
        }
        self.measure(trained, minimum)
    }

    fn say(&self, what: &str) {
        let message = format!("{}: {what}", self.model.name());
        // A bar shows in a terminal only.
        if self.bar.is_hidden() {
            eprintln!("{message}");
        }
        self.bar.set_message(message);
    }

    fn begin(&self, way: Way, device: &Device) -> Entrant<'static> {
        let device = way.on(device);
        let training = self.model.begin(self.arguments.scale(), way.pass(), &device);
        Entrant::new("", device, training)
    }

    /// What the program holds, as an engine counts it that evicts nothing.
    fn count(&self, way: Way) -> Outcome<Held> {
        let mut entrant = self.begin(way, &Device::flex().remat("unlimited")?);
        (0..3).try_for_each(|_| entrant.step())?;
        let report = entrant.device.remat_report()?;
        Ok(Held { most: report.peak_bytes, between: report.live_bytes })
    }

    fn minimum(&self) -> Outcome<u64> {
        let mut result = Ok(());
        let needs = minimum_budget(&Device::flex(), |device| {
            let mut entrant = self.begin(Way::Remat, device);
            result = (0..4).try_for_each(|_| entrant.step());
        })?;
        result?;
        Ok(needs.minimum_bytes)
    }

    /// A way that has begun, up to where its plan is in force.
    fn trained(&self, name: &str, way: Way, tensors: Option<u64>, device: Device) -> Outcome<Trained> {
        self.say(&format!("first steps of {name}"));
        let before = Heap::settled();
        let mut entrant = self.begin(way, &device);
        name.clone_into(&mut entrant.name);
        entrant.warm_up(WARMUP, IN_FORCE)?;
        if way == Way::Remat {
            entrant.device.remat_reset_report()?;
        }
        Ok(Trained { way, tensors, held: Heap::settled().saturating_sub(before), entrant })
    }

    fn measure(&self, trained: Vec<Trained>, minimum: u64) -> Outcome<Contested> {
        let facts: Vec<_> = trained.iter().map(|one| (one.way, one.tensors, one.held)).collect();
        let mut entrants: Vec<_> = trained.into_iter().map(|one| one.entrant).collect();
        let rounds = self.arguments.rounds();
        let others = Others::watch();
        let mut round = 0;
        take_turns(&mut entrants, rounds, || {
            round += 1;
            self.say(&format!("round {round} of {rounds}"));
        })?;
        let busy = others.share();
        let times: Vec<Times> = entrants.iter().map(|entrant| entrant.times(&entrants[0])).collect();
        let mut rows: Vec<Row> = Vec::new();
        for ((mut entrant, (way, tensors, held)), times) in entrants.into_iter().zip(facts).zip(times) {
            let report = entrant.device.remat_report().ok();
            let digest = entrant.last_step()?;
            let (plain, plain_digest) = rows.first().map_or((&entrant.losses, digest), |row| (&row.losses, row.digest));
            let difference = loss_difference(plain, &entrant.losses);
            rows.push(Row {
                name: entrant.name,
                way,
                tensors: tensors.or(report.as_ref().map(|report| report.peak_bytes)).unwrap_or_default(),
                heap: (held + entrant.heap_bytes) as u64,
                times,
                identical: digest == plain_digest && difference == 0.0,
                difference,
                losses: entrant.losses,
                digest,
                report,
            });
        }
        Ok(Contested { rows, minimum, busy })
    }
}
