//! How large a budget a planner is told: more than the true one, as long as what its plans really hold is within that.

use std::sync::Arc;
use std::time::Duration;

use burn_remat_plan::clock::Moment;
use burn_remat_plan::planners::Auto;
use burn_remat_plan::{Outcome, Plan, PlanError, Request, Status};

use super::ask::{Found, GOOD_ENOUGH, ROUNDS, Terms, planned, quick, request};
use super::least::{Fit, Given, LEAST};
use crate::planning::chosen::is_defect;

/// This many longer searches in a row that gain nothing are enough if little can be gained. `NOTHING` and `LITTLE` are parts of the step's time.
const MOST_IN_VAIN: u32 = 3;
const NOTHING: f64 = 0.0005;
const LITTLE: f64 = 0.02;
/// A planner that is late this often is broken. Once, it may be because the machine is busy.
const LATE: u32 = 3;
/// One part in this many of the budget is not worth another plan.
const GRAIN: u64 = 200;

/// The budget that a planner is told.
struct Told {
    /// The largest budget whose plan was found to fit, or the smallest that the planner can be told.
    budget: u64,
    /// Whether nothing better can be expected.
    done: bool,
}

/// One plan of a search.
struct Attempt {
    /// What it really holds.
    peak: u64,
    /// No plan for what the planner was told takes less; 0 if nothing is known.
    bound: f64,
    /// Whether it is proven, or almost, that it is the cheapest for what the planner was told.
    is_proven: bool,
    /// Whether it recomputes almost nothing.
    is_free: bool,
}

/// A search in progress.
pub(super) struct Search<'a, F> {
    fit: &'a Fit,
    terms: &'a Terms<'a>,
    pub found: F,
    /// The most bytes that a plan may hold. This is the budget once a plan is known that keeps to it; until then, it is enough to leave the planner some
    /// choice.
    target: u64,
    /// Time of the cheapest plan so far.
    pub best: f64,
    /// Plans that a planner may start from: the smallest one, and the cheapest ones so far.
    known: Vec<Plan>,
    /// Why the planner must not be asked again.
    pub defect: Option<PlanError>,
    /// How often it was late.
    late: u32,
    /// Whether nothing but the smallest plan has been found.
    is_least: bool,
    /// The lower bound that was proved for budgets no smaller than the target.
    pub bound: Option<f64>,
}

