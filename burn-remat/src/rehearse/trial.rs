//! What a budget does to a program that was seen on a dry device: the machine that will keep the budget goes through the program again.
//!
//! A plan speaks of one stretch of operations, and of what was held when that began. What a program does in between, and what it holds at one time and
//! not at another, shows when all of it is gone through. Complexity: O(operations + recomputed operations) for each budget.

use std::sync::Arc;

use burn_remat_core::{Asked, Config, Driver, LayoutFollows, Recording, play};

use crate::config::RematConfig;
use crate::planning::{Met, PlanSettings, Plans, Ready};

/// What was seen of a program on a device that only looks.
pub(crate) struct Seen {
    /// The device, as its plans name it.
    pub device: String,
    /// The steps, each kind once, in order.
    pub steps: Vec<Met>,
    /// All that it asked for; nothing where it ran for real.
    pub recording: Arc<Recording>,
}

/// The outcome of a trial.
pub(crate) struct Trial {
    /// Most bytes held.
    pub peak: u64,
    /// Whether that was more than the budget.
    pub is_over: bool,
    /// The operation in which it was.
    pub op: String,
}

/// What becomes of a program that goes by what dry runs have found.
pub(crate) struct Trained {
    /// Its steps, each kind once: where it is known what a pass does, the next one may end elsewhere.
    pub steps: Vec<Met>,
    /// Whether steps of the second half were over the budget, though there were plans.
    pub is_late: bool,
}

impl Seen {
    /// What a recorded program does.
    pub fn of(recording: &Arc<Recording>, config: &RematConfig, device: &str) -> Self {
        let unlimited = Config { budget: Asked::Unlimited, strict: false, rehearsing: true, ..of_core(config) };
        let machine = play(recording, unlimited, plans(Vec::new(), true), |_| {});
        let steps = machine.world().planning.rehearsed().to_vec();
        Self { device: device.to_owned(), steps, recording: recording.clone() }
    }

    /// Goes through the program under a budget as training does, which has no plan until what dry runs have found is of use to it.
    pub fn train_within(&self, config: &RematConfig, budget: u64) -> Trained {
        let config = of_trial(config, budget);
        let (mut calls, half) = (0, self.recording.asked().len() / 2);
        // Steps over the budget by the middle, if there were plans.
        let mut before = None;
        let machine = play(&self.recording, config, plans(Vec::new(), true), |machine| {
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

    /// Goes through the program under a budget, by plans that are there from the start; no others are made.
    pub fn try_budget(&self, config: &RematConfig, budget: u64, ready: Vec<Ready>) -> Trial {
        let config = of_trial(config, budget);
        let machine = play(&self.recording, config, plans(ready, false), |_| {});
        let counters = machine.counters();
        let is_over = counters.steps_over_budget > 0 || machine.is_over_budget();
        Trial { peak: counters.peak.bytes, is_over, op: machine.world().name(counters.peak.kind) }
    }
}

/// Under a budget that may be missed.
fn of_trial(config: &RematConfig, budget: u64) -> Config {
    Config { strict: false, ..of_core(&config.within(budget)) }
}

fn of_core(config: &RematConfig) -> Config {
    config.of_core(LayoutFollows::Nothing)
}

/// Plans to go by; none is made.
fn plans(ready: Vec<Ready>, rehearsing: bool) -> Plans {
    let settings = PlanSettings { planner: None, cache: None, ready, ..PlanSettings::default() };
    Plans::new(settings, String::new(), rehearsing)
}
