//! A compute order with its memory profile, changed one computation at a time.
//!
//! The order holds *instances* of ops. A value lives from an instance of its producer to its last use before the next
//! one, so inserting or removing an instance changes memory on a few ranges only: the gap that closes or opens for
//! each output, and the gap to the previous use for each input. Each range is found from the handful of instances of
//! the value's users, and [`State::over`], the sum over all positions of the bytes above the budget, is kept up to
//! date on the way.
//!
//! The order itself, with the memory at every position, is kept in [`Blocks`].
//!
//! Invariants: the profile is that of the order; first instances are never removed and keep the program's order; after
//! `undo` everything is as before, except for labels and the order of `repeats`.
//!
//! Complexity of one change: O(uses of the op's values), and an operation on the blocks for each of its values.

use super::blocks::Blocks;
pub(crate) use super::blocks::{END, Instance, START};
use crate::graph::{Graph, OpId, ValueId};

/// The graph in the units of the search.
pub(crate) struct Problem<'g> {
    pub graph: &'g Graph,
    pub budget: i64,
    bytes: Vec<i64>,
    scratch: Vec<i64>,
    constant: i64,
    outputs: Vec<i64>,
}

impl<'g> Problem<'g> {
    /// Sizes are counted in bytes, or where the sum over all values passes 64 TiB in larger units (sizes rounded up,
    /// budget down), so that sums over positions fit.
    pub fn new(graph: &'g Graph, budget: u64) -> Self {
        let total = graph.values().iter().map(|v| v.bytes).sum::<u64>()
            + graph.constant_bytes()
            + graph.ops().iter().map(|op| op.scratch_bytes).max().unwrap_or(0);
        let shift = (64 - total.leading_zeros()).saturating_sub(46);
        let unit = 1u64 << shift;
        let up = |bytes: u64| bytes.div_ceil(unit) as i64;
        let bytes: Vec<i64> = graph.values().iter().map(|v| up(v.bytes)).collect();
        Self {
            graph,
            budget: (budget >> shift).min(1 << 48) as i64,
            scratch: graph.ops().iter().map(|op| up(op.scratch_bytes)).collect(),
            constant: up(graph.constant_bytes()),
            outputs: graph.ops().iter().map(|op| op.outputs.iter().map(|&v| bytes[v]).sum()).collect(),
            bytes,
        }
    }

    pub fn bytes(&self, value: ValueId) -> i64 {
        self.bytes[value]
    }
}

const NO_OP: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
enum Change {
    Inserted(Instance),
    /// The op, and the instance that followed.
    Removed(OpId, Instance),
}

/// The uses of one instance of a value, seen from an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Where the value was computed.
    pub start: Instance,
    /// Its last use (or computation) before.
    pub before: Instance,
    /// Its first use here or later, before it is computed again.
    pub next: Option<Instance>,
    /// Its last use here or later, before it is computed again.
    pub last: Option<Instance>,
}

#[derive(Clone)]
pub(crate) struct State<'p, 'g> {
    pub problem: &'p Problem<'g>,
    blocks: Blocks,
    op_of: Vec<u32>,
    vacant: Vec<Instance>,
    instances: Vec<Vec<Instance>>,
    /// Instances that are not the first of their op.
    repeats: Vec<Instance>,
    repeat_place: Vec<u32>,
    pub cost: f64,
    log: Vec<Change>,
}

impl<'p, 'g> State<'p, 'g> {
    /// The state of an executable order.
    pub fn new(problem: &'p Problem<'g>, ops: &[OpId]) -> Self {
        let mut state = Self {
            problem,
            blocks: Blocks::new(problem.budget),
            op_of: Vec::new(),
            vacant: Vec::new(),
            instances: vec![Vec::new(); problem.graph.ops().len()],
            repeats: Vec::new(),
            repeat_place: Vec::new(),
            cost: 0.0,
            log: Vec::new(),
        };
        state.load(ops);
        state
    }

