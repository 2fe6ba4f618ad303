//! Tries a budget on a program that was seen on a dry device: the machine that will keep to the budget replays the program.
//!
//! A plan covers one run of operations, and counts on what was held when that began. What a program does in between, and what it holds only at times,
//! shows when all of it is replayed. Complexity: O(operations + recomputed operations) for each budget.

use std::sync::Arc;

use burn_remat_core::{Asked, Asking, Config, Driver, LayoutFollows, Recording, play};

use crate::config::RematConfig;
use crate::planning::{Met, PlanSettings, Plans, Ready};

/// What was seen of a program in a rehearsal.
pub(crate) struct Seen {
    /// The name under which [plans are known](RematConfig::plans_for).
    pub device: String,
    /// The steps, each kind once, in order.
    pub steps: Vec<Met>,
    /// All calls of the program; empty if it ran for real.
    pub recording: Arc<Recording>,
}

/// The outcome of a trial.
pub(crate) struct Trial {
    /// Most bytes held.
    pub peak: u64,
    /// Whether the budget was exceeded.
    pub is_over: bool,
    /// The operation at the peak.
    pub op: String,
}

/// The outcome of training with the plans that dry runs have found.
pub(crate) struct Trained {
    /// Its steps, each kind once. Once it is known what a pass does, the next one may end elsewhere.
    pub steps: Vec<Met>,
    /// Whether steps of the second half were over the budget although there were plans.
    pub is_late: bool,
}

impl Seen {
    /// What a recorded program does.
    pub fn of(recording: &Arc<Recording>, config: &RematConfig, device: String) -> Self {
        let unlimited = Config { budget: Asked::Unlimited, strict: false, rehearsing: true, ..of_core(config) };
        let machine = play(recording, unlimited, plans(&device, Vec::new(), true), |_| {});
        let steps = machine.world().planning.rehearsed().to_vec();
        Self { device, steps, recording: recording.clone() }
    }

    /// Warns if a dry run may have taken another path than training: it has read something, and learned nothing.
    pub fn warn_of_reads(&self) {
        let has_read = self.recording.asked().iter().any(|asking| matches!(asking, Asking::Read { .. }));
        let learns = self.steps.iter().any(|met| met.trace.ops.iter().any(|op| op.updates));
        if has_read && !learns {
            log::warn!(
                "in the dry run, the program read tensors, which gave zeros, and updated no parameter. If it decides by what it reads whether to \
                 update them, training needs more: record a few steps without a budget (`remat_record`), and ask the recording"
            );
        }
    }

    /// Replays the program under a budget as training does, which has no plans until it can use those of dry runs.
    pub fn train_within(&self, config: &RematConfig, budget: u64) -> Trained {
        let config = of_trial(config, budget);
        let (mut calls, half) = (0, self.recording.asked().len() / 2);
        // Steps over the budget in the first half, if there were plans by then.
        let mut before = None;
        let machine = play(&self.recording, config, plans(&self.device, Vec::new(), true), |machine| {
            calls += 1;
            if calls == half && machine.world().planning.has_plans() {
                before = Some(machine.counters().steps_over_budget);
            }
        });
        let after = machine.counters().steps_over_budget;
        let steps = machine.world().planning.rehearsed().to_vec();
        Trained { steps, is_late: before.is_some_and(|before| after > before) }
    }

    /// Most bytes that it holds without a budget.
    pub fn peak(&self, config: &RematConfig) -> u64 {
        self.try_budget(config, u64::MAX, Vec::new()).peak
    }

    /// Replays the program under a budget, with plans that are there from the start; no others are made.
    pub fn try_budget(&self, config: &RematConfig, budget: u64, ready: Vec<Ready>) -> Trial {
        let config = of_trial(config, budget);
        let machine = play(&self.recording, config, plans(&self.device, ready, false), |_| {});
        let counters = machine.counters();
        let is_over = counters.steps_over_budget > 0 || machine.is_over_budget();
        Trial { peak: counters.peak.bytes, is_over, op: machine.world().name(counters.peak.kind) }
    }
}

/// A configuration in which the budget may be exceeded.
fn of_trial(config: &RematConfig, budget: u64) -> Config {
    Config { strict: false, ..of_core(&config.within(budget)) }
}

fn of_core(config: &RematConfig) -> Config {
    config.of_core(LayoutFollows::Nothing)
}

/// A planning service that has these plans and makes no others.
fn plans(device: &str, ready: Vec<Ready>, rehearsing: bool) -> Plans {
    let settings = PlanSettings { planner: None, cache: None, ready, ..PlanSettings::default() };
    Plans::new(settings, device.to_owned(), rehearsing)
}
