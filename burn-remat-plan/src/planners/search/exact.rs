//! The cheapest schedule of a small graph, with proof.
//!
//! Dijkstra over (ops computed for the first time, set of resident values), with the cost of repeats as distance. Only
//! computations are steps: evictions are decided when a computation lacks room, and then as few as possible
//! (an inclusion-minimal set), since a value that stays can still be evicted later. Values that no later first computation
//! can profit from are evicted at once.
//!
//! If ops have alternatives, each implementation worth considering is a step of its own. The distance of a first
//! computation is what it costs above the op's cheapest implementation.
//!
//! Complexity: exponential in the values alive together: in the states and, if many values have the same size, in the sets of
//! a single state: 60 equal values of which half must be evicted have 10^17. The caller caps the states, which also caps the
//! number of sets (see [`SETS_PER_STATE`]). Values are bits of a word, so a graph may have 64.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use crate::choice::{Choice, implementation, least_cost, useful_implementations};
use crate::deadline::{Deadline, Patience};
use crate::graph::Graph;

/// The result of the search.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The cheapest computations.
    Optimal(Vec<Choice>),
    /// There is no schedule within the budget.
    Infeasible,
    /// Too many states, sets or values, or too little time.
    GaveUp,
}

/// What a search may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateLimits {
    /// Most states.
    pub states: usize,
    pub deadline: Deadline,
}

/// About how many bytes a state takes: its node, its entries in the map and the queue.
const BYTES_PER_STATE: u64 = 192;
/// The most sets to evict that are tried for each allowed state.
const SETS_PER_STATE: usize = 100;

impl StateLimits {
    /// At most `states` states, fewer if they would take more than `memory` bytes.
    pub fn new(states: usize, memory: u64, deadline: Deadline) -> Self {
        let fitting = usize::try_from(memory / BYTES_PER_STATE).unwrap_or(usize::MAX);
        Self { states: states.min(fitting), deadline }
    }
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

/// A step: an op in one of its implementations.
struct Action {
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
    actions: Vec<Action>,
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
        let action = |op: usize, k: usize| {
            let (inputs, again, scratch) = implementation(&ops[op], k);
            let first = again - least_cost(&ops[op]);
            Action { choice: Choice { op, implementation: k }, inputs: mask(inputs), first, again, scratch }
        };
        let of_op = |op: usize| useful_implementations(&ops[op]).into_iter().map(move |k| action(op, k));
        let actions: Vec<Action> = (0..ops.len()).flat_map(of_op).collect();
        let mut inputs = vec![0; ops.len()];
        actions.iter().for_each(|action| inputs[action.choice.op] |= action.inputs);
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
            actions,
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

    /// All inclusion-minimal subsets of `candidates` of at least `bytes`, each passed to `visit` until that says to stop;
    /// returns whether to go on.
    fn minimal_sets(&self, candidates: u64, bytes: u64, mut visit: impl FnMut(u64) -> Go) -> Go {
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
                if visit(set) == Go::Stop {
                    return Go::Stop;
                }
                continue;
            }
            // A branch that cannot reach `bytes` ends here, so that at most 64 steps lead to each set.
            if sum + rest[at] < bytes {
                continue;
            }
            stack.push((at + 1, set, sum));
            stack.push((at + 1, set | 1 << list[at], sum + self.bytes[list[at]]));
        }
        Go::On
    }
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Go {
    On,
    Stop,
}

/// Searches as far as `limits` allow.
pub(crate) fn exact(graph: &Graph, budget: u64, limits: StateLimits) -> Verdict {
    if graph.values().len() > 64 || limits.states == 0 {
        return Verdict::GaveUp;
    }
    let masks = Masks::new(graph);
    let start = graph.inputs().fold(0u64, |mask, v| mask | 1 << v);
    if masks.weigh(start) > budget {
        return Verdict::Infeasible;
    }
    Exploration::new(graph, &masks, budget, start & masks.useful[0], limits).run()
}

