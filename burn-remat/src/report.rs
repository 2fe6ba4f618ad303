//! The report of a remat device, for people and for programs.
//!
//! Larger than the rule: `RematReport`, because it is the record of all figures that users read, one per field.

use std::fmt;
use std::time::Duration;

use crate::budget::{Budget, DisplayBytes};
use crate::planning::{Explanation, PlanReport};

/// What a remat device has done since it was made, or since its counters were reset.
///
/// `Display` gives a table; serde gives JSON.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct RematReport {
    /// Name of the backend, and of the card if there may be several.
    pub device: String,
    /// The budget as it was asked for.
    pub budget: Budget,
    /// The budget in force; `None` while unlimited, or while the first step is measured.
    pub budget_bytes: Option<u64>,
    /// Most bytes of tensors held at once, views and in-place results counted once. If the budget is a share of the first step, that step is left out,
    /// because it runs without a limit.
    pub peak_bytes: u64,
    /// The operation at the peak.
    pub peak_op: Option<String>,
    /// Bytes of tensors held now.
    pub live_bytes: u64,
    /// Bytes of the device's memory pool in use, padding included, if the backend reports them.
    pub device_bytes: Option<u64>,
    /// Bytes that the pool has reserved, if the backend reports them.
    pub device_reserved_bytes: Option<u64>,
    /// Most bytes of the pool in use, padding included, if the backend reports them. It is read when steps hold most.
    pub device_peak_bytes: Option<u64>,
    /// Bytes of the budget that are left free for what the pool holds in addition to tensors.
    pub room_bytes: u64,
    /// Most bytes that one operation used in addition to its tensors, with a [`MemoryProbe`](crate::MemoryProbe).
    pub scratch_bytes: Option<u64>,
    /// The operation that used them.
    pub scratch_op: Option<String>,
    /// Operations that the program asked for.
    pub operations: u64,
    /// Operations that ran again to bring back an evicted tensor.
    pub recomputed_operations: u64,
    /// Time of the program's operations, in ns. On an asynchronous device, this is the time by the device's clock if an operation of the same kind and
    /// shape has been measured, and otherwise the time to enqueue it.
    pub compute_ns: u64,
    /// Time of the operations that ran again, and of compressing tensors and bringing them back, in ns.
    pub recompute_ns: u64,
    /// What each form of [compression](crate::Compression) that was used saved and cost.
    #[serde(rename = "alternatives")]
    pub compression: Vec<CompressionReport>,
    /// Buffers evicted.
    pub evictions: u64,
    /// Training steps seen, without the current one.
    pub steps: u64,
    /// Steps that held more than the budget at some point.
    pub steps_over_budget: u64,
    /// Most bytes so far that had to be held together: what an operation needed and what could not be evicted. A plan may need less: see
    /// `floor_bytes` of [`PlanReport`].
    pub floor_bytes: u64,
    /// The operation that sets the floor.
    pub floor_op: Option<String>,
    /// Operations that may give different bits when they run again on this device, such as sums in an order that varies. Their results are kept.
    #[serde(rename = "unrepeatable")]
    pub nondeterministic: Vec<String>,
    /// Whether the device fuses operations into kernels ([`with_fusion`](crate::AdvancedConfig::with_fusion)): what runs again may be
    /// fused differently, and differ in the last bits.
    pub fused: bool,
    /// The plan of the training step, once there is one.
    pub plan: Option<PlanReport>,
    /// Steps without a plan of their own that followed a similar one: its plan for tensors of other sizes, or what it did.
    pub steps_guided: u64,
    /// Guided steps that differed: skipped a layer, ended early, had another term in their loss.
    #[serde(rename = "mended")]
    pub patched: PatchedSteps,
    /// How long the planner has been working, in seconds; `None` if it is not.
    pub planning_seconds: Option<f64>,
    /// The smallest budget for which all kinds of step that were planned have a plan.
    pub smallest_budget_bytes: Option<u64>,
    /// Why planning failed: there is no plan, or no better one.
    pub planning_problem: Option<String>,
    /// Why there is no plan although planning did not fail: none is needed, or no step has been seen often enough.
    pub why_no_plan: Option<String>,
    /// Tensors on the device now.
    pub tensors: u64,
    /// Recorded operations that the engine keeps now.
    pub recipes: u64,
    /// What each stage did, in the order in which stages were first entered.
    pub stages: Vec<StageReport>,
    /// The first thing that went wrong, in words.
    pub failure: Option<String>,
}

