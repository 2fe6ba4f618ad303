//! One run of the policy at one budget: see the parent module.

use crate::deadline::{Deadline, Patience};
use crate::graph::{Graph, OpId, ValueId};
use crate::plan::{Plan, Step};

/// With more computations than this per op of the graph, the policy is taken to thrash and the budget to be infeasible.
pub const MOST_RUNS_PER_OP: usize = 64;

/// Why a run ended without a plan.
pub enum Stuck {
    /// Memory is short at this op and nothing can be evicted, or the policy thrashes there.
    At(OpId),
    /// The clock ran out.
    TimeLimit,
}

/// Runs the policy. See the parent module for the rules.
pub fn run(graph: &Graph, budget: u64, deadline: Deadline) -> Result<Plan, Stuck> {
    let at_start = graph.constant_bytes() + graph.inputs().map(|value| graph.bytes(value)).sum::<u64>();
    if at_start > budget {
        return Err(Stuck::At(0));
    }
    let mut state = State::start(graph, budget, deadline);
    for op in 0..graph.ops().len() {
        state.bring(&graph.ops()[op].inputs, Some(op))?;
    }
    state.bring(graph.results(), None)?;
    Ok(Plan { steps: state.steps })
}

struct State<'a> {
    graph: &'a Graph,
    budget: u64,
    patience: Patience,
    /// Ops that walks over the graph have visited since the clock was last checked.
    walked: usize,
    steps: Vec<Step>,
    resident: Vec<bool>,
    /// Constant bytes and all resident values.
    held: u64,
    /// Uses by ops of the program that are still to come.
    uses_left: Vec<usize>,
    /// Pending runs that need the value.
    pins: Vec<usize>,
    /// The computation at which the value was last made or used.
    last_use: Vec<usize>,
    /// Computations so far.
    clock: usize,
    /// Values without a later use that an evicted value may still need.
    waiting: Vec<ValueId>,
    marks: Marks,
}

/// A set over ops that empties in constant time.
struct Marks {
    stamp: Vec<u32>,
    current: u32,
}

impl Marks {
    fn clear(&mut self) {
        if self.current == u32::MAX {
            self.stamp.fill(0);
            self.current = 0;
        }
        self.current += 1;
    }

    /// Whether `op` is new in the set.
    fn insert(&mut self, op: OpId) -> bool {
        std::mem::replace(&mut self.stamp[op], self.current) != self.current
    }
}

impl<'a> State<'a> {
    fn start(graph: &'a Graph, budget: u64, deadline: Deadline) -> Self {
        let count = graph.values().len();
        let mut state = Self {
            graph,
            budget,
            patience: Patience::until(deadline),
            walked: 0,
            steps: Vec::with_capacity(graph.ops().len() * 3),
            resident: vec![false; count],
            held: graph.constant_bytes(),
            uses_left: (0..count).map(|value| graph.consumers(value).len()).collect(),
            pins: vec![0; count],
            last_use: vec![0; count],
            clock: 0,
            waiting: Vec::new(),
            marks: Marks { stamp: vec![0; graph.ops().len()], current: 0 },
        };
        for value in graph.inputs() {
            state.resident[value] = true;
            state.held += graph.bytes(value);
        }
        for value in graph.inputs() {
            state.release_if_dead(value);
        }
        state
    }

    /// Computes the evicted values of `wanted` again, then runs `target` for the first time.
    fn bring(&mut self, wanted: &[ValueId], target: Option<OpId>) -> Result<(), Stuck> {
        let runs = self.closure(wanted);
        if self.clock + runs.len() > MOST_RUNS_PER_OP * self.graph.ops().len() {
            return Err(Stuck::At(target.unwrap_or(self.graph.ops().len() - 1)));
        }
        let listed = runs.iter().flat_map(|&op| &self.graph.ops()[op].inputs);
        for &value in listed.chain(wanted) {
            self.pins[value] += 1;
        }
        for op in runs {
            self.compute(op)?;
            self.unpin(&self.graph.ops()[op].inputs);
            if self.is_late() {
                return Err(Stuck::TimeLimit);
            }
        }
        if let Some(op) = target {
            self.compute(op)?;
            for &value in wanted {
                self.uses_left[value] -= 1;
            }
        }
        self.unpin(wanted);
        for value in std::mem::take(&mut self.waiting) {
            if self.is_late() {
                return Err(Stuck::TimeLimit);
            }
            self.release_if_dead(value);
        }
        Ok(())
    }

    fn is_late(&mut self) -> bool {
        self.patience.is_over(std::mem::take(&mut self.walked))
    }

    /// The evicted ops that `wanted` needs, producers first.
    fn closure(&mut self, wanted: &[ValueId]) -> Vec<OpId> {
        let graph = self.graph;
        self.marks.clear();
        let mut runs = Vec::new();
        // The values still to visit, and the op that runs once all of them are resident.
        let mut stack = vec![(wanted.iter(), None)];
        while let Some((values, op)) = stack.last_mut() {
            let Some(&value) = values.next() else {
                runs.extend(*op);
                stack.pop();
                continue;
            };
            if !self.resident[value]
                && let Some(producer) = graph.producer(value)
                && self.marks.insert(producer)
            {
                stack.push((graph.ops()[producer].inputs.iter(), Some(producer)));
            }
        }
        runs
    }

