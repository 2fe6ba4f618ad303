//! A start for long networks: a table over the chain of their blocks, whose plans are measured on the graph.
//!
//! With little memory, a deep network is recomputed in nested pieces. No sequence of small moves leads from a plan of one nesting depth to
//! another; the [dynamic program over chains](crate::planners::chain_persistent) finds the whole nesting at once. To guarantee a budget,
//! it counts some values of a graph twice, which costs the most when memory is short. Here it guarantees nothing: sizes are
//! rounded to the nearest unit, the table goes beyond the budget, and its plans for more and more memory are simulated to see which of
//! them fit.
//!
//! Complexity: that of `chain-dp`, O(stages^3 x units), with at most [`MOST_GROUPS`] stages and as many units as [`MOST_WORK`] allows.

use std::time::Duration;

use crate::chain::ChainStep;
use crate::chain::terms::{Grouped, Terms};
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId};
use crate::plan::Plan;
use crate::planner::Request;
use crate::planners::chain_table::{Choices, Table};
use crate::sequence::compute_order;
use crate::simulate::simulate;
use crate::views::chain_of::ChainView;

/// Longer chains are planned in this many groups of stages.
const MOST_GROUPS: usize = 620;
/// Units of memory within the budget: fewer if there are many stages.
const UNITS: std::ops::RangeInclusive<u64> = 12..=96;
/// About how many steps of the innermost loop a table may take.
const MOST_WORK: u64 = 3_000_000_000;
/// Bytes of a cost, and of a copy of those that are being computed.
const BYTES_PER_CELL: u64 = 10;
/// Time per checkpoint to find the least memory of every sub-chain, which comes before the table and is not interrupted.
const TIME_PER_CHECKPOINT: Duration = Duration::from_nanos(8);
/// Plans with more computations than this per op are not considered.
const MOST_RUNS_PER_OP: usize = 40;
/// How many fitting plans to look for, from the most memory down, since peaks do not strictly fall with the memory.
const ENOUGH: usize = 2;

/// The cheapest order that fits, among those found before `deadline`.
pub(super) fn spine(graph: &Graph, request: &Request, deadline: Deadline) -> Option<Vec<OpId>> {
    let mut best: Option<(f64, Vec<OpId>)> = None;
    for_each_table(graph, request, deadline, |most, plan_within| {
        let mut fitting = 0;
        for plan in (0..=most).rev().take_while(|_| !deadline.passed()).filter_map(plan_within) {
            let timeline = simulate(graph, &plan);
            if timeline.peak_bytes <= request.budget {
                if best.as_ref().is_none_or(|(least, _)| timeline.makespan < *least) {
                    best = Some((timeline.makespan, compute_order(&plan)));
                }
                fitting += 1;
            }
            if fitting == ENOUGH {
                break;
            }
        }
    });
    best.map(|(_, order)| order)
}

/// Plans of at most `computations` that hold little, found within the request's time limit: from every table the first few, from the
/// least memory up. They may hold more than the request's budget.
pub(crate) fn frugal(graph: &Graph, request: &Request, computations: usize) -> Vec<Plan> {
    let mut found = Vec::new();
    let deadline = request.deadline();
    for_each_table(graph, request, deadline, |most, plan_within| {
        let plans = (0..=most).take_while(|_| !deadline.passed()).filter_map(plan_within);
        found.extend(plans.filter(|plan| compute_order(plan).len() <= computations).take(ENOUGH));
    });
    found
}

/// Fills the table of every view of the graph as a chain, and passes on the most units that it covers and a function that gives the plan
/// for a number of units.
fn for_each_table(
    graph: &Graph,
    request: &Request,
    deadline: Deadline,
    mut visit: impl FnMut(usize, &dyn Fn(usize) -> Option<Plan>),
) {
    let room = request.budget.saturating_sub(graph.constant_bytes());
    for view in ChainView::joined_candidates(graph) {
        if deadline.passed() {
            return;
        }
        if view.stages().len() < 2 {
            continue;
        }
        let grouped = Grouped::of(view.terms(), MOST_GROUPS);
        let unit = unit(&grouped.terms, room);
        let terms = grouped.terms.in_nearest_units(unit);
        let most = (room / unit) as usize * 5 / 4 + 3;
        let cells = (terms.len() as u64).pow(2) / 2 * (most as u64 + 1);
        let least_time = TIME_PER_CHECKPOINT * u32::try_from(terms.len().pow(3) / 6).unwrap_or(u32::MAX);
        if cells * BYTES_PER_CELL > request.memory_limit || least_time > deadline.left() {
            continue;
        }
        if let Some(table) = Table::fill(&terms, Choices::SavedAndInputs, most, request.threads, deadline) {
            visit(most, &|units| {
                let steps = grouped.expand(&table.schedule_within(units)?);
                // Writing out a plan takes time: one that no walk could improve is not worth it.
                let length = |step: &ChainStep| view.stages()[step.stage()].forward.len();
                let short = steps.iter().map(length).sum::<usize>() <= MOST_RUNS_PER_OP * graph.ops().len();
                short.then(|| view.plan(graph, &steps))
            });
        }
    }
}

/// The unit in which memory is counted: a part of what lies between two blocks, such that the budget holds enough units.
fn unit(terms: &Terms, room: u64) -> u64 {
    let mut between = terms.activation.clone();
    between.sort_unstable();
    let median = between[between.len() / 2].max(1);
    let (least, most) = (*UNITS.start(), *UNITS.end());
    let stages = terms.len() as u64;
    let most = most.min(MOST_WORK * 6 / stages.pow(3).max(1) * 4 / 5).max(least);
    let part = least.saturating_mul(median).div_ceil(room.max(1)).max(1);
    (median / part).max(room.div_ceil(most)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::generate::{Options, by_name};
    use crate::minimum::minimum;
    use crate::planner::Planner;
    use crate::planners::StoreAll;
    use crate::planners::online::Online;
    use crate::sequence::plan_from_order;

    #[test]
    fn deep_networks_in_little_memory_get_cheaper_plans_than_one_step_at_a_time() {
        let graph = by_name("residual", &Options { depth: 60, ..Options::default() }).unwrap();
        let (least, peak) =
            (minimum(&graph).achieved, StoreAll.solve(&graph, &Request::new(u64::MAX)).unwrap().peak_bytes);
        let request = Request { threads: 2, ..Request::new(least + (peak - least) / 50) };
        let order = spine(&graph, &request, Deadline::NEVER).unwrap();
        let checked = check(&graph, &plan_from_order(&graph, &order), request.budget).unwrap();
        let online = Online.solve(&graph, &request).unwrap();
        assert!(checked.makespan() < online.makespan, "{} {}", checked.makespan(), online.makespan);
    }

    #[test]
    fn plans_that_hold_little_compute_no_more_than_is_asked() {
        let graph = by_name("residual", &Options { depth: 60, ..Options::default() }).unwrap();
        let request = Request::new(minimum(&graph).achieved);
        let most = 10 * graph.ops().len();
        let plans = frugal(&graph, &request, most);
        assert!(!plans.is_empty());
        for plan in &plans {
            let checked = check(&graph, plan, u64::MAX).unwrap();
            assert!(compute_order(plan).len() <= most);
            // Sizes are rounded, but not by much: it is a plan for little memory.
            assert!(checked.peak_bytes() <= request.budget + request.budget / 4, "{}", checked.peak_bytes());
        }
        assert!(frugal(&graph, &request, graph.ops().len()).is_empty());
    }
}
