//! Plans that use a budget to its end.
//!
//! A graph counts more than the engine holds while it follows a plan (see [`exact`](super::exact)), so a planner that
//! keeps to the budget leaves a part of it unused. Here the planner is told a larger one, raised for as long as what its
//! plans really hold is within the true budget: a few quick plans find how large, one long search uses it. Every plan
//! that is handed on holds at most the budget; where none is found that does, the least that the graph can do with takes the
//! budget's place.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_remat_plan::{
    Graph, Minimum, OpId, Outcome, Plan, PlanError, Progress, Request, Solved, Status, StopReason, Violations, check,
    minimum_within,
};

use super::chosen::{ChosenPlanner, is_defect};
use super::lower::{Lowered, lower};
use super::plain::with_forms;
use super::schedule::Schedule;
use burn_remat_core::Trace;

/// Most quick plans, and time of each.
const ROUNDS: u32 = 8;
const QUICK: Duration = Duration::from_millis(400);
/// Most time for the plan that holds least.
const LEAST_TIME: Duration = Duration::from_secs(2);
/// A part of the budget that is not worth another plan.
const GRAIN: u64 = 200;
/// One part in so many of the time goes to plans without other forms, where there are any.
const PLAIN_SHARE: u32 = 4;
/// A plan this near to its lower bound is not improved further.
const GOOD_ENOUGH: f64 = 0.002;

/// A step to be planned.
pub(crate) struct Fit {
    trace: Arc<Trace>,
    lowered: Lowered,
    /// Threads that planners may use, where not all.
    threads: Option<usize>,
    /// Smallest budget that a planner may be told.
    least: u64,
    /// The plan that holds least, and its account of itself.
    fallback: Arc<Schedule>,
    smallest: Outcome,
    blocking_op: OpId,
    /// A plan made before, with other costs perhaps.
    known: Option<(Arc<Schedule>, Outcome)>,
    /// The same step without other forms, where there are any, once it has been asked for.
    plain: OnceCell<Option<Box<Self>>>,
}

/// What planning may take.
pub(crate) struct Terms<'a> {
    pub planner: &'a ChosenPlanner,
    pub budget: u64,
    pub limit: Duration,
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

/// What a search for a plan comes across.
pub(crate) enum Found<'a> {
    /// A plan cheaper than all before it; its outcome speaks of the graph.
    Plan(Arc<Schedule>, &'a Outcome),
    /// The planner failed.
    Problem(PlanError),
}

/// One plan of a search.
struct Attempt {
    /// What it really holds.
    peak: u64,
    /// Whether it is all but proven to be the cheapest for what the planner was told.
    is_proven: bool,
    /// Whether it recomputes next to nothing.
    is_free: bool,
}

impl Fit {
    /// Finds the plan that holds least, with planners that may use so many threads; all that the machine has without a number.
    ///
    /// # Errors
    ///
    /// What the checker finds wrong with it.
    pub fn new(trace: Arc<Trace>, lowered: Lowered, threads: Option<usize>) -> Result<Self, Violations> {
        let start = Instant::now();
        let least_of = |graph: &Graph| -> Result<(Minimum, Schedule), Violations> {
            let time_limit = LEAST_TIME.saturating_sub(start.elapsed());
            let mut request = Request { time_limit, ..Request::new(u64::MAX) };
            request.threads = threads.unwrap_or(request.threads);
            let found = minimum_within(graph, &request);
            let checked = check(&lowered.graph, &found.plan, found.achieved)?;
            let schedule = Schedule::new(trace.clone(), lowered.clone(), &checked);
            Ok((found, schedule))
        };
        let mut least = least_of(&lowered.graph)?;
        // Of several plans that need equally little of a graph one really holds less than another, and which is found depends on costs. With
        // those of a dry device too, training does with what was named before it.
        if let Ok(dry) = lower(&with_dry_costs(&trace), lowered.graph.name())
            && let Ok(other) = least_of(&dry.graph)
            && other.1.peak < least.1.peak
        {
            least = other;
        }
        let (found, fallback) = least;
        let smallest = Outcome::of_plan("minimum", &lowered.graph, found.plan, Status::Feasible, StopReason::Heuristic);
        let (least, blocking_op, fallback) = (found.achieved, found.blocking_op, Arc::new(fallback));
        let (known, plain) = (None, OnceCell::new());
        Ok(Self { trace, lowered, threads, least, fallback, smallest, blocking_op, known, plain })
    }