    /// Runs one op, whose inputs are resident and pinned.
    fn compute(&mut self, id: OpId) -> Result<(), Stuck> {
        let op = &self.graph.ops()[id];
        for &value in &op.outputs {
            self.pins[value] += 1;
        }
        self.make_room(id)?;
        self.steps.push(Step::Compute(id));
        self.clock += 1;
        for &value in &op.outputs {
            if !std::mem::replace(&mut self.resident[value], true) {
                self.held += self.graph.bytes(value);
            }
        }
        self.unpin(&op.outputs);
        Ok(())
    }

    /// Removes one pin from each of `values` and releases those that are no longer of use.
    fn unpin(&mut self, values: &[ValueId]) {
        for &value in values {
            self.pins[value] -= 1;
            self.last_use[value] = self.clock;
            self.release_if_dead(value);
        }
    }

    /// Evicts until the outputs and scratch of `id` fit.
    fn make_room(&mut self, id: OpId) -> Result<(), Stuck> {
        let op = &self.graph.ops()[id];
        let missing = op.outputs.iter().filter(|&&value| !self.resident[value]);
        let needs = missing.map(|&value| self.graph.bytes(value)).sum::<u64>() + op.scratch_bytes;
        while self.held + needs > self.budget {
            let victim = self.victim();
            if self.is_late() {
                return Err(Stuck::TimeLimit);
            }
            let victim = victim.ok_or(Stuck::At(id))?;
            self.evict(victim);
        }
        Ok(())
    }

    /// The resident, unpinned, recoverable value with the highest score.
    fn victim(&mut self) -> Option<ValueId> {
        let mut best: Option<(f64, ValueId)> = None;
        for value in 0..self.resident.len() {
            if self.is_late() {
                return None;
            }
            if !self.resident[value] || self.pins[value] > 0 || self.graph.bytes(value) == 0 {
                continue;
            }
            let bytes = self.graph.bytes(value) as f64;
            let weight = bytes * bytes * (self.clock - self.last_use[value] + 1) as f64;
            // A score above the best needs a cost below this: the walk over the closure may stop there.
            let enough = best.map_or(f64::INFINITY, |(score, _)| weight / score);
            let Some(cost) = self.recovery_cost(value, enough) else { continue };
            let score = weight / cost;
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, value));
            }
        }
        best.map(|(_, value)| value)
    }

    /// What it would cost to compute `value` again if it were evicted: all evicted ops that it depends on. `None` if it cannot be
    /// computed again, or if that costs more than `enough`.
    fn recovery_cost(&mut self, value: ValueId, enough: f64) -> Option<f64> {
        let mut cost = 0.0;
        let first = self.graph.producer(value)?;
        self.marks.clear();
        self.marks.insert(first);
        let mut stack = vec![first];
        while let Some(id) = stack.pop() {
            let op = &self.graph.ops()[id];
            self.walked += 1 + op.inputs.len();
            cost += op.cost;
            if !op.recomputable || cost > enough {
                return None;
            }
            for &input in op.inputs.iter().filter(|&&input| !self.resident[input]) {
                let producer = self.graph.producer(input)?;
                if self.marks.insert(producer) {
                    stack.push(producer);
                }
            }
        }
        Some(cost)
    }

    fn evict(&mut self, value: ValueId) {
        self.resident[value] = false;
        self.held -= self.graph.bytes(value);
        self.steps.push(Step::Evict(value));
    }

    fn is_dead(&self, value: ValueId) -> bool {
        self.uses_left[value] == 0 && !self.graph.is_result(value)
    }

    fn release_if_dead(&mut self, value: ValueId) {
        if !self.resident[value] || self.pins[value] > 0 || !self.is_dead(value) {
            return;
        }
        if self.recovery_cost(value, f64::INFINITY).is_some() || !self.is_needed_by_evicted(value) {
            self.evict(value);
        } else {
            self.waiting.push(value);
        }
    }

    /// Whether an evicted value that is still needed can be recomputed only through `value`.
    fn is_needed_by_evicted(&mut self, value: ValueId) -> bool {
        self.marks.clear();
        let mut stack = vec![value];
        while let Some(at) = stack.pop() {
            self.walked += self.graph.consumers(at).len();
            for &op in self.graph.consumers(at) {
                // Each op is visited once. Outputs that were never made are not evicted.
                if !self.marks.insert(op) {
                    continue;
                }
                for &output in &self.graph.ops()[op].outputs {
                    if self.resident[output] || !self.has_been_made(output) {
                        continue;
                    }
                    if !self.is_dead(output) || self.pins[output] > 0 {
                        return true;
                    }
                    stack.push(output);
                }
            }
        }
        false
    }

    fn has_been_made(&self, value: ValueId) -> bool {
        self.last_use[value] > 0
    }
}
