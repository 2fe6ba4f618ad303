//! The report on a plan, for people and for programs.
//!
//! Larger than the rule: `PlanReport`, because it is the record of all figures that users read, one per field.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use burn_remat_plan::{Graph, Step};
use serde::Serialize;

use super::compare::{self, CompressionCost};
use super::explain::Explanation;
use super::schedule::Schedule;
use super::service::{PlanState, Plans};
use super::stages::Staged;

/// How many of the most recomputed operations are listed.
const MOST_RECOMPUTED: usize = 5;

/// The plan of a training step, and how well it was followed.
///
/// Times are in ns on this device. Bytes are those of tensors (views and in-place results counted once).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlanReport {
    /// The planner that made the plan.
    pub planner: String,
    /// Whether it is proven that no schedule of the graph is cheaper within the graph's budget. The proof holds for the costs measured, so this is never
    /// true for a plan from the cache. The graph counts a little more than the device holds, and its budget is chosen so that the plan fits.
    pub optimal: bool,
    /// Whether the plan came from the cache.
    pub from_cache: bool,
    /// Time that it took to make the plan, in seconds.
    pub plan_seconds: f64,
    /// Time that the reduction to a graph took, in seconds.
    pub lowering_seconds: f64,
    /// Operations of the step.
    pub operations: usize,
    /// Operations of the graph that was planned.
    pub graph_ops: usize,
    /// Most bytes that the step would hold if nothing were evicted.
    pub store_all_peak_bytes: u64,
    /// The most bytes that the step will hold under the plan: an upper bound.
    pub predicted_peak_bytes: u64,
    /// Time of the step's operations, each run once, in ns.
    pub store_all_ns: f64,
    /// Time that the plan adds, as a share of `store_all_ns`.
    pub predicted_overhead: f64,
    /// Time spent on recomputation in steps that followed a plan, as a share of their other time.
    pub measured_overhead: Option<f64>,
    /// No schedule of the graph within the graph's budget adds less than this share, if a bound is proven. For a plan from the cache, the bound is as far
    /// below the plan as it was with the costs measured then.
    pub lower_bound: Option<f64>,
    /// Smallest budget in which the step is known to fit.
    pub floor_bytes: Option<u64>,
    /// The operation that sets it.
    pub floor_op: Option<String>,
    /// What costs most to recompute: name, how often it runs again, and the time that this takes, in ns.
    pub recomputed: Vec<(String, usize, f64)>,
    /// The step by stages, in the order of their first operations.
    pub stages: Vec<StagePlan>,
    /// Steps that followed a plan of their own from beginning to end.
    pub steps_followed: u64,
    /// Steps that left their plan.
    pub steps_left: u64,
    /// Where and why the last of them did.
    pub difference: Option<String>,
    /// The largest difference between bytes held and bytes predicted, between operations of steps that followed a plan.
    pub deviation_bytes: u64,
    /// Most bytes held during each operation of the last step that followed this plan, or an earlier one for the same kind of step.
    #[serde(skip)]
    pub(super) measured: Arc<Vec<u64>>,
    #[serde(skip)]
    pub(super) budget: Option<u64>,
    #[serde(skip)]
    pub(super) schedule: Arc<Schedule>,
}

impl PlanReport {
    /// The report on the plan that was taken up last.
    pub(crate) fn of(plans: &Plans, followed_ns: (u64, u64), budget: Option<u64>) -> Option<Self> {
        let PlanState { schedule, origin, measured, .. } = &plans.state;
        let (schedule, origin) = (schedule.clone()?, origin.as_ref()?);
        let (graph, floor) = (&schedule.lowered.graph, plans.state.floor(schedule.structure()));
        let store_all_ns = schedule.lowered.cost_ns as f64;
        let (compute, recompute) = followed_ns;
        Some(Self {
            planner: origin.planner.clone(),
            optimal: origin.status == Some(burn_remat_plan::Status::Optimal) && !origin.cached,
            from_cache: origin.cached,
            plan_seconds: origin.seconds,
            lowering_seconds: plans.state.lowering_seconds,
            operations: schedule.trace.ops.len(),
            graph_ops: graph.ops().len(),
            store_all_peak_bytes: schedule.lowered.peak(),
            predicted_peak_bytes: schedule.peak,
            store_all_ns,
            predicted_overhead: schedule.overhead(),
            measured_overhead: (compute > 0).then(|| recompute as f64 / compute as f64),
            lower_bound: origin.lower_bound.map(|bound| (bound / store_all_ns - 1.0).max(0.0)),
            floor_bytes: floor.map(|floor| floor.bytes),
            floor_op: floor.map(|floor| floor.op.clone()),
            recomputed: recomputed(&schedule),
            stages: stages(&schedule),
            steps_followed: plans.state.followed,
            steps_left: plans.state.left,
            difference: plans.state.difference.clone(),
            deviation_bytes: plans.state.deviation,
            measured: measured.clone(),
            budget,
            schedule,
        })
    }

