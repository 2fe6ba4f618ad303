//! The upper bound: the plan with the smallest peak that can be found in little time.
//!
//! Method, until a plan reaches the lower bound:
//!
//! 1. Checkpoints at the ends of segments of many sizes (see `planners::segments`): far from the smallest peak, but found at once, however little time
//!    there is.
//! 2. Up to [`MOST_OPS`] ops: `online` by bisection.
//! 3. A constructive pass (see `planners::search`) at the lower bound and, if that fails, at the smallest budget at which
//!    a pass succeeds, by bisection down from the smallest peak so far.
//! 4. Up to [`MOST_OPS`] ops: the least-memory schedules of `revolve` and `chain-dp`. For larger graphs: the first plans
//!    of a table over the chain of the network's blocks (`spine` in `planners::search`), because the least-memory schedules of that chain would compute too
//!    much.
//! 5. Steps 2 to 4 run first on a graph in which what runs after the store-all peak runs only once (`views::once`), then on the whole graph.
//! 6. Repeats that the plan can do without are removed.
//! 7. If ops have alternatives, all of this is done once more with the implementations of the smallest working set.
//!
//! After the deadline, no further attempt is made; the store-all plan is always available. An attempt may take only a share of the time left: the first
//! one is at the lower bound, where a pass over a large graph may run for a long time and find nothing.
//!
//! Passes are cut off at `40 n + 20000` computations, and so is `online`, so that the plan is always short enough to be
//! written down.
//!
//! Complexity: at most 50 sets of checkpoints, 50 passes and as many runs of `online`; O(n³) for at most 400 stages of a chain.

use std::time::Duration;

use crate::allowance::Allowance;
use crate::choice::has_alternatives;
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId};
use crate::need::largest;
use crate::plan::Plan;
use crate::planner::Request;
use crate::planners::chain_on_graph::least_memory_plans;
use crate::planners::online::plan_within;
use crate::planners::search::construct::{Policy, construct};
use crate::planners::search::polish::polished_plan;
use crate::planners::search::spine::frugal;
use crate::planners::segments::Segments;
use crate::sequence::{compute_order, plan_from_order, plan_of_choices, tightened};
use crate::simulate::{Timeline, simulate};
use crate::views::once::once_past_the_peak;
use crate::views::plain::Plain;

/// Up to this many ops, all methods are tried.
const MOST_OPS: usize = 2500;
/// Largest number of budgets tried by one method.
const MOST_ROUNDS: usize = 25;
/// One attempt may take one part in this many of the time that is left.
const TIME_SHARE: u32 = 4;
/// The search in which what runs after the peak runs only once gets one part in this many of the time.
const ONCE_SHARE: u32 = 2;

/// The plan with the smallest peak so far.
#[derive(Clone)]
pub(super) struct Best {
    pub plan: Plan,
    pub peak: u64,
    makespan: f64,
    /// Whether an attempt at a smaller peak was given up for lack of time.
    pub cut_short: bool,
}

impl Best {
    pub fn new(graph: &Graph, plan: Plan) -> Self {
        let Timeline { peak_bytes: peak, makespan, .. } = simulate(graph, &plan);
        Self { plan, peak, makespan, cut_short: false }
    }

    /// Takes `plan` if its peak is smaller, or the same at less cost.
    pub fn offer(&mut self, graph: &Graph, plan: Plan) {
        self.take(Self::new(graph, plan));
    }

    /// The same with a plan that is already measured.
    fn take(&mut self, other: Self) {
        if (other.peak, other.makespan) < (self.peak, self.makespan) {
            (self.plan, self.peak, self.makespan) = (other.plan, other.peak, other.makespan);
        }
    }
}

/// The best plan of `graph`, no plan of which holds less than `lower`.
pub(super) fn best(graph: &Graph, lower: u64, limits: Allowance) -> Best {
    let mut best = by_default(graph, lower, limits);
    if has_alternatives(graph) && lower < best.peak {
        let lightest = Plain::lightest(graph);
        let other = by_default(&lightest.graph, lower, limits);
        best.cut_short |= other.cut_short;
        best.offer(graph, plan_of_choices(graph, &lightest.choices(&compute_order(&other.plan))));
    }
    if !limits.deadline.passed() {
        let late = limits.deadline.within(limits.deadline.left() / TIME_SHARE);
        best.offer(graph, polished_plan(graph, &best.plan, best.peak, late));
    }
    best
}

/// The best plan with every op in its default implementation.
fn by_default(graph: &Graph, lower: u64, limits: Allowance) -> Best {
    let step_limit = 40 * graph.ops().len() + 20_000;
    let all: Vec<OpId> = (0..graph.ops().len()).collect();
    let store_all = Best::new(graph, plan_from_order(graph, &all));
    let segments = by_segments(graph, store_all.clone(), step_limit, limits.deadline);
    if segments.peak <= lower {
        return segments;
    }
    // The other methods still start from the store-all peak: what they find at a larger budget may hold less than what they find at a smaller one.
    let part = Allowance { deadline: limits.deadline.within(limits.deadline.left() / ONCE_SHARE), ..limits };
    let mut once = store_all.clone();
    if let Some(graph) = once_past_the_peak(graph) {
        once = searched(&graph, once, (largest(&graph).0, step_limit), part);
    }
    let mut best = if once.peak > lower { searched(graph, store_all, (lower, step_limit), limits) } else { store_all };
    best.take(once);
    best.take(segments);
    best
}