/// How many stages the table lists.
const MOST_STAGES: usize = 16;

/// What one stage did: what ran while it was the innermost open one.
///
/// Backward operations run after the stages have been left, and count in none. Recomputations count in the stage of
/// the operation that ran again, whenever they happen.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct StageReport {
    /// The names of the stage and of those that enclose it, outermost first, joined by `/`.
    pub stage: String,
    /// Operations that the program asked for.
    pub operations: u64,
    /// Their time, in ns.
    pub compute_ns: u64,
    /// Operations that ran again.
    pub recomputed_operations: u64,
    /// Their time, in ns.
    pub recompute_ns: u64,
    /// Bytes that they wrote.
    pub recomputed_bytes: u64,
}

/// Guided steps for which a plan was patched: they skipped a part of it, or did something that is not planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PatchedSteps {
    /// How many.
    pub steps: u64,
    /// Planned operations that were skipped, in all of these steps.
    pub skipped: u64,
    /// Operations that were not planned, in all of these steps.
    pub added: u64,
}

/// What one form of [compression](crate::Compression) saved and cost.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct CompressionReport {
    /// Its name.
    pub name: String,
    /// Evictions of tensors in this form.
    pub tensors: u64,
    /// Their bytes.
    pub from_bytes: u64,
    /// Bytes of the device's memory that they took instead.
    pub to_bytes: u64,
    /// Time that compressing and restoring took, in ns; part of `recompute_ns`.
    pub ns: u64,
    /// Largest relative error of a restored number, if numbers are rounded.
    pub largest_error: Option<f64>,
}

impl RematReport {
    /// What the plan does with each activation of the step; `None` while there is no plan. See [`PlanReport::explain`].
    pub fn explain(&self) -> Option<Explanation> {
        self.plan.as_ref().map(PlanReport::explain)
    }
}

/// Counters of an engine, read while it works.
#[cfg(feature = "learner")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Most bytes held at once.
    pub peak_bytes: u64,
    pub budget_bytes: Option<u64>,
    /// Time of the program's operations, and of what ran again, in ns.
    pub compute_ns: u64,
    pub recompute_ns: u64,
}

impl RematReport {
    /// The main figures in one line, for logs: `name=value` pairs separated by spaces, always the same names in the same order. `-` stands for no value.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use burn_remat::RematExt;
    ///
    /// let line = Device::flex().remat("64 MiB")?.remat_report()?.summary();
    /// assert!(line.starts_with("remat budget_bytes=67108864 peak_bytes=0 recomputing=0.0000 "), "{line}");
    /// # Ok::<(), burn_remat::RematError>(())
    /// ```
    pub fn summary(&self) -> String {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let share = |share: f64| format!("{share:.4}");
        let plan = self.plan.as_ref();
        format!(
            "remat budget_bytes={} peak_bytes={} recomputing={} steps={} over_budget={} floor_bytes={} plan={} planned_overhead={} \
             followed={} left={} failure={}",
            or_dash(self.budget_bytes.map(|bytes| bytes.to_string())),
            self.peak_bytes,
            share(self.recompute_ns as f64 / self.compute_ns.max(1) as f64),
            self.steps,
            self.steps_over_budget,
            self.floor_bytes,
            or_dash(plan.map(|plan| plan.planner.clone())),
            or_dash(plan.map(|plan| share(plan.predicted_overhead))),
            or_dash(plan.map(|plan| plan.steps_followed.to_string())),
            or_dash(plan.map(|plan| plan.steps_left.to_string())),
            // Escaped, so that it stays on one line.
            or_dash(self.failure.as_ref().map(|failure| format!("{failure:?}"))),
        )
    }
}

