//! The format `remat-plan/1`, for plans of graphs and of chains.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{FormatError, parse_tagged};
use crate::error::PlanError;
use crate::plan::{Plan, Step};
use crate::planner::{AnyPlan, Outcome, Status, StopReason};

/// The tag of a plan file.
pub const PLAN_FORMAT: &str = "remat-plan/1";

/// A plan file. A reader needs only `steps`; all other fields say where they come from and what they cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// The tag.
    pub format: String,
    /// Name of the planner.
    #[serde(default)]
    pub planner: String,
    /// What is known about the plan.
    pub status: Option<Status>,
    /// Why the planner stopped.
    pub stop_reason: Option<StopReason>,
    /// Cost of the plan.
    pub makespan: Option<f64>,
    /// Makespan divided by the store-all makespan, minus 1.
    pub overhead: Option<f64>,
    /// Most bytes resident at once.
    pub peak_bytes: Option<u64>,
    /// A proven lower bound on the makespan.
    pub lower_bound: Option<f64>,
    /// Time the planner took.
    pub solve_seconds: Option<f64>,
    /// If there is no plan: the smallest budget known to be feasible.
    pub minimum_budget: Option<u64>,
    /// If there is no plan: the op that needs it.
    pub blocking_op: Option<usize>,
    /// `feng-huang`: the values kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Vec<usize>>,
    /// `feng-huang`: bytes of the interior checkpoints and of the largest segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_bytes: Option<u64>,
    /// The steps, in their text form.
    pub steps: Vec<String>,
}

impl PlanFile {
    /// A file without a plan.
    pub fn empty(planner: &str, status: Status, stop_reason: StopReason) -> Self {
        Self {
            format: PLAN_FORMAT.to_owned(),
            planner: planner.to_owned(),
            status: Some(status),
            stop_reason: Some(stop_reason),
            makespan: None,
            overhead: None,
            peak_bytes: None,
            lower_bound: None,
            solve_seconds: None,
            minimum_budget: None,
            blocking_op: None,
            checkpoints: None,
            checkpoint_bytes: None,
            steps: Vec::new(),
        }
    }

    /// The file of an outcome; `store_all` is the makespan without recomputation.
    pub fn of_outcome<P: AnyPlan>(outcome: &Outcome<P>, store_all: f64) -> Self {
        let found = outcome.plan.as_ref();
        Self {
            makespan: found.map(|_| outcome.makespan),
            overhead: found.map(|_| overhead(outcome.makespan, store_all)),
            peak_bytes: found.map(|_| outcome.peak_bytes),
            lower_bound: outcome.lower_bound,
            solve_seconds: Some(outcome.solve_time.as_secs_f64()),
            checkpoints: outcome.checkpoints.as_ref().map(|kept| kept.values.clone()),
            checkpoint_bytes: outcome.checkpoints.as_ref().map(|kept| kept.bytes),
            steps: found.map_or_else(Vec::new, P::step_texts),
            ..Self::empty(&outcome.planner, outcome.status, outcome.stop_reason)
        }
    }

    /// The file of a request for which there is no plan: `infeasible` if that is proved, else `no_solution`. `None` for
    /// any other error.
    pub fn of_infeasible(planner: &str, error: &PlanError) -> Option<Self> {
        match error {
            PlanError::Infeasible { minimum, blocking_op, proven, .. } => {
                let (status, reason) = match proven {
                    true => (Status::Infeasible, StopReason::Proved),
                    false => (Status::NoSolution, StopReason::Heuristic),
                };
                let empty = Self::empty(planner, status, reason);
                Some(Self { minimum_budget: *minimum, blocking_op: *blocking_op, ..empty })
            }
            _ => None,
        }
    }

    /// Reads a plan file.
    ///
    /// # Errors
    ///
    /// [`FormatError`], which names the field at fault. The steps are only parsed by [`steps`](Self::steps).
    pub fn from_json(text: &str) -> Result<Self, FormatError> {
        parse_tagged(text, PLAN_FORMAT)
    }

    /// Writes the file on one line.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string(self).expect("texts, integers and finite numbers always serialize");
        text + "\n"
    }

    /// The steps, as those of a graph ([`Step`]) or of a chain ([`ChainStep`](crate::ChainStep)).
    ///
    /// # Errors
    ///
    /// [`FormatError::Step`] with the index of the first text that is not a step.
    pub fn steps<S: FromStr<Err: std::fmt::Display>>(&self) -> Result<Vec<S>, FormatError> {
        let read = |(index, text): (usize, &String)| {
            text.parse().map_err(|error: S::Err| FormatError::Step { index, message: error.to_string() })
        };
        self.steps.iter().enumerate().map(read).collect()
    }

    /// The plan of a graph.
    ///
    /// # Errors
    ///
    /// The same as [`steps`](Self::steps).
    pub fn plan(&self) -> Result<Plan, FormatError> {
        Ok(Plan { steps: self.steps::<Step>()? })
    }
}

/// Makespan divided by the store-all makespan, minus 1. If nothing costs anything, there is no overhead.
fn overhead(makespan: f64, store_all: f64) -> f64 {
    if store_all > 0.0 { makespan / store_all - 1.0 } else { 0.0 }
}
