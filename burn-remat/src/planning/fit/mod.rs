//! Plans that use a budget to its end.
//!
//! A graph counts more than the engine holds while it follows a plan (see [`replay`](burn_remat_core::replay)), so a planner that
//! keeps to the budget leaves a part of it unused. Here the planner is given a graph that counts less of that (`tight.rs`), and told a larger
//! budget (`told.rs`), raised for as long as what its plans really hold is within the true one: a few quick plans find how large, longer
//! searches use it. Every plan that is handed on holds at most the budget; where none is found that does, the least that a plan holds takes the
//! budget's place.

mod told;

use std::cell::{LazyCell, OnceCell};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_remat_plan::{
    Graph, OpId, Outcome, Plan, PlanError, Request, Solved, Status, StopReason, Violations, check, minimum_within,
};
use smallvec::{SmallVec, smallvec};

use super::chosen::ChosenPlanner;
use super::least::{offered, remember, with_dry_costs};
use super::lowering::{Lowered, lower};
use super::plain::with_forms;
use super::schedule::Schedule;
use super::service::Origin;
use super::tight::tight;
use burn_remat_core::Trace;
use told::Search;

/// Most quick plans from one graph.
const ROUNDS: u32 = 8;
/// Time of each, at least and at most, and for each op of the graph.
const QUICKEST: Duration = Duration::from_millis(25);
const QUICK: Duration = Duration::from_millis(400);
const QUICK_PER_OP: Duration = Duration::from_micros(150);
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
    /// The plan for that.
    plan: Plan,
    /// What that plan really holds.
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
                given.push(Given { graph, least: found.achieved, plan: found.plan.clone(), holds: schedule.peak });
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
        let mut search = Search::new(self, terms, target, known.map(|(_, outcome)| outcome), found);
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
