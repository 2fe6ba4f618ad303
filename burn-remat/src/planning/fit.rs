//! Plans that use a budget to its end.
//!
//! A graph counts more than the engine holds while it follows a plan (see [`replay`](burn_remat_core::replay)), so a planner that
//! keeps to the budget leaves a part of it unused. Here the planner is given a graph that counts less of that (`tight.rs`), and told a larger
//! budget, raised for as long as what its plans really hold is within the true one: a few quick plans find how large, longer
//! searches use it. Every plan that is handed on holds at most the budget; where none is found that does, the least that a plan holds takes the
//! budget's place.

use std::cell::{LazyCell, OnceCell};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_remat_plan::{
    Graph, OpId, Outcome, Plan, PlanError, Request, Solved, Status, StopReason, Violations, check, minimum_within,
};
use smallvec::{SmallVec, smallvec};

use super::chosen::{ChosenPlanner, is_defect};
use super::least::{offered, remember, with_dry_costs};
use super::lowering::{Lowered, lower};
use super::plain::with_forms;
use super::schedule::Schedule;
use super::service::Origin;
use super::tight::tight;
use burn_remat_core::Trace;

/// Most quick plans from one graph.
const ROUNDS: u32 = 8;
/// Time of each, at least and at most, and for each op of the graph.
const QUICKEST: Duration = Duration::from_millis(25);
const QUICK: Duration = Duration::from_millis(400);
const QUICK_PER_OP: Duration = Duration::from_micros(150);
/// So many longer searches in a row that gain nothing are enough where little can be gained, both as parts of the step's time.
const MOST_IN_VAIN: u32 = 3;
const NOTHING: f64 = 0.0005;
const LITTLE: f64 = 0.02;
/// A planner that is late so often is broken: once it may be the machine that is busy.
const LATE: u32 = 3;
/// So many times its limit a search may take until it has found a plan that is not the one that holds least.
const PATIENCE: u32 = 4;
/// What the plan that holds least is called, where no planner has found another one.
pub(crate) const LEAST: &str = "minimum";
/// Most time for it, and for another look where that holds more than it may.
const LEAST_TIME: Duration = Duration::from_secs(2);
const LEAST_AGAIN: Duration = Duration::from_secs(6);
/// What planners may take of memory: one part in so many of what the step holds without evictions, or this where that is more. Half of it changes no
/// plan of a thousand operations.
const MEMORY_SHARE: u64 = 16;
const LEAST_MEMORY: u64 = 32 << 20;
/// How often the graph is made to count less, each time by the plan that holds least then.
const TIGHTER: usize = 2;
/// How little more a plan may hold than the one that holds least, or than the online policy, as one part of that, where both are beyond the budget.
pub(crate) const BEYOND: u64 = 32;
/// How little more the plan that holds least may hold than another one that takes longer, as one part of that.
const LITTLE_MORE: u64 = 64;
/// A part of the budget that is not worth another plan.
const GRAIN: u64 = 200;
/// One part in so many of the time goes to plans without other forms, where there are any.
const PLAIN_SHARE: u32 = 4;
/// A plan this near to its lower bound is not improved further.
pub(crate) const GOOD_ENOUGH: f64 = 0.002;

/// A step to be planned.
pub(crate) struct Fit {
    trace: Arc<Trace>,
    lowered: Lowered,
    /// Threads that planners may use, where not all.
    threads: Option<usize>,
    /// What planners may be given.
    given: Vec<Given>,
    /// The plan that holds least, and its account of itself.
    fallback: Arc<Schedule>,
    smallest: Outcome,
    blocking_op: OpId,
    /// A plan made before, with other costs perhaps.
    known: Option<Planned>,
    /// The same step without other forms, where there are any, once it has been asked for.
    plain: OnceCell<Option<Box<Self>>>,
}

/// A graph of the step that a planner may be given.
struct Given {
    graph: Graph,
    /// Smallest budget that the planner may be told.
    least: u64,
    /// What the plan for that really holds.
    holds: u64,
}

/// What planning may take.
pub(crate) struct Terms<'a> {
    pub planner: &'a ChosenPlanner,
    pub budget: u64,
    pub limit: Duration,
}

/// What a search for a plan comes across.
pub(crate) enum Found<'a> {
    /// A plan cheaper than all before it; its outcome speaks of the graph.
    Plan(Arc<Schedule>, &'a Outcome),
    /// The planner failed.
    Problem(PlanError),
}

