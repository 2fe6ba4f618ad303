//! `monet`: decides together which values to keep, which ops to compute again, and which implementation of each op to run.
//!
//! Problem: the forward pass runs once; before each later op, any ops of the forward pass may run again, in order, each
//! at most once; every time an op runs, one of its implementations (the op itself or one of its `alternatives`, with
//! their own cost, inputs and scratch) is chosen. Find the cheapest such schedule within the budget.
//!
//! Method: keeping everything is tried first, in the cheapest implementations that fit. If it does not fit, the
//! best of a few greedy schedules (`heuristic`) starts HiGHS on the 0-1 program (`model`), which proves
//! an optimum or, at the time limit, leaves its best plan with a bound. The plan is the solver's choice of
//! computations; its evictions follow, each as early as possible, and its cost and peak are simulated. Should the
//! solver's tolerance exceed the budget by some bytes, the program is solved again with that much less.
//!
//! A graph whose program is too large to be solved in reasonable time is planned by its stages first (`on_stages`), in
//! half of the time; the program over all ops, if it fits in memory, then goes on from that plan.
//!
//! If the graph has no phases, every op is a stage of its own and any op before it may run again: these are
//! Checkmate's schedules with a choice of implementations.
//!
//! Invariants: the plan fits the budget; the bound holds for the schedules above, not for those that compute something
//! again during the forward pass or twice between two later ops.
//!
//! Complexity: exponential at worst; the program has about stages × (values + uses) columns. If it would not fit in
//! memory, there are only the plans by stages; without one, the graph is refused.
//!
//! Source: Shah et al. 2020, *Memory Optimization for Deep Networks* (MONeT), sections 3 and 4, appendices B and C.
//! Departures:
//! - Memory is exact where the paper uses the upper bound of appendix B on the local tensors: a value that nothing
//!   needs any more is gone. So this never costs more than the paper's program.
//! - Backward ops have their place in the graph, so their dependencies are inputs like any other; results of the
//!   backward and update ops are held from their computation to their last use, as the paper's gradients are.
//! - In-place ops (C.3): a plan has no step that overwrites a value, so *p* and *q* have no direct form. Instead,
//!   an in-place op, such as a ReLU after a convolution, is an alternative of that op which reads what the *producer of
//!   its input* reads, at the cost of both, and writes only its own output. Then "the input cannot be stored or used in
//!   this stage" holds by itself, as running the alternative makes no input, and so do (15) and (16). First computations
//!   cannot use it, since every op runs once in the program's order.

mod descent;
mod heuristic;
mod model;
mod on_stages;
mod stages;

use self::heuristic::Start;
use self::model::{Model, estimated_entries};
use self::stages::{Candidate, Stages};
use super::checkmate::answers::{failed, largest_model};
use super::checkmate::solver::{End, solve_integer};
use super::limited::{Latest, within_limit};
use crate::choice::least_makespan;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::need::{SetBy, is_too_little, largest};
use crate::planner::{Bound, Outcome, Planner, Progress, Request, Scope, Status, StopReason};
use crate::sequence::plan_of_choices;

/// Up to this many entries, which about 55 ops have, only the program over all ops is solved: HiGHS proves an optimum for 20,000
/// in seconds, and for 60,000 hardly ever in half a minute.
const EXACT_ALONE: u64 = 40_000;

/// How often the program is solved again with a smaller budget if the solver's tolerance exceeded the budget.
const RETRIES: usize = 3;

/// The planner `monet`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monet;

impl Monet {
    /// Name by which the registry knows it.
    pub const NAME: &'static str = "monet";
}

impl Planner for Monet {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        within_limit(Self::NAME, graph, request, solve)
    }
}

fn solve(graph: &Graph, request: &Request, latest: &Latest) -> Result<Outcome, PlanError> {
    let entries = estimated_entries(graph, &Stages::new(graph));
    if entries <= EXACT_ALONE { exact(graph, request, latest) } else { large(graph, request, latest, entries) }
}

/// Plans with the program over all ops.
fn exact(graph: &Graph, request: &Request, latest: &Latest) -> Result<Outcome, PlanError> {
    let deadline = request.deadline();
    let start = heuristic::start(graph, &Stages::new(graph), request, deadline);
    let run = Attempt::new(graph, request, latest, deadline, start);
    if run.need > request.budget { Err(run.infeasible()) } else { run.solve() }
}

/// Plans by stages first, then with the program over all ops in the time that is left, if that fits in memory.
fn large(graph: &Graph, request: &Request, latest: &Latest, entries: u64) -> Result<Outcome, PlanError> {
    let (stages, deadline) = (Stages::new(graph), request.deadline());
    let fits = entries <= largest_model(request);
    let start = if fits {
        heuristic::start(graph, &stages, request, deadline)
    } else {
        heuristic::store_all(graph, &stages, request.budget)
    };
    let mut run = Attempt::new(graph, request, latest, deadline, start);
    if run.need > request.budget {
        return Err(run.infeasible());
    }
    run.report();
    let mut reason = StopReason::Heuristic;
    if !run.is_closed() {
        let until = if fits { deadline.within(deadline.left() / 2) } else { deadline };
        reason = on_stages::offer(&mut run, until);
    }
    if fits {
        run.solve()
    } else if run.is_closed() {
        Ok(run.finished())
    } else if run.start.best.is_some() {
        Ok(run.outcome(Status::Feasible, reason))
    } else {
        let reason = format!(
            "its program for {} ops would have about {} million entries, and the limit is {} million; its stages give \
             no plan for this budget either; use `search`",
            graph.ops().len(),
            entries / 1_000_000,
            largest_model(request) / 1_000_000
        );
        Err(PlanError::Unsupported { planner: Monet::NAME, reason })
    }
}

