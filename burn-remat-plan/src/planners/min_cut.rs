//! `min-cut`: the partitioner of PyTorch's compiler, with its knapsack for a smaller budget.
//!
//! Problem: which forward values should the backward pass find saved, and which should it compute again?
//!
//! Method (`torch._functorch.partitioners`, option `activation_memory_budget`):
//!
//! 1. Ops are cheap (elementwise work, which a compiler fuses into its reader) or expensive. Expensive ops are not computed
//!    again at first.
//! 2. Among all sets of values from which the backward pass can compute what it reads by cheap ops alone, the one with the
//!    fewest bytes is a minimum cut: a value is an arc of its size, an op leads from what it reads to what it makes, the source
//!    leads to what must not be computed again, and what the backward pass reads leads to the target.
//! 3. For a smaller budget, a knapsack over the expensive ops chooses which of them still must not run again: those of the
//!    largest total cost whose outputs fit. The others may run again, and the cut is computed again.
//! 4. The forward pass runs once and keeps the cut; the backward pass computes the rest where it first needs it.
//!
//! The knapsack is filled for `LEVELS` sizes, and the cheapest plan whose peak, by simulation, is within the request's
//! budget wins.
//!
//! Invariants: with an empty knapsack, every op that may run again does so where that saves bytes; this is the plan of
//! fewest saved bytes, not of least peak, because all that is computed again in the backward pass stays until its last use.
//!
//! Complexity: O(expensive ops · `SLOTS`) for the knapsacks, and for each level a maximum flow on twice as many nodes as
//! there are values (see `max_flow`).
//!
//! Source: PyTorch 2.4 and later. Departures: PyTorch recognises cheap ops by name; here those of least cost per byte are cheap,
//! up to `CHEAP_SHARE` of the cost of the forward pass. Its budget is a share of the saved bytes, and it does not look at the peak;
//! it stops at the first set below its budget, and halts recomputation at reductions and at the ends of long
//! fusible chains.

use super::incumbent::Incumbent;
use super::max_flow::{Network, UNLIMITED};
use super::saved_values::{Step, When};
use crate::error::PlanError;
use crate::graph::{Graph, OpId, ValueId};
use crate::planner::{Outcome, Planner, Request, Status, StopReason};

/// Share of the forward pass's cost that all cheap ops together may have.
const CHEAP_SHARE: f64 = 0.01;
/// Number of knapsack sizes, besides the empty one.
const LEVELS: usize = 32;
/// The most memory units of the knapsack: its table is kept within the request's limit on memory.
const SLOTS: usize = 1024;

/// The planner `min-cut`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MinCut;

impl MinCut {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "min-cut";
}

impl Planner for MinCut {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let deadline = request.deadline();
        let step = Step::new(graph);
        let dear = dear_ops(graph, &step);
        let knapsack = Knapsack::new(graph, &dear, request.memory_limit);
        let mut incumbent = Incumbent::new(graph, request.budget);
        let mut reason = StopReason::Heuristic;
        for level in 0..=LEVELS {
            // The empty knapsack comes first, so that there is always a plan of few bytes.
            if level > 0 && deadline.passed() {
                reason = StopReason::TimeLimit;
                break;
            }
            let mut stays = vec![false; graph.ops().len()];
            knapsack.chosen(knapsack.slots * level / LEVELS).into_iter().for_each(|op| stays[op] = true);
            let saved = least_saved(graph, &step, &stays);
            incumbent.offer(&step.order(|value| saved[value], &When::Needed));
        }
        let outcome = incumbent.outcome(Self::NAME, Status::Feasible, reason, None)?;
        outcome.ok_or_else(|| incumbent.infeasible())
    }
}

/// The forward ops that are not cheap and may run again.
fn dear_ops(graph: &Graph, step: &Step<'_>) -> Vec<OpId> {
    let density = |op: OpId| graph.ops()[op].cost / graph.bytes_of(&graph.ops()[op].outputs).max(1) as f64;
    let mut ops: Vec<OpId> = (0..step.split).collect();
    ops.sort_by(|&a, &b| density(a).total_cmp(&density(b)));
    let mut left = CHEAP_SHARE * ops.iter().map(|&op| graph.ops()[op].cost).sum::<f64>();
    let is_dear = |&op: &OpId| {
        left -= graph.ops()[op].cost;
        left < 0.0
    };
    let mut dear: Vec<OpId> = ops.into_iter().filter(is_dear).filter(|&op| graph.ops()[op].recomputable).collect();
    dear.sort_unstable();
    dear
}

/// The forward values of fewest bytes that must be saved so that the backward pass needs no op of `stays` again.
fn least_saved(graph: &Graph, step: &Step<'_>, stays: &[bool]) -> Vec<bool> {
    let values = graph.values().len();
    let (source, target) = (2 * values, 2 * values + 1);
    let (enters, leaves) = (|value: ValueId| 2 * value, |value: ValueId| 2 * value + 1);
    let mut network = Network::new(2 * values + 2);
    for value in (0..values).filter(|&value| graph.producer(value).is_none() || step.is_forward(value)) {
        // A result is held anyway.
        let bytes = if graph.is_result(value) { 0 } else { graph.bytes(value) };
        network.add(enters(value), leaves(value), bytes);
        let producer = graph.producer(value);
        if graph.is_root(value) || producer.is_some_and(|op| stays[op]) {
            network.add(source, enters(value), UNLIMITED);
        } else {
            let reads = producer.map_or(&[][..], |op| &graph.ops()[op].inputs);
            reads.iter().for_each(|&read| network.add(leaves(read), enters(value), UNLIMITED));
        }
        if step.is_read_later(value) {
            network.add(leaves(value), target, UNLIMITED);
        }
    }
    let side = network.source_side(source, target);
    (0..values).map(|value| side[enters(value)] && !side[leaves(value)]).collect()
}

