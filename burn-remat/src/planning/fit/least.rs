//! The smallest plan (the one that holds least), and the graphs that are made while it is searched for.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use burn_remat_core::Trace;
use burn_remat_plan::deadline::Deadline;
use burn_remat_plan::{Graph, Op, OpId, Outcome, Plan, Status, StopReason, Violations, check, minimum_within};
use smallvec::{SmallVec, smallvec};

use super::ask::{Planned, beside_others, request};
use crate::planning::lowering::{Lowered, lower};
use crate::planning::schedule::Schedule;
use crate::planning::service::Origin;
use crate::planning::tight::tight;

/// The planner that the report names for the smallest plan, if no real planner found another one.
pub(crate) const LEAST: &str = "minimum";
/// The most time to find it, and to search once more if it holds more than the budget.
const LEAST_TIME: Duration = Duration::from_secs(2);
const LEAST_AGAIN: Duration = Duration::from_secs(6);
/// How often the graph is made to count less, each time with the smallest plan found so far.
const TIGHTER: usize = 2;
/// A cheaper plan is used in place of the smallest if it holds at most one part in this many more.
const LITTLE_MORE: u64 = 64;

/// A step to be planned.
pub(crate) struct Fit {
    pub(super) trace: Arc<Trace>,
    pub(super) lowered: Lowered,
    /// The number of threads that planners may use, if not all.
    pub(super) threads: Option<usize>,
    /// The graphs that planners may be given.
    pub(super) given: Vec<Given>,
    /// The smallest plan, and what is known about it.
    pub(super) fallback: Arc<Schedule>,
    pub(super) smallest: Outcome,
    pub(super) blocking_op: OpId,
    /// A plan that was made before, perhaps with other costs.
    pub(super) known: Option<Planned>,
    /// The same step without other forms, if it has any. It is made when it is first asked for.
    pub(super) plain: OnceCell<Option<Box<Self>>>,
}

/// A graph of the step that a planner may be given.
pub(super) struct Given {
    pub(super) graph: Graph,
    /// Smallest budget that the planner may be told.
    pub(super) least: u64,
    /// The plan for that budget.
    pub(super) plan: Plan,
    /// What that plan really holds.
    pub(super) holds: u64,
}

impl Fit {
    /// Finds the smallest plan, with planners that may use `threads` threads, or all that the machine has. Once a plan holds at most `enough`, the search
    /// for smaller ones ends early.
    ///
    /// # Errors
    ///
    /// What the checker finds wrong with a plan.
    pub fn new(trace: Arc<Trace>, lowered: Lowered, threads: Option<usize>, enough: u64) -> Result<Self, Violations> {
        beside_others(|| Self::looked_for(trace, lowered, threads, enough))
    }

