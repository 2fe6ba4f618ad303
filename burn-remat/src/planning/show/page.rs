//! The HTML page of a planned step: what the device does, in the terms of the graph.
//!
//! Two figures are more exact than in the graph. *Time*: every op takes as long as its operations do when they first run
//! ([`times`](crate::planning::times)). *Memory*: the graph counts a result in addition to the input that it is written over; here no step holds more
//! than the device is predicted to hold at that point.

use burn_remat_plan::page::{Page, Run};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{OpId, Plan, Step};

use super::others::Others;
use crate::planning::lowering::Lowered;
use crate::planning::schedule::Schedule;
use crate::planning::times::{firsts, times};

/// The page of a plan by `planner`, with plans for other budgets.
pub fn html(schedule: &Schedule, planner: &str, budget: Option<u64>, others: &Others) -> String {
    let lowered = &schedule.lowered;
    let graph = &lowered.graph;
    let costs = (0..graph.ops().len()).map(|op| lowered.cost_of(Step::Compute(op))).collect();
    let mut page = Page::new(graph).costs(costs).store_all(store_all(schedule)).plan(run(schedule, planner), budget);
    for other in &others.plans {
        page = page.budget(other.budget, run(&other.schedule, &other.planner));
    }
    page.html()
}

/// The step without evictions.
fn store_all(schedule: &Schedule) -> Run {
    let graph = &schedule.lowered.graph;
    let plan = StoreAll::plan(graph);
    on_device(schedule, StoreAll::NAME, &plan, &schedule.lowered.store_all)
}

fn run(schedule: &Schedule, planner: &str) -> Run {
    on_device(schedule, planner, &schedule.plan, &schedule.foreseen.during)
}

/// The run of `plan`. `during` has the most bytes that the device holds during each operation.
fn on_device(schedule: &Schedule, planner: &str, plan: &Plan, during: &[u64]) -> Run {
    let lowered = &schedule.lowered;
    let firsts = firsts(lowered, plan);
    // An op runs again for the next op that runs for the first time, and counts with that.
    let mut most = vec![u64::MAX; plan.steps.len()];
    let mut until = u64::MAX;
    for (at, step) in plan.steps.iter().enumerate().rev() {
        if let Some(op) = step.op().filter(|_| firsts[at]) {
            until = held(lowered, op, during);
        }
        most[at] = until;
    }
    Run::new(&lowered.graph, planner, plan.clone()).on_device(times(schedule, plan), &most)
}

/// Most bytes held while an op runs for the first time, and right before and after.
fn held(lowered: &Lowered, op: OpId, during: &[u64]) -> u64 {
    let range = &lowered.ranges[op];
    let (start, end) = (range.start as usize, range.end as usize);
    // An op without operations lies between two operations.
    let (start, end) = if start < end { (start, end) } else { (start.saturating_sub(1), (end + 1).min(during.len())) };
    during[start..end].iter().max().copied().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::Value as Json;

    use super::*;
    use crate::planning::chosen::ChosenPlanner;
    use crate::planning::examples::chain;
    use crate::planning::fit::Fit;
    use crate::planning::lowering::lower;

    #[test]
    fn a_page_has_the_times_and_bytes_of_the_device_and_names_other_forms() {
        let trace = Arc::new(chain());
        let lowered = lower(&trace, "test").unwrap();
        let fit = Fit::new(trace, lowered, Some(1), 0).unwrap();
        let (budget, _) = fit.floor();
        let (schedule, outcome) = fit.best(&ChosenPlanner::auto(), budget, Duration::from_millis(500)).unwrap();
        let others = Others { least: budget, most: schedule.lowered.peak(), plans: Vec::new() };
        let html = html(&schedule, &outcome.planner, Some(budget), &others);
        let json = html.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Json = serde_json::from_str(json).unwrap();
        let view = |at: usize| &data["views"][at];
        let near = |number: &Json, ns: f64| (number.as_f64().unwrap() - ns).abs() < 1e-6 * ns;

        assert_eq!(view(0)["peak"], schedule.lowered.peak());
        assert!(near(&view(0)["makespan"], schedule.lowered.cost_ns as f64), "{}", view(0)["makespan"]);
        let given = view(data["given"]["view"].as_u64().unwrap() as usize);
        assert_eq!(given["peak"], schedule.peak);
        assert!(schedule.overhead() > 0.0 && near(&given["makespan"], schedule.makespan), "{}", given["makespan"]);

        let forms = given["decisions"].as_array().unwrap().iter().filter_map(|decision| decision["form"].as_u64());
        let names: Vec<&Json> = forms.map(|form| &data["texts"][form as usize]).collect();
        assert!(!names.is_empty() && names.iter().all(|name| *name == "offload"), "{names:?}");
    }
}
