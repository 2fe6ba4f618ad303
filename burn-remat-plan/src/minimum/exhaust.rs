//! The exhaustive search on small graphs, to close the gap between the bounds.
//!
//! Method: bisection with the exact search of `planners::search`, on the graph with all costs zero. Among states of equal
//! cost, that search continues with the one furthest in the program, so that it dives for any schedule that fits; if it runs
//! out of states, no schedule fits. If it gives up, only larger budgets are tried from then on.
//!
//! Complexity: at most [`MOST_PROBES`] searches of [`STATES`] states.

use crate::allowance::Allowance;
use crate::graph::Graph;
use crate::planners::search::exact::{StateLimits, Verdict, exact};
use crate::sequence::plan_of_choices;

use super::upper::Best;

/// Limit on the states of one search.
const STATES: usize = 20_000;
/// Limit on the number of searches.
const MOST_PROBES: usize = 25;
/// Limit on the searches that may give up, because these are the long ones.
const MOST_GIVEN_UP: usize = 3;

/// Tries budgets from `low` to the peak of `best`, which it improves; returns the lower bound known by then.
pub(super) fn close(graph: &Graph, mut low: u64, best: &mut Best, limits: Allowance) -> u64 {
    if low >= best.peak || graph.values().len() > 64 {
        return low;
    }
    let free = without_costs(graph);
    let states = StateLimits::new(STATES, limits.memory, limits.deadline);
    let (mut probe, mut next, mut given_up, found_before) = (low, low, 0, best.peak);
    for _ in 0..MOST_PROBES {
        if next >= best.peak || given_up == MOST_GIVEN_UP || limits.deadline.passed() {
            break;
        }
        match exact(&free, probe, states) {
            Verdict::Optimal(order) => best.offer(graph, plan_of_choices(graph, &order)),
            Verdict::Infeasible => (low, next) = (probe + 1, probe + 1),
            Verdict::GaveUp => (next, given_up) = (probe + 1, given_up + 1),
        }
        probe = next + best.peak.saturating_sub(next) / 2;
    }
    if best.peak < found_before {
        // A plan found without regard to costs may be expensive.
        if let Verdict::Optimal(order) = exact(graph, best.peak, states) {
            *best = Best::new(graph, plan_of_choices(graph, &order));
        }
    }
    low
}

fn without_costs(graph: &Graph) -> Graph {
    let free = graph.with_ops(|(_, op)| {
        let mut op = op.clone();
        op.cost = 0.0;
        op.alternatives.iter_mut().for_each(|other| other.cost = 0.0);
        op
    });
    free.expect("a valid graph is valid at any cost")
}
