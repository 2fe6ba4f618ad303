//! Head to head: one model trained by plain Burn, with Burn's balanced checkpointing, with checkpointing written by hand at every block, and under
//! budgets of a remat device. Compares bytes, time and bits.
//!
//! Bytes are counted in the same way for all ways of training. The tensors that a program holds are counted by an engine: that of the budget, or, for
//! what Burn does by itself, one without a limit, which evicts nothing. The heap is what the process allocates in a step, plus what the way of training
//! holds between two steps; it includes engine and plan. Times are those of interleaved steps: see `paired.rs`.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{RematConfig, RematExt, RematReport, minimum_budget};
use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::clock::Others;
use crate::contenders::{Contender, Pass, Scale};
use crate::heap::Heap;
use crate::paired::{Entrant, Times, take_turns};
use crate::training::loss_difference;

/// Steps before the wait for a plan: the first step differs from the others, and three must have been seen.
const WARMUP: usize = 6;
/// Steps after the wait: a plan is in force from the second one on.
const IN_FORCE: usize = 2;

/// The measurements of one model.
pub struct Contest<'a> {
    /// The model.
    pub model: Contender,
    /// Its size.
    pub scale: Scale,
    /// Measured steps of each way.
    pub rounds: usize,
    /// The most time for a plan.
    pub time_limit: Duration,
    /// A further budget: what plain Burn holds between two steps, plus this percentage of what a step holds in addition to that.
    pub activations: Option<u64>,
    /// Called with a line about what is going on.
    pub say: &'a dyn Fn(&str),
}

impl Contest<'_> {
    /// Trains in all ways.
    ///
    /// # Errors
    ///
    /// What a device reports.
    pub fn run(&self) -> Outcome<Contested> {
        let own = [Way::Plain, Way::Balanced, Way::ByHand];
        let names = ["plain Burn", "Burn's balanced checkpointing", "checkpointing by hand"];
        let mut trained = Vec::new();
        let mut counted = Vec::new();
        for (way, name) in own.into_iter().zip(names) {
            (self.say)(&format!("counting the bytes of {name}"));
            let held = self.count(way)?;
            counted.push(held);
            trained.push(self.trained(name, way, Some(held.most), Device::flex())?);
        }
        (self.say)("the smallest budget");
        let minimum = self.minimum()?;
        let half = counted.iter().map(|held| held.most).min().unwrap_or_default() / 2;
        let least =
            if half < minimum { ("remat, smallest budget", minimum) } else { ("remat, half of the smallest", half) };
        let mut budgets = vec![
            ("remat, as much as balanced", counted[1].most),
            ("remat, as much as by hand", counted[2].most),
            least,
        ];
        let asked = self.activations.map(|percent| counted[0].with_activations(percent));
        budgets.extend(asked.map(|budget| ("remat, share of the activations", budget)));
        for (name, budget) in budgets {
            let config = RematConfig::new(budget).with_time_limit(self.time_limit).without_cache();
            trained.push(self.trained(name, Way::Remat, None, Device::flex().remat(config)?)?);
        }
        self.measure(trained, minimum)
    }

    fn begin(&self, way: Way, device: &Device) -> Entrant<'static> {
        let device = way.on(device);
        let training = self.model.begin(self.scale, way.pass(), &device);
        Entrant::new("", device, training)
    }

    /// What the program holds, as counted by an engine that evicts nothing.
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

    /// Starts a way of training and trains until its plan is in force.
    fn trained(&self, name: &str, way: Way, tensors: Option<u64>, device: Device) -> Outcome<Trained> {
        (self.say)(&format!("first steps of {name}"));
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
        let rounds = self.rounds;
        let others = Others::watch();
        let mut round = 0;
        take_turns(&mut entrants, rounds, || {
            round += 1;
            (self.say)(&format!("round {round} of {rounds}"));
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

/// The rows of one model.
pub struct Contested {
    /// The rows; plain Burn comes first.
    pub rows: Vec<Row>,
    /// The smallest budget for which a plan is known, found on a device that executes nothing.
    pub minimum: u64,
    /// The share of the machine's processors that other programs took.
    pub busy: Option<f64>,
}

impl Contested {
    /// All figures by name.
    #[must_use]
    pub fn to_json(&self, model: Contender) -> Value {
        json!({
            "model": model.name(),
            "minimum_budget_bytes": self.minimum,
            "others_busy": self.busy,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }
}

/// One way of training, and what was measured of it.
pub struct Row {
    /// Its name in a table.
    pub name: String,
    way: Way,
    /// Most bytes of tensors at once.
    pub tensors: u64,
    /// Most bytes of the heap, including what the way of training holds between two steps.
    pub heap: u64,
    /// The time of its steps, compared with those of plain Burn.
    pub times: Times,
    losses: Vec<f32>,
    /// Digest of the gradients of one more step and of the parameters after it, bit for bit.
    digest: u64,
    /// The report of a remat device.
    pub report: Option<RematReport>,
    /// Whether all results are those of plain Burn.
    identical: bool,
    /// The largest difference from plain Burn's losses, relative to them.
    difference: f64,
}

impl Row {
    /// What is wrong, on a remat device.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let report = self.report.as_ref()?;
        match report.steps_over_budget {
            _ if !self.identical => Some("the results are not those of plain Burn".to_owned()),
            0 => None,
            steps => Some(format!("{steps} steps over the budget")),
        }
    }

    /// Whether its results are those of plain Burn, and if not, by what share its losses differ.
    #[must_use]
    pub fn bits(&self) -> String {
        match self.difference {
            _ if self.identical => "same".to_owned(),
            0.0 => "losses same".to_owned(),
            share => format!("{share:.0e}"),
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

/// The ways of training: those that Burn offers, by hand, and with a remat device.
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

    /// `device` as this way of training needs it.
    fn on(self, device: &Device) -> Device {
        let device = device.clone().autodiff();
        if self == Self::Balanced { device.gradient_checkpointing() } else { device }
    }
}

/// A way of training that has begun.
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
