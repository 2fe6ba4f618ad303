//! The plan that holds least, and the graphs that come about while it is looked for.

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

/// What the plan that holds least is called, where no planner has found another one.
pub(crate) const LEAST: &str = "minimum";
/// Most time for it, and for another look where that holds more than it may.
const LEAST_TIME: Duration = Duration::from_secs(2);
const LEAST_AGAIN: Duration = Duration::from_secs(6);
/// How often the graph is made to count less, each time by the plan that holds least then.
const TIGHTER: usize = 2;
/// How little more the plan that holds least may hold than another one that takes longer, as one part of that.
const LITTLE_MORE: u64 = 64;

/// A step to be planned.
pub(crate) struct Fit {
    pub(super) trace: Arc<Trace>,
    pub(super) lowered: Lowered,
    /// Threads that planners may use, where not all.
    pub(super) threads: Option<usize>,
    /// What planners may be given.
    pub(super) given: Vec<Given>,
    /// The plan that holds least, and its account of itself.
    pub(super) fallback: Arc<Schedule>,
    pub(super) smallest: Outcome,
    pub(super) blocking_op: OpId,
    /// A plan made before, with other costs perhaps.
    pub(super) known: Option<Planned>,
    /// The same step without other forms, where there are any, once it has been asked for.
    pub(super) plain: OnceCell<Option<Box<Self>>>,
}

/// A graph of the step that a planner may be given.
pub(super) struct Given {
    pub(super) graph: Graph,
    /// Smallest budget that the planner may be told.
    pub(super) least: u64,
    /// The plan for that.
    pub(super) plan: Plan,
    /// What that plan really holds.
    pub(super) holds: u64,
}

impl Fit {
    /// Finds the plan that holds least, with planners that may use so many threads; all that the machine has without a number. Where one holds no more
    /// than `enough`, one that holds still less is not looked for everywhere.
    ///
    /// # Errors
    ///
    /// What the checker finds wrong with it.
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
        // Plans are found for a graph with some costs, and planners are given the same one with those of the step.
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
        // Of several plans that need equally little of a graph one really holds less than another, and which is found depends on costs. With
        // those of a dry device too, training does with what was named before it.
        if least > enough
            && let Ok(dry) = lower(&with_dry_costs(&trace), lowered.graph.name())
            && dry.graph != lowered.graph
        {
            // With other costs it may have other forms; then its plans are none for this graph.
            // A budget that is missed is worth more time than a question without one.
            let end = if enough > 0 { Deadline::after(LEAST_AGAIN) } else { end };
            let _ = go_through(&dry.graph, end);
        }
        let least = known.iter().map(|(_, schedule)| schedule.peak).min().unwrap_or(u64::MAX);
        let most = least + least / LITTLE_MORE;
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

    /// What a planner is given for plans that hold at most `target` bytes: of the graphs with such a plan the one that counts least, and
    /// that which counts most, which is nearer to the truth at moments where others count too little; else the one with the plan that holds least.
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

    /// The operation that sets the floor; of what is only held, the one behind which it is.
    fn blocking(&self) -> &Op {
        let runs = |&op: &OpId| !self.lowered.ranges[op].is_empty();
        let op = (0..=self.blocking_op).rev().find(runs).unwrap_or(self.blocking_op);
        &self.lowered.graph.ops()[op]
    }

    /// The plan that holds least, and its account of itself.
    pub fn least(&self) -> (Arc<Schedule>, Origin) {
        (self.fallback.clone(), Origin::of(&self.smallest, 0.0))
    }

    /// Which kind of step this is.
    pub fn structure(&self) -> u64 {
        self.fallback.structure()
    }

    /// The stage of that operation.
    pub fn floor_stage(&self) -> Option<&str> {
        self.blocking().stage.as_deref()
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
