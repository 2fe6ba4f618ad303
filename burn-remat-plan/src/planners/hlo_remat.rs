//! `hlo-remat`: XLA's pass that recomputes values which a scheduled program holds for too long.
//!
//! Problem: a program with a fixed order holds more than the limit in some places. Which instructions should run again later,
//! so that their results need not be held there?
//!
//! Method (`HloRematerialization`):
//!
//! 1. Walk through the program and keep track of what is held: everything that is used later.
//! 2. While more than the limit is held at an instruction, look at everything held besides its own operands and results.
//!    Dropping the results of an instruction frees their bytes, less those of its operands that are no longer held and
//!    would have to be. The instruction may be dropped together with those that make such operands, up to `MOST_BLOCK` in
//!    all. Drop the results that free the most bytes for their cost.
//! 3. Put a copy of the instruction right before the next use of its results, with the same operands, and walk on. Results of
//!    copies may be dropped again if they are held for too long in turn.
//! 4. Operands that live longer may lift earlier places above the limit again: up to `PASSES` walks are made, one after
//!    the other, until the peak fits.
//!
//! If the budget as the limit gives no plan, each of `RUNGS` fixed shares of the store-all peak is tried as the limit: a
//! walk with a lower limit may end with a lower peak.
//!
//! Invariants: each drop frees bytes at the current place, so a walk ends; copies are inserted only after that place.
//!
//! Complexity: O(held values · log uses) for each drop, at most `MOST_COPIES` copies for each op.
//!
//! Source: `xla/hlo/transforms/memory/hlo_rematerialization.cc`. Departures: XLA ranks by the bytes freed alone, we divide these
//! by the cost of the op, so that a convolution is not dropped before a ReLU of the same size; its blocks are runs of
//! neighbours in the program, ours follow the operands; it also moves results to the host and compresses layouts.

use std::collections::BTreeSet;

use super::StoreAll;
use super::incumbent::Incumbent;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::{Graph, OpId, ValueId};
use crate::planner::{Outcome, Planner, Request, Status, StopReason};

/// The most walks for one limit.
const PASSES: usize = 4;
/// Limits tried if the budget itself gives no plan.
const RUNGS: u64 = 8;
/// The most ops that run again together.
const MOST_BLOCK: usize = 8;
/// The most copies for each op of the program, on average.
const MOST_COPIES: usize = 8;
/// Memory of a copy: its number, its place, its events and the steps of its plan.
const BYTES_PER_COPY: u64 = 200;

/// The planner `hlo-remat`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HloRemat;

impl HloRemat {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "hlo-remat";
}

impl Planner for HloRemat {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let deadline = request.deadline();
        let most = most_instances(graph, request.memory_limit);
        // The walk at the budget itself must not report the minimum: with that minimum as its budget it would be another walk.
        let mut at_budget = Incumbent::new(graph, request.budget);
        let mut in_time = offer_walks(graph, request.budget, &mut at_budget, most, deadline);
        let done = |incumbent: &Incumbent<'_>, in_time: bool| {
            let reason = if in_time { StopReason::Heuristic } else { StopReason::TimeLimit };
            incumbent.outcome(Self::NAME, Status::Feasible, reason, None)
        };
        if let Some(outcome) = done(&at_budget, in_time)? {
            return Ok(outcome);
        }
        let mut incumbent = Incumbent::new(graph, request.budget);
        let peak = StoreAll::peak(graph);
        for rung in (0..RUNGS).rev() {
            let limit = peak / RUNGS * rung;
            in_time = in_time && offer_walks(graph, limit, &mut incumbent, most, deadline);
        }
        done(&incumbent, in_time)?.ok_or_else(|| incumbent.infeasible())
    }
}

/// How many computations a program may have.
fn most_instances(graph: &Graph, memory_limit: u64) -> usize {
    let ops = graph.ops().len();
    let copies = usize::try_from(memory_limit / BYTES_PER_COPY).unwrap_or(usize::MAX);
    (MOST_COPIES * ops).min(ops.saturating_add(copies))
}

