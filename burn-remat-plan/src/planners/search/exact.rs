//! The cheapest schedule of a small graph, proven.
//!
//! Dijkstra over (ops computed for the first time, set of resident values), with the cost of repeats as distance. Only
//! computations are steps: what is evicted is decided when a computation lacks room, and then as little as possible
//! (an inclusion-minimal set), since a value that stays can still be evicted later. Values that no first computation
//! ahead can profit from leave at once.
//!
//! Where ops have alternatives, each implementation worth a thought is a step of its own. The distance of a first
//! computation is what it costs above the op's cheapest implementation.
//!
//! Complexity: exponential in the values alive together; the caller caps the states. Values are bits of a word, so a
//! graph may have 64.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

use crate::choice::{Choice, implementation, least_cost, useful_implementations};
use crate::graph::Graph;

/// What came out.
#[derive(Debug, PartialEq)]
pub(crate) enum Exact {
    /// The cheapest computations.
    Optimal(Vec<Choice>),
    /// There is no schedule within the budget.
    Infeasible,
    /// Too many states or values, or too little time.
    GaveUp,
}

#[derive(Clone, Copy, PartialEq)]
struct Cost(f64);

impl Eq for Cost {}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Cost {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

struct Node {
    parent: u32,
    choice: Choice,
    done: usize,
    resident: u64,
}

/// An implementation of an op.
struct Way {
    choice: Choice,
    inputs: u64,
    /// Cost of the first computation, above that of the cheapest.
    first: f64,
    /// Cost of any other.
    again: f64,
    scratch: u64,
}

struct Masks {
    bytes: Vec<u64>,
    /// Op by op.
    ways: Vec<Way>,
    outputs: Vec<u64>,
    /// Per number of first computations done: values that may still be of use.
    useful: Vec<u64>,
    results: u64,
    constant: u64,
}

impl Masks {
    fn new(graph: &Graph) -> Self {
        let mask = |values: &[usize]| values.iter().fold(0u64, |mask, &v| mask | 1 << v);
        let ops = graph.ops();
        let way = |op: usize, k: usize| {
            let (inputs, again, scratch) = implementation(&ops[op], k);
            let first = again - least_cost(&ops[op]);
            Way { choice: Choice { op, implementation: k }, inputs: mask(inputs), first, again, scratch }
        };
        let of_op = |op: usize| useful_implementations(&ops[op]).into_iter().map(move |k| way(op, k));
        let ways: Vec<Way> = (0..ops.len()).flat_map(of_op).collect();
        let mut inputs = vec![0; ops.len()];
        ways.iter().for_each(|way| inputs[way.choice.op] |= way.inputs);
        let outputs: Vec<u64> = ops.iter().map(|op| mask(&op.outputs)).collect();
        let mut useful = vec![0; ops.len() + 1];
        let mut direct = mask(graph.results());
        for done in (0..=ops.len()).rev() {
            if done < ops.len() {
                direct |= inputs[done];
            }
            let mut all = direct;
            for id in (0..done).rev() {
                if ops[id].recomputable && outputs[id] & all != 0 {
                    all |= inputs[id];
                }
            }
            useful[done] = all;
        }
        Self {
            bytes: graph.values().iter().map(|v| v.bytes).collect(),
            ways,
            outputs,
            useful,
            results: mask(graph.results()),
            constant: graph.constant_bytes(),
        }
    }

    fn weigh(&self, mut mask: u64) -> u64 {
        let mut sum = self.constant;
        while mask != 0 {
            sum += self.bytes[mask.trailing_zeros() as usize];
            mask &= mask - 1;
        }
        sum
    }

    /// All inclusion-minimal subsets of `candidates` of at least `bytes`, each passed to `visit`.
    fn minimal_sets(&self, candidates: u64, bytes: u64, visit: &mut impl FnMut(u64)) {
        let mut list: Vec<usize> = (0..64).filter(|&v| candidates >> v & 1 == 1 && self.bytes[v] > 0).collect();
        // Largest first: then a set is minimal exactly if its last (smallest) member is indispensable.
        list.sort_by_key(|&v| (Reverse(self.bytes[v]), v));
        let mut rest: Vec<u64> = vec![0; list.len() + 1];
        for (at, &v) in list.iter().enumerate().rev() {
            rest[at] = rest[at + 1] + self.bytes[v];
        }
        let mut stack = vec![(0usize, 0u64, 0u64)];
        while let Some((at, set, sum)) = stack.pop() {
            if sum >= bytes {
                visit(set);
                continue;
            }
            if sum + rest[at] < bytes {
                continue;
            }
            stack.push((at + 1, set, sum));
            stack.push((at + 1, set | 1 << list[at], sum + self.bytes[list[at]]));
        }
    }
}

/// Searches with at most `states` states, until `deadline` where there is one.
pub(crate) fn exact(graph: &Graph, budget: u64, states: usize, deadline: Option<Instant>) -> Exact {
    let ops = graph.ops();
    if graph.values().len() > 64 {
        return Exact::GaveUp;
    }
    let masks = Masks::new(graph);
    let start = graph.inputs().fold(0u64, |mask, v| mask | 1 << v);
    if masks.weigh(start) > budget {
        return Exact::Infeasible;
    }
    let mut nodes =
        vec![Node { parent: u32::MAX, choice: Choice::default_of(0), done: 0, resident: start & masks.useful[0] }];
    let mut settled: HashMap<(usize, u64), Cost> = HashMap::new();
    settled.insert((0, nodes[0].resident), Cost(0.0));
    let mut heap = BinaryHeap::from([(Reverse(Cost(0.0)), 0usize, Reverse(0u32))]);
    let mut found = Vec::new();
    while let Some((Reverse(cost), _, Reverse(at))) = heap.pop() {
        let (done, resident) = (nodes[at as usize].done, nodes[at as usize].resident);
        if settled[&(done, resident)] < cost {
            continue;
        }
        if done == ops.len() && masks.results & !resident == 0 {
            return Exact::Optimal(path(&nodes, at));
        }
        if nodes.len() > states || deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Exact::GaveUp;
        }
        for way in masks.ways.iter().take_while(|way| way.choice.op <= done) {
            let id = way.choice.op;
            let first = id == done;
            let outputs = masks.outputs[id];
            let next = if first { done + 1 } else { done };
            let missing = way.inputs & !resident != 0;
            if missing || !first && (!ops[id].recomputable || outputs & masks.useful[done] & !resident == 0) {
                continue;
            }
            let need = masks.weigh(resident | outputs) + way.scratch;
            found.clear();
            masks.minimal_sets(resident & !way.inputs & !outputs, need.saturating_sub(budget), &mut |set| {
                found.push((resident & !set | outputs) & masks.useful[next]);
            });
            let reached = Cost(cost.0 + if first { way.first } else { way.again });
            for &resident in &found {
                if settled.get(&(next, resident)).is_some_and(|&known| known <= reached) {
                    continue;
                }
                settled.insert((next, resident), reached);
                nodes.push(Node { parent: at, choice: way.choice, done: next, resident });
                heap.push((Reverse(reached), next, Reverse(nodes.len() as u32 - 1)));
            }
        }
    }
    Exact::Infeasible
}

fn path(nodes: &[Node], mut at: u32) -> Vec<Choice> {
    let mut order = Vec::new();
    while nodes[at as usize].parent != u32::MAX {
        order.push(nodes[at as usize].choice);
        at = nodes[at as usize].parent;
    }
    order.reverse();
    order
}
