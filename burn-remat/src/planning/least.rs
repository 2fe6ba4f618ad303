//! Plans that hold least, as a dry run has found them: training in the same process is offered them, so that it keeps what was named before.
//!
//! Which plan holds least depends on the time there was to look for it. What is offered is a plan of a graph, which the checker accepts for the step at
//! hand or not; sizes and times are then those of the step. Complexity: O(plans) for each
//! question, and that of a schedule for each plan of the step.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use burn_remat_core::Trace;
use burn_remat_plan::{Plan, check};

use super::lowering::Lowered;
use super::schedule::Schedule;

/// So many are kept, the newest.
const MOST: usize = 32;

static FOUND: Mutex<VecDeque<(u64, Plan)>> = Mutex::new(VecDeque::new());

/// A plan that holds little for this kind of step.
pub(crate) fn remember(structure: u64, plan: &Plan) {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if found.iter().any(|(known, other)| *known == structure && other == plan) {
        return;
    }
    found.push_front((structure, plan.clone()));
    found.truncate(MOST);
}

/// What was found for this kind of step, and how `trace` goes by it in the first of its graphs that has that plan. With the times that were measured the
/// step may have [other forms](super::lowering) than on a dry device: then its plan is one for the graph with the times of a dry device.
pub(super) fn offered<'a, G: Iterator<Item = &'a Lowered>>(
    trace: &Arc<Trace>,
    structure: u64,
    graphs: impl Fn() -> G,
) -> Vec<(Plan, Schedule)> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let plans: Vec<Plan> =
        found.iter().filter(|(known, _)| *known == structure).map(|(_, plan)| plan.clone()).collect();
    drop(found);
    let schedule = |plan: &Plan| {
        let (lowered, checked) = graphs().find_map(|of| Some((of, check(&of.graph, plan, u64::MAX).ok()?)))?;
        Some(Schedule::new(trace.clone(), lowered.clone(), &checked))
    };
    plans.into_iter().filter_map(|plan| schedule(&plan).map(|schedule| (plan, schedule))).collect()
}

/// The same step with the times that a dry device takes its operations to need: what they touch.
pub(super) fn with_dry_costs(trace: &Trace) -> Trace {
    let bytes = |number: u32| trace.tensors.get(number as usize).map_or(0, |tensor| tensor.bytes);
    let measures = trace.ops.iter().map(|op| {
        let outputs = op.outputs..op.outputs + op.writes.len() as u32;
        let touched: u64 = op.inputs.iter().map(|&(number, _)| number).chain(outputs).map(bytes).sum();
        (touched.max(1), op.scratch)
    });
    trace.clone().with_measures(measures)
}

#[cfg(test)]
mod tests {
    use burn_remat_plan::minimum;

    use super::super::examples::chain;
    use super::super::lowering::lower;
    use super::*;

    #[test]
    fn a_plan_is_offered_to_steps_of_its_kind_of_which_it_is_one() {
        let trace = Arc::new(chain());
        let lowered = lower(&trace, "chain").unwrap();
        let plan = minimum(&lowered.graph).plan;
        let (structure, graphs) = (0x1ea5_7000, || std::iter::once(&lowered));
        assert!(offered(&trace, structure, graphs).is_empty());
        remember(structure, &plan);
        remember(structure, &plan);
        remember(structure, &Plan { steps: Vec::new() });
        let found: Vec<Plan> = offered(&trace, structure, graphs).into_iter().map(|(plan, _)| plan).collect();
        assert_eq!(found, [plan]);
        assert!(offered(&trace, structure + 1, graphs).is_empty());
    }
}
