//! What all planners share: the request, the outcome, the trait.

use std::sync::Arc;
use std::time::Duration;

use crate::allowance::Allowance;
use crate::chain::{self, Chain, ChainPlan};
use crate::check::check;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::{Graph, ValueId};
use crate::memory::default_limit;
use crate::plan::Plan;
use crate::simulate::simulate;

/// What a planner is asked for.
#[derive(Clone)]
pub struct Request {
    /// Most bytes that may be resident at once, the graph's constant bytes included.
    pub budget: u64,
    /// Limit on the wall clock, or on a [patient](crate::clock::patiently) one. A planner that can stop early returns the best plan found by then.
    pub time_limit: Duration,
    /// Relative gap between plan and lower bound at which an exact planner may stop.
    pub gap: f64,
    /// Seed of every random choice.
    pub seed: u64,
    /// Threads that may be used at once.
    pub threads: usize,
    /// About the most bytes that the planner itself may take while it works: tables, programs, copies of the order.
    pub memory_limit: u64,
    /// Plans that the caller knows: a planner that improves plans begins at those that are valid for its graph and within the budget, and
    /// is then no dearer than any of them. `search` and `auto` do. Shared: a request is copied for each planner that is asked.
    pub known: Arc<[Plan]>,
    /// Called now and then during long work.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Request {
    /// A request with the defaults: 60 s, gap 0, seed 0, as many threads as the machine has, a quarter of the memory that
    /// is free.
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            time_limit: Duration::from_secs(60),
            gap: 0.0,
            seed: 0,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_limit: default_limit(),
            known: Arc::default(),
            progress: None,
        }
    }

    /// The plans known for `graph` that fit.
    pub(crate) fn fitting<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = &'a Plan> {
        self.known.iter().filter(|plan| check(graph, plan, self.budget).is_ok())
    }

    /// When the time limit is over, counted from now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.time_limit)
    }

    /// The limits other than the budget, the time counted from now.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { deadline: self.deadline(), memory: self.memory_limit, threads: self.threads }
    }

    /// Tells the caller how far the work is.
    pub fn report(&self, progress: Progress) {
        if let Some(callback) = &self.progress {
            callback(progress);
        }
    }
}

/// How far a planner is.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Progress {
    /// Makespan of the best plan so far.
    pub incumbent: Option<f64>,
    /// Proven lower bound so far.
    pub lower_bound: Option<f64>,
}

/// What is known about the plan of an [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Proven the cheapest of the planner's class of schedules (to the gap asked for).
    Optimal,
    /// Valid and within budget.
    Feasible,
    /// Proven that no schedule at all fits the budget.
    Infeasible,
    /// None found; there may be one.
    NoSolution,
}

/// Why a planner stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Optimality or infeasibility was proved.
    Proved,
    /// The gap asked for was reached.
    Gap,
    /// The time limit was reached.
    TimeLimit,
    /// The method ended; it proves nothing.
    Heuristic,
}

/// The schedules of which a lower bound speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scope {
    /// Every schedule of the problem within the budget: no planner finds a cheaper plan.
    AllSchedules,
    /// The schedules that the planner ranges over, as its documentation says; others may be cheaper.
    #[default]
    OwnClass,
}

/// A makespan that no schedule of a scope falls below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The makespan.
    pub value: f64,
    /// The schedules for which it holds.
    pub scope: Scope,
}

impl Bound {
    /// For every schedule.
    pub fn for_all_schedules(value: f64) -> Self {
        Self { value, scope: Scope::AllSchedules }
    }

    /// For the schedules that the planner ranges over.
    pub fn for_own_class(value: f64) -> Self {
        Self { value, scope: Scope::OwnClass }
    }

    /// The bound as far as `makespan`, that of a plan for which it holds. It may lie above by what rounding explains.
    ///
    /// # Errors
    ///
    /// Where it lies above by more: such a bound is a defect, which must come to light and not be cut off.
    pub fn below(self, makespan: f64) -> Result<Self, String> {
        if self.value.is_nan() || self.value > makespan * (1.0 + 1e-6) {
            return Err(format!("claims the lower bound {} of a plan that costs {makespan}", self.value));
        }
        Ok(Self { value: self.value.min(makespan), ..self })
    }
}

/// A plan as an [`Outcome`] holds it: of a graph or of a chain.
pub trait AnyPlan {
    /// What it plans.
    type Problem;

    /// Its cost, and the most bytes that it holds at once, by simulation.
    fn measure(&self, problem: &Self::Problem) -> (f64, u64);

    /// Its steps in the text form of plan files.
    fn step_texts(&self) -> Vec<String>;
}

impl AnyPlan for Plan {
    type Problem = Graph;

    fn measure(&self, graph: &Graph) -> (f64, u64) {
        let timeline = simulate(graph, self);
        (timeline.makespan, timeline.peak_bytes)
    }

    fn step_texts(&self) -> Vec<String> {
        self.steps.iter().map(ToString::to_string).collect()
    }
}

impl AnyPlan for ChainPlan {
    type Problem = Chain;

