//! What all planners share: the request, the outcome and the trait.

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
    /// Limit on wall-clock time, or on the time of a [patient](crate::clock::patiently) clock. A planner that can stop early then returns the best plan so far.
    pub time_limit: Duration,
    /// Relative gap between the plan and the lower bound at which an exact planner may stop.
    pub gap: f64,
    /// Seed for all random choices.
    pub seed: u64,
    /// Number of threads that may be used at once.
    pub threads: usize,
    /// Approximate limit, in bytes, on the memory that the planner itself uses: tables, linear programs, copies of the order.
    pub memory_limit: u64,
    /// Plans that the caller already knows. A planner that improves plans (`search`, `auto`) starts from those that are valid for its graph and within the
    /// budget, and its plan is no more expensive than any of them. They are shared, because a request is copied for each planner that is asked.
    pub known: Arc<[Plan]>,
    /// Called from time to time during long work.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl Request {
    /// A request with the defaults: 60 s, gap 0, seed 0, as many threads as the machine has, and a quarter of the free
    /// memory.
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

    /// The known plans that are valid for `graph` and fit the budget.
    pub(crate) fn fitting<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = &'a Plan> {
        self.known.iter().filter(|plan| check(graph, plan, self.budget).is_ok())
    }

    /// The moment at which the time limit ends, counted from now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.time_limit)
    }

    /// The limits other than the budget, with the time counted from now.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { deadline: self.deadline(), memory: self.memory_limit, threads: self.threads }
    }

    /// Reports progress to the caller.
    pub fn report(&self, progress: Progress) {
        if let Some(callback) = &self.progress {
            callback(progress);
        }
    }
}

/// The progress of a planner.
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
    /// Proven to be the cheapest in the planner's class of schedules (up to the gap asked for).
    Optimal,
    /// Valid and within budget.
    Feasible,
    /// It is proven that no schedule at all fits the budget.
    Infeasible,
    /// No plan was found; there may be one.
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
    /// The method finished; it proves nothing.
    Heuristic,
}

/// The schedules for which a lower bound holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scope {
    /// Every schedule of the problem within the budget: no planner finds a cheaper plan.
    AllSchedules,
    /// The schedules that the planner ranges over, as its documentation says; others may be cheaper.
    #[default]
    OwnClass,
}

/// A lower bound on the makespan of every schedule in a scope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The bound.
    pub value: f64,
    /// The schedules for which it holds.
    pub scope: Scope,
}

impl Bound {
    /// A bound for every schedule.
    pub fn for_all_schedules(value: f64) -> Self {
        Self { value, scope: Scope::AllSchedules }
    }

    /// A bound for the schedules that the planner ranges over.
    pub fn for_own_class(value: f64) -> Self {
        Self { value, scope: Scope::OwnClass }
    }

    /// The bound, capped at `makespan`, which is that of a plan for which it holds. It may exceed `makespan` by rounding.
    ///
    /// # Errors
    ///
    /// If it exceeds `makespan` by more: such a bound is a defect, which must be reported and not be hidden by the cap.
    pub fn below(self, makespan: f64) -> Result<Self, String> {
        if self.value.is_nan() || self.value > makespan * (1.0 + 1e-6) {
            return Err(format!("it claims the lower bound {} for a plan that costs {makespan}", self.value));
        }
        Ok(Self { value: self.value.min(makespan), ..self })
    }
}

/// A plan that an [`Outcome`] can hold: for a graph or for a chain.
pub trait AnyPlan {
    /// What it is a plan for.
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
    /// A proven lower bound on the makespan of schedules within the budget; if ops have alternatives, it holds
    /// whichever implementations are chosen. [`scope`](Self::scope) says for which schedules it holds.
    pub lower_bound: Option<f64>,
    /// The schedules for which [`lower_bound`](Self::lower_bound) holds.
    pub scope: Scope,
    /// Time the planner took.
    pub solve_time: Duration,
    /// Only for `feng-huang`: its checkpoints and their size.
    pub checkpoints: Option<Checkpoints>,
}

/// The checkpoints of a forward pass.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Checkpoints {
    /// The values kept, ascending, without the first and last of the forward pass, which are not counted.
    pub values: Vec<ValueId>,
    /// Bytes of the interior checkpoints plus those of the largest independent segment.
    pub bytes: u64,
}

impl<P: AnyPlan> Outcome<P> {
    /// An outcome with `plan`, whose makespan and peak come from simulation. `solve_time` is left at zero: the caller of
    /// [`Planner::solve`] measures it.
    pub fn of_plan(planner: &str, problem: &P::Problem, plan: P, status: Status, stop_reason: StopReason) -> Self {
        let (makespan, peak_bytes) = plan.measure(problem);
        let empty = Self::without_plan(planner, None);
        Self { status, stop_reason, plan: Some(plan), makespan, peak_bytes, ..empty }
    }
}

impl<P> Outcome<P> {
    /// The lower bound with its scope.
    pub fn bound(&self) -> Option<Bound> {
        self.lower_bound.map(|value| Bound { value, scope: self.scope })
    }

    /// This outcome, marked as having a bound that holds for every schedule.
    #[must_use]
    pub fn binding_all(self) -> Self {
        Self { scope: Scope::AllSchedules, ..self }
    }

    /// This outcome with a bound that holds for its plan.
    ///
    /// # Errors
    ///
    /// [`PlanError::Internal`] if the bound exceeds the plan's makespan by more than rounding.
    pub fn bounded(mut self, planner: &'static str, bound: Bound) -> Result<Self, PlanError> {
        let bound = bound.below(self.makespan).map_err(|reason| PlanError::Internal { planner, reason })?;
        (self.lower_bound, self.scope) = (Some(bound.value), bound.scope);
        Ok(self)
    }

    /// The outcome if the time limit was reached before any plan was found.
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
    /// The name of the planner, as used on the command line.
    fn name(&self) -> &'static str;

    /// A number that increases whenever the planner may give another plan for the same request. A cache identifies a planner
    /// by its name and this number.
    fn version(&self) -> u32 {
        1
    }

    /// The cargo feature that this planner needs, if this build lacks it.
    fn missing_feature(&self) -> Option<&'static str> {
        None
    }

    /// Plans `graph` within the request's budget.
    ///
    /// # Errors
    ///
    /// [`PlanError::Infeasible`] if no schedule of the planner's class fits, with the smallest budget known to be
    /// feasible; the other variants if the planner does not apply.
    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError>;

    /// Plans `chain` within the request's budget, including the chain's input.
    ///
    /// # Errors
    ///
    /// The same as [`solve`](Self::solve), and [`PlanError::Unsupported`] for planners that only plan graphs.
    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        let _ = (chain, request);
        let reason = "it only plans graphs; for a chain, use `chain-dp`, `search` or `auto`".to_owned();
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
