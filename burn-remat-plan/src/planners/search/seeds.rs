//! Orders to start from.

use std::time::{Duration, Instant};

use super::anneal::Walk;
use super::construct::{Policy, construct};
use super::problem::Problem;
use super::spine::spine;
use super::state::State;
use crate::choice::{Choice, implementation, implementations};
use crate::graph::{Graph, OpId};
use crate::lower_bound::Hint;
use crate::planner::Request;
use crate::registry::planner;
use crate::sequence::{order_of, plan_of};
use crate::simulate::simulate;

/// The ops of an order in their default implementations.
pub(super) fn by_default(order: Vec<OpId>) -> Vec<Choice> {
    order.into_iter().map(Choice::default_of).collect()
}

/// Every op once, in its cheapest implementation, of equals the one with least scratch: no schedule costs less.
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

/// An order that keeps at the moment of `hint` what it says, and recomputes the rest when it is needed.
pub(super) fn follow(graph: &Graph, hint: &Hint) -> Vec<Choice> {
    let ops = graph.ops();
    let mut order = cheapest(graph);
    order.truncate(hint.moment);
    order.push(Choice { op: hint.moment, implementation: hint.first[hint.moment] });
    let root = |v: usize| graph.producer(v).is_none_or(|op| !ops[op].recomputable);
    let mut resident: Vec<bool> = (0..graph.values().len()).map(|v| hint.kept[v] >= 0.5 || root(v)).collect();
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

/// A schedule that fits, without repeats that it can do without and in cheaper implementations where they fit.
pub(super) fn polished(problem: &Problem<'_>, order: &[Choice], late: Instant) -> Vec<Choice> {
    let mut walk = Walk::new(State::new(problem, order), 0);
    walk.polish(|| Instant::now() > late);
    walk.best.map_or_else(|| order.to_vec(), |(_, order)| order)
}

/// Planners that are quick where they apply.
const QUICK: [&str; 4] = ["online", "ap-greedy", "linear-greedy", "chain-dp"];
/// The share of the time that the first of them may take.
const FIRST_SHARE: f64 = 0.3;
/// Up to so many ops all but `online`, which keeps its time limit at any size, are asked.
const MOST_QUICK_OPS: usize = 2000;
/// Up to so many ops `chain-dp` is quick too.
const MOST_CHAIN_OPS: usize = 300;

/// The table for long networks has a part of at most this.
const MOST_SPINE: Duration = Duration::from_secs(600);

/// Where there is no plan otherwise, some more planners have this long each, whatever the time limit says.
const LEAST_GRACE: Duration = Duration::from_millis(200);
/// But no longer than this.
const MOST_GRACE: Duration = Duration::from_secs(2);

/// An order that fits in the budget, with every op in its default implementation: the cheapest of several constructive passes and of the quick planners' plans;
/// failing those, that of some more planners. After `deadline` no further attempt is made.
pub(super) fn feasible(graph: &Graph, request: &Request, deadline: Instant) -> Option<Vec<OpId>> {
    let budget = request.budget;
    let step_limit = 40 * graph.ops().len() + 20_000;
    let mut best: Option<(f64, Vec<OpId>)> = None;
    let offer = |best: &mut Option<(f64, Vec<OpId>)>, order: Option<Vec<OpId>>| {
        let cost = |order: &Vec<OpId>| order.iter().map(|&op| graph.ops()[op].cost).sum::<f64>();
        let found = order.map(|order| (cost(&order), order));
        *best = best.take().into_iter().chain(found).min_by(|a, b| a.0.total_cmp(&b.0));
    };
    let left = || deadline.saturating_duration_since(Instant::now());
    for name in QUICK {
        let most = match name {
            "online" => usize::MAX,
            "chain-dp" => MOST_CHAIN_OPS,
            _ => MOST_QUICK_OPS,
        };
        let many = graph.ops().len() > most;
        let Some(planner) = planner(name).filter(|_| !many && !left().is_zero()) else { continue };
        // The first is the only one for the largest graphs.
        let time_limit = if name == QUICK[0] { left().max(request.time_limit.mul_f64(FIRST_SHARE)) } else { left() };
        let request = Request { time_limit, progress: None, ..request.clone() };
        let order = planner.solve(graph, &request).ok().and_then(|outcome| outcome.plan).map(|plan| order_of(&plan));
        // These plans are not checked.
        let fits = |order: &Vec<OpId>| simulate(graph, &plan_of(graph, order)).peak_bytes <= budget;
        offer(&mut best, order.filter(fits));
    }
    if graph.ops().len() > MOST_CHAIN_OPS {
        let late = Instant::now() + request.time_limit.min(MOST_SPINE).mul_f64(0.15);
        offer(&mut best, spine(graph, request, late));
    }
    let policies = [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (1.0, 2.0), (0.0, 1.0), (2.0, 1.0)];
    for (number, (cost, distance)) in policies.into_iter().enumerate() {
        // A pass may take seconds: without time there is one, if nothing else was found.
        if !left().is_zero() || number == 0 && best.is_none() {
            offer(&mut best, construct(graph, budget, Policy { cost, distance, step_limit }));
        }
    }
    best.map(|(_, order)| order).or_else(|| last_resort(graph, request))
}

/// The first plan that fits of planners which sometimes do with less than a constructive pass.
fn last_resort(graph: &Graph, request: &Request) -> Option<Vec<OpId>> {
    let request =
        Request { time_limit: request.time_limit.clamp(LEAST_GRACE, MOST_GRACE), progress: None, ..request.clone() };
    ["revolve", "chain-dp", "online"].into_iter().find_map(|name| {
        let plan = planner(name)?.solve(graph, &request).ok()?.plan?;
        (simulate(graph, &plan).peak_bytes <= request.budget).then(|| order_of(&plan))
    })
}