/// One solve and what it has found.
struct Attempt<'a> {
    graph: &'a Graph,
    request: &'a Request,
    deadline: Deadline,
    latest: &'a Latest,
    stages: Stages,
    /// The least memory that any schedule needs, and the op that needs it.
    need: u64,
    blocking_op: Option<OpId>,
    start: Start,
    bound: f64,
}

impl<'a> Attempt<'a> {
    fn new(graph: &'a Graph, request: &'a Request, latest: &'a Latest, deadline: Deadline, start: Start) -> Self {
        let (need, set_by) = largest(graph);
        let blocking_op = if let SetBy::Op(op) = set_by { Some(op) } else { None };
        let (stages, bound) = (Stages::new(graph), least_makespan(graph));
        Self { graph, request, deadline, latest, stages, need, blocking_op, start, bound }
    }

    fn solve(mut self) -> Result<Outcome, PlanError> {
        self.report();
        if self.is_closed() {
            return Ok(self.finished());
        }
        let mut shortfall = 0;
        for attempt in 0..=RETRIES {
            if self.deadline.passed() {
                return Ok(self.outcome(Status::Feasible, StopReason::TimeLimit));
            }
            let model = Model::new(self.graph, self.stages, self.request.budget.saturating_sub(shortfall));
            let start = self.start.best.as_ref().filter(|best| model.includes(&best.choices));
            let start = start.map(|best| model.values_of(self.graph, &best.choices));
            let result = solve_integer(&model.program, &[], start.as_deref(), self.request, self.deadline)
                .map_err(|status| failed(Monet::NAME, status))?;
            if attempt == 0 {
                self.raise_bound(result.end, result.bound, start.is_some())?;
            }
            let mut excess = 0;
            if let Some(numbers) = result.numbers {
                let found = Candidate::new(self.graph, model.choices(&numbers));
                excess = found.timeline.peak_bytes.saturating_sub(self.request.budget);
                self.start.offer(found, self.request.budget);
            }
            self.report();
            match result.end {
                _ if self.is_closed() => return Ok(self.finished()),
                End::Limit => return Ok(self.outcome(Status::Feasible, StopReason::TimeLimit)),
                _ if excess > 0 => shortfall += excess,
                End::Infeasible if attempt == 0 && self.start.best.is_none() => return Err(self.infeasible()),
                _ => break,
            }
        }
        // Within the solver's tolerance of the budget, nothing more can be decided.
        Ok(self.outcome(Status::Feasible, StopReason::Heuristic))
    }

    fn cost(&self) -> Option<f64> {
        self.start.best.as_ref().map(|best| best.timeline.makespan)
    }

    /// Takes over what the solver proved; `knows_best` says whether the best plan is one of the program's schedules.
    fn raise_bound(&mut self, end: End, bound: Option<f64>, knows_best: bool) -> Result<(), PlanError> {
        // Without a solution below the best plan's cost, that cost is the optimum.
        let proved = if end == End::Infeasible { self.cost() } else { bound };
        let proved = match (proved, self.cost()) {
            (Some(proved), Some(cost)) if knows_best => {
                let internal = |reason| PlanError::Internal { planner: Monet::NAME, reason };
                Some(Bound::for_own_class(proved).below(cost).map_err(internal)?.value)
            }
            (Some(proved), cost) => Some(cost.map_or(proved, |cost| proved.min(cost))),
            (None, _) => None,
        };
        self.bound = proved.map_or(self.bound, |proved| proved.max(self.bound));
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.cost().is_some_and(|cost| cost - self.bound <= self.request.gap.max(1e-7) * cost.abs())
    }

    fn report(&self) {
        self.request.report(Progress { incumbent: self.cost(), lower_bound: Some(self.bound) });
        self.latest.set(self.outcome(Status::Feasible, StopReason::TimeLimit));
    }

    /// The outcome when the gap is closed.
    fn finished(&self) -> Outcome {
        let proved = self.cost().is_some_and(|cost| cost - self.bound <= 1e-7 * cost.abs());
        self.outcome(Status::Optimal, if proved { StopReason::Proved } else { StopReason::Gap })
    }

    /// The best plan, or none yet.
    fn outcome(&self, status: Status, reason: StopReason) -> Outcome {
        let Some(best) = &self.start.best else { return Outcome::without_plan(Monet::NAME, Some(self.bound)) };
        let plan = plan_of_choices(self.graph, &best.choices);
        let mut outcome = Outcome::of_plan(Monet::NAME, self.graph, plan, status, reason);
        // A plan by stages may be cheaper than the schedules of the program.
        outcome.lower_bound = Some(self.bound.min(outcome.makespan));
        if self.bound <= least_makespan(self.graph) {
            outcome.scope = Scope::AllSchedules;
        }
        outcome
    }

    fn infeasible(&self) -> PlanError {
        let minimum = self.start.smallest.timeline.peak_bytes;
        PlanError::Infeasible {
            budget: self.request.budget,
            minimum: (minimum > self.request.budget).then_some(minimum),
            blocking_op: self.blocking_op,
            proven: is_too_little(self.graph, self.request.budget),
        }
    }
}

#[cfg(test)]
mod stage_tests;
#[cfg(test)]
mod tests;
