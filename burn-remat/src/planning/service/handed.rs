//! Plans that hold least, as a dry run has found them: training in the same process goes by them where its budget is hardly more, so that it keeps what
//! was named before; where plans are kept on disk, another process does. Which plan holds least depends on the time there was to look for it, and on
//! what a backend writes in place.
//!
//! Complexity: O(plans) for each question.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::time::Duration;

use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{Outcome, Status, StopReason};

use super::cache::is_near;
use super::settings::{PlanSettings, Ready};
use crate::panics::lock;

/// The newest are kept, for steps of so many operations in all; of one dry run, those for the steps that need most.
const MOST_OPERATIONS: usize = 100_000;

/// What a dry run has found: plans for all kinds of step of a program, in each way in which its steps may be told apart, the likeliest first.
type Ways = Vec<Vec<Ready>>;

/// What each dry run has found, the newest first.
static FOUND: Mutex<Vec<Ways>> = Mutex::new(Vec::new());

/// A dry run of a device has found these plans.
pub(crate) fn hand_over(mut ways: Ways, settings: &PlanSettings, device: &str) {
    let operations = |(plan, _): &Ready| plan.trace.ops.len();
    for plans in ways.iter_mut().rev() {
        plans.sort_by_key(|(plan, _)| Reverse(plan.peak));
        within(plans, operations);
        plans.iter().for_each(|plan| store(plan, settings, device));
    }
    let mut found = lock(&FOUND);
    let of = |ways: &Ways| ways.iter().flatten().map(|(plan, _)| (plan.structure(), plan.peak)).collect::<Vec<_>>();
    let new = of(&ways);
    found.retain(|known| of(known) != new);
    found.insert(0, ways);
    within(&mut found, |known| known.iter().flatten().map(operations).sum());
}

/// Keeps a plan for other processes: it was made in no time, for just what it holds.
fn store((plan, origin): &Ready, settings: &PlanSettings, device: &str) {
    let Some(file) = settings.cache_file(device, plan.structure(), plan.peak) else { return };
    let (graph, found) = (&plan.lowered.graph, plan.plan.clone());
    let outcome = Outcome::of_plan(&origin.planner, graph, found, Status::Feasible, StopReason::Heuristic);
    file.store(Duration::ZERO, graph, &PlanFile::of_outcome(&outcome, plan.lowered.cost_ns as f64));
}

/// Keeps the first of these that have no more operations together than are kept.
fn within<T>(all: &mut Vec<T>, operations: impl Fn(&T) -> usize) {
    let mut sum = 0;
    all.retain(|one| {
        sum += operations(one);
        sum <= MOST_OPERATIONS
    });
}

/// What was found for a program that has steps of this structure and needs hardly less than this budget: the plans for those of its steps that need so
/// much, which may not have come yet. Of several dry runs that in which they are cheapest, and the plan for steps of this structure last, if it is among them.
pub(super) fn handed_over(structure: u64, budget: u64) -> Vec<Ready> {
    let found = lock(&FOUND);
    let has_such_steps = |plans: &Vec<Ready>| plans.iter().any(|(plan, _)| plan.structure() == structure);
    let needs = |plans: &[Ready]| plans.iter().map(|(plan, _)| plan.peak).max().unwrap_or(0);
    let takes = |plans: &[Ready]| plans.iter().map(|(plan, _)| plan.overhead()).fold(0.0, f64::max);
    let serves = |plans: &&Vec<Ready>| has_such_steps(plans) && is_near(needs(plans), budget);
    let runs = found.iter().filter_map(|ways| ways.iter().find(serves));
    let Some(plans) = runs.min_by(|a, b| takes(a).total_cmp(&takes(b))) else { return Vec::new() };
    let mut near: Vec<Ready> = plans.iter().filter(|(plan, _)| is_near(plan.peak, budget)).cloned().collect();
    near.sort_by_key(|(plan, _)| plan.structure() == structure);
    near
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn_remat_core::Trace;

    use super::*;
    use crate::planning::examples::chain;
    use crate::planning::fit::Fit;
    use crate::planning::lowering::{Lowered, lower};

    /// A step, and the plan for it that holds least.
    fn step() -> (Arc<Trace>, Lowered, Ready) {
        let trace = Arc::new(chain());
        let lowered = lower(&trace, "chain").unwrap();
        let least = Fit::new(trace.clone(), lowered.clone(), Some(1), 0).unwrap().least();
        (trace, lowered, least)
    }

    #[test]
    fn a_plan_is_for_steps_of_its_structure_and_budgets_that_it_keeps() {
        let (_, _, least) = step();
        let (structure, peak) = (least.0.structure(), least.0.peak);
        let settings = PlanSettings { cache: None, ..PlanSettings::default() };
        hand_over(vec![vec![least.clone()]], &settings, "chain");
        hand_over(vec![vec![least]], &settings, "chain");
        let peak_of = |structure, budget| handed_over(structure, budget).last().map(|(schedule, _)| schedule.peak);
        assert_eq!(peak_of(structure, peak), Some(peak));
        assert_eq!(peak_of(structure, peak - 1), None, "it would be over the budget");
        assert_eq!(peak_of(structure, 2 * peak), None, "there are cheaper ones");
        assert_eq!(peak_of(structure + 1, peak), None, "another step");
        let has_it = |ways: &&Ways| ways.iter().flatten().any(|(known, _)| known.structure() == structure);
        assert_eq!(FOUND.lock().unwrap().iter().filter(has_it).count(), 1, "the same plan is kept once");
    }

    #[test]
    fn a_plan_on_disk_serves_what_it_serves_in_the_process_on_its_device() {
        let (trace, lowered, least) = step();
        let (structure, peak) = (least.0.structure(), least.0.peak);
        let folder = std::env::temp_dir().join(format!("burn-remat-handed-{}", std::process::id()));
        let settings = PlanSettings { cache: Some(folder.clone()), ..PlanSettings::default() };
        hand_over(vec![vec![least]], &settings, "chain");
        let peak_of = |structure, budget, device| {
            let file = settings.cache_file(device, 0, budget).unwrap().of_dry_run(structure);
            file.load_near(&trace, &lowered).map(|stored| stored.schedule.peak)
        };
        assert_eq!(peak_of(structure, peak, "chain"), Some(peak));
        assert_eq!(peak_of(structure, peak + peak / 16, "chain"), Some(peak), "hardly more");
        assert_eq!(peak_of(structure, peak - 1, "chain"), None, "it would be over the budget");
        assert_eq!(peak_of(structure, 2 * peak, "chain"), None, "there are cheaper ones");
        assert_eq!(peak_of(structure + 1, peak, "chain"), None, "another step");
        assert_eq!(peak_of(structure, peak, "other"), None, "another device");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
