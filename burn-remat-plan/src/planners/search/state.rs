//! A compute order with its memory profile, changed one computation at a time.
//!
//! The order holds *instances* of ops. A value lives from an instance of its producer to its last use before the next
//! one, so inserting or removing an instance changes memory on a few ranges only: the gap that closes or opens for
//! each output, and the gap to the previous use for each input. Each range is found from the handful of instances of
//! the value's users, and [`State::over`], the sum over all positions of the bytes above the budget, is kept up to
//! date on the way.
//!
//! Invariants: `memory[p]` is the memory while `order[p]` runs; first instances are never removed and keep the
//! program's order; after `undo` everything is as before, except for instance numbers.
//!
//! Complexity of one change: O(uses of the op's values + length of the ranges), and a `memmove` of the tail.

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

/// Number of an instance.
pub(crate) type Instance = u32;

#[derive(Clone, Copy, Debug)]
enum Change {
    Inserted(Instance),
    Removed(OpId, usize),
}

/// The uses of one instance of a value, seen from a position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Where the value was computed; -1 for an input of the graph.
    pub start: isize,
    /// Its last use (or computation) before the position.
    pub before: isize,
    /// Its first use at or after the position, before it is computed again.
    pub next: Option<usize>,
    /// Its last use at or after the position, before it is computed again.
    pub last: Option<usize>,
}

#[derive(Clone)]
pub(crate) struct State<'p, 'g> {
    pub problem: &'p Problem<'g>,
    order: Vec<Instance>,
    memory: Vec<i64>,
    op_of: Vec<u32>,
    position: Vec<u32>,
    vacant: Vec<Instance>,
    instances: Vec<Vec<Instance>>,
    /// Instances that are not the first of their op.
    repeats: Vec<Instance>,
    repeat_place: Vec<u32>,
    pub cost: f64,
    pub over: i64,
    log: Vec<Change>,
}

impl<'p, 'g> State<'p, 'g> {
    /// The state of an executable order.
    pub fn new(problem: &'p Problem<'g>, ops: &[OpId]) -> Self {
        let count = problem.graph.ops().len();
        let mut state = Self {
            problem,
            order: Vec::new(),
            memory: Vec::new(),
            op_of: Vec::new(),
            position: Vec::new(),
            vacant: Vec::new(),
            instances: vec![Vec::new(); count],
            repeats: Vec::new(),
            repeat_place: Vec::new(),
            cost: 0.0,
            over: 0,
            log: Vec::new(),
        };
        state.load(ops);
        state
    }

    /// Replaces the whole order: O(order + uses).
    pub fn load(&mut self, ops: &[OpId]) {
        let graph = self.problem.graph;
        let length = ops.len();
        self.order = (0..length as u32).collect();
        self.position = (0..length as u32).collect();
        self.op_of = ops.iter().map(|&op| op as u32).collect();
        self.vacant.clear();
        self.repeats.clear();
        self.repeat_place = vec![u32::MAX; length];
        self.log.clear();
        self.instances.iter_mut().for_each(Vec::clear);
        self.cost = 0.0;
        for (at, &op) in ops.iter().enumerate() {
            if !self.instances[op].is_empty() {
                self.repeat_place[at] = self.repeats.len() as u32;
                self.repeats.push(at as u32);
            }
            self.instances[op].push(at as u32);
            self.cost += graph.ops()[op].cost;
        }
        // Backwards: which values are used before they are computed again.
        self.memory = vec![0; length];
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
            self.memory[at] = held + self.problem.outputs[op] + self.problem.scratch[op];
        }
        self.over = self.memory.iter().map(|&m| (m - self.problem.budget).max(0)).sum();
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn memory(&self) -> &[i64] {
        &self.memory
    }

    pub fn repeats(&self) -> &[Instance] {
        &self.repeats
    }

    pub fn ops(&self) -> Vec<OpId> {
        self.order.iter().map(|&instance| self.op_of[instance as usize] as usize).collect()
    }

    pub fn op(&self, instance: Instance) -> OpId {
        self.op_of[instance as usize] as usize
    }

    pub fn position(&self, instance: Instance) -> usize {
        self.position[instance as usize] as usize
    }

    pub fn at(&self, position: usize) -> Instance {
        self.order[position]
    }

    pub fn instances(&self, op: OpId) -> &[Instance] {
        &self.instances[op]
    }

    /// The instance of `value` that a step at `position` would read, and its uses around that position; `None` where
    /// it has not been computed before.
    pub fn span(&self, value: ValueId, position: usize) -> Option<Span> {
        let graph = self.problem.graph;
        let (start, end) = match graph.producer(value) {
            None => (-1, usize::MAX),
            Some(op) => {
                let (mut start, mut end) = (-1isize, usize::MAX);
                for &instance in &self.instances[op] {
                    let at = self.position(instance);
                    if at < position {
                        start = at as isize;
                    } else {
                        end = at;
                        break;
                    }
                }
                if start < 0 {
                    return None;
                }
                (start, end)
            }
        };
        let mut span = Span { start, before: start, next: None, last: None };
        for &user in graph.consumers(value) {
            for &instance in &self.instances[user] {
                let at = self.position(instance);
                if at as isize <= start || at >= end {
                    continue;
                }
                if at < position {
                    span.before = span.before.max(at as isize);
                } else {
                    span.next = Some(span.next.map_or(at, |next| next.min(at)));
                    span.last = Some(span.last.map_or(at, |last| last.max(at)));
                }
            }
        }
        if end == usize::MAX && graph.is_result(value) {
            // The end of the program is a use one position behind the last.
            span.next = span.next.or(Some(self.order.len()));
            span.last = Some(self.order.len());
        }
        Some(span)
    }

