//! A graph that counts less of what the engine does not hold.
//!
//! The graph of a step counts the peak of small storages as constant bytes, and counts results in addition to what the engine writes them over. So at one
//! operation it may count much more than the engine holds, and at another hardly more. If a planner is told one budget for both, it either finds the
//! first operation beyond the budget, or it fills the budget at the second, and its plan turns out to hold too much. Here each operation of the graph
//! counts less, by as much as it counts too much compared with what the machine holds when it follows one plan.
//!
//! The same plans fit both graphs, and none counts more in this one. It is no longer an upper bound: what a plan really holds is found as before, by
//! following it.
//!
//! Complexity: O(steps + ops).

use burn_remat_plan::{Graph, GraphBuilder, simulate};

use super::schedule::Schedule;

/// `graph`, which is that of `schedule` with any costs, with each op reduced by what it counts beyond what is held there. `None` if that is nothing, or
/// if it is not known what is held.
pub(super) fn tight(graph: &Graph, schedule: &Schedule) -> Option<Graph> {
    let beyond = beyond(schedule);
    let most = beyond.iter().max().copied()?.min(graph.constant_bytes());
    if most == 0 || schedule.peak == u64::MAX {
        return None;
    }
    let mut tight = GraphBuilder::new(graph.name());
    tight.constant_bytes(graph.constant_bytes() - most);
    for value in graph.values() {
        tight.value(value.bytes, value.name.clone());
    }
    for (op, &beyond) in graph.ops().iter().zip(&beyond) {
        let mut op = op.clone();
        let stays = most.saturating_sub(beyond);
        op.scratch_bytes += stays;
        op.alternatives.iter_mut().for_each(|other| other.scratch_bytes += stays);
        tight.op(op);
    }
    tight.results(graph.results().to_vec());
    // No total grows: the scratch of an op grows by no more than the constant shrinks.
    tight.build().ok()
}

/// For each op, by how many bytes the graph counts more than is held, from the end of the op before to its own end.
fn beyond(schedule: &Schedule) -> Vec<u64> {
    let (lowered, plan) = (&schedule.lowered, &schedule.plan);
    let counted = simulate(&lowered.graph, plan).bytes;
    let mut beyond = Vec::with_capacity(lowered.ranges.len());
    let mut most = 0;
    for (step, counted) in plan.steps.iter().zip(counted) {
        most = most.max(counted);
        let Some(op) = step.op().filter(|&op| op == beyond.len()) else { continue };
        let range = lowered.ranges[op].start as usize..lowered.ranges[op].end as usize;
        // An op that marks where a storage is released has no operations. What is held there is known from the next op that has some.
        let held = schedule.foreseen.during[range.clone()].iter().max();
        beyond.push(held.map(|held| most.saturating_sub(*held)));
        most = if range.is_empty() { most } else { 0 };
    }
    let mut next = 0;
    for known in beyond.iter_mut().rev() {
        next = *known.get_or_insert(next);
    }
    beyond.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use burn_remat_plan::{check, minimum};

    use super::super::examples::chain;
    use super::super::lowering::lower;
    use super::*;

    #[test]
    fn a_plan_is_counted_as_what_it_holds_and_no_plan_as_more_than_before() {
        let mut trace = chain();
        // A small tensor that exists only in the last quarter counts throughout.
        let late = trace.ops.len() as u32 * 3 / 4;
        let small = trace.storages.iter_mut().find(|storage| storage.made_by.is_some_and(|made| made >= late));
        small.expect("something is made there").bytes /= 1000;
        let lowered = lower(&trace, "chain").unwrap();
        let graph = lowered.graph.clone();
        let plan = minimum(&graph).plan;
        let checked = check(&graph, &plan, u64::MAX).unwrap();
        let schedule = Schedule::new(trace.into(), lowered, &checked);
        let tight = tight(&graph, &schedule).expect("the graph counts more than is held");
        let (before, after) = (simulate(&graph, &schedule.plan), simulate(&tight, &schedule.plan));
        assert!(before.bytes.iter().zip(&after.bytes).all(|(before, after)| after <= before));
        assert_ne!(before.bytes, after.bytes);
        assert!(after.peak_bytes >= schedule.peak, "{} for {}", after.peak_bytes, schedule.peak);
        assert_eq!(check(&tight, &plan, u64::MAX).unwrap().makespan(), checked.makespan());
    }
}