impl fmt::Display for RematReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = &mut Table(f);
        self.memory(table)?;
        self.work(table)?;
        self.steps(table)?;
        if let Some(plan) = &self.plan {
            planned(plan, self.budget_bytes, table)?;
        }
        if self.steps_guided > 0 {
            table.row("guided steps", format_args!("{}, following similar ones", self.steps_guided))?;
        }
        if let PatchedSteps { steps: steps @ 1.., skipped, added } = self.patched {
            let each = |operations: u64| operations.div_ceil(steps);
            let text =
                format_args!("{steps}, which on average skip {} operations and add {}", each(skipped), each(added));
            table.row("patched steps", text)?;
        }
        if let Some(why) = &self.why_no_plan {
            table.row("no plan", why)?;
        }
        if let Some(seconds) = self.planning_seconds {
            table.row("planning", format_args!("for {seconds:.1} s"))?;
        }
        if let Some(problem) = &self.planning_problem {
            table.row(if self.plan.is_some() { "planning failed" } else { "no plan" }, problem)?;
        }
        if let Some(failure) = &self.failure {
            table.row("failure", failure)?;
        }
        Ok(())
    }
}

/// A table whose rows have names.
struct Table<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Table<'_, '_> {
    fn row(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        writeln!(self.0, "{name:<22}{value}")
    }
}

fn named(bytes: u64, op: Option<&String>) -> String {
    let bytes = DisplayBytes(bytes);
    op.map_or_else(|| bytes.to_string(), |op| format!("{bytes} in {op}"))
}

/// For bytes to set as a budget: exact, since fewer would not be enough.
fn exact(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", DisplayBytes(bytes))
}

fn time(ns: u64) -> String {
    format!("{:.1?}", Duration::from_nanos(ns))
}

impl RematReport {
    fn memory(&self, table: &mut Table<'_, '_>) -> fmt::Result {
        table.row("device", &self.device)?;
        let budget = match (self.budget, self.budget_bytes) {
            (Budget::Share(_), Some(bytes)) => format!("{} ({} of the first step)", DisplayBytes(bytes), self.budget),
            (Budget::Share(_), None) => format!("{} of the first step, not known yet", self.budget),
            (budget, _) => budget.to_string(),
        };
        table.row("budget", budget)?;
        table.row("peak", named(self.peak_bytes, self.peak_op.as_ref()))?;
        if self.floor_bytes > 0 {
            table.row("floor", named(self.floor_bytes, self.floor_op.as_ref()))?;
        }
        if let Some(scratch) = self.scratch_bytes {
            table.row("workspace", named(scratch, self.scratch_op.as_ref()))?;
        }
        table.row("held now", format_args!("{} in {} tensors", DisplayBytes(self.live_bytes), self.tensors))?;
        let (Some(used), Some(reserved)) = (self.device_bytes, self.device_reserved_bytes) else { return Ok(()) };
        let (used, reserved) = (DisplayBytes(used), DisplayBytes(reserved));
        let peak = self.device_peak_bytes.map_or_else(String::new, |peak| format!(", peak {}", DisplayBytes(peak)));
        let room = match self.room_bytes {
            0 => String::new(),
            room => format!("; {} left free for memory other than tensors", DisplayBytes(room)),
        };
        table.row("device memory", format_args!("{used} in use, {reserved} reserved{peak}{room}"))
    }

    fn work(&self, table: &mut Table<'_, '_>) -> fmt::Result {
        let share = 100.0 * self.recomputed_operations as f64 / self.operations.max(1) as f64;
        let (run, again) = (self.operations, self.recomputed_operations);
        table.row("operations", format_args!("{run}, {again} ran again ({share:.1}%)"))?;
        let (compute, recompute) = (time(self.compute_ns), time(self.recompute_ns));
        table.row("time", format_args!("{compute}, {recompute} recomputing"))?;
        for CompressionReport { name, tensors, from_bytes, to_bytes, ns, largest_error } in &self.compression {
            let (from, to) = (DisplayBytes(*from_bytes), DisplayBytes(*to_bytes));
            let error = largest_error.map_or_else(String::new, |error| format!(", off by up to {:.2}%", 100.0 * error));
            let plural = if *tensors == 1 { "" } else { "s" };
            table.row(name, format_args!("{tensors} tensor{plural}, {from} replaced by {to}, {}{error}", time(*ns)))?;
        }
        if !self.nondeterministic.is_empty() {
            let kept = self.nondeterministic.join(", ");
            table.row(
                "nondeterministic",
                format_args!("{kept}: may give different bits when they run again, so their results are kept"),
            )?;
        }
        if self.fused {
            table.row("fusion", "recomputations may be fused differently, and differ in the last bits")?;
        }
        table.row("evictions", self.evictions)
    }