/// Expensive ops by bytes and cost: `best[i][m]` is the largest total cost of those among the first `i` that fit in `m` units.
struct Knapsack {
    ops: Vec<OpId>,
    weights: Vec<usize>,
    best: Vec<Vec<f64>>,
    /// Units of the largest knapsack.
    slots: usize,
}

impl Knapsack {
    fn new(graph: &Graph, dear: &[OpId], memory_limit: u64) -> Self {
        let cells = usize::try_from(memory_limit / size_of::<f64>() as u64).unwrap_or(usize::MAX);
        let slots = (cells / (dear.len() + 1)).saturating_sub(1).min(SLOTS);
        let bytes = |op: OpId| graph.bytes_of(&graph.ops()[op].outputs);
        let total: u64 = dear.iter().map(|&op| bytes(op)).sum();
        // Rounded down, so that all ops fit into the largest knapsack.
        let weigh = |op: OpId| (u128::from(bytes(op)) * slots as u128 / u128::from(total.max(1))) as usize;
        let weights: Vec<usize> = dear.iter().map(|&op| weigh(op)).collect();
        let mut best = vec![vec![0.0_f64; slots + 1]];
        for (i, &op) in dear.iter().enumerate() {
            let (weight, worth, before) = (weights[i], graph.ops()[op].cost, &best[i]);
            let cell = |m: usize| m.checked_sub(weight).map_or(before[m], |rest| before[m].max(before[rest] + worth));
            best.push((0..=slots).map(cell).collect());
        }
        Self { ops: dear.to_vec(), weights, best, slots }
    }

    /// The ops in a knapsack of `m` units.
    fn chosen(&self, mut m: usize) -> Vec<OpId> {
        if m == 0 {
            return Vec::new();
        }
        let mut chosen = Vec::new();
        for (i, &op) in self.ops.iter().enumerate().rev() {
            if self.best[i + 1][m] > self.best[i][m] {
                chosen.push(op);
                m -= self.weights[i];
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op, Phase};

    /// x -> expensive a -> cheap b -> expensive c, each with a gradient that reads the op's input.
    fn map_activation_map() -> Graph {
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = [8, 100, 100, 8, 8, 100, 100, 8].iter().map(|&bytes| builder.value(bytes, "")).collect();
        let mut add = |name: &str, cost, reads: &[usize], makes, phase| {
            let inputs = reads.iter().map(|&value| v[value]).collect();
            builder.op(Op { phase: Some(phase), ..Op::new(name, cost, inputs, vec![v[makes]]) });
        };
        add("a", 500.0, &[0], 1, Phase::Forward);
        add("b", 1.0, &[1], 2, Phase::Forward);
        add("c", 500.0, &[2], 3, Phase::Forward);
        add("loss", 1.0, &[3], 4, Phase::Backward);
        add("c.grad", 500.0, &[2, 4], 5, Phase::Backward);
        add("b.grad", 1.0, &[1, 5], 6, Phase::Backward);
        add("a.grad", 500.0, &[0, 6], 7, Phase::Backward);
        builder.build().unwrap()
    }

    #[test]
    fn the_cut_saves_the_map_and_recomputes_the_activation() {
        let graph = map_activation_map();
        let step = Step::new(&graph);
        assert_eq!(step.split, 3);
        let dear = dear_ops(&graph, &step);
        assert_eq!(dear, [0, 2]);
        let mut stays = vec![false; graph.ops().len()];
        dear.iter().for_each(|&op| stays[op] = true);
        let saved = least_saved(&graph, &step, &stays);
        assert_eq!((0..8).filter(|&value| saved[value]).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(step.order(|value| saved[value], &When::Needed), [0, 1, 2, 3, 1, 4, 5, 6]);
        // If everything may run again, only the input is saved.
        let saved = least_saved(&graph, &step, &[false; 7]);
        assert_eq!((0..8).filter(|&value| saved[value]).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn the_knapsack_keeps_what_costs_most_for_its_bytes() {
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = [100, 100, 200].iter().map(|&bytes| builder.value(bytes, "")).collect();
        for (cost, value) in [(5.0, v[0]), (9.0, v[1]), (12.0, v[2])] {
            builder.op(Op::new("", cost, vec![], vec![value]));
        }
        let knapsack = Knapsack::new(&builder.build().unwrap(), &[0, 1, 2], u64::MAX);
        let chosen = |quarters: usize| {
            let mut chosen = knapsack.chosen(SLOTS * quarters / 4);
            chosen.sort_unstable();
            chosen
        };
        assert_eq!(
            [chosen(0), chosen(1), chosen(2), chosen(3), chosen(4)].map(|ops| ops),
            [vec![], vec![1], vec![0, 1], vec![1, 2], vec![0, 1, 2]]
        );
    }
}