    fn measure(&self, chain: &Chain) -> (f64, u64) {
        let timeline = chain::simulate(chain, self);
        (timeline.makespan, timeline.peak_bytes)
    }

    fn step_texts(&self) -> Vec<String> {
        self.steps.iter().map(ToString::to_string).collect()
    }
}

/// What a planner found for a chain.
pub type ChainOutcome = Outcome<ChainPlan>;

/// What a planner found: for a graph, or for a chain as [`ChainOutcome`].
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome<P = Plan> {
    /// Name of the planner that made the plan (for `auto`, of the one that won).
    pub planner: String,
    /// What is known about the plan.
    pub status: Status,
    /// Why the planner stopped.
    pub stop_reason: StopReason,
    /// The plan; `None` only with [`Status::NoSolution`].
    pub plan: Option<P>,
    /// Cost of the plan.
    pub makespan: f64,
    /// Most bytes resident at once.
    pub peak_bytes: u64,
    /// A proven lower bound on the makespan of schedules within the budget; where ops have alternatives it holds
    /// whichever implementations are chosen. For which schedules it holds, [`scope`](Self::scope) tells.
    pub lower_bound: Option<f64>,
    /// The schedules for which [`lower_bound`](Self::lower_bound) holds.
    pub scope: Scope,
    /// Time the planner took.
    pub solve_time: Duration,
    /// `feng-huang` alone: its checkpoints and what they weigh.
    pub checkpoints: Option<Checkpoints>,
}

/// The checkpoints of a forward pass.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Checkpoints {
    /// The values kept, ascending, beside the first and last of the forward pass, which are free of charge.
    pub values: Vec<ValueId>,
    /// Bytes of the interior checkpoints plus those of the largest independent segment.
    pub bytes: u64,
}

impl<P: AnyPlan> Outcome<P> {
    /// An outcome around `plan`, with makespan and peak from simulation. `solve_time` is left at zero: the caller of
    /// [`Planner::solve`] measures it.
    pub fn of_plan(planner: &str, problem: &P::Problem, plan: P, status: Status, stop_reason: StopReason) -> Self {
        let (makespan, peak_bytes) = plan.measure(problem);
        let empty = Self::without_plan(planner, None);
        Self { status, stop_reason, plan: Some(plan), makespan, peak_bytes, ..empty }
    }
}

impl<P> Outcome<P> {
    /// The lower bound with what it holds for.
    pub fn bound(&self) -> Option<Bound> {
        self.lower_bound.map(|value| Bound { value, scope: self.scope })
    }

    /// This outcome, whose bound is known to hold for every schedule.
    #[must_use]
    pub fn binding_all(self) -> Self {
        Self { scope: Scope::AllSchedules, ..self }
    }

    /// This outcome with a bound that holds for its plan.
    ///
    /// # Errors
    ///
    /// [`PlanError::Internal`] where the bound lies above the plan's makespan by more than rounding.
    pub fn bounded(mut self, planner: &'static str, bound: Bound) -> Result<Self, PlanError> {
        let bound = bound.below(self.makespan).map_err(|reason| PlanError::Internal { planner, reason })?;
        (self.lower_bound, self.scope) = (Some(bound.value), bound.scope);
        Ok(self)
    }

    /// The outcome where the time limit came before any plan.
    pub fn without_plan(planner: &str, lower_bound: Option<f64>) -> Self {
        Self {
            planner: planner.to_owned(),
            status: Status::NoSolution,
            stop_reason: StopReason::TimeLimit,
            plan: None,
            makespan: 0.0,
            peak_bytes: 0,
            lower_bound,
            scope: Scope::OwnClass,
            solve_time: Duration::ZERO,
            checkpoints: None,
        }
    }
}

/// Turns a graph and a request into a plan.
pub trait Planner: Send + Sync {
    /// The name by which the command knows it.
    fn name(&self) -> &'static str;

    /// Counts up whenever the planner may give another plan for the same request: what a cache knows of a planner beside its
    /// name.
    fn version(&self) -> u32 {
        1
    }

    /// The cargo feature without which this planner plans nothing, where this build lacks it.
    fn missing_feature(&self) -> Option<&'static str> {
        None
    }

    /// Plans `graph` within the request's budget.
    ///
    /// # Errors
    ///
    /// [`PlanError::Infeasible`] where no schedule of the planner's class fits, with the smallest budget known to be
    /// feasible; the other variants where the planner does not apply.
    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError>;

    /// Plans `chain` within the request's budget, the chain's input included.
    ///
    /// # Errors
    ///
    /// As [`solve`](Self::solve); [`PlanError::Unsupported`] for planners that know graphs only.
    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        let _ = (chain, request);
        let reason = "it plans graphs only; for a chain use `chain-dp`, `search` or `auto`".to_owned();
        Err(PlanError::Unsupported { planner: self.name(), reason })
    }
}

impl<P: Planner + ?Sized> Planner for Arc<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn version(&self) -> u32 {
        (**self).version()
    }

    fn missing_feature(&self) -> Option<&'static str> {
        (**self).missing_feature()
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        (**self).solve(graph, request)
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        (**self).solve_chain(chain, request)
    }
}
