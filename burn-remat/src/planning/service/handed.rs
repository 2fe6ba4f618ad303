//! Plans that hold least, as a dry run has found them: training in the same process goes by them where its budget is hardly more, so that it keeps what
//! was named before. Which plan holds least depends on the time there was to look for it, and on what a backend writes in place.
//!
//! Complexity: O(plans) for each question.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::settings::Ready;
use crate::panics::lock;

/// The newest are kept, for steps of so many operations in all.
const MOST_OPERATIONS: usize = 100_000;
/// How much more than it takes a budget may be for such a plan to be of use, as one part of that: with more there are cheaper ones, which are soon found.
const NEAR: u64 = 8;

static FOUND: Mutex<VecDeque<Ready>> = Mutex::new(VecDeque::new());

/// A dry run has found this plan.
pub(crate) fn hand_over(ready: Ready) {
    let mut found = lock(&FOUND);
    let (structure, peak) = (ready.0.structure(), ready.0.peak);
    found.retain(|(known, _)| (known.structure(), known.peak) != (structure, peak));
    found.push_front(ready);
    let mut operations = 0;
    found.retain(|(known, _)| {
        operations += known.trace.ops.len();
        operations <= MOST_OPERATIONS
    });
}

/// The cheapest plan found for steps of this structure that keeps to this budget, where the budget is hardly more than it takes.
pub(super) fn handed_over(structure: u64, budget: u64) -> Option<Ready> {
    let found = lock(&FOUND);
    let is_near = |peak: u64| peak <= budget && budget - peak <= peak / NEAR;
    let near = found.iter().filter(|(known, _)| known.structure() == structure && is_near(known.peak));
    near.min_by(|(a, _), (b, _)| a.overhead().total_cmp(&b.overhead())).cloned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::planning::examples::chain;
    use crate::planning::fit::Fit;
    use crate::planning::lowering::lower;

    #[test]
    fn a_plan_is_for_steps_of_its_structure_and_budgets_that_it_keeps() {
        let trace = chain();
        let lowered = lower(&trace, "chain").unwrap();
        let least = Fit::new(Arc::new(trace), lowered, Some(1), 0).unwrap().least();
        let (structure, peak) = (least.0.structure(), least.0.peak);
        hand_over(least.clone());
        hand_over(least);
        let peak_of = |structure, budget| handed_over(structure, budget).map(|(schedule, _)| schedule.peak);
        assert_eq!(peak_of(structure, peak), Some(peak));
        assert_eq!(peak_of(structure, peak - 1), None, "it would be over the budget");
        assert_eq!(peak_of(structure, 2 * peak), None, "there are cheaper ones");
        assert_eq!(peak_of(structure + 1, peak), None, "another step");
        let of_it = |found: &VecDeque<Ready>| found.iter().filter(|(known, _)| known.structure() == structure).count();
        assert_eq!(of_it(&FOUND.lock().unwrap()), 1, "the same plan is kept once");
    }
}