    fn add(&mut self, from: isize, to: isize, bytes: i64) {
        if bytes == 0 || from > to {
            return;
        }
        let budget = self.problem.budget;
        let mut change = 0;
        for memory in &mut self.memory[from.max(0) as usize..=to as usize] {
            let new = *memory + bytes;
            change += (new - budget).max(0) - (*memory - budget).max(0);
            *memory = new;
        }
        self.over += change;
    }

    /// Memory between `position - 1` and `position`.
    fn between(&self, position: usize) -> i64 {
        match self.order.get(position) {
            Some(&instance) => {
                let op = self.op(instance);
                self.memory[position] - self.problem.scratch[op] - self.problem.outputs[op]
            }
            None => {
                let results = self.problem.graph.results();
                self.problem.constant + results.iter().map(|&v| self.problem.bytes[v]).sum::<i64>()
            }
        }
    }

    /// Inserts an instance of `op` before `position` (the length: at the end). Every input must have been computed before, and `op` itself.
    pub fn insert(&mut self, op: OpId, position: usize) -> Instance {
        let instance = self.insert_silently(op, position);
        self.log.push(Change::Inserted(instance));
        instance
    }

    fn insert_silently(&mut self, op: OpId, position: usize) -> Instance {
        let graph = self.problem.graph;
        let node = &graph.ops()[op];
        let mut through = self.between(position);
        for &value in &node.outputs {
            let bytes = self.problem.bytes[value];
            if let Some(span) = self.span(value, position).filter(|span| span.last.is_some()) {
                self.add(span.before + 1, position as isize - 1, -bytes);
                through -= bytes;
            }
        }
        for &value in &node.inputs {
            let bytes = self.problem.bytes[value];
            if let Some(span) = self.span(value, position).filter(|span| span.last.is_none()) {
                self.add(span.before + 1, position as isize - 1, bytes);
                through += bytes;
            }
        }
        let memory = through + self.problem.outputs[op] + self.problem.scratch[op];
        self.over += (memory - self.problem.budget).max(0);
        self.cost += node.cost;
        let instance = self.vacant.pop().unwrap_or_else(|| {
            self.op_of.push(0);
            self.position.push(0);
            self.repeat_place.push(u32::MAX);
            self.op_of.len() as u32 - 1
        });
        self.op_of[instance as usize] = op as u32;
        self.memory.insert(position, memory);
        self.order.insert(position, instance);
        self.position[instance as usize] = position as u32;
        for &later in &self.order[position + 1..] {
            self.position[later as usize] += 1;
        }
        let place = self.instances[op].iter().position(|&i| self.position(i) > position);
        let place = place.unwrap_or(self.instances[op].len());
        self.instances[op].insert(place, instance);
        self.repeat_place[instance as usize] = self.repeats.len() as u32;
        self.repeats.push(instance);
        instance
    }

    /// Removes an instance that is not the first of its op; its users read the one before.
    pub fn remove(&mut self, instance: Instance) {
        let change = Change::Removed(self.op(instance), self.position(instance));
        self.remove_silently(instance);
        self.log.push(change);
    }

    fn remove_silently(&mut self, instance: Instance) {
        let graph = self.problem.graph;
        let (op, position) = (self.op(instance), self.position(instance));
        let node = &graph.ops()[op];
        for &value in &node.outputs {
            let used = self.span(value, position + 1).is_some_and(|span| span.last.is_some());
            if used && let Some(earlier) = self.span(value, position) {
                self.add(earlier.before + 1, position as isize - 1, self.problem.bytes[value]);
            }
        }
        for &value in &node.inputs {
            if let Some(span) = self.span(value, position).filter(|span| span.last == Some(position)) {
                self.add(span.before + 1, position as isize - 1, -self.problem.bytes[value]);
            }
        }
        self.over -= (self.memory[position] - self.problem.budget).max(0);
        self.cost -= node.cost;
        self.memory.remove(position);
        self.order.remove(position);
        for &later in &self.order[position..] {
            self.position[later as usize] -= 1;
        }
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
        let position = self.position(instance);
        let outputs = &self.problem.graph.ops()[self.op(instance)].outputs;
        outputs.iter().any(|&v| self.span(v, position + 1).is_some_and(|span| span.last.is_some()))
    }

    /// Forgets what could be undone.
    pub fn commit(&mut self) {
        self.log.clear();
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
                Change::Removed(op, position) => {
                    // `vacant` is a stack and changes are undone in reverse, so the same number comes back.
                    self.insert_silently(op, position);
                }
            }
        }
    }
}