/// Offers what the walks for `limit` give; `false` if the deadline has passed.
fn offer_walks(graph: &Graph, limit: u64, incumbent: &mut Incumbent<'_>, most: usize, deadline: Deadline) -> bool {
    let mut program = Program::new(graph, most, deadline);
    for _ in 0..PASSES {
        let before = program.instances.len();
        if !program.walk(limit) {
            return false;
        }
        let peak = incumbent.offer(&program.order());
        if peak <= limit || program.instances.len() == before {
            break;
        }
    }
    true
}

/// Number of an instance: an op of the program, then copies. The number of ops stands for the end.
type Instance = usize;

/// Ops that run again together.
struct Block {
    ops: BTreeSet<OpId>,
    /// Bytes that they free.
    gain: u64,
    /// What needs their results next.
    next: Instance,
    /// Whether operands must stay for them.
    lacks: bool,
}

/// A use of a value, or a computation.
#[derive(Clone, Copy)]
struct Event {
    at: Instance,
    is_use: bool,
}

/// The place of an instance: the op of the program before which it stands, then its position among those before that op.
type Place = (usize, usize);

/// The program with its copies.
struct Program<'a> {
    graph: &'a Graph,
    /// The most instances.
    most: usize,
    deadline: Deadline,
    /// Op of each instance.
    instances: Vec<OpId>,
    places: Vec<Place>,
    /// Copies before each op, and before the end, in order.
    before: Vec<Vec<Instance>>,
    /// Per value in the order of the program.
    events: Vec<Vec<Event>>,
}

/// What a walk holds.
struct Held {
    values: BTreeSet<ValueId>,
    bytes: u64,
}

impl Held {
    fn add(&mut self, graph: &Graph, value: ValueId) {
        if self.values.insert(value) {
            self.bytes += graph.bytes(value);
        }
    }

    fn remove(&mut self, graph: &Graph, value: ValueId) {
        if self.values.remove(&value) {
            self.bytes -= graph.bytes(value);
        }
    }
}

impl<'a> Program<'a> {
    fn new(graph: &'a Graph, most: usize, deadline: Deadline) -> Self {
        let ops = graph.ops().len();
        let mut program = Self {
            graph,
            most,
            deadline,
            instances: (0..ops).collect(),
            places: (0..=ops).map(|op| (op, usize::MAX)).collect(),
            before: vec![Vec::new(); ops + 1],
            events: vec![Vec::new(); graph.values().len()],
        };
        // The end has a number of its own; copies are numbered after it.
        program.instances.push(usize::MAX);
        for (id, op) in graph.ops().iter().enumerate() {
            op.inputs.iter().for_each(|&value| program.events[value].push(Event { at: id, is_use: true }));
            op.outputs.iter().for_each(|&value| program.events[value].push(Event { at: id, is_use: false }));
        }
        graph.results().iter().for_each(|&value| program.events[value].push(Event { at: ops, is_use: true }));
        program
    }

    /// All computations in order.
    fn order(&self) -> Vec<OpId> {
        let ops = self.graph.ops().len();
        let all = (0..=ops).flat_map(|slot| self.before[slot].iter().copied().chain((slot < ops).then_some(slot)));
        all.map(|instance| self.instances[instance]).collect()
    }

    /// The next event of `value` after `place`, and its number in the list.
    fn next_event(&self, value: ValueId, place: Place) -> (usize, Option<Event>) {
        let events = &self.events[value];
        let at = events.partition_point(|event| self.places[event.at] <= place);
        (at, events.get(at).copied())
    }

    /// The next use of `value` after `place`, if it is used before it is computed again.
    fn next_use(&self, value: ValueId, place: Place) -> Option<Instance> {
        self.next_event(value, place).1.filter(|event| event.is_use).map(|event| event.at)
    }

    /// One walk; `false` if the deadline passed.
    fn walk(&mut self, limit: u64) -> bool {
        let graph = self.graph;
        let mut held = Held { values: BTreeSet::new(), bytes: graph.constant_bytes() };
        let start = graph.inputs().filter(|&value| !self.events[value].is_empty());
        start.for_each(|value| held.add(graph, value));
        for slot in 0..=graph.ops().len() {
            if slot % 64 == 0 && self.deadline.passed() {
                return false;
            }
            let mut at = 0;
            while let Some(&copy) = self.before[slot].get(at) {
                if !self.step(copy, &mut held, limit) {
                    return false;
                }
                at += 1;
            }
            if slot < graph.ops().len() && !self.step(slot, &mut held, limit) {
                return false;
            }
        }
        true
    }

