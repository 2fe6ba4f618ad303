//! A training graph seen as a coarse graph of stages, and plans of the coarse graph turned back into plans of the graph.
//!
//! Method. Forward and backward list are those of the [chain view](super::chain_of), and so are the places at which the
//! forward list is cut into stages: where the stage's name changes, or at the cuts that the chain view finds, or simply
//! anywhere. If there are too many, they are thinned: of the places in each of several equal shares of the forward bytes, the
//! one that the fewest bytes cross stays.
//!
//! 1. A stage's forward ops are one coarse op. Ops that may run only once (the mask of a dropout) form a coarse op of
//!    their own before it; if such an op reads what the stage computes, the stage's forward part is split there. If
//!    a good part of the results costs next to nothing once the rest is available (normalizations, activations, sums),
//!    they are two coarse ops: one for the expensive values, one that reads these and computes the cheap ones.
//! 2. The backward list is divided as in the chain view: one coarse op for each stage's share, and one for the ops
//!    after the last that reads a forward value, such as the update.
//! 3. Whatever one coarse op makes and another reads is a coarse value, however many stages lie between: a skip needs no
//!    rule of its own. Values with the same maker and the same readers form one coarse value.
//! 4. The backward op of a stage has alternatives that *recompute inside*: they read a part of the stage's saved set,
//!    or none of it, and run again whatever forward ops of the stage compute the rest, each right before it is needed.
//!    The parts are nested (`saved_sets`).
//! 5. The scratch of a coarse op is what its ops hold at most beyond its inputs and outputs, if nothing in them stays
//!    longer than it is of use.
//! 6. Back: each coarse op stands for its ops. A pass from the end drops repeated computations that nothing uses and evicts
//!    every value after its last use before it is computed again.
//!
//! Invariants: a valid plan of the coarse graph gives a valid plan of the graph that costs no more. It holds no more at
//! its peak if the first runs of a stage's coarse ops follow each other, as they do in MONeT's schedules: at any time the
//! coarse graph counts every value that is yet to be used before its next computation. The first computations of the
//! ops keep their order: all of a stage run where the first repeatable coarse op of the stage does, and the last of its
//! coarse ops counts what they hold.
//!
//! Complexity: O(ops + uses) for the lists, O(saved values · uses) in each stage for its saved sets, O(steps of the
//! plan) for the way back.
//!
//! Source: the graphs are those of MONeT (Shah et al. 2020): the coarse ops are its operators with several
//! implementations. Departures: there an operator is one kernel; here it is a stage of the model. Alternatives of the graph's own
//! ops are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::chain_of::{Stage, cuts, marks, reach, share_out, without_useless};
use super::passes::forward_length;
use super::saved_sets::{Split, backward_ways, external_reads, forward_split};
use crate::graph::{Alternative, Graph, GraphBuilder, Op, OpId, Phase, ValueId};
use crate::plan::{Plan, Step};
use crate::sequence::plan_from_order;

/// A graph as a coarse graph of stages; the [module](self) says how.
#[derive(Clone, Debug)]
pub struct StageView {
    coarse: Graph,
    parts: Vec<Part>,
}

/// What a coarse op stands for.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    /// Ops of its first run in the default implementation.
    first: Vec<OpId>,
    /// Ops of a later run, or of an alternative.
    ways: Vec<Vec<OpId>>,
    /// Values that it makes for others.
    makes: BTreeSet<ValueId>,
    /// Ops that run when it has its first turn, if these are not its own alone.
    during: Vec<OpId>,
    phase: Phase,
    recomputable: bool,
}

impl Part {
    fn new(graph: &Graph, phase: Phase, ways: Vec<Vec<OpId>>) -> Self {
        let made = ways[0].iter().flat_map(|&op| &graph.ops()[op].outputs).copied();
        let makes = made.collect();
        Self { first: ways[0].clone(), ways, makes, during: Vec::new(), phase, recomputable: true }
    }
}

impl StageView {
    /// Views worth trying, without duplicates, of at most `most` stages each: by the names of the stages, or by the cuts
    /// if there are no names; then with every place in the forward list as a candidate, thinned. None if there is
    /// no backward list.
    pub fn candidates(graph: &Graph, most: usize) -> Vec<Self> {
        let split = forward_length(graph);
        if split >= graph.ops().len() {
            return Vec::new();
        }
        let once = |value| graph.producer(value).is_some_and(|op| !graph.ops()[op].recomputable);
        let once: Vec<bool> = (0..graph.values().len()).map(once).collect();
        let named = marks(graph, split);
        let known = if named.is_empty() { cuts(graph, split, &once) } else { named };
        let sets = [known, (1..split).collect()].into_iter().filter(|places| !places.is_empty());
        let mut places: Vec<Vec<OpId>> = sets.map(|places| thinned(graph, split, places, most)).collect();
        places.dedup();
        places.iter().filter_map(|places| Self::new(graph, split, &once, places)).collect()
    }

