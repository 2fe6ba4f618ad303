//! The results of dry runs on disk, so that training in another process follows them as in the same one.
//!
//! One file per dry run, device and planner, with one JSON value per line: first a header, then each step with its trace and its plan (`remat-plan/1`).
//! The graph is made anew from the trace, so the plan is checked against what would be followed. A file is used only if it is complete and of this
//! version, if its steps are such as a machine can go through, and if the independent checker accepts its plans; otherwise the log says why.
//!
//! Complexity: O(operations) to write and to read a file, with about 300 bytes for each. The whole text is in memory at once.

use std::cmp::Reverse;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::sync::Arc;

use burn_remat_core::Trace;
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{Outcome, Status, StopReason};
use serde::{Deserialize, Serialize};

use super::cache::plan_in;
use super::folder::{Folder, digest};
use super::state::{Origin, Ready};
use crate::panics::caught;
use crate::planning::lowering::lower;
use crate::planning::schedule::Schedule;

const FORMAT: &str = "burn-remat-dry-run/1";

/// What a dry run has found: plans for all kinds of step of a program, for each way in which it may be divided into steps, the likeliest first.
pub(super) type Ways = Vec<Vec<Ready>>;

/// What plans are for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct For {
    pub device: String,
    pub planner: String,
    pub planner_version: u32,
}

/// The files of dry runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DryRuns {
    pub folder: Folder,
    pub of: For,
}

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: String,
    version: String,
    #[serde(rename = "for")]
    of: For,
    /// The structures of the steps, so that a useless file need not be read to its end.
    structures: Vec<u64>,
    /// The steps of each way, by line.
    ways: Vec<Vec<usize>>,
    /// Of the other fields and the other lines.
    digest: String,
}

impl Head {
    fn own_digest(&self, steps: &str) -> String {
        let Self { format, version, of, structures, ways, .. } = self;
        format!("{:016x}", digest(&format!("{format}{version}{of:?}{structures:?}{ways:?}{steps}")))
    }
}

/// Each of the other lines.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    trace: Trace,
    /// `remat-plan/1`.
    plan: serde_json::Value,
}

/// Distinguishes what one dry run has found from what others have found.
pub(super) fn found_in(ways: &Ways) -> Vec<(u64, u64)> {
    ways.iter().flatten().map(|(plan, _)| (plan.structure(), plan.peak)).collect()
}

/// Bytes that the steps of one way need.
pub(super) fn needs(plans: &[Ready]) -> u64 {
    plans.iter().map(|(plan, _)| plan.peak).max().unwrap_or(0)
}

impl DryRuns {
    /// The end of the names of its files.
    fn end(&self) -> String {
        format!("-{:08x}.json", digest(&format!("{:?}", self.of)) as u32)
    }

    /// Stores what a dry run has found.
    pub fn store(&self, ways: &Ways) {
        let each = || ways.iter().filter(|plans| !plans.is_empty()).map(|plans| needs(plans));
        let Some((least, most)) = each().min().zip(each().max()) else { return };
        let name = format!("dry-run-{:016x}-{least}-{most}{}", digest(&format!("{:?}", found_in(ways))), self.end());
        match self.written(ways) {
            Ok(text) => self.folder.write(&name, &text),
            Err(error) => log::warn!("internal error: a step cannot be written to a file: {error}"),
        }
    }