    /// Replaces the whole order: O(order + uses).
    pub fn load(&mut self, ops: &[OpId]) {
        let graph = self.problem.graph;
        let count = ops.len() + 2;
        self.op_of = [NO_OP; 2].into_iter().chain(ops.iter().map(|&op| op as u32)).collect();
        self.vacant.clear();
        self.repeats.clear();
        self.repeat_place = vec![u32::MAX; count];
        self.log.clear();
        self.instances.iter_mut().for_each(Vec::clear);
        self.cost = 0.0;
        for (at, &op) in ops.iter().enumerate() {
            let instance = at as u32 + 2;
            if !self.instances[op].is_empty() {
                self.repeat_place[instance as usize] = self.repeats.len() as u32;
                self.repeats.push(instance);
            }
            self.instances[op].push(instance);
            self.cost += graph.ops()[op].cost;
        }
        // Backwards: which values are used before they are computed again.
        let mut memory = vec![0; ops.len()];
        let mut live = vec![false; graph.values().len()];
        let mut held = self.problem.constant;
        for &value in graph.results() {
            live[value] = true;
            held += self.problem.bytes[value];
        }
        for (at, &op) in ops.iter().enumerate().rev() {
            let node = &graph.ops()[op];
            for &value in &node.outputs {
                if std::mem::replace(&mut live[value], false) {
                    held -= self.problem.bytes[value];
                }
            }
            for &value in &node.inputs {
                if !std::mem::replace(&mut live[value], true) {
                    held += self.problem.bytes[value];
                }
            }
            memory[at] = held + self.problem.outputs[op] + self.problem.scratch[op];
        }
        self.blocks.load(&memory);
    }

    pub fn repeats(&self) -> &[Instance] {
        &self.repeats
    }

    pub fn ops(&self) -> Vec<OpId> {
        self.blocks.order().into_iter().map(|instance| self.op(instance)).collect()
    }

    /// Memory at every position.
    #[cfg(test)]
    pub fn memory(&self) -> Vec<i64> {
        self.blocks.profile()
    }

    /// The sum over all positions of the bytes above the budget.
    pub fn over(&self) -> i64 {
        self.blocks.over
    }

    /// See [`Blocks::label`].
    pub fn label(&self, instance: Instance) -> u64 {
        self.blocks.label(instance)
    }

    /// See [`Blocks::near`].
    pub fn near(&self, instance: Instance, steps: i32) -> Instance {
        self.blocks.near(instance, steps)
    }

    /// See [`Blocks::first_over`].
    pub fn first_over(&self, instance: Instance) -> Option<Instance> {
        self.blocks.first_over(instance)
    }

    /// See [`Blocks::most_between`].
    pub fn most_between(&self, before: Instance, until: Instance) -> i64 {
        self.blocks.most_between(before, until)
    }

    pub fn op(&self, instance: Instance) -> OpId {
        self.op_of[instance as usize] as usize
    }

    pub fn instances(&self, op: OpId) -> &[Instance] {
        &self.instances[op]
    }

    /// The instance that `number` stands for, of numbers below [`numbers`](Self::numbers); `None` for most others.
    pub fn numbered(&self, number: usize) -> Option<Instance> {
        let instance = number as Instance + 2;
        (self.op_of[instance as usize] != NO_OP).then_some(instance)
    }

    pub fn numbers(&self) -> usize {
        self.op_of.len() - 2
    }

    /// The instance of `value` that a step just before `at` would read, and its uses around that position; `None`
    /// where it has not been computed before.
    pub fn span(&self, value: ValueId, at: Instance) -> Option<Span> {
        self.span_from(value, self.label(at))
    }

    /// As [`span`](Self::span), seen from just behind `at`.
    pub fn span_behind(&self, value: ValueId, at: Instance) -> Option<Span> {
        self.span_from(value, self.label(at) + 1)
    }

    fn span_from(&self, value: ValueId, here: u64) -> Option<Span> {
        let graph = self.problem.graph;
        let (mut start, mut end) = (START, u64::MAX);
        let mut is_last = true;
        if let Some(op) = graph.producer(value) {
            for &instance in &self.instances[op] {
                let label = self.label(instance);
                if label < here {
                    start = instance;
                } else {
                    (end, is_last) = (label, false);
                    break;
                }
            }
            if start == START {
                return None;
            }
        }
        let from = self.label(start);
        let (mut before, mut next, mut last) = ((from, start), (u64::MAX, END), (0, START));
        for &user in graph.consumers(value) {
            for &instance in &self.instances[user] {
                let label = self.label(instance);
                if label <= from || label >= end {
                    continue;
                }
                if label < here {
                    before = before.max((label, instance));
                } else {
                    next = next.min((label, instance));
                    last = last.max((label, instance));
                }
            }
        }
        let mut span = Span {
            start,
            before: before.1,
            next: (next.1 != END).then_some(next.1),
            last: (last.1 != START).then_some(last.1),
        };
        if is_last && graph.is_result(value) {
            span.next = span.next.or(Some(END));
            span.last = Some(END);
        }
        Some(span)
    }