    fn looked_for(
        trace: Arc<Trace>,
        lowered: Lowered,
        threads: Option<usize>,
        enough: u64,
    ) -> Result<Self, Violations> {
        let end = Deadline::after(LEAST_TIME);
        let (mut given, mut known) = (Vec::new(), Vec::new());
        // Plans are found for a graph with some costs. Planners are given the same graph with the costs of the step.
        let mut go_through = |first: &Graph, end: Deadline| -> Result<u64, Violations> {
            let mut graphs = Some((first.clone(), lowered.graph.clone()));
            for _ in 0..=TIGHTER {
                let Some((asked, graph)) = graphs else { break };
                let found = minimum_within(&asked, &request(u64::MAX, end.left(), threads, &lowered));
                let checked = check(&lowered.graph, &found.plan, u64::MAX)?;
                let schedule = Schedule::new(trace.clone(), lowered.clone(), &checked);
                graphs = tight(first, &schedule).zip(tight(&lowered.graph, &schedule));
                given.push(Given { graph, least: found.achieved, plan: found.plan.clone(), holds: schedule.peak });
                known.push((found, schedule));
            }
            Ok(known.iter().map(|(_, schedule)| schedule.peak).min().unwrap_or(u64::MAX))
        };
        let least = go_through(&lowered.graph, end)?;
        // Several plans may need equally little of a graph, and yet one of them really holds less than another. Which one is found depends on the costs.
        // With those of a dry device as well, training needs no more than the minimum that was reported before it.
        if least > enough
            && let Ok(dry) = lower(&with_dry_costs(&trace), lowered.graph.name())
            && dry.graph != lowered.graph
        {
            // With other costs, the graph may have other forms. Then its plans do not fit this graph.
            // If there is a budget and it is exceeded, a longer search is worth it.
            let end = if enough > 0 { Deadline::after(LEAST_AGAIN) } else { end };
            let _ = go_through(&dry.graph, end);
        }
        let least = known.iter().map(|(_, schedule)| schedule.peak).min().unwrap_or(u64::MAX);
        let most = least.saturating_add(least / LITTLE_MORE);
        let most = if enough > 0 { most.min(enough).max(least) } else { most };
        let near = known.into_iter().filter(|(_, schedule)| schedule.peak <= most);
        let cheapest = near.min_by(|(_, a), (_, b)| a.overhead().total_cmp(&b.overhead()));
        let (found, fallback) = cheapest.expect("internal error: a graph has a plan that holds least");
        let blocking_op = found.blocking_op;
        let graph = &fallback.lowered.graph;
        let smallest = Outcome::of_plan(LEAST, graph, found.plan, Status::Feasible, StopReason::Heuristic);
        let fallback = Arc::new(fallback);
        let (known, plain) = (None, OnceCell::new());
        Ok(Self { trace, lowered, threads, given, fallback, smallest, blocking_op, known, plain })
    }

    /// The graphs that a planner is given to find plans of at most `target` bytes. Of the graphs with such a plan, these are the one that counts least
    /// and the one that counts most, which is nearer to the truth where the others count too little. If there is none, it is the graph with the smallest
    /// plan.
    pub(super) fn given(&self, target: u64) -> SmallVec<[&Given; 2]> {
        let fit = self.given.iter().filter(|given| given.holds <= target);
        let counts = |given: &&Given| given.graph.constant_bytes();
        match (fit.clone().min_by_key(counts), fit.rev().max_by_key(counts)) {
            (Some(least), Some(most)) if counts(&least) < counts(&most) => smallvec![least, most],
            (Some(least), _) => smallvec![least],
            (None, _) => self.given.iter().min_by_key(|given| given.holds).into_iter().collect(),
        }
    }

    /// The smallest budget for which a plan is known, and the operation that sets it.
    pub fn floor(&self) -> (u64, &str) {
        let store_all = self.lowered.peak();
        (self.fallback.peak.min(store_all), &self.blocking().name)
    }

    /// The operation that sets the floor. If an op has no operations, it is the one before it.
    fn blocking(&self) -> &Op {
        let runs = |&op: &OpId| !self.lowered.ranges[op].is_empty();
        let op = (0..=self.blocking_op).rev().find(runs).unwrap_or(self.blocking_op);
        &self.lowered.graph.ops()[op]
    }

    /// The smallest plan, and where it comes from.
    pub fn least(&self) -> (Arc<Schedule>, Origin) {
        (self.fallback.clone(), Origin::of(&self.smallest, 0.0))
    }

    /// Which kind of step this is.
    pub fn structure(&self) -> u64 {
        self.fallback.structure()
    }

    /// The stage of the operation that sets the floor.
    pub fn floor_stage(&self) -> Option<&str> {
        self.blocking().stage.as_deref()
    }
}

/// The same step with the times that a dry device assumes: the bytes that each operation touches.
fn with_dry_costs(trace: &Trace) -> Trace {
    let bytes = |number: u32| trace.tensors.get(number as usize).map_or(0, |tensor| tensor.bytes);
    let measures = trace.ops.iter().map(|op| {
        let outputs = op.outputs..op.outputs + op.writes.len() as u32;
        let touched: u64 = op.inputs.iter().map(|&(number, _)| number).chain(outputs).map(bytes).sum();
        (touched.max(1), op.scratch)
    });
    trace.clone().with_measures(measures)
}