/// The best of `best` and the plans whose checkpoints are ends of segments.
fn by_segments(graph: &Graph, mut best: Best, step_limit: usize, deadline: Deadline) -> Best {
    for order in Segments::new(graph).schedules(step_limit, deadline) {
        best.offer(graph, plan_from_order(graph, &order));
    }
    best
}

/// A plan of at most `step_limit` steps that holds less than `best`, if one is found.
fn searched(graph: &Graph, mut best: Best, (lower, step_limit): (u64, usize), limits: Allowance) -> Best {
    let deadline = limits.deadline;
    let is_small = graph.ops().len() <= MOST_OPS;
    if is_small {
        // `online` comes first: among plans that hold equally little, its plans take the least time.
        let online = |budget, deadline| plan_within(graph, budget, deadline).map(|plan| tightened(graph, &plan));
        bisect(graph, (lower, deadline), MOST_ROUNDS, &mut best, online);
    }
    // Passes over large graphs take long.
    let (rounds, policies) = if graph.ops().len() > 4000 { (10, 1) } else { (MOST_ROUNDS, 3) };
    bisect(graph, (lower, deadline), rounds, &mut best, |budget, deadline| {
        let passes = &[(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)][..policies];
        let mut passes = passes.iter().map(|&(cost, distance)| Policy { cost, distance, step_limit });
        let order = passes.find_map(|policy| construct(graph, budget, policy, deadline));
        order.map(|order| plan_from_order(graph, &order))
    });
    if lower >= best.peak || deadline.passed() {
        return best;
    }
    if !is_small {
        let (memory_limit, threads) = (limits.memory, limits.threads);
        let request = Request { time_limit: deadline.left(), memory_limit, threads, ..Request::new(best.peak) };
        for plan in frugal(graph, &request, step_limit) {
            best.offer(graph, tightened(graph, &plan));
        }
    } else if deadline.left() > time_of_chains(graph) {
        for plan in least_memory_plans(graph, deadline) {
            best.offer(graph, tightened(graph, &plan));
        }
    }
    best
}

/// About the longest that the chain planners take to find the least memory: a dozen tables of cubic size, which are
/// not interrupted.
fn time_of_chains(graph: &Graph) -> Duration {
    let stages = (graph.ops().len() as f64 / 2.0).min(400.0);
    Duration::from_secs_f64(0.002 + 4e-9 * stages.powi(3))
}

/// Bisects between `low`, which is tried first, and the best peak. If an attempt finds no plan in its share of the time, it counts as if there were none.
fn bisect(
    graph: &Graph,
    (mut low, deadline): (u64, Deadline),
    rounds: usize,
    best: &mut Best,
    plan_at: impl Fn(u64, Deadline) -> Option<Plan>,
) {
    let (mut probe, mut high) = (low, best.peak);
    for _ in 0..rounds {
        if low >= high || deadline.passed() {
            break;
        }
        let limit = deadline.within(deadline.left() / TIME_SHARE);
        match plan_at(probe, limit) {
            Some(plan) => {
                let found = Best::new(graph, plan);
                high = found.peak.min(probe);
                best.take(found);
            }
            None => {
                best.cut_short |= limit.passed();
                low = probe + 1;
            }
        }
        probe = low + high.saturating_sub(low) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Options, by_name};

    #[test]
    fn segments_alone_hold_far_less_than_all() {
        for (family, depth) in [("lstm", 40), ("gpt", 12), ("residual", 40)] {
            let graph = by_name(family, &Options { depth, ..Options::default() }).unwrap();
            let all: Vec<OpId> = (0..graph.ops().len()).collect();
            let store_all = Best::new(&graph, plan_from_order(&graph, &all));
            let (least, most) = (largest(&graph).0, store_all.peak);
            let found = by_segments(&graph, store_all, usize::MAX, Deadline::NEVER).peak;
            assert!(found - least < (most - least) / 2, "{family}: {found}, of {most} when {least} must be held");
        }
    }

    #[test]
    fn an_attempt_that_finds_nothing_leaves_time_for_others() {
        let graph = by_name("linear", &Options { depth: 4, ..Options::default() }).unwrap();
        let all: Vec<OpId> = (0..graph.ops().len()).collect();
        let mut best = Best::new(&graph, plan_from_order(&graph, &all));
        let tried = std::cell::RefCell::new(Vec::new());
        let deadline = Deadline::after(Duration::from_secs(3600));
        bisect(&graph, (0, deadline), 4, &mut best, |budget, limit| {
            assert!(limit.left() < deadline.left() / 2);
            tried.borrow_mut().push(budget);
            None
        });
        assert_eq!((tried.borrow()[0], tried.borrow().len()), (0, 4));
        assert!(!best.cut_short, "no attempt used up its time");
    }
}
