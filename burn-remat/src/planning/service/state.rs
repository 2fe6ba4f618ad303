//! The state of planning, for the report.
//!
//! Larger than the rule: `PlanState`, because it is the record from which the report is written.

use std::sync::Arc;

use burn_remat_core::{Left, Mended};
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{Outcome, Status, StopReason};

use crate::planning::schedule::Schedule;

/// Where a plan comes from, and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    pub planner: String,
    pub status: Option<Status>,
    pub stop_reason: Option<StopReason>,
    pub lower_bound: Option<f64>,
    pub seconds: f64,
    pub cached: bool,
}

impl Origin {
    /// For a plan that took this many seconds to make.
    pub fn of(outcome: &Outcome, seconds: f64) -> Self {
        Self {
            planner: outcome.planner.clone(),
            status: Some(outcome.status),
            stop_reason: Some(outcome.stop_reason),
            lower_bound: outcome.lower_bound,
            seconds,
            cached: false,
        }
    }

    /// For a plan from the cache, which takes `makespan` with the present costs.
    pub fn cached(file: PlanFile, makespan: f64) -> Self {
        // The bound was proved for earlier costs. How far it was below the plan carries over.
        let below = file.lower_bound.zip(file.makespan).map(|(bound, makespan)| bound / makespan);
        Self {
            planner: file.planner,
            status: file.status,
            stop_reason: file.stop_reason,
            lower_bound: below.filter(|share| *share <= 1.0).map(|share| share * makespan),
            seconds: file.solve_seconds.unwrap_or(0.0),
            cached: true,
        }
    }
}

/// A plan for a step, and where it comes from.
pub(crate) type Ready = (Arc<Schedule>, Origin);

/// The minimum of a kind of step: the size of its smallest plan, and the op that sets it.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    pub structure: u64,
    pub bytes: u64,
    pub op: String,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanState {
    /// The plan that was taken up last.
    pub schedule: Option<Arc<Schedule>>,
    pub origin: Option<Origin>,
    /// Time that the last reduction to a graph took.
    pub lowering_seconds: f64,
    /// Plans made, not counting those from the cache.
    pub made: u64,
    pub from_cache: u64,
    /// Steps that followed a plan of their own from beginning to end.
    pub followed: u64,
    /// Steps that followed what is known of a similar one: its plan for other sizes, or what it does.
    pub guided: u64,
    /// How many of these differed from it, and how many operations they left out and added.
    pub mended: u64,
    pub skipped: u64,
    pub added: u64,
    /// The largest difference between bytes held and bytes predicted in a step that followed a plan of its own.
    pub deviation: u64,
    /// Most bytes held during each operation of the last such step.
    pub measured: Arc<Vec<u64>>,
    /// Steps that left their plan, and where and why the last one did.
    pub left: u64,
    pub difference: Option<String>,
    /// Why there is no plan.
    pub problem: Option<String>,
    /// The minimum of each kind of step that was planned.
    floors: Vec<Floor>,
}

impl PlanState {
    /// Takes up a plan.
    pub fn take_up(&mut self, schedule: Arc<Schedule>, origin: Origin) {
        if !self.shows(schedule.structure()) {
            self.measured = Arc::default();
        }
        self.schedule = Some(schedule);
        self.origin = Some(origin);
        self.problem = None;
    }

    /// Records that a step followed a plan of its own from beginning to end.
    pub fn followed(&mut self, structure: u64, deviation: u64, held: Vec<u64>) {
        self.followed += 1;
        self.deviation = self.deviation.max(deviation);
        if self.shows(structure) {
            self.measured = Arc::new(held);
        }
    }

    /// Records that a step followed what is known of a similar one, and how far it differed.
    pub fn guided(&mut self, mended: Option<Mended>) {
        self.guided += 1;
        if let Some(Mended { skipped, beside, .. }) = mended {
            self.mended += 1;
            self.skipped += u64::from(skipped);
            self.added += u64::from(beside);
        }
    }

    /// Records the minimum of a kind of step.
    pub fn holds_least(&mut self, floor: Floor) {
        self.floors.retain(|known| known.structure != floor.structure);
        self.floors.push(floor);
    }

    /// The minimum of this kind of step, if it is known.
    pub fn floor(&self, structure: u64) -> Option<&Floor> {
        self.floors.iter().find(|floor| floor.structure == structure)
    }

    /// The smallest budget for which all kinds of step that were planned have a plan.
    pub fn smallest_budget(&self) -> Option<u64> {
        self.floors.iter().map(|floor| floor.bytes).max()
    }

    /// Records that a step left its plan.
    pub fn left(&mut self, why: &Left) {
        self.left += 1;
        let text = match why {
            Left::Differs { at, found, planned } if found == planned => {
                format!("operation {at}, `{found}`, had different tensors or shapes than in the plan")
            }
            Left::Differs { at, found, planned } => {
                format!("operation {at} was `{found}`, but the plan has `{planned}` there")
            }
            Left::GoesOn { at, found } => format!("it went on with `{found}` after the {at} operations of the plan"),
            Left::Failed(failure) => failure.to_string(),
            Left::Ended { at } => format!("it ended after {at} operations"),
        };
        log::info!("this step leaves its plan: {text}");
        self.difference = Some(text);
    }

    /// Records that the smallest plan for a step holds more than the budget allows.
    pub fn exceeds(&mut self, least: u64) {
        let least = match least {
            u64::MAX => "what a plan would hold cannot be predicted".to_owned(),
            least => format!("the smallest holds {least} bytes, so set at least that"),
        };
        self.problem = Some(format!(
            "no plan within the budget was found; {least}. Until then, the online policy decides what to evict."
        ));
    }

    /// Records that the plan that was found takes far longer than the online policy does for the same budget.
    pub fn is_too_dear(&mut self, overhead: f64) {
        self.problem = Some(format!(
            "the only plan found within the budget would make the step {:.1} times as long, so the online policy still decides what to \
             evict. A slightly larger budget usually has a far cheaper plan.",
            1.0 + overhead
        ));
    }

    fn shows(&self, structure: u64) -> bool {
        self.schedule.as_ref().is_some_and(|shown| shown.structure() == structure)
    }
}