    /// Runs an instance; before that, drops what is held besides its values until it fits. `false` if the deadline passed.
    fn step(&mut self, instance: Instance, held: &mut Held, limit: u64) -> bool {
        let graph = self.graph;
        let op = &graph.ops()[self.instances[instance]];
        let place = self.places[instance];
        let made: Vec<ValueId> = op.outputs.iter().copied().filter(|value| !held.values.contains(value)).collect();
        let own = graph.bytes_of(&made) + op.scratch_bytes;
        while held.bytes + own > limit && self.instances.len() < self.most {
            if self.deadline.passed() {
                return false;
            }
            let Some(chosen) = self.best(instance, held) else { break };
            // Each drop makes a copy, and the number of copies is limited: the loop ends.
            self.drop_results(&chosen, place, held);
        }
        made.iter().for_each(|&value| held.add(graph, value));
        for &value in op.inputs.iter().chain(&op.outputs) {
            if self.next_use(value, place).is_none() {
                held.remove(graph, value);
            }
        }
        true
    }

    /// The op, or block of ops, whose results free the most bytes for their cost if they are not held while `instance` runs.
    fn best(&self, instance: Instance, held: &Held) -> Option<Block> {
        let mut ends: Vec<OpId> = held.values.iter().filter_map(|&value| self.graph.producer(value)).collect();
        ends.dedup();
        let mut best: Option<(f64, Block)> = None;
        for end in ends {
            for most in [1, MOST_BLOCK] {
                let Some(block) = self.block(end, most, instance, held) else { continue };
                let worth = block.gain as f64 / block.ops.iter().map(|&op| self.graph.ops()[op].cost).sum::<f64>();
                let is_better =
                    |(most, best): &(f64, Block)| worth > *most || (worth == *most && block.gain > best.gain);
                let is_whole = !block.lacks;
                if best.as_ref().is_none_or(is_better) {
                    best = Some((worth, block));
                }
                if is_whole {
                    break;
                }
            }
        }
        best.map(|(_, block)| block)
    }

    /// `end` with the ops, at most `most` in all, that make those of its operands that are no longer held; `None` if dropping
    /// the results of these frees nothing while `instance` runs.
    fn block(&self, end: OpId, most: usize, instance: Instance, held: &Held) -> Option<Block> {
        let graph = self.graph;
        let running = &graph.ops()[self.instances[instance]];
        let place = self.places[instance];
        let is_free = |op: OpId| {
            let op = &graph.ops()[op];
            op.recomputable && !op.outputs.iter().any(|v| running.inputs.contains(v) || running.outputs.contains(v))
        };
        let mut ops = BTreeSet::from([end]);
        loop {
            if !ops.iter().all(|&op| is_free(op)) {
                return None;
            }
            let next = self.next_of_results(&ops, place, held)?;
            let until = self.places[next];
            let lacks = |value: ValueId| match self.next_event(value, place).1 {
                Some(event) if event.is_use => !held.values.contains(&value) && !running.outputs.contains(&value),
                // Lacking unless it is computed again before the copy would run.
                Some(event) => self.places[event.at] >= until,
                None => true,
            };
            let reads: BTreeSet<ValueId> = ops.iter().flat_map(|&op| &graph.ops()[op].inputs).copied().collect();
            let is_outer = |value: ValueId| graph.producer(value).is_none_or(|op| !ops.contains(&op));
            let lacking: Vec<ValueId> = reads.into_iter().filter(|&value| is_outer(value) && lacks(value)).collect();
            let more = lacking.iter().filter_map(|&value| graph.producer(value)).find(|&op| is_free(op));
            if let Some(op) = more.filter(|_| ops.len() < most) {
                ops.insert(op);
                continue;
            }
            let results = ops.iter().flat_map(|&op| &graph.ops()[op].outputs);
            let freed: u64 = results.filter(|value| held.values.contains(value)).map(|&value| graph.bytes(value)).sum();
            let gain = freed.checked_sub(graph.bytes_of(&lacking)).filter(|&gain| gain > 0)?;
            return Some(Block { ops, gain, next, lacks: !lacking.is_empty() });
        }
    }