impl<'a, F: FnMut(Found<'_>)> Search<'a, F> {
    /// A search for plans that hold at most `target` bytes and are cheaper than the `known` one.
    pub fn new(fit: &'a Fit, terms: &'a Terms<'a>, target: u64, known: Option<&Outcome>, found: F) -> Self {
        let plans = [&fit.smallest].into_iter().chain(known);
        Self {
            fit,
            terms,
            found,
            target,
            best: known.map_or(f64::INFINITY, |known| known.makespan),
            known: plans.filter_map(|outcome| outcome.plan.clone()).collect(),
            defect: None,
            late: 0,
            is_least: known.is_none_or(|known| known.planner == LEAST),
            bound: None,
        }
    }

    /// A few quick plans find out which graph to give to the planner and how large a budget it can be told. Longer searches use that, each twice as long
    /// as the one before, until little can be gained and several in a row have gained nothing.
    pub fn through_budgets(&mut self, start: Moment) {
        let grain = self.target / GRAIN;
        let mut time = quick(&self.fit.lowered).min(self.terms.limit / ROUNDS);
        let mut chosen = None;
        loop {
            for given in self.fit.given(self.target) {
                let before = self.best;
                let told = self.quickly(given, time);
                if chosen.is_none() || self.best < before {
                    chosen = Some((given, told));
                }
                if start.elapsed() > self.terms.limit / 2 {
                    break;
                }
            }
            // If there is a plan within the budget, there are cheaper ones than the smallest.
            let is_open = self.is_least && self.defect.is_none() && self.target == self.terms.budget;
            if !is_open || start.elapsed() + time > self.terms.limit {
                break;
            }
            time *= 2;
        }
        let Some((given, Told { budget: mut told, done })) = chosen else { return };
        let mut in_vain = 0;
        while !done && start.elapsed() + time < self.terms.limit {
            let (left, before) = (self.terms.limit.saturating_sub(start.elapsed()), self.best);
            time = (2 * time).min(left / 4 * 3);
            let Some(Attempt { peak, bound, is_proven, .. }) = self.attempt(given, told, time) else { break };
            let target = self.target;
            in_vain = if self.best < before * (1.0 - NOTHING) { 0 } else { in_vain + 1 };
            let is_enough = in_vain >= MOST_IN_VAIN && self.best * (1.0 - LITTLE) <= bound;
            if is_enough || is_proven && peak <= target && target - peak <= grain {
                break;
            }
            // A longer search finds another plan, which may hold more or less than the quick one.
            told = if peak <= target { told + (target - peak) } else { told.saturating_sub(peak - target) };
            told = told.max(given.least);
        }
    }

    /// Finds out with quick plans how large a budget the planner can be told.
    fn quickly(&mut self, given: &Given, quick: Duration) -> Told {
        let least = given.least;
        let grain = self.target / GRAIN;
        // The largest budget told so far whose plan fits, and the smallest whose plan does not.
        let (mut fits, mut exceeds) = (None, u64::MAX);
        let mut told = self.target.max(least);
        let mut done = false;
        for _ in 0..ROUNDS {
            let Some(Attempt { peak, is_proven, is_free, .. }) = self.attempt(given, told, quick) else { break };
            if peak <= self.target {
                fits = Some(told);
                done = is_proven || is_free;
                told += (self.target - peak).max(grain);
            } else {
                exceeds = told;
                told = told.saturating_sub(peak - self.target);
            }
            let low = fits.unwrap_or(least);
            if is_free || exceeds <= low + grain {
                break;
            }
            if told <= low || told >= exceeds {
                told = low + (exceeds - low) / 2;
            }
        }
        Told { budget: fits.unwrap_or(least), done }
    }

    /// Plans once, and hands the plan on if it is better and fits.
    fn attempt(&mut self, given: &Given, budget: u64, limit: Duration) -> Option<Attempt> {
        let Fit { trace, lowered, threads, .. } = self.fit;
        let known = [&given.plan].into_iter().chain(&self.known).cloned().collect();
        let request = Request { known, ..request(budget, limit, *threads, lowered) };
        let (schedule, mut outcome) = match planned(trace, lowered, &given.graph, self.terms.planner, &request) {
            Ok(planned) => planned?,
            Err(error) => {
                // That there is no plan within what it was told says nothing about the true budget; the smallest plan does.
                let is_late = matches!(error, PlanError::Overdue { .. });
                self.late += u32::from(is_late);
                if matches!(error, PlanError::Infeasible { .. }) || is_late && self.late < LATE {
                    return None;
                }
                self.defect = Some(error.clone()).filter(is_defect).or(self.defect.take());
                (self.found)(Found::Problem(error));
                return None;
            }
        };
        let (peak, makespan) = (schedule.peak, outcome.makespan);
        if budget >= self.target && outcome.lower_bound > self.bound {
            self.bound = outcome.lower_bound;
        }
        log::debug!("told {budget} bytes, the planner found {makespan:.0} ns with {peak} of {} bytes", self.target);
        if peak <= self.terms.budget && self.target > self.terms.budget {
            (self.target, self.best) = (self.terms.budget, f64::INFINITY);
        }
        if peak <= self.target && makespan < self.best {
            self.best = makespan;
            if outcome.planner == Auto::KNOWN {
                LEAST.clone_into(&mut outcome.planner);
            }
            self.is_least &= outcome.planner == LEAST;
            self.known.extend(outcome.plan.clone());
            (self.found)(Found::Plan(Arc::new(schedule), &outcome));
        }
        let near = |bound: f64| makespan <= bound * (1.0 + GOOD_ENOUGH);
        Some(Attempt {
            peak,
            bound: outcome.lower_bound.unwrap_or(0.0),
            is_proven: outcome.status == Status::Optimal || outcome.lower_bound.is_some_and(near),
            is_free: near(lowered.graph.ops().iter().map(|op| op.cost).sum()),
        })
    }
}
