//! A compute order with its memory profile, changed one computation at a time.
//!
//! The order holds *instances* of ops, each in one of the op's [ways](super::problem). A value lives from an instance of its producer to its last use before the next
//! one, so inserting or removing an instance changes memory on a few ranges only: the gap that closes or opens for
//! each output, and the gap to the previous use for each input. Each range is found by bisection among the instances that
//! read the value, which are kept in order, and [`State::over`], how far all positions together are above the budget, is kept up to
//! date on the way. An instance that switches to another way changes its own scratch, and the same ranges for the inputs that
//! only one of the two ways reads.
//!
//! The order itself, with the memory at every position, is kept in [`Blocks`].
//!
//! Invariants: the profile is that of the order; first instances are never removed and keep the program's order; after
//! `undo` everything is as before, except for labels and the order of `repeats`.
//!
//! Complexity of one change: for each value of the op O(log readers), and an operation on the blocks.

use super::blocks::Blocks;
pub(crate) use super::blocks::{END, Instance, START};
use super::problem::{Problem, Way, WayId};
use crate::choice::Choice;
use crate::graph::{OpId, ValueId};

const NO_OP: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
enum Change {
    Inserted(Instance),
    /// The way of the instance, and the instance that followed it.
    Removed(WayId, Instance),
    /// The instance, and the way in which it ran before.
    Switched(Instance, WayId),
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
    way_of: Vec<u32>,
    vacant: Vec<Instance>,
    /// Per op, in order.
    instances: Vec<Vec<Instance>>,
    /// Per value, the instances that read it, in order.
    readers: Vec<Vec<Instance>>,
    /// Instances that are not the first of their op.
    repeats: Vec<Instance>,
    repeat_place: Vec<u32>,
    pub cost: f64,
    log: Vec<Change>,
}

impl<'p, 'g> State<'p, 'g> {
    /// The state of an executable order.
    pub fn new(problem: &'p Problem<'g>, order: &[Choice]) -> Self {
        let mut state = Self {
            problem,
            blocks: Blocks::new(problem.budget, problem.step),
            op_of: Vec::new(),
            way_of: Vec::new(),
            vacant: Vec::new(),
            instances: vec![Vec::new(); problem.graph.ops().len()],
            readers: vec![Vec::new(); problem.graph.values().len()],
            repeats: Vec::new(),
            repeat_place: Vec::new(),
            cost: 0.0,
            log: Vec::new(),
        };
        state.load(order);
        state
    }

    /// Replaces the whole order: O(order + uses).
    pub fn load(&mut self, order: &[Choice]) {
        let problem = self.problem;
        let ways: Vec<WayId> = order.iter().map(|&choice| problem.way_of(choice)).collect();
        let count = order.len() + 2;
        self.op_of = [NO_OP; 2].into_iter().chain(order.iter().map(|choice| choice.op as u32)).collect();
        self.way_of = [NO_OP; 2].into_iter().chain(ways.iter().map(|&way| way as u32)).collect();
        self.vacant.clear();
        self.repeats.clear();
        self.repeat_place = vec![u32::MAX; count];
        self.log.clear();
        self.instances.iter_mut().for_each(Vec::clear);
        self.readers.iter_mut().for_each(Vec::clear);
        self.cost = 0.0;
        for (at, (choice, &way)) in order.iter().zip(&ways).enumerate() {
            let instance = at as u32 + 2;
            if !self.instances[choice.op].is_empty() {
                self.repeat_place[instance as usize] = self.repeats.len() as u32;
                self.repeats.push(instance);
            }
            self.instances[choice.op].push(instance);
            self.cost += problem.way(way).cost;
            problem.way(way).inputs.iter().for_each(|&value| self.readers[value].push(instance));
        }
        self.blocks.load(&profile_of(problem, &ways));
    }

    pub fn repeats(&self) -> &[Instance] {
        &self.repeats
    }

    pub fn choices(&self) -> Vec<Choice> {
        self.blocks.order().into_iter().map(|instance| self.way(instance).choice).collect()
    }

    /// Memory at every position.
    #[cfg(test)]
    pub fn memory(&self) -> Vec<i64> {
        self.blocks.profile()
    }

    /// The sum over all positions above the budget of the bytes above it and a [step](Problem::step); 0 if the order fits.
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

    /// See [`Blocks::around`].
    pub fn around(&self, instance: Instance, number: usize) -> Instance {
        self.blocks.around(instance, number)
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

    pub fn way_id(&self, instance: Instance) -> WayId {
        self.way_of[instance as usize] as WayId
    }

    pub fn way(&self, instance: Instance) -> &'p Way {
        self.problem.way(self.way_id(instance))
    }

    pub fn instances(&self, op: OpId) -> &[Instance] {
        &self.instances[op]
    }