    fn without_forms(&self) -> Option<Box<Self>> {
        if self.lowered.small_forms.is_empty() {
            return None;
        }
        let trace = Arc::new(Trace::clone(&self.trace).with_alternatives(|_| false));
        let lowered = lower(&trace, self.lowered.graph.name()).ok()?;
        Self::new(trace, lowered, self.threads).ok().map(Box::new)
    }

    /// Takes over a plan that `planner` made for a step of the same operations: what is found is then no dearer.
    pub fn with_known(mut self, plan: &Plan, planner: &str) -> Self {
        let graph = &self.lowered.graph;
        // The step may be another one after all; then the plan is of no use.
        self.known = check(graph, plan, u64::MAX).ok().map(|checked| {
            let schedule = Schedule::new(self.trace.clone(), self.lowered.clone(), &checked);
            let outcome = Outcome::of_plan(planner, graph, plan.clone(), Status::Feasible, StopReason::Heuristic);
            (Arc::new(schedule), outcome)
        });
        self
    }

    /// The smallest budget for which a plan is known, and the operation that sets it.
    pub fn floor(&self) -> (u64, &str) {
        let store_all = self.lowered.peak();
        (self.fallback.peak.min(store_all), &self.lowered.graph.ops()[self.blocking_op].name)
    }

    /// The stage of that operation.
    pub fn floor_stage(&self) -> Option<&str> {
        self.lowered.graph.ops()[self.blocking_op].stage.as_deref()
    }

    /// The cheapest plan that the planner finds.
    pub fn best(&self, planner: &ChosenPlanner, budget: u64, limit: Duration) -> Option<(Arc<Schedule>, Outcome)> {
        let mut best = None;
        self.run(&Terms { planner, budget, limit, progress: None }, |found| {
            if let Found::Plan(schedule, outcome) = found {
                best = Some((schedule, outcome.clone()));
            }
        });
        best
    }

