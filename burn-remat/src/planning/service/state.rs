//! What planning has come to, for the report.
//!
//! Larger than the rule: `PlanState`, because it is the record from which the report is written.

use std::sync::Arc;

use burn_remat_core::{Left, Mended};
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{Outcome, Status, StopReason};

use crate::planning::schedule::Schedule;

/// A plan's account of itself.
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
    /// Of a plan that was made in so many seconds.
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

    /// Of a plan from the cache, which takes `makespan` with the costs of now.
    pub fn cached(file: PlanFile, makespan: f64) -> Self {
        // The bound was proved for the costs of that time; what carries over is how far below the plan it was.
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

/// A plan for a step, and its account of itself.
pub(crate) type Ready = (Arc<Schedule>, Origin);

/// What a kind of step can do with: the least that a plan holds for it, and the op that sets it.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    pub structure: u64,
    pub bytes: u64,
    pub op: String,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanState {
    /// The plan last taken up.
    pub schedule: Option<Arc<Schedule>>,
    pub origin: Option<Origin>,
    /// Time that the last reduction to a graph took.
    pub lowering_seconds: f64,
    /// Plans made, those from the cache not counted.
    pub made: u64,
    pub from_cache: u64,
    /// Steps that went by a plan of their own from beginning to end.
    pub followed: u64,
    /// Steps that went by what is known of one like them: its plan for other sizes, or what it does.
    pub guided: u64,
    /// Those of them that did other things than what is known, and how many operations they left out and added.
    pub mended: u64,
    pub skipped: u64,
    pub added: u64,
    /// Largest difference between bytes held and bytes foreseen in any of them.
    pub deviation: u64,
    /// Most bytes held during each operation of the last of them.
    pub measured: Arc<Vec<u64>>,
    /// Steps that left their plan, and where the last did.
    pub left: u64,
    pub difference: Option<String>,
    /// Why there is no plan.
    pub problem: Option<String>,
    /// The least that a plan holds for each kind of step that was planned.
    floors: Vec<Floor>,
}

impl PlanState {
    /// A plan is taken up.
    pub fn take_up(&mut self, schedule: Arc<Schedule>, origin: Origin) {
        if !self.shows(schedule.structure()) {
            self.measured = Arc::default();
        }
        self.schedule = Some(schedule);
        self.origin = Some(origin);
        self.problem = None;
    }

    /// A step went by a plan of its own from beginning to end.
    pub fn followed(&mut self, structure: u64, deviation: u64, held: Vec<u64>) {
        self.followed += 1;
        self.deviation = self.deviation.max(deviation);
        if self.shows(structure) {
            self.measured = Arc::new(held);
        }
    }

    /// A step went by what is known of one like it, and did so much that was not.
    pub fn guided(&mut self, mended: Option<Mended>) {
        self.guided += 1;
        if let Some(Mended { skipped, beside, .. }) = mended {
            self.mended += 1;
            self.skipped += u64::from(skipped);
            self.added += u64::from(beside);
        }
    }

    /// The least that a plan for this kind of step holds.
    pub fn holds_least(&mut self, floor: Floor) {
        self.floors.retain(|known| known.structure != floor.structure);
        self.floors.push(floor);
    }

    /// What this kind of step can do with, if that is known.
    pub fn floor(&self, structure: u64) -> Option<&Floor> {
        self.floors.iter().find(|floor| floor.structure == structure)
    }

    /// The smallest budget that all kinds of step that were planned have a plan for.
    pub fn smallest_budget(&self) -> Option<u64> {
        self.floors.iter().map(|floor| floor.bytes).max()
    }

    /// A step left its plan.
    pub fn left(&mut self, why: &Left) {
        self.left += 1;
        let text = match why {
            Left::Differs { at, found, planned } if found == planned => {
                format!("operation {at}, `{found}`, had other tensors than in the plan, or other shapes")
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

    /// The smallest plan for a step holds more than the budget allows.
    pub fn exceeds(&mut self, least: u64) {
        let least = match least {
            u64::MAX => "what a plan would hold cannot be predicted".to_owned(),
            least => format!("the smallest holds {least} bytes, so set at least that"),
        };
        self.problem = Some(format!(
            "no plan within the budget was found; {least}. Until then the online policy decides what to evict."
        ));
    }

    /// The plan that was found takes far longer than the online policy does for the same budget.
    pub fn is_too_dear(&mut self, overhead: f64) {
        self.problem = Some(format!(
            "the only plan found within the budget would make the step {:.1} times as long, so the online policy goes on deciding what to \
             evict. A slightly larger budget usually has a far cheaper plan.",
            1.0 + overhead
        ));
    }

    fn shows(&self, structure: u64) -> bool {
        self.schedule.as_ref().is_some_and(|shown| shown.structure() == structure)
    }
}