/// The states known so far.
struct Exploration<'a> {
    graph: &'a Graph,
    masks: &'a Masks,
    budget: u64,
    nodes: Vec<Node>,
    settled: HashMap<(usize, u64), Cost>,
    /// The cheapest on top, among these the furthest in the program, among these the first found.
    open: BinaryHeap<(Reverse<Cost>, usize, Reverse<u32>)>,
    states: usize,
    sets_left: usize,
    patience: Patience,
}

impl<'a> Exploration<'a> {
    fn new(graph: &'a Graph, masks: &'a Masks, budget: u64, resident: u64, limits: StateLimits) -> Self {
        Self {
            graph,
            masks,
            budget,
            nodes: vec![Node { parent: u32::MAX, choice: Choice::default_of(0), done: 0, resident }],
            settled: HashMap::from([((0, resident), Cost(0.0))]),
            open: BinaryHeap::from([(Reverse(Cost(0.0)), 0, Reverse(0))]),
            states: limits.states,
            sets_left: limits.states.saturating_mul(SETS_PER_STATE),
            patience: Patience::until(limits.deadline),
        }
    }

    fn run(mut self) -> Verdict {
        while let Some((Reverse(cost), _, Reverse(at))) = self.open.pop() {
            let (done, resident) = (self.nodes[at as usize].done, self.nodes[at as usize].resident);
            if self.settled[&(done, resident)] < cost {
                continue;
            }
            if done == self.graph.ops().len() && self.masks.results & !resident == 0 {
                return Verdict::Optimal(path(&self.nodes, at));
            }
            if self.expand(at, cost) == Go::Stop {
                return Verdict::GaveUp;
            }
        }
        Verdict::Infeasible
    }

    /// Adds the states one step after a state.
    fn expand(&mut self, at: u32, cost: Cost) -> Go {
        let (masks, ops) = (self.masks, self.graph.ops());
        let (done, resident) = (self.nodes[at as usize].done, self.nodes[at as usize].resident);
        for action in masks.actions.iter().take_while(|action| action.choice.op <= done) {
            let id = action.choice.op;
            let first = id == done;
            let outputs = masks.outputs[id];
            let next = if first { done + 1 } else { done };
            let missing = action.inputs & !resident != 0;
            if missing || !first && (!ops[id].recomputable || outputs & masks.useful[done] & !resident == 0) {
                continue;
            }
            let need = masks.weigh(resident | outputs) + action.scratch;
            let reached = Cost(cost.0 + if first { action.first } else { action.again });
            let candidates = resident & !action.inputs & !outputs;
            let go = masks.minimal_sets(candidates, need.saturating_sub(self.budget), |set| {
                let after = (resident & !set | outputs) & masks.useful[next];
                self.reach(Node { parent: at, choice: action.choice, done: next, resident: after }, reached)
            });
            if go == Go::Stop {
                return go;
            }
        }
        Go::On
    }

    /// Records a way to a state, unless one at least as cheap is known.
    fn reach(&mut self, node: Node, cost: Cost) -> Go {
        if self.sets_left == 0 || self.nodes.len() > self.states || self.patience.is_over(0) {
            return Go::Stop;
        }
        self.sets_left -= 1;
        let state = (node.done, node.resident);
        if self.settled.get(&state).is_none_or(|&known| known > cost) {
            self.settled.insert(state, cost);
            self.open.push((Reverse(cost), node.done, Reverse(self.nodes.len() as u32)));
            self.nodes.push(node);
        }
        Go::On
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};

    #[test]
    fn values_of_equal_size_do_not_fill_the_memory() {
        // Of sixty values of one byte each, any thirty may be evicted.
        let mut builder = GraphBuilder::new("wide");
        let small: Vec<_> = (0..60).map(|_| builder.value(1, "")).collect();
        let (large, last) = (builder.value(30, ""), builder.value(0, ""));
        for &value in &small {
            builder.op(Op::new("", 1.0, vec![], vec![value]));
        }
        builder.op(Op::new("", 1.0, vec![], vec![large]));
        builder.op(Op::new("", 1.0, small, vec![last]));
        let graph = builder.build().unwrap();
        assert_eq!(exact(&graph, 60, StateLimits::new(2000, u64::MAX, Deadline::NEVER)), Verdict::GaveUp);
        assert_eq!(StateLimits::new(2000, 19_200, Deadline::NEVER).states, 100);
    }
}