    /// Searches until the time is up or nothing better can be hoped for, and hands on what it finds.
    pub fn run(&self, terms: &Terms<'_>, mut found: impl FnMut(Found<'_>)) {
        let start = Instant::now();
        let graph = &self.lowered.graph;
        let plain = self.plain(terms);
        // Most bytes that a plan may hold: the budget, once a plan is known that keeps it. Until then as much as leaves a
        // planner something to choose.
        let known = self.known.iter().chain(&plain).filter(|(schedule, _)| schedule.peak <= terms.budget);
        let known = known.min_by(|a, b| a.1.makespan.total_cmp(&b.1.makespan));
        let keeps = self.fallback.peak <= terms.budget || known.is_some();
        let mut target = if keeps { terms.budget } else { terms.budget.max(self.least) };

        if !keeps {
            found(Found::Plan(self.fallback.clone(), &self.smallest));
        }
        let mut best = f64::INFINITY;
        if let Some((schedule, outcome)) = known {
            best = outcome.makespan;
            found(Found::Plan(schedule.clone(), outcome));
        }
        // Why the planner is not to be asked again.
        let mut defect: Option<PlanError> = None;
        // Proved for budgets no smaller than this one.
        let mut bound: Option<f64> = None;
        // Plans once and hands on what is better and fits.
        let mut attempt = |budget: u64, limit: Duration, target: &mut u64| -> Option<Attempt> {
            let mut request = Request::new(budget);
            request.time_limit = limit;
            request.threads = self.threads.unwrap_or(request.threads);
            request.progress = terms.progress.clone();
            let Solved { mut outcome, checked } = match terms.planner.solve(graph, &request) {
                Ok(solved) => solved,
                Err(error) => {
                    defect = Some(error.clone()).filter(is_defect).or(defect.take());
                    found(Found::Problem(error));
                    return None;
                }
            };
            let schedule = Schedule::new(self.trace.clone(), self.lowered.clone(), &checked?);
            if self.lowered.weighted {
                // Its costs are preferences, and a bound on them is none on time.
                (outcome.status, outcome.lower_bound) = (Status::Feasible, None);
            }
            let (peak, makespan) = (schedule.peak, outcome.makespan);
            if budget >= *target && outcome.lower_bound > bound {
                bound = outcome.lower_bound;
            }
            log::debug!("told {budget} bytes, a plan of {makespan:.0} ns holds {peak} of {target}");
            if peak <= terms.budget && *target > terms.budget {
                (*target, best) = (terms.budget, f64::INFINITY);
            }
            if peak <= *target && makespan < best {
                best = makespan;
                found(Found::Plan(Arc::new(schedule), &outcome));
            }
            let near = |bound: f64| makespan <= bound * (1.0 + GOOD_ENOUGH);
            Some(Attempt {
                peak,
                is_proven: outcome.status == Status::Optimal || outcome.lower_bound.is_some_and(near),
                is_free: near(graph.ops().iter().map(|op| op.cost).sum()),
            })
        };

        let grain = target / GRAIN;
        let quick = QUICK.min(terms.limit / ROUNDS);
        // The largest budget told so far whose plan fits, and the smallest whose plan does not.
        let (mut fits, mut exceeds) = (None, u64::MAX);
        let mut told = target.max(self.least);
        let mut done = false;
        for _ in 0..ROUNDS {
            let Some(Attempt { peak, is_proven, is_free }) = attempt(told, quick, &mut target) else { break };
            if peak <= target {
                fits = Some(told);
                done = is_proven || is_free;
                told += (target - peak).max(grain);
            } else {
                exceeds = told;
                told = told.saturating_sub(peak - target);
            }
            let low = fits.unwrap_or(self.least);
            if is_free || exceeds <= low + grain {
                break;
            }
            if told <= low || told >= exceeds {
                told = low + (exceeds - low) / 2;
            }
        }
        // A longer search finds another plan, which may hold more than the quick one, or less.
        let mut told = fits.unwrap_or(self.least);
        while !done && start.elapsed() + quick < terms.limit {
            let left = terms.limit.saturating_sub(start.elapsed());
            let Some(Attempt { peak, .. }) = attempt(told, left / 4 * 3, &mut target) else { break };
            let before = told;
            told = if peak <= target { told + (target - peak) } else { told.saturating_sub(peak - target) };
            told = told.max(self.least);
            if before.abs_diff(told) <= grain && peak <= target || before == told {
                break;
            }
        }
        // What a broken planner leaves undone the online policy does better than the plan that holds least.
        if best.is_infinite() && keeps && defect.is_none() {
            found(Found::Plan(self.fallback.clone(), &self.smallest));
        }
        if let (Some((schedule, outcome)), Some(bound)) = (known, bound)
            && outcome.makespan <= best
        {
            let outcome = Outcome { lower_bound: Some(bound.min(outcome.makespan)), ..outcome.clone() };
            found(Found::Plan(schedule.clone(), &outcome));
        }
        if let Some(defect) = defect {
            // Once more, where plans have come since.
            found(Found::Problem(defect));
        }
    }

    /// A plan that makes no use of other forms, where there are any: more choices then never make a step dearer, however short the
    /// search.
    fn plain(&self, terms: &Terms<'_>) -> Option<(Arc<Schedule>, Outcome)> {
        let plain = self.plain.get_or_init(|| self.without_forms());
        let fit = plain.as_deref().filter(|fit| fit.floor().0 <= terms.budget)?;
        let mut best = None;
        let terms = Terms { limit: terms.limit / PLAIN_SHARE, progress: terms.progress.clone(), ..*terms };
        fit.run(&terms, |found| {
            if let Found::Plan(schedule, outcome) = found {
                best = Some((schedule, outcome.planner.clone()));
            }
        });
        let (schedule, planner) = best?;
        let plan = with_forms(&self.lowered, &schedule.plan)?;
        let checked = check(&self.lowered.graph, &plan, u64::MAX).ok()?;
        let schedule = Schedule::new(self.trace.clone(), self.lowered.clone(), &checked);
        let outcome = Outcome::of_plan(&planner, &self.lowered.graph, plan, Status::Feasible, StopReason::Heuristic);
        Some((Arc::new(schedule), outcome))
    }
}

/// The same step with the times that a dry device takes its operations to need: what they touch.
fn with_dry_costs(trace: &Trace) -> Trace {
    let bytes = |number: u32| trace.tensors.get(number as usize).map_or(0, |tensor| tensor.bytes);
    let measures = trace.ops.iter().map(|op| {
        let outputs = op.outputs..op.outputs + op.writes.len() as u32;
        let touched: u64 = op.inputs.iter().map(|&(number, _)| number).chain(outputs).map(bytes).sum();
        (touched.max(1), op.scratch)
    });
    trace.clone().with_measures(measures)
}