/// What a planner is told.
struct Told {
    /// The largest budget whose plan was found to fit, or the smallest that can be told.
    budget: u64,
    /// Whether nothing better can be hoped for.
    done: bool,
}

/// One plan of a search.
struct Attempt {
    /// What it really holds.
    peak: u64,
    /// No plan for what the planner was told takes less; 0 where nothing is known.
    bound: f64,
    /// Whether it is all but proven to be the cheapest for what the planner was told.
    is_proven: bool,
    /// Whether it recomputes next to nothing.
    is_free: bool,
}

/// A plan, and its account of itself.
pub(crate) type Planned = (Arc<Schedule>, Outcome);

/// A plan within the budget in little time, from the graph as it is: what a step goes by until the plan that holds least is known, and with that what
/// planners may be told. None where the graph counts too much for that, or the planner fails.
pub(crate) fn first(
    trace: &Arc<Trace>,
    lowered: &Lowered,
    threads: Option<usize>,
    terms: &Terms<'_>,
) -> Option<Planned> {
    let request = request(terms.budget, quick(lowered).min(terms.limit / ROUNDS), threads, lowered);
    let (schedule, outcome) = planned(trace, lowered, &lowered.graph, terms.planner, &request).ok()??;
    (schedule.peak <= terms.budget).then(|| (Arc::new(schedule), outcome))
}

/// The time of a quick plan.
fn quick(lowered: &Lowered) -> Duration {
    let ops = u32::try_from(lowered.graph.ops().len()).unwrap_or(u32::MAX);
    QUICK_PER_OP.saturating_mul(ops).clamp(QUICKEST, QUICK)
}

/// For planners that may use so many threads; all that the machine has without a number. They take memory beside the step that they plan, so what
/// they may take goes by what it holds.
fn request(budget: u64, time_limit: Duration, threads: Option<usize>, step: &Lowered) -> Request {
    let request = Request { time_limit, ..Request::new(budget) };
    let memory_limit = request.memory_limit.min((step.peak() / MEMORY_SHARE).max(LEAST_MEMORY));
    Request { threads: threads.unwrap_or(request.threads), memory_limit, ..request }
}

/// What a planner finds for a `graph` of the step, if that can be followed.
fn planned(
    trace: &Arc<Trace>,
    lowered: &Lowered,
    graph: &Graph,
    planner: &ChosenPlanner,
    request: &Request,
) -> Result<Option<(Schedule, Outcome)>, PlanError> {
    let Solved { mut outcome, checked } = planner.solve(graph, request)?;
    if lowered.is_weighted() {
        // Its costs are preferences, and a bound on them is none on time.
        (outcome.status, outcome.lower_bound) = (Status::Feasible, None);
    }
    Ok(checked.map(|checked| (Schedule::new(trace.clone(), lowered.clone(), &checked), outcome)))
}