    /// The instance with this number, which is below [`numbers`](Self::numbers); `None` if there is none.
    pub fn numbered(&self, number: usize) -> Option<Instance> {
        let instance = number as Instance + 2;
        (self.op_of[instance as usize] != NO_OP).then_some(instance)
    }

    pub fn numbers(&self) -> usize {
        self.op_of.len() - 2
    }

    /// The instance of `value` that a step just before `at` would read, and its uses around that position; `None`
    /// if it has not been computed before.
    pub fn span(&self, value: ValueId, at: Instance) -> Option<Span> {
        self.span_from(value, self.label(at))
    }

    /// As [`span`](Self::span), seen from just after `at`.
    pub fn span_behind(&self, value: ValueId, at: Instance) -> Option<Span> {
        self.span_from(value, self.label(at) + 1)
    }

    fn span_from(&self, value: ValueId, here: u64) -> Option<Span> {
        let graph = self.problem.graph;
        let (mut start, mut end) = (START, u64::MAX);
        let mut is_last = true;
        if let Some(op) = graph.producer(value) {
            let makers = &self.instances[op];
            let at = self.first_from(makers, here);
            start = *makers[..at].last()?;
            if let Some(&next) = makers.get(at) {
                (end, is_last) = (self.label(next), false);
            }
        }
        let readers = &self.readers[value];
        let (at, behind) = (self.first_from(readers, here), self.first_from(readers, end));
        let before = readers[..at].last().copied().filter(|&reader| self.label(reader) > self.label(start));
        let mut span = Span {
            start,
            before: before.unwrap_or(start),
            next: readers[at..behind].first().copied(),
            last: readers[at..behind].last().copied(),
        };
        if is_last && graph.is_result(value) {
            span.next = span.next.or(Some(END));
            span.last = Some(END);
        }
        Some(span)
    }

    /// The instances that read `value` at labels from `since` on and before `until`, in order.
    pub fn readers_between(&self, value: ValueId, since: u64, until: u64) -> &[Instance] {
        let readers = &self.readers[value];
        &readers[self.first_from(readers, since)..self.first_from(readers, until)]
    }

    /// The place of the first of `instances`, which are in order, whose label is at least `label`.
    fn first_from(&self, instances: &[Instance], label: u64) -> usize {
        match instances {
            // There are mostly one or two.
            [] => 0,
            [one] => usize::from(self.label(*one) < label),
            _ => instances.partition_point(|&instance| self.label(instance) < label),
        }
    }

    /// Records that `instance` reads `value`.
    fn add_reader(&mut self, value: ValueId, instance: Instance) {
        let at = self.first_from(&self.readers[value], self.label(instance));
        self.readers[value].insert(at, instance);
    }

    /// Records that `instance` does not read `value` any more.
    fn remove_reader(&mut self, value: ValueId, instance: Instance) {
        let at = self.first_from(&self.readers[value], self.label(instance));
        debug_assert_eq!(self.readers[value][at], instance);
        self.readers[value].remove(at);
    }

    /// Memory just before `target`, between computations.
    fn between(&self, target: Instance) -> i64 {
        if target == END {
            let results = self.problem.graph.results();
            return self.problem.constant + results.iter().map(|&v| self.problem.bytes(v)).sum::<i64>();
        }
        self.blocks.memory(target) - self.way(target).scratch - self.problem.output_bytes(self.op(target))
    }

    /// What would be left of the budget with `op` just before `target`, not counting its scratch; negative if the budget is exceeded.
    pub fn room(&self, op: OpId, target: Instance) -> i64 {
        self.problem.budget - self.between(target) - self.problem.output_bytes(op)
    }

    /// Inserts an instance before `target`. Every input, and the op itself, must have been computed before.
    pub fn insert(&mut self, way: WayId, target: Instance) -> Instance {
        let instance = self.insert_silently(way, target);
        self.log.push(Change::Inserted(instance));
        instance
    }

    fn insert_silently(&mut self, way: WayId, target: Instance) -> Instance {
        let problem = self.problem;
        let node = problem.way(way);
        let op = node.choice.op;
        let mut through = self.between(target);
        for &value in &problem.graph.ops()[op].outputs {
            let bytes = problem.bytes(value);
            if let Some(span) = self.span(value, target).filter(|span| span.last.is_some()) {
                self.blocks.add(span.before, target, -bytes);
                through -= bytes;
            }
        }
        for &value in &node.inputs {
            let bytes = problem.bytes(value);
            if let Some(span) = self.span(value, target).filter(|span| span.last.is_none()) {
                self.blocks.add(span.before, target, bytes);
                through += bytes;
            }
        }
        let memory = through + problem.output_bytes(op) + node.scratch;
        self.cost += node.cost;
        let instance = self.vacant.pop().unwrap_or_else(|| {
            self.op_of.push(0);
            self.way_of.push(0);
            self.blocks.grow();
            self.repeat_place.push(u32::MAX);
            self.op_of.len() as u32 - 1
        });
        self.op_of[instance as usize] = op as u32;
        self.way_of[instance as usize] = way as u32;
        self.blocks.put(instance, target, memory);
        let place = self.first_from(&self.instances[op], self.label(instance));
        self.instances[op].insert(place, instance);
        node.inputs.iter().for_each(|&value| self.add_reader(value, instance));
        self.repeat_place[instance as usize] = self.repeats.len() as u32;
        self.repeats.push(instance);
        instance
    }