    fn steps(&self, table: &mut Table<'_, '_>) -> fmt::Result {
        let begun = if self.steps_over_budget > self.steps { ", including the current one" } else { "" };
        table.row("steps", format_args!("{}, {} over budget{begun}", self.steps, self.steps_over_budget))?;
        let below = self.budget_bytes.filter(|&budget| self.steps_over_budget > 0 && self.floor_bytes > budget);
        if let Some(budget) = below {
            let (row, advice) = self.below_floor(budget);
            table.row(row, advice)?;
        }
        for stage in self.stages.iter().take(MOST_STAGES) {
            let StageReport { stage, compute_ns, recompute_ns, recomputed_bytes, .. } = stage;
            let (compute, recompute) = (time(*compute_ns), time(*recompute_ns));
            let bytes = DisplayBytes(*recomputed_bytes);
            table.row("  stage", format_args!("{stage}: {compute}; {recompute} recomputing {bytes}"))?;
        }
        match self.stages.len().checked_sub(MOST_STAGES) {
            Some(more @ 1..) => table.row("  stage", format_args!("and {more} more")),
            _ => Ok(()),
        }
    }

    /// The row for a budget that is below the floor: its name, and what to do.
    fn below_floor(&self, budget: u64) -> (&'static str, String) {
        let (floor, less) = (exact(self.floor_bytes), "or use a smaller batch");
        // Of a stored plan it is known only what itself holds.
        let planned = self.plan.as_ref().map(|plan| plan.predicted_peak_bytes).filter(|&peak| peak <= budget);
        match self.smallest_budget_bytes.or(planned) {
            Some(least) if least <= budget && self.plan.is_some() => {
                let (least, floor) = (DisplayBytes(least), DisplayBytes(self.floor_bytes));
                let advice = "`remat_rehearsed` plans before the first step. If planned steps still exceed the budget";
                (
                    "before the plan",
                    format!("{floor} was needed; with a plan, {least} is enough. {advice}, set {floor}"),
                )
            }
            Some(least) if (budget + 1..self.floor_bytes).contains(&least) => {
                let why = "The smallest plan found holds that much; without plans,";
                ("too small", format!("set at least {}, {less}. {why} {floor} was needed", exact(least)))
            }
            _ => ("too small", format!("{} is below the floor: set at least {floor}, {less}", DisplayBytes(budget))),
        }
    }
}

fn planned(plan: &PlanReport, budget: Option<u64>, table: &mut Table<'_, '_>) -> fmt::Result {
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let origin = match (plan.from_cache, plan.optimal) {
        (true, _) => "from the cache".to_owned(),
        (false, true) => format!("optimal, after {:.1} s", plan.plan_seconds),
        (false, false) => format!("after {:.1} s", plan.plan_seconds),
    };
    let (operations, ops, lowering) = (plan.operations, plan.graph_ops, Duration::from_secs_f64(plan.lowering_seconds));
    let reduced = format_args!("{operations} operations reduced to {ops} in {lowering:.0?}");
    table.row("plan", format_args!("{}, {origin}; {reduced}", plan.planner))?;
    table.row("planned steps", format_args!("{}, {} left their plan", plan.steps_followed, plan.steps_left))?;
    let (whole, peak) = (DisplayBytes(plan.store_all_peak_bytes), DisplayBytes(plan.predicted_peak_bytes));
    let beyond = budget.is_some_and(|budget| plan.predicted_peak_bytes > budget);
    let beyond = if beyond { ", more than the budget" } else { "" };
    table.row("peak, store-all", format_args!("{whole}; planned {peak}{beyond}"))?;
    let measured = plan.measured_overhead.map_or_else(|| "not measured yet".to_owned(), percent);
    let bound =
        plan.lower_bound.map_or_else(String::new, |bound| format!(", at least {} for any plan", percent(bound)));
    table.row("overhead", format_args!("{measured}; planned {}{bound}", percent(plan.predicted_overhead)))?;
    for (name, runs, ns) in &plan.recomputed {
        table.row("  recomputed", format_args!("{name}, {runs}x, {}", time(*ns as u64)))?;
    }
    match &plan.difference {
        Some(difference) => table.row("left the plan", difference),
        None => Ok(()),
    }
}