    fn written(&self, ways: &Ways) -> serde_json::Result<String> {
        let mut steps = String::new();
        let mut lines: Vec<&Ready> = Vec::new();
        let mut line_of = |ready| -> serde_json::Result<usize> {
            let (plan, origin): &Ready = ready;
            if let Some(known) = lines.iter().position(|(known, _)| Arc::ptr_eq(known, plan)) {
                return Ok(known);
            }
            let graph = &plan.lowered.graph;
            let (status, reason) = (Status::Feasible, StopReason::Heuristic);
            let outcome = Outcome::of_plan(&origin.planner, graph, plan.plan.clone(), status, reason);
            let file = PlanFile::of_outcome(&outcome, plan.lowered.cost_ns as f64);
            let step = Step {
                trace: Trace::clone(&plan.trace),
                plan: serde_json::from_str(&file.to_json()).unwrap_or_default(),
            };
            steps.push('\n');
            steps.push_str(&serde_json::to_string(&step)?);
            lines.push(ready);
            Ok(lines.len() - 1)
        };
        let ways = ways.iter().map(|plans| plans.iter().map(&mut line_of).collect()).collect::<Result<_, _>>()?;
        let (format, version) = (FORMAT.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let structures = lines.iter().map(|(plan, _)| plan.structure()).collect();
        let mut head = Head { format, version, of: self.of.clone(), structures, ways, digest: String::new() };
        head.digest = head.own_digest(&steps);
        Ok(serde_json::to_string(&head)? + &steps)
    }

    /// The names of the files whose plans may be for these budgets (what their neediest steps need), the newest first.
    pub fn near(&self, budgets: RangeInclusive<u64>) -> Vec<String> {
        let end = self.end();
        let mut names = self.folder.names();
        names.retain(|name| {
            let numbers = name.strip_prefix("dry-run-").and_then(|rest| rest.strip_suffix(&end));
            let mut numbers = numbers.into_iter().flat_map(|rest| rest.split('-')).skip(1).flat_map(str::parse::<u64>);
            let needs = numbers.next().zip(numbers.next());
            needs.is_some_and(|(least, most)| least <= *budgets.end() && most >= *budgets.start())
        });
        names.sort_by_cached_key(|name| Reverse(self.folder.written(name)));
        names
    }

    /// Whether the file of this name says that it has a plan for steps of this structure.
    pub fn has(&self, name: &str, structure: u64) -> bool {
        let mut head = String::new();
        let read = File::open(self.folder.path(name)).and_then(|file| BufReader::new(file).read_line(&mut head));
        let head = read.ok().and_then(|_| serde_json::from_str::<Head>(&head).ok());
        head.is_some_and(|head| head.structures.contains(&structure))
    }

    /// What the file of this name holds.
    pub fn load(&self, name: &str) -> Option<Ways> {
        let path = self.folder.path(name);
        let text = std::fs::read_to_string(&path).ok()?;
        // A step in a file may be anything, so this also catches what was not foreseen.
        let read = caught(|| self.read(&text)).unwrap_or_else(|panic| Err(format!("internal error: {panic}")));
        read.inspect_err(|reason| log::warn!("the plans of a dry run in {} are not used: {reason}", path.display()))
            .ok()
    }

    /// What a file holds.
    fn read(&self, text: &str) -> Result<Ways, String> {
        let (head, steps) = text.split_at(text.find('\n').ok_or("it is incomplete")?);
        let head: Head = serde_json::from_str(head).map_err(|error| format!("it cannot be read ({error})"))?;
        if head.format != FORMAT || head.version != env!("CARGO_PKG_VERSION") {
            return Err(format!("it was written by version {}", head.version));
        }
        if head.digest != head.own_digest(steps) {
            return Err("it has been changed since it was written".to_owned());
        }
        if head.of != self.of {
            return Err("it belongs to another device or planner".to_owned());
        }
        let steps = steps.lines().skip(1).enumerate();
        let in_step = |(at, line): (usize, &str)| self.step(line).map_err(|error| format!("step {at}: {error}"));
        let steps = steps.map(in_step).collect::<Result<Vec<_>, _>>()?;
        let step =
            |&at: &usize| steps.get(at).cloned().ok_or_else(|| format!("`ways` names step {at}, which does not exist"));
        head.ways.iter().map(|way| way.iter().map(step).collect()).collect()
    }

    fn step(&self, line: &str) -> Result<Ready, String> {
        let Step { trace, plan } =
            serde_json::from_str(line).map_err(|error| format!("it cannot be read ({error})"))?;
        let trace = Arc::new(trace.read_back().map_err(|misfit| misfit.to_string())?);
        let lowered = lower(&trace, &self.of.device).map_err(|error| error.to_string())?;
        let (checked, file) = plan_in(&plan, &lowered.graph)?;
        let schedule = Schedule::new(trace, lowered, &checked);
        // It is not known how much cheaper a plan may be.
        let file = PlanFile { status: Some(Status::Feasible), lower_bound: None, ..file };
        let origin = Origin::cached(file, schedule.makespan);
        Ok((Arc::new(schedule), origin))
    }
}

#[cfg(test)]
#[path = "dry_runs_fuzz.rs"]
mod fuzz;