    /// Removes an instance that is not the first of its op; its users read the one before.
    pub fn remove(&mut self, instance: Instance) {
        let change = Change::Removed(self.way_id(instance), self.blocks.after(instance));
        self.remove_silently(instance);
        self.log.push(change);
    }

    fn remove_silently(&mut self, instance: Instance) {
        let problem = self.problem;
        let node = self.way(instance);
        let op = node.choice.op;
        for &value in &problem.graph.ops()[op].outputs {
            let used = self.span_behind(value, instance).is_some_and(|span| span.last.is_some());
            if used && let Some(earlier) = self.span(value, instance) {
                self.blocks.add(earlier.before, instance, problem.bytes(value));
            }
        }
        for &value in &node.inputs {
            if let Some(span) = self.span(value, instance).filter(|span| span.last == Some(instance)) {
                self.blocks.add(span.before, instance, -problem.bytes(value));
            }
        }
        self.cost -= node.cost;
        node.inputs.iter().for_each(|&value| self.remove_reader(value, instance));
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

    /// Switches an instance to another way of its op. Every input of that way must have been computed before.
    pub fn switch(&mut self, instance: Instance, way: WayId) {
        self.log.push(Change::Switched(instance, self.way_id(instance)));
        self.switch_silently(instance, way);
    }

    fn switch_silently(&mut self, instance: Instance, way: WayId) {
        let problem = self.problem;
        let (old, new) = (self.way(instance), problem.way(way));
        // An input is held while the instance runs too.
        let behind = self.blocks.after(instance);
        for &value in old.inputs.iter().filter(|&&value| !new.reads(value)) {
            if let Some(span) = self.span(value, instance).filter(|span| span.last == Some(instance)) {
                self.blocks.add(span.before, behind, -problem.bytes(value));
            }
            self.remove_reader(value, instance);
        }
        for &value in new.inputs.iter().filter(|&&value| !old.reads(value)) {
            if let Some(span) = self.span(value, instance).filter(|span| span.last.is_none()) {
                self.blocks.add(span.before, behind, problem.bytes(value));
            }
            self.add_reader(value, instance);
        }
        self.blocks.add_at(instance, new.scratch - old.scratch);
        self.cost += new.cost - old.cost;
        self.way_of[instance as usize] = way as u32;
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

    /// Makes all changes final.
    pub fn commit(&mut self) {
        self.log.clear();
        self.blocks.compact();
    }

    /// How many changes are not committed.
    pub fn pending(&self) -> usize {
        self.log.len()
    }

    /// Undoes all changes since the last commit.
    pub fn undo(&mut self) {
        self.undo_to(0);
    }

    /// Undoes changes until this many are [pending](Self::pending).
    pub fn undo_to(&mut self, pending: usize) {
        while self.log.len() > pending
            && let Some(change) = self.log.pop()
        {
            match change {
                Change::Inserted(instance) => self.remove_silently(instance),
                Change::Removed(way, target) => {
                    // `vacant` is a stack and changes are undone in reverse, so the same number comes back.
                    self.insert_silently(way, target);
                }
                Change::Switched(instance, way) => self.switch_silently(instance, way),
            }
        }
    }
}

/// The memory while each of `ways` runs, when every value is evicted as soon as it is useless.
fn profile_of(problem: &Problem<'_>, ways: &[WayId]) -> Vec<i64> {
    let graph = problem.graph;
    // Backwards: which values are used before they are computed again.
    let mut memory = vec![0; ways.len()];
    let mut live = vec![false; graph.values().len()];
    let mut held = problem.constant;
    for &value in graph.results() {
        live[value] = true;
        held += problem.bytes(value);
    }
    for (at, &way) in ways.iter().enumerate().rev() {
        let way = problem.way(way);
        for &value in &graph.ops()[way.choice.op].outputs {
            if std::mem::replace(&mut live[value], false) {
                held -= problem.bytes(value);
            }
        }
        for &value in &way.inputs {
            if !std::mem::replace(&mut live[value], true) {
                held += problem.bytes(value);
            }
        }
        memory[at] = held + problem.output_bytes(way.choice.op) + way.scratch;
    }
    memory
}
