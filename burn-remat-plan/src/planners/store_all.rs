//! The baseline: compute every op once, keep every value until its last use.
//!
//! Method: the ops in execution order; after each, the values that no later op uses and that are not results are
//! evicted (also outputs that nothing uses at all, and inputs of the graph that nothing uses, which are evicted before the first op).
//!
//! Invariants: the makespan is the least of any plan, unless an op has a cheaper alternative; the peak is the least of any
//! plan without recomputation, because a value leaves at the first step at which it may. Complexity: O(values + uses).

use crate::chain::terms::Terms;
use crate::chain::{self, Chain, ChainOutcome, peak_stage};
use crate::choice::least_makespan;
use crate::error::PlanError;
use crate::graph::{Graph, OpId, ValueId};
use crate::need::is_too_little;
use crate::plan::{Plan, Step};
use crate::planner::{Bound, Outcome, Planner, Request, Status, StopReason};
use crate::simulate::simulate;

/// The planner `store-all`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreAll;

impl StoreAll {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "store-all";

    /// The plan without recomputation; it does not depend on a budget.
    pub fn plan(graph: &Graph) -> Plan {
        let dying = dying_values(graph);
        let unused = graph.inputs().filter(|&value| graph.consumers(value).is_empty() && !graph.is_result(value));
        let mut steps: Vec<Step> = unused.map(Step::Evict).collect();
        for (op, dead) in dying.into_iter().enumerate() {
            steps.push(Step::Compute(op));
            steps.extend(dead.into_iter().map(Step::Evict));
        }
        Plan { steps }
    }

    /// Peak of [`plan`](Self::plan) in bytes: the smallest budget at which nothing needs to be computed again.
    pub fn peak(graph: &Graph) -> u64 {
        simulate(graph, &Self::plan(graph)).peak_bytes
    }

    /// Makespan of [`plan`](Self::plan): the least of any plan without alternatives.
    pub fn makespan(graph: &Graph) -> f64 {
        simulate(graph, &Self::plan(graph)).makespan
    }
}

/// For each op, the values whose last default use it is (or, if they are unused, whose computation it is), ascending.
fn dying_values(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut dying = vec![Vec::new(); graph.ops().len()];
    for value in (0..graph.values().len()).filter(|&value| !graph.is_result(value)) {
        if let Some(last) = graph.consumers(value).last().copied().or_else(|| graph.producer(value)) {
            dying[last].push(value);
        }
    }
    dying
}

/// The first op at which a plan holds its peak, unless that is at the start, before any op.
pub(super) fn peak_op(graph: &Graph, plan: &Plan) -> Option<OpId> {
    let timeline = simulate(graph, plan);
    let at_peak = |&(_, &bytes): &(&Step, &u64)| bytes == timeline.peak_bytes;
    plan.steps.iter().zip(&timeline.bytes).find(at_peak).and_then(|(step, _)| step.op())
}

impl Planner for StoreAll {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let plan = Self::plan(graph);
        let blocking_op = peak_op(graph, &plan);
        let mut outcome = Outcome::of_plan(Self::NAME, graph, plan, Status::Optimal, StopReason::Proved);
        if outcome.peak_bytes > request.budget {
            return Err(PlanError::Infeasible {
                budget: request.budget,
                minimum: Some(outcome.peak_bytes),
                blocking_op,
                proven: is_too_little(graph, request.budget),
            });
        }
        let bound = least_makespan(graph);
        if outcome.makespan > bound {
            (outcome.status, outcome.stop_reason) = (Status::Feasible, StopReason::Heuristic);
        }
        outcome.bounded(Self::NAME, Bound::for_all_schedules(bound))
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        let plan = chain.store_all_plan();
        let timeline = chain::simulate(chain, &plan);
        if timeline.peak_bytes > request.budget {
            return Err(PlanError::Infeasible {
                budget: request.budget,
                minimum: Some(timeline.peak_bytes),
                blocking_op: Some(peak_stage(chain, &plan)),
                proven: request.budget < Terms::of_chain(chain).least_bytes(),
            });
        }
        let outcome = ChainOutcome::of_plan(Self::NAME, chain, plan, Status::Optimal, StopReason::Proved);
        let bound = Bound::for_all_schedules(outcome.makespan);
        outcome.bounded(Self::NAME, bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};

    fn three_ops() -> Graph {
        let mut builder = GraphBuilder::new("three");
        let values: Vec<_> = (0..5).map(|i| builder.value(10 + i, "")).collect();
        builder.op(Op::new("a", 1.0, vec![values[0]], vec![values[1]]));
        builder.op(Op::new("b", 2.0, vec![values[1]], vec![values[2], values[3]]));
        builder.op(Op::new("c", 3.0, vec![values[1], values[2]], vec![values[4]]));
        builder.build().unwrap()
    }

    #[test]
    fn values_leave_at_their_last_use_and_results_stay() {
        let plan = StoreAll::plan(&three_ops());
        let text: Vec<String> = plan.steps.iter().map(ToString::to_string).collect();
        assert_eq!(text, ["+0", "-0", "+1", "-3", "+2", "-1", "-2"]);
    }

    #[test]
    fn a_chain_names_the_stage_that_holds_the_peak() {
        let stage = chain::ChainStage {
            activation_bytes: 4,
            saved_bytes: 7,
            gradient_bytes: 4,
            backward_scratch_bytes: 3,
            ..Default::default()
        };
        let chain = Chain::new("two", 10, 10, vec![stage; 2]).unwrap();
        // The first step over 20 bytes is `Fall0`; `B1` holds the most.
        let found = StoreAll.solve_chain(&chain, &Request::new(20));
        let Err(PlanError::Infeasible { minimum, blocking_op, .. }) = found else { panic!("{found:?}") };
        let peak = chain.store_all_peak();
        let stage = chain.store_all_plan().steps[2].stage();
        assert_eq!((minimum, blocking_op), (Some(peak), Some(stage)));
    }

    #[test]
    fn a_budget_of_the_peak_is_enough_and_one_byte_less_names_the_op() {
        let graph = three_ops();
        let peak = StoreAll.solve(&graph, &Request::new(u64::MAX)).unwrap().peak_bytes;
        assert_eq!(peak, 37);
        assert_eq!(StoreAll.solve(&graph, &Request::new(peak)).unwrap().makespan, 6.0);
        let error = StoreAll.solve(&graph, &Request::new(peak - 1)).unwrap_err();
        assert_eq!(error, PlanError::Infeasible { budget: 36, minimum: Some(37), blocking_op: Some(2), proven: true });
    }
}