    fn new(graph: &Graph, split: OpId, once: &[bool], places: &[OpId]) -> Option<Self> {
        let (stages, _) = share_out(graph, split, once, places);
        let parts = parts(graph, split, &stages);
        let coarse = Coarse::new(graph, &parts).graph(&parts)?;
        Some(Self { coarse, parts })
    }

    /// The coarse graph. A plan of it within a budget gives a plan of the graph within the same budget.
    pub fn graph(&self) -> &Graph {
        &self.coarse
    }

    /// The plan of `graph` for a plan of the coarse graph.
    pub fn plan(&self, graph: &Graph, plan: &Plan) -> Plan {
        let mut ran = vec![false; self.parts.len()];
        let mut order = Vec::new();
        for &step in &plan.steps {
            let (id, way) = match step {
                Step::Compute(id) => (id, 0),
                Step::ComputeAlternative(id, k) => (id, k + 1),
                Step::Evict(_) => continue,
            };
            let part = &self.parts[id];
            let first = !std::mem::replace(&mut ran[id], true);
            order.extend(if first && way == 0 { &part.first } else { &part.ways[way] });
        }
        plan_from_order(graph, &without_useless(graph, &order))
    }
}

/// At most `most - 1` of `places`: of those in an equal share of the forward bytes, the one that the fewest bytes cross.
fn thinned(graph: &Graph, split: OpId, places: Vec<OpId>, most: usize) -> Vec<OpId> {
    if places.len() < most {
        return places;
    }
    let mut made = vec![0_u128; split + 1];
    let mut crossing = vec![0_i128; split + 1];
    for op in 0..split {
        // An op counts even if its outputs have no size.
        made[op + 1] = made[op] + 1 + u128::from(graph.bytes_of(&graph.ops()[op].outputs));
        for &value in &graph.ops()[op].outputs {
            crossing[op + 1] += i128::from(graph.bytes(value));
            crossing[(op + reach(graph, value, split)).max(op) + 1] -= i128::from(graph.bytes(value));
        }
    }
    for op in 0..split {
        crossing[op + 1] += crossing[op];
    }
    let shares = most.saturating_sub(1).max(1) as u128;
    let mut best: BTreeMap<u128, OpId> = BTreeMap::new();
    for place in places {
        let kept = best.entry(made[place] * shares / (made[split] + 1)).or_insert(place);
        if crossing[place] < crossing[*kept] {
            *kept = place;
        }
    }
    best.into_values().collect()
}

/// A run of a stage's forward ops; those that run only once may come first.
#[derive(Default)]
struct Piece {
    ops: Vec<OpId>,
    once: Vec<OpId>,
    repeats: Vec<OpId>,
}

/// `range` split before each once-only op that reads what a repeatable one of the same piece computes.
fn pieces(graph: &Graph, range: Range<OpId>) -> Vec<Piece> {
    let mut pieces = vec![Piece::default()];
    for id in range {
        let op = &graph.ops()[id];
        let start = pieces.last().and_then(|piece| piece.ops.first().copied()).unwrap_or(id);
        let repeated = |&value: &ValueId| {
            graph.producer(value).is_some_and(|maker| maker >= start && graph.ops()[maker].recomputable)
        };
        if !op.recomputable && op.inputs.iter().any(repeated) {
            pieces.push(Piece::default());
        }
        if let Some(piece) = pieces.last_mut() {
            piece.ops.push(id);
            if op.recomputable { piece.repeats.push(id) } else { piece.once.push(id) }
        }
    }
    pieces
}