    /// The next use, after `place`, of those results of `ops` that are held.
    fn next_of_results(&self, ops: &BTreeSet<OpId>, place: Place, held: &Held) -> Option<Instance> {
        let results = ops.iter().flat_map(|&op| &self.graph.ops()[op].outputs).filter(|v| held.values.contains(v));
        results.filter_map(|&value| self.next_use(value, place)).min_by_key(|&instance| self.places[instance])
    }

    /// Drops the held results of a block, to be computed again right before their next use after `place`.
    fn drop_results(&mut self, block: &Block, place: Place, held: &mut Held) {
        let graph = self.graph;
        for &id in &block.ops {
            let op = &graph.ops()[id];
            let (slot, index) = self.places[block.next];
            let list = &mut self.before[slot];
            let index = index.min(list.len());
            let copy = self.instances.len();
            self.instances.push(id);
            self.places.push((slot, index));
            list.insert(index, copy);
            list[index + 1..].iter().for_each(|&other| self.places[other].1 += 1);
            let computed = op.outputs.iter().map(|&value| (value, false));
            for (value, is_use) in op.inputs.iter().map(|&value| (value, true)).chain(computed) {
                let (at, _) = self.next_event(value, self.places[copy]);
                self.events[value].insert(at, Event { at: copy, is_use });
            }
        }
        for &id in &block.ops {
            graph.ops()[id].outputs.iter().for_each(|&value| held.remove(graph, value));
        }
        for &id in &block.ops {
            for &value in graph.ops()[id].inputs.iter().filter(|&&value| self.next_use(value, place).is_some()) {
                held.add(graph, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Op};

    /// Two values of 10 bytes, one of them expensive; then a peak; then both are read.
    fn two_idle_values() -> Graph {
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = [10, 10, 10, 1, 1, 1].iter().map(|&bytes| builder.value(bytes, "")).collect();
        builder.op(Op::new("dear", 9.0, vec![], vec![v[0]]));
        builder.op(Op::new("cheap", 2.0, vec![], vec![v[1]]));
        builder.op(Op::new("peak", 5.0, vec![], vec![v[2]]));
        builder.op(Op::new("end", 1.0, vec![v[2]], vec![v[3]]));
        builder.op(Op::new("reads dear", 1.0, vec![v[0], v[3]], vec![v[4]]));
        builder.op(Op::new("reads cheap", 1.0, vec![v[1], v[4]], vec![v[5]]));
        builder.build().unwrap()
    }

    fn order(graph: &Graph, budget: u64) -> Vec<OpId> {
        let plan = HloRemat.solve(graph, &Request::new(budget)).unwrap().plan.unwrap();
        crate::sequence::compute_order(&plan)
    }

    #[test]
    fn at_the_peak_the_cheaper_of_equal_values_goes_and_returns_before_its_use() {
        let graph = two_idle_values();
        assert_eq!(order(&graph, 31), [0, 1, 2, 3, 4, 5]);
        assert_eq!(order(&graph, 30), [0, 1, 2, 3, 4, 1, 5]);
        assert_eq!(order(&graph, 20), [0, 1, 2, 3, 0, 4, 1, 5]);
        let error = HloRemat.solve(&graph, &Request::new(11)).unwrap_err();
        assert!(matches!(error, PlanError::Infeasible { minimum: Some(12), .. }), "{error:?}");
    }

    #[test]
    fn an_operand_that_would_have_to_stay_is_counted() {
        // `b` frees 10 bytes but holds the 10 of `a`, which nothing else needs any more.
        let mut builder = GraphBuilder::new("");
        let v: Vec<_> = [10, 10, 10, 1].iter().map(|&bytes| builder.value(bytes, "")).collect();
        builder.op(Op { recomputable: false, ..Op::new("a", 1.0, vec![], vec![v[0]]) });
        builder.op(Op::new("b", 1.0, vec![v[0]], vec![v[1]]));
        builder.op(Op::new("peak", 1.0, vec![], vec![v[2]]));
        builder.op(Op::new("end", 1.0, vec![v[1], v[2]], vec![v[3]]));
        let graph = builder.build().unwrap();
        let mut program = Program::new(&graph, usize::MAX, Deadline::NEVER);
        assert!(program.walk(15));
        assert_eq!(program.order(), [0, 1, 2, 3]);
    }
}