    /// Memory just before `target`, between computations.
    fn between(&self, target: Instance) -> i64 {
        if target == END {
            let results = self.problem.graph.results();
            return self.problem.constant + results.iter().map(|&v| self.problem.bytes[v]).sum::<i64>();
        }
        let op = self.op(target);
        self.blocks.memory(target) - self.problem.scratch[op] - self.problem.outputs[op]
    }

    /// Inserts an instance of `op` before `target`. Every input must have been computed before, and `op` itself.
    pub fn insert(&mut self, op: OpId, target: Instance) -> Instance {
        let instance = self.insert_silently(op, target);
        self.log.push(Change::Inserted(instance));
        instance
    }

    fn insert_silently(&mut self, op: OpId, target: Instance) -> Instance {
        let graph = self.problem.graph;
        let node = &graph.ops()[op];
        let mut through = self.between(target);
        for &value in &node.outputs {
            let bytes = self.problem.bytes[value];
            if let Some(span) = self.span(value, target).filter(|span| span.last.is_some()) {
                self.blocks.add(span.before, target, -bytes);
                through -= bytes;
            }
        }
        for &value in &node.inputs {
            let bytes = self.problem.bytes[value];
            if let Some(span) = self.span(value, target).filter(|span| span.last.is_none()) {
                self.blocks.add(span.before, target, bytes);
                through += bytes;
            }
        }
        let memory = through + self.problem.outputs[op] + self.problem.scratch[op];
        self.cost += node.cost;
        let instance = self.vacant.pop().unwrap_or_else(|| {
            self.op_of.push(0);
            self.blocks.grow();
            self.repeat_place.push(u32::MAX);
            self.op_of.len() as u32 - 1
        });
        self.op_of[instance as usize] = op as u32;
        self.blocks.put(instance, target, memory);
        let label = self.label(instance);
        let place = self.instances[op].iter().position(|&i| self.label(i) > label);
        let place = place.unwrap_or(self.instances[op].len());
        self.instances[op].insert(place, instance);
        self.repeat_place[instance as usize] = self.repeats.len() as u32;
        self.repeats.push(instance);
        instance
    }

    /// Removes an instance that is not the first of its op; its users read the one before.
    pub fn remove(&mut self, instance: Instance) {
        let change = Change::Removed(self.op(instance), self.blocks.after(instance));
        self.remove_silently(instance);
        self.log.push(change);
    }

    fn remove_silently(&mut self, instance: Instance) {
        let graph = self.problem.graph;
        let op = self.op(instance);
        let node = &graph.ops()[op];
        for &value in &node.outputs {
            let used = self.span_behind(value, instance).is_some_and(|span| span.last.is_some());
            if used && let Some(earlier) = self.span(value, instance) {
                self.blocks.add(earlier.before, instance, self.problem.bytes[value]);
            }
        }
        for &value in &node.inputs {
            if let Some(span) = self.span(value, instance).filter(|span| span.last == Some(instance)) {
                self.blocks.add(span.before, instance, -self.problem.bytes[value]);
            }
        }
        self.cost -= node.cost;
        self.blocks.take(instance);
        self.op_of[instance as usize] = NO_OP;
        self.instances[op].retain(|&i| i != instance);
        let place = self.repeat_place[instance as usize] as usize;
        self.repeats.swap_remove(place);
        if let Some(&moved) = self.repeats.get(place) {
            self.repeat_place[moved as usize] = place as u32;
        }
        self.vacant.push(instance);
    }

    /// Whether `instance` is a first one.
    pub fn is_first(&self, instance: Instance) -> bool {
        self.instances[self.op(instance)][0] == instance
    }

    /// Whether any output of `instance` is used before it is computed again.
    pub fn is_used(&self, instance: Instance) -> bool {
        let outputs = &self.problem.graph.ops()[self.op(instance)].outputs;
        outputs.iter().any(|&v| self.span_behind(v, instance).is_some_and(|span| span.last.is_some()))
    }

    /// Forgets what could be undone.
    pub fn commit(&mut self) {
        self.log.clear();
        self.blocks.compact();
    }

    /// How many changes are not committed.
    pub fn pending(&self) -> usize {
        self.log.len()
    }

    /// Takes back all changes since the last commit.
    pub fn undo(&mut self) {
        while let Some(change) = self.log.pop() {
            match change {
                Change::Inserted(instance) => self.remove_silently(instance),
                Change::Removed(op, target) => {
                    // `vacant` is a stack and changes are undone in reverse, so the same number comes back.
                    self.insert_silently(op, target);
                }
            }
        }
    }
}