/// The coarse ops of a piece. All its ops run when the first repeatable part, or the only part, has its first turn.
fn forward_parts(graph: &Graph, piece: Piece) -> Vec<Part> {
    let Piece { ops, once, repeats } = piece;
    let mut parts = Vec::new();
    if !once.is_empty() {
        let first = if repeats.is_empty() { ops.clone() } else { Vec::new() };
        parts.push(Part { first, recomputable: false, ..Part::new(graph, Phase::Forward, vec![once]) });
    }
    let (Some(&start), Some(&last)) = (ops.first(), ops.last()) else { return parts };
    if repeats.is_empty() {
        return parts;
    }
    let range = start..last + 1;
    let leaves = |value: &ValueId| {
        graph.is_result(*value) || graph.consumers(*value).last().is_some_and(|reader| !range.contains(reader))
    };
    let made: BTreeSet<ValueId> = repeats.iter().flat_map(|&op| &graph.ops()[op].outputs).copied().collect();
    let outputs: Vec<ValueId> = made.iter().copied().filter(leaves).collect();
    // An op whose results nothing reads belongs to neither part.
    let covers = |split: &Split| repeats.iter().all(|op| split.dear_ops.contains(op) || split.cheap_ops.contains(op));
    let Some(split) = forward_split(graph, &range, &outputs).filter(covers) else {
        parts.push(Part { first: ops.clone(), during: ops, ..Part::new(graph, Phase::Forward, vec![repeats]) });
        return parts;
    };
    let cheap = made.difference(&split.dear).copied().collect();
    let dear = Part::new(graph, Phase::Forward, vec![split.dear_ops]);
    parts.push(Part { first: ops.clone(), makes: split.dear, ..dear });
    let rest = Part::new(graph, Phase::Forward, vec![split.cheap_ops]);
    parts.push(Part { first: Vec::new(), makes: cheap, during: ops, ..rest });
    parts
}

/// The coarse ops in the order of the program.
fn parts(graph: &Graph, split: OpId, stages: &[Stage]) -> Vec<Part> {
    let pieces = stages.iter().flat_map(|stage| pieces(graph, stage.forward.clone()));
    let mut parts: Vec<Part> = pieces.flat_map(|piece| forward_parts(graph, piece)).collect();
    let reads_forward =
        |op: OpId| graph.ops()[op].inputs.iter().any(|&value| graph.producer(value).is_some_and(|maker| maker < split));
    let rest = (split..graph.ops().len()).rfind(|&op| reads_forward(op)).map_or(split, |op| op + 1);
    for stage in stages.iter().rev() {
        let share = stage.backward.start..stage.backward.end.min(rest);
        if !share.is_empty() {
            parts.push(Part::new(graph, Phase::Backward, backward_ways(graph, &stage.forward, share)));
        }
    }
    let rest: Vec<OpId> = (rest..graph.ops().len()).collect();
    if !rest.is_empty() {
        parts.push(Part::new(graph, Phase::Backward, vec![rest]));
    }
    parts
}

/// A part's number and one of its ways.
type Reader = (usize, usize);

/// Who makes and who reads what.
struct Coarse<'a> {
    graph: &'a Graph,
    /// The part that makes each value.
    maker: Vec<Option<usize>>,
    /// The ways of other parts that read each value, ascending.
    readers: Vec<Vec<Reader>>,
    /// What each way of each part reads.
    reads: Vec<Vec<BTreeSet<ValueId>>>,
    /// The last part before which each part may be of use once more: itself if it runs once.
    until: Vec<usize>,
}

