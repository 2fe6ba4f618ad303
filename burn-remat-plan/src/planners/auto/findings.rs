//! What the planners have answered so far: the plans, the best bound, and the smallest feasible budget reported.

use std::time::Duration;

use super::decision::{Decision, Tried};
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::OpId;
use crate::planner::{Bound, Outcome, Progress, Request, Scope, Status, StopReason};

/// The answers to one request, for a graph or for a chain.
pub(super) struct Findings<'a, P> {
    pub request: &'a Request,
    pub deadline: Deadline,
    pub tried: Vec<Tried>,
    pub found: Vec<Outcome<P>>,
    /// Whether some planner proved that no schedule fits.
    pub is_proven_infeasible: bool,
    /// The smallest feasible budget reported, with its op.
    minimum: Option<(u64, Option<OpId>)>,
    /// A lower bound that holds for every schedule.
    bound: f64,
}

impl<'a, P: Clone> Findings<'a, P> {
    /// Starts with the plans `found` and a bound that holds for every schedule.
    pub fn new(request: &'a Request, bound: f64, found: Vec<Outcome<P>>) -> Self {
        Self {
            request,
            deadline: request.deadline(),
            tried: Vec::new(),
            found,
            is_proven_infeasible: false,
            minimum: None,
            bound,
        }
    }

    /// The request with `share` of the whole time as its limit, but no more than is left.
    pub fn within(&self, share: f64) -> Request {
        let whole = self.request.time_limit.as_secs_f64();
        let part = Duration::try_from_secs_f64(whole * share).unwrap_or(Duration::MAX);
        let time_limit = part.min(self.deadline.left());
        Request { time_limit, ..self.request.clone() }
    }

    pub fn best(&self) -> Option<&Outcome<P>> {
        let order =
            |a: &&Outcome<P>, b: &&Outcome<P>| a.makespan.total_cmp(&b.makespan).then(a.peak_bytes.cmp(&b.peak_bytes));
        self.found.iter().min_by(order)
    }

    /// Whether a planner has found a plan.
    pub fn has_answer(&self) -> bool {
        self.tried.iter().any(|tried| tried.result.is_ok())
    }

    /// Whether the best plan meets the bound to within the requested gap.
    pub fn is_settled(&self) -> bool {
        self.best().is_some_and(|best| best.makespan <= self.bound * (1.0 + self.request.gap.max(1e-12)))
    }

    /// Records an answer and reports the progress to the caller.
    pub fn note(&mut self, planner: &'static str, answer: Result<Outcome<P>, PlanError>) {
        let result = match answer {
            Ok(outcome) if outcome.plan.is_none() => Err("found no plan in its time".to_owned()),
            Ok(outcome) if outcome.peak_bytes > self.request.budget => Err("exceeds the budget".to_owned()),
            Ok(outcome) => {
                if outcome.scope == Scope::AllSchedules {
                    self.bound = self.bound.max(outcome.lower_bound.unwrap_or(0.0));
                }
                let makespan = outcome.makespan;
                self.found.push(outcome);
                let incumbent = self.best().map(|best| best.makespan);
                self.request.report(Progress { incumbent, lower_bound: Some(self.bound) });
                Ok(makespan)
            }
            Err(error) => Err(self.reason(error)),
        };
        self.tried.push(Tried { planner, result });
    }

    /// Keeps what an error says about the minimum; returns a short reason.
    fn reason(&mut self, error: PlanError) -> String {
        match error {
            PlanError::Infeasible { budget, minimum, blocking_op, proven } => {
                self.is_proven_infeasible |= proven;
                let least = self.minimum.map_or(u64::MAX, |(least, _)| least);
                if let Some(bytes) = minimum.filter(|&bytes| bytes > budget && bytes < least) {
                    self.minimum = Some((bytes, blocking_op));
                }
                "needs more memory".to_owned()
            }
            PlanError::Internal { .. } | PlanError::Overdue { .. } => {
                log::error!("{error}");
                error.to_string()
            }
            PlanError::FeatureMissing { .. } => "is not in this build".to_owned(),
            PlanError::Unsupported { .. } => "does not apply".to_owned(),
        }
    }

    /// The best plan with the best bound, and the decision.
    ///
    /// # Errors
    ///
    /// [`PlanError::Infeasible`] if there is no plan, [`PlanError::Internal`] if the bound exceeds the cost of the best one.
    pub fn outcome(&self, auto: &'static str) -> Result<(Outcome<P>, Decision), PlanError> {
        let Some(best) = self.best() else {
            let (minimum, blocking_op) = self.minimum.unzip();
            return Err(PlanError::Infeasible {
                budget: self.request.budget,
                minimum,
                blocking_op: blocking_op.flatten(),
                proven: self.is_proven_infeasible,
            });
        };
        let (status, stop_reason) = if best.makespan <= self.bound {
            (Status::Optimal, StopReason::Proved)
        } else if self.is_settled() {
            (Status::Optimal, StopReason::Gap)
        } else if self.deadline.passed() {
            (Status::Feasible, StopReason::TimeLimit)
        } else {
            (Status::Feasible, StopReason::Heuristic)
        };
        let outcome = Outcome { status, stop_reason, ..best.clone() };
        let decision = Decision { winner: best.planner.clone(), tried: self.tried.clone() };
        Ok((outcome.bounded(auto, Bound::for_all_schedules(self.bound))?, decision))
    }
}
