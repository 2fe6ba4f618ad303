//! The engine's online eviction policy, run on a graph, so that it can be compared with planners that look ahead.
//!
//! Problem: execute the ops in order without knowing what comes next, and decide at each op which resident values to
//! evict when its outputs and scratch do not fit.
//!
//! Method (a form of dynamic tensor rematerialization, Kirisame et al. 2021, with the score that our engine uses):
//!
//! 1. Before an op, and for the results at the end, missing values are computed again: the closure of evicted producers is listed first, in
//!    an iterative post-order, and every input in it is pinned once per consumer; then each listed op runs once.
//! 2. Before each run, while memory is short, the resident, unpinned, recoverable value with the highest
//!    *bytes² · age / cost* is evicted; age counts computations since its last use, cost is that of its whole evicted
//!    closure, itself included. Ties go to the lowest index.
//! 3. A value that has no later use and is not a result is evicted at once. If it cannot be recomputed, it is evicted only
//!    once no evicted value needs it; after that, the values made from it can no longer be evicted.
//!
//! Invariant: every value that is still needed is resident or can be computed from what is. So 1 never fails, and an op
//! fails only if 2 finds no victim. If the budget is too small, a bisection over runs of the policy finds a
//! budget at which it succeeds, with the op that failed just below; the policy is not monotone in the budget, so this
//! is *a* feasible budget, not the smallest.
//!
//! Complexity: O(ops · closure) computations in the worst case, capped at [`MOST_RUNS_PER_OP`] per op on average;
//! O(evictions · resident · closure) time. Alternatives are not used.

mod policy;

use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::need::is_too_little;
use crate::plan::Plan;
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};
use crate::planners::StoreAll;
use policy::{Stuck, run};

pub use policy::MOST_RUNS_PER_OP;

/// The planner `online`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Online;

impl Online {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "online";
}

impl Planner for Online {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let deadline = request.deadline();
        match run(graph, request.budget, deadline) {
            Ok(plan) => Ok(Outcome::of_plan(Self::NAME, graph, plan, Status::Feasible, StopReason::Heuristic)),
            Err(Stuck::TimeLimit) => Ok(Outcome::without_plan(Self::NAME, None)),
            Err(Stuck::At(op)) => {
                let (minimum, op) = bisect(graph, request, op, deadline);
                Err(PlanError::Infeasible {
                    budget: request.budget,
                    minimum: Some(minimum),
                    blocking_op: Some(op),
                    proven: is_too_little(graph, request.budget),
                })
            }
        }
    }
}

/// The plan of the policy within `budget`, if it succeeds before `deadline`.
pub(crate) fn plan_within(graph: &Graph, budget: u64, deadline: Deadline) -> Option<Plan> {
    run(graph, budget, deadline).ok()
}

/// A budget above the request's at which the policy succeeds, and the op that failed just below it.
fn bisect(graph: &Graph, request: &Request, mut blocking: OpId, deadline: Deadline) -> (u64, OpId) {
    let mut fails = request.budget;
    let mut succeeds = StoreAll::peak(graph);
    while succeeds.saturating_sub(fails) > 1 {
        let middle = fails + (succeeds - fails) / 2;
        request.report(Progress::default());
        match run(graph, middle, deadline) {
            Ok(_) => succeeds = middle,
            Err(Stuck::At(op)) => (fails, blocking) = (middle, op),
            Err(Stuck::TimeLimit) => break,
        }
    }
    (succeeds, blocking)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};
    use crate::solve::solve;

    /// A chain of `n` equal ops and their backward ops, each of which reads the output of its forward op.
    fn training_chain(n: usize) -> Graph {
        let mut builder = GraphBuilder::new("chain");
        let mut known = vec![builder.value(10, "x")];
        for _ in 0..n {
            let out = builder.value(10, "");
            builder.op(Op::new("f", 1.0, vec![known[known.len() - 1]], vec![out]));
            known.push(out);
        }
        let mut gradient = known.pop().unwrap();
        while let Some(activation) = known.pop() {
            let out = builder.value(10, "");
            builder.op(Op::new("b", 2.0, vec![activation, gradient], vec![out]));
            gradient = out;
        }
        builder.build().unwrap()
    }

    #[test]
    fn a_tight_budget_costs_recomputation_and_a_wide_one_none() {
        let graph = training_chain(16);
        let peak = StoreAll::peak(&graph);
        let wide = solve(&Online, &graph, &Request::new(peak)).unwrap().outcome;
        assert_eq!((wide.makespan, wide.peak_bytes), (48.0, peak));
        let tight = solve(&Online, &graph, &Request::new(peak / 2)).unwrap().outcome;
        assert!(tight.makespan > 48.0 && tight.makespan < 96.0, "{}", tight.makespan);
    }

    #[test]
    fn an_infeasible_budget_names_one_that_is_feasible() {
        let graph = training_chain(16);
        let Err(PlanError::Infeasible { minimum: Some(minimum), .. }) = Online.solve(&graph, &Request::new(20)) else {
            panic!("20 bytes are too few for three values of 10");
        };
        assert!((30..=80).contains(&minimum), "{minimum}");
        assert!(solve(&Online, &graph, &Request::new(minimum)).is_ok());
        assert!(Online.solve(&graph, &Request::new(minimum - 1)).is_err());
    }

    #[test]
    fn a_dead_input_stays_while_an_evicted_value_needs_it() {
        // x -> a; b and c are big; a is used at the end, x is not.
        let mut builder = GraphBuilder::new("root");
        let (x, a) = (builder.value(5, "x"), builder.value(10, "a"));
        let (b, c, d) = (builder.value(20, "b"), builder.value(20, "c"), builder.value(1, "d"));
        builder.op(Op::new("a", 1.0, vec![x], vec![a]));
        builder.op(Op::new("b", 1.0, vec![x], vec![b]));
        builder.op(Op::new("c", 1.0, vec![x, b], vec![c]));
        builder.op(Op::new("d", 1.0, vec![a, c], vec![d]));
        let graph = builder.build().unwrap();
        let outcome = solve(&Online, &graph, &Request::new(45)).unwrap().outcome;
        let steps: Vec<String> = outcome.plan.unwrap().steps.iter().map(ToString::to_string).collect();
        assert_eq!(steps, ["+0", "+1", "-1", "+2", "-2", "+0", "-0", "+3", "-1", "-3"]);
    }
}