impl Fit {
    /// Finds the plan that holds least, with planners that may use so many threads; all that the machine has without a number. Where one holds no more
    /// than `enough`, one that holds still less is not looked for everywhere.
    ///
    /// # Errors
    ///
    /// What the checker finds wrong with it.
    pub fn new(trace: Arc<Trace>, lowered: Lowered, threads: Option<usize>, enough: u64) -> Result<Self, Violations> {
        let end = Instant::now() + LEAST_TIME;
        let (mut given, mut known) = (Vec::new(), Vec::new());
        // Plans are found for a graph with some costs, and planners are given the same one with those of the step.
        let mut go_through = |first: &Graph, end: Instant| -> Result<u64, Violations> {
            let mut graphs = Some((first.clone(), lowered.graph.clone()));
            for _ in 0..=TIGHTER {
                let Some((asked, graph)) = graphs else { break };
                let left = end.saturating_duration_since(Instant::now());
                let found = minimum_within(&asked, &request(u64::MAX, left, threads, &lowered));
                let checked = check(&lowered.graph, &found.plan, u64::MAX)?;
                let schedule = Schedule::new(trace.clone(), lowered.clone(), &checked);
                graphs = tight(first, &schedule).zip(tight(&lowered.graph, &schedule));
                given.push(Given { graph, least: found.achieved, holds: schedule.peak });
                known.push((found, schedule));
            }
            Ok(known.iter().map(|(_, schedule)| schedule.peak).min().unwrap_or(u64::MAX))
        };
        let least = go_through(&lowered.graph, end)?;
        let dry = LazyCell::new(|| lower(&with_dry_costs(&trace), lowered.graph.name()).ok());
        // Of several plans that need equally little of a graph one really holds less than another, and which is found depends on costs. With
        // those of a dry device too, training does with what was named before it.
        if least > enough
            && let Some(dry) = dry.as_ref()
            && dry.graph != lowered.graph
        {
            // With other costs it may have other forms; then its plans are none for this graph.
            // A budget that is missed is worth more time than a question without one.
            let end = if enough > 0 { Instant::now() + LEAST_AGAIN } else { end };
            let _ = go_through(&dry.graph, end);
        }
        let least = known.iter().min_by_key(|(_, schedule)| schedule.peak);
        let blocking_op = least.map_or(0, |(found, _)| found.blocking_op);
        let mut known: Vec<(Plan, Schedule)> =
            known.into_iter().map(|(found, schedule)| (found.plan, schedule)).collect();
        let structure = known.first().map_or(0, |(_, schedule)| schedule.structure());
        known.extend(offered(&trace, structure, || iter::once(&lowered).chain(dry.as_ref())));
        let least = known.iter().map(|(_, schedule)| schedule.peak).min().unwrap_or(u64::MAX);
        let most = least + least / LITTLE_MORE;
        let most = if enough > 0 { most.min(enough).max(least) } else { most };
        let near = known.into_iter().filter(|(_, schedule)| schedule.peak <= most);
        let cheapest = near.min_by(|(_, a), (_, b)| a.overhead().total_cmp(&b.overhead()));
        let (plan, fallback) = cheapest.expect("internal error: a graph has a plan that holds least");
        let graph = &fallback.lowered.graph;
        let smallest = Outcome::of_plan(LEAST, graph, plan, Status::Feasible, StopReason::Heuristic);
        let fallback = Arc::new(fallback);
        let (known, plain) = (None, OnceCell::new());
        Ok(Self { trace, lowered, threads, given, fallback, smallest, blocking_op, known, plain })
    }

    /// What a planner is given for plans that hold at most `target` bytes: of the graphs with such a plan the one that counts least, and
    /// that which counts most, which is nearer to the truth at moments where others count too little; else the one with the plan that holds least.
    fn given(&self, target: u64) -> SmallVec<[&Given; 2]> {
        let fit = self.given.iter().filter(|given| given.holds <= target);
        let counts = |given: &&Given| given.graph.constant_bytes();
        match (fit.clone().min_by_key(counts), fit.rev().max_by_key(counts)) {
            (Some(least), Some(most)) if counts(&least) < counts(&most) => smallvec![least, most],
            (Some(least), _) => smallvec![least],
            (None, _) => self.given.iter().min_by_key(|given| given.holds).into_iter().collect(),
        }
    }

