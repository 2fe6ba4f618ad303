//! The smallest plans that dry runs have found. Training follows them if its budget is hardly more than they need, so that it keeps to the minimum that
//! was reported before: in the same process and, if plans are stored on disk (`dry_runs.rs`), in another one. Training might not find these plans itself:
//! which plan is the smallest found depends on the time for the search, and on what a backend writes in place.
//!
//! Complexity: O(plans) for each question.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::Mutex;

use super::dry_runs::{DryRuns, Ways, found_in, needs};
use super::settings::PlanSettings;
use super::state::Ready;
use crate::panics::lock;

/// The newest results are kept, for steps of at most this many operations in all. Of one dry run, those for the steps that need most are kept.
const MOST_OPERATIONS: usize = 100_000;
/// The smallest plan is of use if the budget is larger by at most one part in this many. With more, there are cheaper plans, which are soon found.
const NEAR: u64 = 8;

/// What this process knows of dry runs.
struct Shelf {
    /// What each has found, with the name of its device, the newest first.
    found: Vec<(String, Ways)>,
    /// Files of other processes that were read, or that cannot be read.
    read: Vec<PathBuf>,
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf { found: Vec::new(), read: Vec::new() });

/// Whether a budget is hardly more than the `least` that a plan takes.
fn is_near(least: u64, budget: u64) -> bool {
    least <= budget && budget - least <= least / NEAR
}

fn operations((plan, _): &Ready) -> usize {
    plan.trace.ops.len()
}

/// Keeps the first of these, and those after it that fit within `MOST_OPERATIONS` together.
fn within<T>(all: &mut Vec<T>, operations: impl Fn(&T) -> usize) {
    let mut sum = 0;
    all.retain(|one| {
        let with_it = sum + operations(one);
        let keeps = sum == 0 || with_it <= MOST_OPERATIONS;
        sum = if keeps { with_it } else { sum };
        keeps
    });
}

impl Shelf {
    fn put(&mut self, device: &str, ways: Ways) {
        let new = found_in(&ways);
        self.found.retain(|(on, known)| on != device || found_in(known) != new);
        self.found.insert(0, (device.to_owned(), ways));
        within(&mut self.found, |(_, known)| known.iter().flatten().map(operations).sum());
    }

    /// See [`handed_over`].
    fn serving(&self, device: &str, structure: u64, budget: u64) -> Vec<Ready> {
        let has_such_steps = |plans: &Vec<Ready>| plans.iter().any(|(plan, _)| plan.structure() == structure);
        let takes = |plans: &[Ready]| plans.iter().map(|(plan, _)| plan.overhead()).fold(0.0, f64::max);
        let serves = |plans: &&Vec<Ready>| has_such_steps(plans) && is_near(needs(plans), budget);
        let on_device = self.found.iter().filter(|(on, _)| on == device);
        let runs = on_device.filter_map(|(_, ways)| ways.iter().find(serves));
        let Some(plans) = runs.min_by(|a, b| takes(a).total_cmp(&takes(b))) else { return Vec::new() };
        let mut near: Vec<Ready> = plans.iter().filter(|(plan, _)| is_near(plan.peak, budget)).cloned().collect();
        near.sort_by_key(|(plan, _)| plan.structure() == structure);
        near
    }

    /// Whether a file must be read. From now on, it counts as read.
    fn is_to_be_read(&mut self, file: PathBuf) -> bool {
        let is_new = !self.read.contains(&file);
        if is_new {
            self.read.push(file);
        }
        is_new
    }
}

/// Remembers the plans that a dry run of a device has found.
pub(crate) fn hand_over(mut ways: Ways, settings: &PlanSettings, device: &str) {
    for plans in &mut ways {
        plans.sort_by_key(|(plan, _)| Reverse(plan.peak));
        within(plans, operations);
    }
    if let Some(disk) = settings.dry_runs(device) {
        disk.store(&ways);
    }
    lock(&SHELF).put(device, ways);
}

/// The plans that were found on a device of this name for a program that has steps of this structure and needs hardly less than this budget. These are
/// the plans for those of its steps that need so much, even if they have not come yet. Of several dry runs, the one with the cheapest plans counts. The
/// plan for steps of this structure comes last, if it is among them. If this process knows of no such dry run, those of other processes are looked for on
/// disk.
pub(super) fn handed_over(device: &str, structure: u64, budget: u64, disk: Option<&DryRuns>) -> Vec<Ready> {
    serving(&SHELF, device, structure, budget, disk)
}

