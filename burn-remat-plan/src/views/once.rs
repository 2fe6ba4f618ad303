//! A graph in which fewer ops may run again, for planners that would spend too much time on the others.

use crate::graph::{Graph, Op, OpId};
use crate::sequence::plan_from_order;
use crate::simulate::simulate;

/// The same graph, but what runs after the store-all peak runs only once; `None` if that changes nothing. Its plans are plans of the graph.
///
/// Most of the backward pass comes after the peak, and computing an evicted gradient again takes most of the step. When memory is short, passes over the
/// program spend their time on that; without it they find plans that hold less, in a fraction of the time. Complexity: O(n + uses).
pub(crate) fn once_past_the_peak(graph: &Graph) -> Option<Graph> {
    let all: Vec<OpId> = (0..graph.ops().len()).collect();
    let plan = plan_from_order(graph, &all);
    let timeline = simulate(graph, &plan);
    let peak = timeline.bytes.iter().position(|&bytes| bytes == timeline.peak_bytes)?;
    let last = plan.steps[..=peak].iter().rev().find_map(|step| step.op())?;
    let changes = graph.ops()[last + 1..].iter().any(|op| op.recomputable);
    let once = || graph.with_ops(|(id, op)| Op { recomputable: op.recomputable && id <= last, ..op.clone() });
    changes.then(once)?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::generate::{Options, by_name};
    use crate::minimum::minimum;

    #[test]
    fn the_backward_pass_runs_once_and_plans_are_plans_of_the_graph() {
        let graph = by_name("residual", &Options { depth: 10, ..Options::default() }).unwrap();
        let once = once_past_the_peak(&graph).unwrap();
        let count = |graph: &Graph| graph.ops().iter().filter(|op| op.recomputable).count();
        assert!(count(&once) > count(&graph) / 4 && count(&once) < count(&graph));
        assert!(once.ops().windows(2).all(|pair| pair[0].recomputable >= pair[1].recomputable));
        let least = minimum(&once);
        assert!(check(&graph, &least.plan, least.achieved).is_ok());
        assert!(once_past_the_peak(&once).is_none());
    }
}
