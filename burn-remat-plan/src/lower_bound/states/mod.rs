//! A lower bound from the states that a schedule passes through; exact on small graphs.
//!
//! *Problem.* The relaxation of `lower_bound` may keep a fraction of a value and ignores what is resident between its
//! moments. Near the smallest feasible budget, that is where the cost arises.
//!
//! *Method.* A best-first search (`search.rs`) finds the cheapest way through an *abstraction* of the schedules
//! (`model.rs`) that remembers groups of values instead of values. Its estimate of the remaining cost (`ahead.rs`)
//! combines what is missing with what the relaxation proves for later moments. A search that runs out of time or memory
//! still gives a bound: the least estimate of the states that it did not reach.
//!
//! 1. The relaxation is solved for some single moments (`tails.rs`).
//! 2. The abstractions go from coarse to fine (`details`): at first, small values are forgotten and cheap ops are merged
//!    with what they read, then less so, then not at all. The last one is exact: if its search ends, the bound is the optimum.
//! 3. Within each abstraction, searches begin at narrow moments (`moments.rs`), the last one first, with everything
//!    resident that could be. What they find is spent after that moment in any schedule, so it sharpens the estimates of
//!    searches that begin earlier. What one search learns about single states is reused by the next. The final search
//!    begins at the start.
//!
//! Every number found holds for all schedules, so finer searches use what coarser ones found.
//!
//! *Class.* All schedules that [`check`](mod@crate::check) accepts: any op may run again anywhere and any number of times,
//! in any implementation; only first computations keep the program's order.
//!
//! Complexity: exponential in what is resident together, capped by the limits; memory is capped by `bytes`, plus a few
//! words per pair of an op and a horizon. The idea of abstractions as bounds comes from Culberson & Schaeffer 1998.

mod ahead;
mod bits;
mod model;
mod moments;
mod search;

use std::time::Duration;

use super::tails::{Tail, tails};
use crate::choice::{least_cost, least_makespan};
use crate::deadline::Deadline;
use crate::graph::Graph;
use ahead::{Ahead, Known};
use model::{Detail, Model, Shape};
use search::{Limits, Search};

/// How much work [`state_bound`] may do.
#[derive(Clone, Copy, Debug)]
pub struct StateEffort {
    /// Wall-clock limit.
    pub time_limit: Duration,
    /// Approximate limit on the bytes of states held at once.
    pub bytes: usize,
    /// Limit on the states expanded per abstraction; with a generous time limit, it makes the bound reproducible.
    pub states: usize,
    /// Stop when the bound reaches this makespan.
    pub enough: f64,
}

impl StateEffort {
    /// No limits except the time and a quarter of a GiB.
    pub fn time(limit: Duration) -> Self {
        Self { time_limit: limit, bytes: 1 << 28, states: usize::MAX, enough: f64::INFINITY }
    }
}

/// A lower bound on the makespan of every schedule of `graph` within `budget` bytes: see the [module](self).
///
/// If no schedule fits at all, the result may be any number (even infinity) that is at least the cost of running every op
/// once. For graphs of more than [`MOST_OPS`] ops, the result is that cost.
///
/// ```
/// use std::time::Duration;
/// use burn_remat_plan::{GraphBuilder, Op, lower_bound::{StateEffort, state_bound}};
///
/// let mut builder = GraphBuilder::new("skip");
/// let v: Vec<_> = [10, 1, 10, 1, 1].iter().map(|&bytes| builder.value(bytes, "")).collect();
/// for (i, inputs) in [vec![], vec![v[0]], vec![v[1]], vec![v[2]], vec![v[0], v[3]]].into_iter().enumerate() {
///     builder.op(Op::new("", 1.0, inputs, vec![v[i]]));
/// }
/// let bound = state_bound(&builder.build()?, 12, StateEffort::time(Duration::from_secs(60)));
/// assert_eq!(bound, 6.0); // value 0 must be computed twice
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
pub fn state_bound(graph: &Graph, budget: u64, effort: StateEffort) -> f64 {
    let base = least_makespan(graph);
    let count = graph.ops().len();
    if count > MOST_OPS {
        return base;
    }
    let limit = effort.time_limit.min(Duration::from_secs(86_400));
    let end = Deadline::after(limit);
    let iterations = if effort.states == usize::MAX { u64::MAX } else { 1000 };
    let tails = tails(graph, budget, iterations, effort.bytes as u64, limit.mul_f64(0.2));
    let mut spent = vec![0.0; count + 1];
    tails.iter().for_each(|tail| spent[tail.done] = tail.bound);
    fall(&mut spent);
    let enough = effort.enough - base;
    let mut gain: f64 = spent[0];
    if Shape::bytes_of(graph) > effort.bytes {
        return safe(graph, base + gain);
    }
    let Some(shape) = Shape::of(graph, end) else { return safe(graph, base + gain) };
    for (detail, share) in details(graph, &shape) {
        if end.passed() || gain >= enough {
            break;
        }
        let deadline = Deadline::after(end.left().mul_f64(share));
        let limits = Limits { deadline, bytes: effort.bytes, states: effort.states, enough, slack: base * SLACK };
        let problem = Problem { graph, shape: &shape, budget, detail, tails: &tails };
        let found = match shape.count_groups(graph, detail) {
            0..=64 => problem.solve::<1>(limits, &mut spent),
            65..=128 => problem.solve::<2>(limits, &mut spent),
            129..=256 => problem.solve::<4>(limits, &mut spent),
            257..=512 => problem.solve::<8>(limits, &mut spent),
            _ => continue,
        };
        log::debug!("lower bound: {detail:?}: {}", base + found);
        gain = gain.max(found);
    }
    safe(graph, base + gain)
}