impl<'a> Coarse<'a> {
    fn new(graph: &'a Graph, parts: &[Part]) -> Self {
        let mut maker = vec![None; graph.values().len()];
        let mut readers = vec![Vec::new(); graph.values().len()];
        let mut reads = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            part.makes.iter().for_each(|&value| maker[value] = Some(at));
            let of_part: Vec<BTreeSet<ValueId>> = part.ways.iter().map(|way| external_reads(graph, way)).collect();
            for (way, values) in of_part.iter().enumerate() {
                values.iter().for_each(|&value| readers[value].push((at, way)));
            }
            reads.push(of_part);
        }
        let mut coarse = Self { graph, maker, readers, reads, until: (0..parts.len()).collect() };
        for (at, part) in parts.iter().enumerate().rev() {
            if part.phase == Phase::Forward && part.recomputable {
                coarse.until[at] = part.makes.iter().map(|&value| coarse.last_use(value)).fold(at, usize::max);
            }
        }
        coarse
    }

    /// The last part that may read `value`, given how often the parts that read it may run.
    fn last_use(&self, value: ValueId) -> usize {
        let last = self.readers[value].iter().map(|&(reader, _)| self.until[reader]).max().unwrap_or(0);
        if self.graph.is_result(value) { usize::MAX } else { last }
    }

    /// Whether `value` is a part of a coarse value.
    fn crosses(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_none() || !self.readers[value].is_empty() || self.graph.is_result(value)
    }

    /// The values that cross, those with the same maker and the same readers together.
    fn groups(&self) -> Vec<Vec<ValueId>> {
        let mut groups: BTreeMap<_, Vec<ValueId>> = BTreeMap::new();
        for value in (0..self.maker.len()).filter(|&value| self.crosses(value)) {
            let key = (self.maker[value], &self.readers[value], self.graph.is_result(value));
            groups.entry(key).or_default().push(value);
        }
        groups.into_values().collect()
    }

    /// The coarse graph; `None` if its sizes or costs are too large to add up.
    fn graph(&self, parts: &[Part]) -> Option<Graph> {
        let graph = self.graph;
        let mut builder = GraphBuilder::new(format!("{} by stages", graph.name()));
        builder.constant_bytes(graph.constant_bytes());
        let mut coarse_of = vec![None; graph.values().len()];
        let mut outputs = vec![Vec::new(); parts.len()];
        let mut results = Vec::new();
        for values in self.groups() {
            let coarse = builder.value(graph.bytes_of(&values), graph.values()[values[0]].name.clone());
            values.iter().for_each(|&value| coarse_of[value] = Some(coarse));
            self.maker[values[0]].into_iter().for_each(|part| outputs[part].push(coarse));
            results.extend(graph.is_result(values[0]).then_some(coarse));
        }
        for (at, (part, outputs)) in parts.iter().zip(outputs).enumerate() {
            let way = |way: usize| Alternative {
                name: format!("{} ops", part.ways[way].len()),
                cost: part.ways[way].iter().map(|&op| graph.ops()[op].cost).sum(),
                inputs: self.reads[at][way].iter().filter_map(|&value| coarse_of[value]).collect(),
                scratch_bytes: self.scratch(at, part, way),
            };
            let (Alternative { cost, inputs, scratch_bytes, .. }, first) = (way(0), &graph.ops()[part.ways[0][0]]);
            builder.op(Op {
                scratch_bytes,
                recomputable: part.recomputable,
                phase: Some(part.phase),
                stage: first.stage.clone(),
                alternatives: (1..part.ways.len()).map(way).collect(),
                ..Op::new(first.name.clone(), cost, inputs, outputs)
            });
        }
        builder.results(results);
        builder.build().ok()
    }

    /// The most that the ops of a way hold beyond its inputs and outputs.
    fn scratch(&self, at: usize, part: &Part, way: usize) -> u64 {
        let inputs = &self.reads[at][way];
        let makes = |value: ValueId| part.makes.contains(&value) && self.crosses(value);
        let outputs = part.makes.iter().filter(|&&value| self.crosses(value));
        let counted: BTreeSet<ValueId> = inputs.iter().chain(outputs).copied().collect();
        // A forward op may run again later, so its inputs stay; a backward op is the last that needs some of them.
        let last_here = |value: ValueId| part.phase == Phase::Backward && self.last_use(value) <= at;
        let again = peak(self.graph, &part.ways[way], inputs, |value| {
            if inputs.contains(&value) { !last_here(value) } else { makes(value) }
        });
        // What the piece makes for others stays, whichever of its parts counts it; what comes from before and is not an
        // input of this part is released after its last use.
        let before = external_reads(self.graph, &part.during);
        let stays = |value: ValueId| counted.contains(&value) || (self.crosses(value) && !before.contains(&value));
        let first = peak(self.graph, &part.during, &before.union(inputs).copied().collect(), stays);
        let counted: u64 = counted.iter().map(|&value| self.graph.bytes(value)).sum();
        again.max(first).saturating_sub(counted)
    }
}

/// Most bytes that the ops of `order` hold, from `start` on, if values are released after their last use unless they stay.
fn peak(graph: &Graph, order: &[OpId], start: &BTreeSet<ValueId>, stays: impl Fn(ValueId) -> bool) -> u64 {
    let mut last_use: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (at, &id) in order.iter().enumerate() {
        last_use.extend(graph.ops()[id].inputs.iter().map(|&value| (value, at)));
    }
    let mut live = start.clone();
    let mut held: u64 = live.iter().map(|&value| graph.bytes(value)).sum();
    let mut most = held;
    for (at, &id) in order.iter().enumerate() {
        let op = &graph.ops()[id];
        for &value in &op.outputs {
            if live.insert(value) {
                held += graph.bytes(value);
            }
        }
        most = most.max(held + op.scratch_bytes);
        for &value in op.inputs.iter().chain(&op.outputs) {
            let done = last_use.get(&value).is_none_or(|&last| last <= at);
            if done && !stays(value) && live.remove(&value) {
                held -= graph.bytes(value);
            }
        }
    }
    most
}
