//! Orders to start from.

use std::time::Duration;

use super::construct::{Policy, construct};
use super::spine::spine;
use crate::choice::{Choice, implementation, implementations};
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId};
use crate::lower_bound::Hint;
use crate::planner::Request;
use crate::planners::ask::{Answer, ask};
use crate::planners::online::plan_within;
use crate::registry::{Entry, simple};
use crate::sequence::{compute_order, plan_from_order, tightened};
use crate::simulate::simulate;
use crate::views::once::once_past_the_peak;

/// The ops of an order in their default implementations.
pub(super) fn by_default(order: Vec<OpId>) -> Vec<Choice> {
    order.into_iter().map(Choice::default_of).collect()
}

/// Every op once, in its cheapest implementation, among equals the one with the least scratch: no schedule costs less.
pub(super) fn cheapest(graph: &Graph) -> Vec<Choice> {
    let choose = |op: OpId| {
        let node = &graph.ops()[op];
        let order = |&a: &usize, &b: &usize| {
            let ((_, cost, scratch), (_, other, more)) = (implementation(node, a), implementation(node, b));
            cost.total_cmp(&other).then(scratch.cmp(&more))
        };
        Choice { op, implementation: (0..implementations(node)).min_by(order).unwrap_or(0) }
    };
    (0..graph.ops().len()).map(choose).collect()
}

/// An order that keeps what `hint` says at its moment, and recomputes the rest when it is needed.
pub(super) fn follow(graph: &Graph, hint: &Hint) -> Vec<Choice> {
    let ops = graph.ops();
    let mut order = cheapest(graph);
    order.truncate(hint.moment);
    order.push(Choice { op: hint.moment, implementation: hint.first[hint.moment] });
    let mut resident: Vec<bool> = (0..graph.values().len()).map(|v| hint.kept[v] >= 0.5 || graph.is_root(v)).collect();
    for &value in ops[hint.moment].outputs.iter().chain(order[hint.moment].inputs(graph)) {
        resident[value] = true;
    }
    for id in hint.moment + 1..=ops.len() {
        let first = (id < ops.len()).then(|| Choice { op: id, implementation: hint.first[id] });
        let targets = first.map_or(graph.results(), |first| first.inputs(graph));
        let mut missing: Vec<usize> = targets.iter().copied().filter(|&v| !resident[v]).collect();
        let mut work = Vec::new();
        while let Some(value) = missing.pop() {
            if std::mem::replace(&mut resident[value], true) {
                continue;
            }
            if let Some(op) = graph.producer(value) {
                let again = Choice { op, implementation: hint.again[op] };
                work.push(again);
                missing.extend(again.inputs(graph).iter().copied().filter(|&v| !resident[v]));
            }
        }
        work.sort_unstable_by_key(|again| again.op);
        work.dedup();
        order.extend(work);
        if let Some(first) = first {
            order.push(first);
            for &value in &ops[id].outputs {
                resident[value] = true;
            }
        }
    }
    order
}

/// The share of the time that the quick planners may take, and that for the largest graphs.
const QUICK_SHARE: f64 = 0.1;
const LARGE_SHARE: f64 = 0.3;
/// From this many ops on, a good plan to start with is worth more than time for walks.
const LARGE_OPS: usize = 2000;
/// Beyond this many ops, a table over the chain of blocks gets a share of the time.
const SPINE_OPS: usize = 300;
const SPINE_SHARE: f64 = 0.15;
/// The table gets a share of at most this time.
const MOST_SPINE: Duration = Duration::from_secs(600);
/// If there is no plan by then, each further kind of attempt may take this share.
const NEED_SHARE: f64 = 0.2;

/// Whether the quick planners are to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Quick {
    #[default]
    Ask,
    /// They have been asked: their best plan is among the starts.
    Asked,
}

/// An order that fits in the budget, with every op in its default implementation: the cheapest of several constructive passes and of the quick planners' plans;
/// if there is none, that of the planners that sometimes need less memory.
pub(super) fn feasible(graph: &Graph, request: &Request, quick: Quick) -> Option<Vec<OpId>> {
    let ops = graph.ops().len();
    let share = |share: f64| Deadline::after(request.time_limit.mul_f64(share));
    let soon = share(QUICK_SHARE);
    let mut best = Cheapest { graph, budget: request.budget, found: None };
    if quick == Quick::Ask {
        let entries: Vec<&Entry> = simple().iter().filter(|entry| entry.is_quick(ops)).collect();
        let until = if ops > LARGE_OPS { share(LARGE_SHARE) } else { soon };
        ask(&entries, graph, request, until).into_iter().for_each(|answer| best.offer_answer(answer));
    }
    if ops > SPINE_OPS {
        let late = Deadline::after(request.time_limit.min(MOST_SPINE).mul_f64(SPINE_SHARE));
        best.offer(spine(graph, request, late));
    }
    if !soon.passed()
        && let Some(once) = once_past_the_peak(graph)
    {
        best.offer(plan_within(&once, request.budget, soon).map(|plan| compute_order(&tightened(graph, &plan))));
    }
    let step_limit = 40 * ops + 20_000;
    for (cost, distance) in [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (1.0, 2.0), (0.0, 1.0), (2.0, 1.0)] {
        // A pass may take seconds: once time is up, one more is made only if nothing else was found.
        let until = if best.found.is_none() { share(NEED_SHARE) } else { soon };
        if !until.passed() {
            best.offer(construct(graph, request.budget, Policy { cost, distance, step_limit }, until));
        }
        if best.found.is_none() && soon.passed() {
            break;
        }
    }
    if best.found.is_none() {
        let entries: Vec<&Entry> = simple().iter().filter(|entry| entry.is_last_resort(ops)).collect();
        let answers = ask(&entries, graph, request, share(NEED_SHARE));
        answers.into_iter().for_each(|answer| best.offer_answer(answer));
    }
    best.found.map(|(_, order)| order)
}

/// The cheapest order so far that fits.
struct Cheapest<'g> {
    graph: &'g Graph,
    budget: u64,
    found: Option<(f64, Vec<OpId>)>,
}

impl Cheapest<'_> {
    fn offer(&mut self, order: Option<Vec<OpId>>) {
        let cost = |order: &Vec<OpId>| order.iter().map(|&op| self.graph.ops()[op].cost).sum::<f64>();
        let found = order.map(|order| (cost(&order), order));
        self.found = self.found.take().into_iter().chain(found).min_by(|a, b| a.0.total_cmp(&b.0));
    }

    /// Of these plans, only the peak is checked.
    fn offer_answer(&mut self, answer: Answer) {
        let plan = answer.result.ok().and_then(|outcome| outcome.plan);
        let order = plan.map(|plan| compute_order(&plan));
        let fits =
            |order: &Vec<OpId>| simulate(self.graph, &plan_from_order(self.graph, order)).peak_bytes <= self.budget;
        self.offer(order.filter(fits));
    }
}