/// A bound, lowered by as much as the same sums in another order may differ.
fn safe(graph: &Graph, bound: f64) -> f64 {
    bound * (1.0 - f64::EPSILON * (4 * graph.ops().len()) as f64 * f64::from(!has_whole_costs(graph)))
}

/// Larger graphs are not searched.
pub const MOST_OPS: usize = 2_000;

/// States whose estimates differ by at most this share of the makespan are expanded together.
const SLACK: f64 = 1e-3;

/// The share of an abstraction's time for the searches that begin after the start.
const MOMENTS_SHARE: f64 = 0.8;

/// Whether sums of costs are exact.
pub(super) fn has_whole_costs(graph: &Graph) -> bool {
    let is_whole = |cost: f64| cost.fract() == 0.0 && cost < 1e12;
    graph.ops().iter().all(|op| is_whole(op.cost) && op.alternatives.iter().all(|a| is_whole(a.cost)))
}

/// The abstractions, each with the share of the remaining time that it may use.
fn details(graph: &Graph, shape: &Shape) -> Vec<(Detail, f64)> {
    let largest = graph.values().iter().map(|value| value.bytes).max().unwrap_or(0);
    let mean = graph.ops().iter().map(least_cost).sum::<f64>() / graph.ops().len() as f64;
    let all = [
        (Detail { least_bytes: largest / 10, cheap: mean * 0.1 }, 0.45),
        (Detail { least_bytes: largest / 100, cheap: mean * 0.01 }, 0.3),
        (Detail { least_bytes: 0, cheap: 0.0 }, 1.0),
    ];
    let mut list: Vec<(Detail, f64)> = Vec::new();
    for (detail, share) in all {
        // The same number of groups means the same groups.
        let groups = |detail| shape.count_groups(graph, detail);
        if list.last().is_some_and(|&(last, _)| groups(last) == groups(detail)) {
            list.pop();
        }
        list.push((detail, share));
    }
    list
}

/// What is spent after a later moment is also spent after an earlier one.
fn fall(spent: &mut [f64]) {
    for done in (1..spent.len()).rev() {
        spent[done - 1] = spent[done - 1].max(spent[done]);
    }
}

/// A graph, a budget and an abstraction.
struct Problem<'a> {
    graph: &'a Graph,
    shape: &'a Shape,
    budget: u64,
    detail: Detail,
    tails: &'a [Tail],
}

impl Problem<'_> {
    /// A lower bound on what is spent beyond first computations. `spent` says, by number of first computations done, what
    /// is known to be spent afterwards; it is improved.
    fn solve<const W: usize>(&self, limits: Limits, spent: &mut [f64]) -> f64 {
        let model = Model::<W>::new(self.graph, self.detail, self.shape);
        let mut known = Known::new();
        let until = Deadline::after(limits.deadline.left().mul_f64(MOMENTS_SHARE));
        let moments = moments::narrow(&model, self.budget);
        let mut left = moments.len();
        for &op in moments.iter().rev() {
            let part = until.left() * 3 / left.max(3) as u32;
            if part.is_zero() {
                break;
            }
            left -= 1;
            fall(spent);
            let limits = Limits {
                deadline: Deadline::after(part),
                bytes: limits.bytes / 4,
                states: limits.states / moments.len(),
                ..limits
            };
            let Some(search) = self.search(&model, spent, &known, limits.deadline) else { break };
            // Everything may be resident, as far as the op itself leaves room for it.
            let found = search.run(op, model.useful[op], limits);
            spent[op] = spent[op].max(found.bound);
            if known.len() * size_of::<((usize, bits::Bits<W>), f64)>() > limits.bytes {
                known.clear();
            }
            for (state, left) in found.learned {
                let known = known.entry(state).or_insert(0.0);
                *known = left.max(*known);
            }
        }
        fall(spent);
        let search = self.search(&model, spent, &known, limits.deadline);
        search.map_or(spent[0], |search| search.run(0, model.start, limits).bound)
    }

    /// `None` if the deadline comes first.
    fn search<'m, const W: usize>(
        &self,
        model: &'m Model<W>,
        spent: &[f64],
        known: &'m Known<W>,
        deadline: Deadline,
    ) -> Option<Search<'m, W>> {
        let ahead = Ahead::new(model, spent, self.tails, known, deadline)?;
        Some(Search { model, budget: self.budget, ahead })
    }
}