    fn without_forms(&self, enough: u64) -> Option<Box<Self>> {
        if self.lowered.forms.small.is_empty() {
            return None;
        }
        let trace = Arc::new(Trace::clone(&self.trace).with_alternatives(|_| false));
        let lowered = lower(&trace, self.lowered.graph.name()).ok()?;
        Self::new(trace, lowered, self.threads, enough).ok().map(Box::new)
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

    /// Takes over a plan for this very step: what is found is no dearer.
    pub fn beginning_with(self, first: Planned) -> Self {
        Self { known: Some(first), ..self }
    }

    /// The smallest budget for which a plan is known, and the operation that sets it.
    pub fn floor(&self) -> (u64, &str) {
        let store_all = self.lowered.peak();
        (self.fallback.peak.min(store_all), &self.lowered.graph.ops()[self.blocking_op].name)
    }

    /// The plan that holds least, and its account of itself.
    pub fn least(&self) -> (Arc<Schedule>, Origin) {
        (self.fallback.clone(), Origin::of(&self.smallest, 0.0))
    }

    /// Has training in this process offered the plan that holds least.
    pub fn remember(&self) {
        if let Some(plan) = &self.smallest.plan {
            remember(self.structure(), plan);
        }
    }

    /// Which kind of step this is.
    pub fn structure(&self) -> u64 {
        self.fallback.structure()
    }

    /// The stage of that operation.
    pub fn floor_stage(&self) -> Option<&str> {
        self.lowered.graph.ops()[self.blocking_op].stage.as_deref()
    }

    /// The cheapest plan that the planner finds.
    pub fn best(&self, planner: &ChosenPlanner, budget: u64, limit: Duration) -> Option<Planned> {
        let mut best = None;
        self.run(&Terms { planner, budget, limit }, |found| {
            if let Found::Plan(schedule, outcome) = found {
                best = Some((schedule, outcome.clone()));
            }
        });
        best
    }

    /// Searches until the time is up or nothing better can be hoped for, and hands on what it finds.
    pub fn run(&self, terms: &Terms<'_>, mut found: impl FnMut(Found<'_>)) {
        let start = Instant::now();
        let plain = self.plain(terms);
        let known = self.known.iter().chain(&plain).filter(|(schedule, _)| schedule.peak <= terms.budget);
        let known = known.min_by(|a, b| a.1.makespan.total_cmp(&b.1.makespan));
        let keeps = self.fallback.peak <= terms.budget || known.is_some();
        if !keeps {
            found(Found::Plan(self.fallback.clone(), &self.smallest));
        }
        if let Some((schedule, outcome)) = known {
            found(Found::Plan(schedule.clone(), outcome));
        }
        let (least, _) = self.floor();
        let target = if keeps { terms.budget } else { terms.budget.max(least + least / BEYOND) };
        let best = known.map_or(f64::INFINITY, |(_, outcome)| outcome.makespan);
        let is_least = known.is_none_or(|(_, outcome)| outcome.planner == LEAST);
        let mut search = Search { fit: self, terms, found, target, best, defect: None, late: 0, is_least, bound: None };
        search.through_budgets(start);
        let Search { mut found, best, defect, bound, .. } = search;
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
    fn plain(&self, terms: &Terms<'_>) -> Option<Planned> {
        let plain = self.plain.get_or_init(|| self.without_forms(terms.budget));
        let fit = plain.as_deref().filter(|fit| fit.floor().0 <= terms.budget)?;
        let mut best = None;
        let terms = Terms { limit: terms.limit / PLAIN_SHARE, ..*terms };
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

/// A search under way.
struct Search<'a, F> {
    fit: &'a Fit,
    terms: &'a Terms<'a>,
    found: F,
    /// Most bytes that a plan may hold: the budget, once a plan is known that keeps it. Until then as much as leaves a
    /// planner something to choose.
    target: u64,
    /// Time of the cheapest plan so far.
    best: f64,
    /// Why the planner is not to be asked again.
    defect: Option<PlanError>,
    /// How often it was late.
    late: u32,
    /// Whether all that was found is the plan that holds least.
    is_least: bool,
    /// Proved for budgets no smaller than the target.
    bound: Option<f64>,
}

impl<F: FnMut(Found<'_>)> Search<'_, F> {
    /// A few quick plans find what the planner is given and how much it can be told, longer searches use it, each twice as long as the one before,
    /// until little can be gained and several in a row have gained nothing.
    fn through_budgets(&mut self, start: Instant) {
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
            // Where there is a plan within the budget there are cheaper ones than that which holds least: beside other work they take longer to find.
            let is_open = self.is_least && self.defect.is_none() && self.target == self.terms.budget;
            if !is_open || start.elapsed() + time > PATIENCE * self.terms.limit {
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
            // A longer search finds another plan, which may hold more than the quick one, or less.
            told = if peak <= target { told + (target - peak) } else { told.saturating_sub(peak - target) };
            told = told.max(given.least);
        }
    }

    /// Finds with plans made in little time how much the planner can be told.
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

    /// Plans once and hands on what is better and fits.
    fn attempt(&mut self, given: &Given, budget: u64, limit: Duration) -> Option<Attempt> {
        let Fit { trace, lowered, threads, .. } = self.fit;
        let request = request(budget, limit, *threads, lowered);
        let (schedule, outcome) = match planned(trace, lowered, &given.graph, self.terms.planner, &request) {
            Ok(planned) => planned?,
            Err(error) => {
                // That there is none within what it was told says nothing of the budget: the plan that holds least does.
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
        log::debug!("told {budget} bytes, a plan of {makespan:.0} ns holds {peak} of {}", self.target);
        if peak <= self.terms.budget && self.target > self.terms.budget {
            (self.target, self.best) = (self.terms.budget, f64::INFINITY);
        }
        if peak <= self.target && makespan < self.best {
            self.best = makespan;
            self.is_least &= outcome.planner == LEAST;
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