fn serving(shelf: &Mutex<Shelf>, device: &str, structure: u64, budget: u64, disk: Option<&DryRuns>) -> Vec<Ready> {
    let mut found = lock(shelf).serving(device, structure, budget);
    let Some(disk) = disk else { return found };
    for name in disk.near(budget - budget / NEAR..=budget) {
        if !found.is_empty() {
            break;
        }
        if disk.has(&name, structure)
            && lock(shelf).is_to_be_read(disk.folder.path(&name))
            && let Some(ways) = disk.load(&name)
        {
            lock(shelf).put(device, ways);
            found = lock(shelf).serving(device, structure, budget);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::planning::examples::chain;
    use crate::planning::fit::Fit;
    use crate::planning::lowering::lower;

    /// The smallest plan of a step.
    fn least() -> Ready {
        let trace = Arc::new(chain().read_back().unwrap());
        let lowered = lower(&trace, "chain").unwrap();
        Fit::new(trace, lowered, Some(1), 0).unwrap().least()
    }

    #[test]
    fn a_plan_is_for_steps_of_its_structure_and_budgets_that_it_keeps() {
        let least = least();
        let (structure, peak) = (least.0.structure(), least.0.peak);
        let settings = PlanSettings { cache: None, ..PlanSettings::default() };
        hand_over(vec![vec![least.clone()]], &settings, "chain");
        hand_over(vec![vec![least]], &settings, "chain");
        let on = |device, structure, budget| handed_over(device, structure, budget, None);
        let peak_of = |structure, budget| on("chain", structure, budget).last().map(|(schedule, _)| schedule.peak);
        assert_eq!(peak_of(structure, peak), Some(peak));
        assert!(on("another", structure, peak).is_empty(), "another device may not do what the plan asks for");
        assert_eq!(peak_of(structure, peak - 1), None, "it would be over the budget");
        assert_eq!(peak_of(structure, 2 * peak), None, "there are cheaper ones");
        assert_eq!(peak_of(structure + 1, peak), None, "another step");
        let shelf = SHELF.lock().unwrap();
        let is_it =
            |(_, ways): &&(String, Ways)| ways.iter().flatten().any(|(known, _)| known.structure() == structure);
        assert_eq!(shelf.found.iter().filter(is_it).count(), 1, "the same plan is kept once");
    }

    /// What a process that knows nothing finds on disk.
    fn anew(structure: u64, budget: u64, disk: &DryRuns) -> Vec<Ready> {
        let shelf = Mutex::new(Shelf { found: Vec::new(), read: Vec::new() });
        let found = serving(&shelf, &disk.of.device, structure, budget, Some(disk));
        let read = shelf.lock().unwrap().read.len();
        assert_eq!(read, usize::from(!found.is_empty()), "a useless file is not read");
        found
    }

    #[test]
    fn a_plan_on_disk_serves_what_it_serves_in_the_process_on_its_device() {
        let least = least();
        let (structure, peak) = (least.0.structure(), least.0.peak);
        let folder = std::env::temp_dir().join(format!("burn-remat-handed-{}", std::process::id()));
        let settings = PlanSettings { cache: Some(folder.clone()), ..PlanSettings::default() };
        hand_over(vec![vec![], vec![least.clone()]], &settings, "chain");
        let peak_of = |structure, budget, device| {
            anew(structure, budget, &settings.dry_runs(device).unwrap()).last().map(|(schedule, _)| schedule.peak)
        };
        assert_eq!(peak_of(structure, peak, "chain"), Some(peak));
        assert_eq!(peak_of(structure, peak + peak / 16, "chain"), Some(peak), "hardly more");
        assert_eq!(peak_of(structure, peak - 1, "chain"), None, "it would be over the budget");
        assert_eq!(peak_of(structure, 2 * peak, "chain"), None, "there are cheaper ones");
        assert_eq!(peak_of(structure + 1, peak, "chain"), None, "another step");
        assert_eq!(peak_of(structure, peak, "other"), None, "another device");
        let [(read, origin)] = &anew(structure, peak, &settings.dry_runs("chain").unwrap())[..] else { panic!() };
        assert_eq!((&read.trace, &read.plan), (&least.0.trace, &least.0.plan));
        assert!(origin.cached && origin.planner == least.1.planner);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