    /// Most bytes held in the last step that followed the plan.
    pub fn measured_peak_bytes(&self) -> Option<u64> {
        self.measured.iter().max().copied()
    }

    /// The graph that was planned: costs in ns, sizes in bytes.
    pub fn graph(&self) -> &Graph {
        &self.schedule.lowered.graph
    }

    /// Writes the graph as a `remat-graph/1` file, for `remat-plan` and others.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn save_graph(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        std::fs::write(path, self.graph().to_json())
    }

    /// What the plan does with each activation (keep, recompute, or bring back from a compressed form), and why.
    pub fn explain(&self) -> Explanation {
        Explanation::of(&self.schedule)
    }

    /// What the step would cost within its budget without compression, with each form alone, with the exact ones, and with all. Each choice is planned
    /// from the same measured times, so that nothing else differs. The iterator plans as it goes, for at most `limit` per item.
    ///
    /// The forms are those that the device allows and that the step can use. Without a budget there are no items.
    pub fn compare_compression(&self, limit: Duration) -> impl Iterator<Item = CompressionCost> + use<> {
        self.budget.into_iter().flat_map({
            let schedule = self.schedule.clone();
            move |budget| compare::alternatives(schedule.clone(), budget, limit)
        })
    }
}

/// What a plan does with one stage: all passages through it, including their backward operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StagePlan {
    /// The names of the stage and of those that enclose it, outermost first, joined by `/`.
    pub stage: String,
    /// Passages through it in one step.
    pub passages: usize,
    /// Time of its operations, each run once, in ns.
    pub store_all_ns: f64,
    /// Time of those that run again, in ns.
    pub recomputed_ns: f64,
    /// Bytes computed again.
    pub recomputed_bytes: u64,
}

fn stages(schedule: &Schedule) -> Vec<StagePlan> {
    let (trace, lowered) = (&schedule.trace, &schedule.lowered);
    let mut stages: Vec<StagePlan> = Vec::new();
    let mut index = BTreeMap::new();
    for path in &trace.visits {
        let at = *index.entry(path.clone()).or_insert_with(|| {
            let stage = path.to_string();
            let plan = StagePlan { stage, passages: 0, store_all_ns: 0.0, recomputed_ns: 0.0, recomputed_bytes: 0 };
            stages.push(plan);
            stages.len() - 1
        });
        stages[at].passages += 1;
    }
    let at = |visit| index.get(trace.path(visit)?).copied();
    for op in &trace.ops {
        if let Some(at) = at(op.visit) {
            stages[at].store_all_ns += op.cost_ns as f64;
        }
    }
    // An op that only repeats another one is a recomputation every time it runs.
    let mut seen = lowered.again.clone();
    for step in &schedule.plan.steps {
        let Some(number) = step.op() else { continue };
        if std::mem::replace(&mut seen[number], true)
            && let Some(at) = at(trace.visit_of(lowered.ranges[number].clone()))
        {
            let op = &lowered.graph.ops()[number];
            stages[at].recomputed_ns += lowered.cost_of(*step);
            stages[at].recomputed_bytes +=
                op.outputs.iter().map(|&value| lowered.graph.values()[value].bytes).sum::<u64>();
        }
    }
    stages
}

fn recomputed(schedule: &Schedule) -> Vec<(String, usize, f64)> {
    let lowered = &schedule.lowered;
    let mut seen = lowered.again.clone();
    let mut runs: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for step in &schedule.plan.steps {
        let Some(op) = step.op() else { continue };
        if std::mem::replace(&mut seen[op], true) {
            let about = &lowered.graph.ops()[op];
            let name = match *step {
                Step::ComputeAlternative(_, k) => &about.alternatives[k].name,
                _ => &about.name,
            };
            let (runs, ns) = runs.entry(name).or_default();
            (*runs, *ns) = (*runs + 1, *ns + lowered.cost_of(*step));
        }
    }
    let mut again: Vec<(String, usize, f64)> =
        runs.into_iter().map(|(name, (runs, ns))| (name.to_owned(), runs, ns)).collect();
    again.sort_by(|a, b| b.2.total_cmp(&a.2));
    again.truncate(MOST_RECOMPUTED);
    again
}
