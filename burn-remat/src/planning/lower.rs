//! From a traced step to a graph that a planner can live with, and the exact way back.
//!
//! A step of a few thousand operations is too fine for a planner and mostly trivial. The reduction:
//!
//! - *Small storages* are not worth a decision. Those that together are at most one part in [`SMALL_SHARE`] of the
//!   store-all peak are kept until parameters are updated and counted in the graph's constant bytes.
//! - *Views* make no value: reading a view is reading its storage.
//! - *Single-use chains* merge: where all that an operation makes dies within the next one, and the next needs nothing
//!   else, the two are one op, and what passes between them is scratch. An operation that makes only small storages (a
//!   *rider*) joins a neighbour that needs the same large inputs. An op that would then hold much at once stays apart.
//! - *Many tiny operations* (a recurrent network) are more than a planner can weigh. Beyond [`MOST_OPS`] ops neighbours
//!   merge whatever passes between them, as long as what they touch is a small part of the store-all peak.
//! - *Updates*: from the first parameter update to the end of the step (or to the next forward pass) all is one op that
//!   cannot run again and needs everything alive that rests on what it replaces: that is resident when history is cut, and
//!   stays for as long as the program holds it. An update in the middle of a step (the first of two optimizers) leaves the
//!   rest as it was.
//! - A storage that cannot be computed again (a batch, a dropout mask) and that the program holds beyond its last use
//!   gets an op without cost where the program lets go of it. So does one on which a storage rests that the program
//!   holds although nothing reads it any more: the engine gives nothing up for good that the program could still ask for.
//!
//! A value with [another form](crate::Alternatives) becomes two ops: one that makes the form, which is no larger than the value, and one
//! that makes the value, either from the form (*unpacking*) or, as an alternative, the way the operations do. Both together cost once what
//! the operations do; after that, the value can be had from its form for as long as a plan keeps that. The engine makes the form only when
//! it evicts the value, so it holds less than the graph says until then. Where unpacking takes longer than the operations, there is no
//! such choice.
//!
//! An operation that needs only the signs or the shape of a value has an alternative that reads a *stub* of it instead, made by an op
//! without cost behind the value's own; what the stub and the stand-in take is in the alternative's cost.
//!
//! A stage's [policy](crate::CheckpointPolicy) is in the graph: what must be saved cannot run again, what must be recomputed
//! does so in an op of its own (`forced.rs`), and preferences weigh the costs.
//!
//! The order of operations is kept: an op of the graph is a run of consecutive operations. A graph's memory is an upper
//! bound of the engine's: it counts the output of an in-place operation beside its input unless they merged.
//!
//! Complexity: O(operations + uses), after a sort of the storages.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn_remat_core::{
    CheckpointPolicy, Need, Place, Position, Rule, Trace, TracedForm, TracedOp, TracedStorage, TracedStub,
};
use burn_remat_plan::{Alternative, Graph, GraphBuilder, GraphError, Op, OpId, Phase, Step, ValueId};

use super::forced::{Again, forced};
use super::stages::Staged;

/// One part in this many of the store-all peak goes to storages that no plan decides on.
const SMALL_SHARE: u64 = 100;
/// An op that holds more than one part in this many of the store-all peak may set the floor: operations merge into one
/// only where that holds no more than they do one by one.
const ROOMY: u64 = 4;
/// Ops of a graph that planners handle well within seconds.
const MOST_OPS: usize = 1200;
/// What a merged op may touch, as one part in so many of the store-all peak: tried in this order until the graph is
/// small enough.
const COARSE: [u64; 5] = [256, 128, 64, 32, 16];
/// Operations between two parameter updates that still belong to one update phase.
const UPDATE_GAP: usize = 64;

/// A graph and what it stands for.
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    pub graph: Graph,
    /// Positions that each op of the graph stands for. Empty for an op that only marks where a storage is let go: it
    /// comes right before `start`.
    pub ranges: Vec<Range<Position>>,
    /// The storage of each value.
    pub places: Vec<Place>,
    /// The value of each storage that has one.
    pub values: Vec<Option<ValueId>>,
    /// Storages kept without being values, until the update that cuts them.
    pub small: Vec<bool>,
    /// First operation of the update that cuts each storage: see [`Large::until`].
    pub until: Vec<usize>,
    /// First operation of each update phase.
    pub updates: Vec<Position>,
    /// Bytes held during each operation if nothing is evicted.
    pub store_all: Vec<u64>,
    /// Time of all operations, run once, in ns.
    pub cost_ns: u64,
    /// By how much a preference weighs the cost of each op.
    pub weights: Vec<f64>,
    /// Whether preferences weigh the graph's costs: then its bounds are none of time.
    pub weighted: bool,
    /// Which ops run another one again, because a policy says so.
    pub again: Vec<bool>,
    /// Ops that unpack a value from its form, which the op before them makes.
    pub unpacks: BTreeSet<OpId>,
    /// Values that stand for a form or a stub of another one.
    pub small_forms: BTreeSet<ValueId>,
    /// Alternatives of ops that read a stub: of what, and what of it.
    pub stubs: BTreeMap<(OpId, usize), TracedStub>,
}

impl Lowered {
    /// Time that a step of a plan takes, in ns.
    pub fn cost_of(&self, step: Step) -> f64 {
        let ops = self.graph.ops();
        match step {
            Step::Compute(op) => ops[op].cost / self.weights[op],
            Step::ComputeAlternative(op, k) => ops[op].alternatives[k].cost / self.weights[op],
            Step::Evict(_) => 0.0,
        }
    }

    /// Most bytes held if nothing is evicted.
    pub fn peak(&self) -> u64 {
        self.store_all.iter().max().copied().unwrap_or(0)
    }
}

/// A run of operations that becomes one op.
#[derive(Clone, Default)]
pub(super) struct Unit {
    pub range: Range<usize>,
    /// Large storages read that were made outside.
    pub inputs: BTreeSet<Place>,
    /// Large storages made.
    pub created: BTreeSet<Place>,
    /// Whether it may run again.
    pub recordable: bool,
    pub rule: Option<Rule>,
}

impl Unit {
    fn is_rider(&self) -> bool {
        self.created.is_empty()
    }

    fn has(&self, places: &BTreeSet<Place>) -> bool {
        places.iter().all(|place| self.inputs.contains(place) || self.created.contains(place))
    }

    /// Appends the unit that follows.
    fn absorb(&mut self, next: Unit) {
        self.inputs.extend(next.inputs.difference(&self.created).copied().collect::<Vec<_>>());
        if self.is_rider() {
            (self.recordable, self.rule) = (next.recordable, next.rule);
        } else if !next.is_rider() {
            self.recordable &= next.recordable;
        }
        self.created.extend(next.created);
        self.range.end = next.range.end;
    }
}

/// Lowers a step.
///
/// # Errors
///
/// What keeps the graph from being one: a step without operations.
pub(crate) fn lower(trace: &Trace, name: &str) -> Result<Lowered, GraphError> {
    let store_all = trace.store_all();
    let updates = update_phases(trace);
    let large = Large::of(trace, &store_all, &updates);
    let peak = store_all.iter().max().copied().unwrap_or(0);
    let mut units = merge(trace, &large, &updates, peak / ROOMY);
    for share in COARSE {
        if units.len() > MOST_OPS {
            units = coarsen(trace, units, peak / share);
        }
    }
    build(trace, name, store_all, &updates, &large, units)
}

/// Update phases as ranges of positions, the last one open to the end of the step.
fn update_phases(trace: &Trace) -> Vec<Range<usize>> {
    let mut phases: Vec<Range<usize>> = Vec::new();
    for (at, _) in trace.ops.iter().enumerate().filter(|(_, op)| op.updates) {
        match phases.last_mut() {
            Some(phase) if at - phase.end < UPDATE_GAP => phase.end = at + 1,
            _ => phases.push(at..at + 1),
        }
    }
    // A lone update in the middle of a step is a running statistic, not an optimizer.
    let most = phases.iter().map(Range::len).max().unwrap_or(0);
    let last = phases.len().saturating_sub(1);
    let mut index = 0;
    phases.retain(|phase| {
        let keep = index == last || phase.len() * 4 >= most;
        index += 1;
        keep
    });
    if let Some(phase) = phases.last_mut() {
        phase.end = trace.ops.len();
    }
    phases
}

/// The update phase in which an operation runs.
fn phase_at(updates: &[Range<usize>], position: usize) -> Option<&Range<usize>> {
    updates.iter().find(|phase| phase.contains(&position))
}

/// Storages that an update phase takes out of a plan's reach: those that it reads, those that rest on what it replaces, and
/// those that the program lets go of meanwhile.
fn cut_by(trace: &Trace, phase: &Range<usize>) -> Vec<bool> {
    let mut read = vec![false; trace.storages.len()];
    trace.ops[phase.clone()].iter().flat_map(|op| &op.reads).for_each(|&place| read[place as usize] = true);
    let dies = |storage: &TracedStorage| storage.died.is_some_and(|died| phase.contains(&(died as usize)));
    let replaced = |(storage, read): (&TracedStorage, &bool)| {
        let is_root = storage.made_by.is_none_or(|made| !trace.ops[made as usize].recordable);
        *read && is_root && dies(storage)
    };
    let mut rests: Vec<bool> = trace.storages.iter().zip(&read).map(replaced).collect();
    for (at, op) in trace.ops[..phase.start].iter().enumerate().filter(|(_, op)| op.recordable) {
        if op.reads.iter().any(|&place| rests[place as usize]) {
            let made =
                op.writes.iter().filter(|&&place| trace.storages[place as usize].made_by == Some(at as Position));
            made.for_each(|&place| rests[place as usize] = true);
        }
    }
    (0..rests.len()).map(|place| rests[place] || read[place] || dies(&trace.storages[place])).collect()
}

/// Which storages a plan decides on.
struct Large {
    /// Candidates that are large enough.
    is: Vec<bool>,
    /// Candidates that are not.
    small: Vec<bool>,
    /// First operation of the update phase that ends what each storage may be computed again for, or be given up.
    until: Vec<usize>,
}

impl Large {
    fn of(trace: &Trace, store_all: &[u64], updates: &[Range<usize>]) -> Self {
        let count = trace.storages.len();
        let end = trace.ops.len();
        // The last update ends all, whatever it reads: nothing comes after it.
        let (last, before) = updates.split_last().map_or((None, updates), |(last, before)| (Some(last), before));
        let cuts: Vec<Vec<bool>> = before.iter().map(|phase| cut_by(trace, phase)).collect();
        let until_of = |place: usize, appeared: usize| {
            let mut cutting = before.iter().zip(&cuts).filter(|(phase, cut)| phase.start > appeared && cut[place]);
            let phase = cutting.next().map(|(phase, _)| phase).or(last.filter(|last| last.end > appeared));
            phase.map_or(end, |phase| phase.start)
        };
        let mut last_read = vec![None; count];
        for (at, op) in trace.ops.iter().enumerate() {
            op.reads.iter().for_each(|&place| last_read[place as usize] = Some(at));
        }
        let mut until = vec![end; count];
        let mut small = vec![false; count];
        let mut candidates = Vec::new();
        for (at, storage) in trace.storages.iter().enumerate() {
            let start = until_of(at, storage.appeared as usize);
            until[at] = start;
            let before_update = (storage.appeared as usize) < start;
            // What was there before and stays, or only goes, is a constant.
            let leaves = storage.died.is_some_and(|died| (died as usize) < start);
            let passes = storage.made_by.is_some() || (leaves && last_read[at].is_some());
            match phase_at(updates, storage.appeared as usize) {
                // What an optimizer makes in the middle of a step stays for those who read it later.
                Some(phase) => small[at] = before_update && last_read[at].is_some_and(|last| last >= phase.end),
                None if before_update && passes => candidates.push(at),
                None => {}
            }
        }
        candidates.sort_by_key(|&at| (trace.storages[at].bytes, at));
        let mut left = store_all.iter().max().copied().unwrap_or(0) / SMALL_SHARE;
        let mut large = Self { is: vec![false; count], small, until };
        for at in candidates {
            match left.checked_sub(trace.storages[at].bytes) {
                Some(rest) => {
                    left = rest;
                    large.small[at] = true;
                }
                None => {
                    left = 0;
                    large.is[at] = true;
                }
            }
        }
        large
    }
}

/// Most bytes of large storages that a unit holds while it runs, its inputs all the time.
fn footprint(trace: &Trace, large: &Large, unit: &Unit) -> u64 {
    let bytes = |place: Place| trace.storages[place as usize].bytes;
    let mut held: u64 = unit.inputs.iter().map(|&place| bytes(place)).sum();
    let mut most = held;
    for at in unit.range.clone() {
        let op = &trace.ops[at];
        let fresh = |place: &&Place| {
            large.is[**place as usize] && trace.storages[**place as usize].made_by == Some(at as Position)
        };
        let mut taken: Vec<Place> = Vec::new();
        for &place in op.writes.iter().filter(fresh) {
            match trace.storages[place as usize].reuses.filter(|base| unit.created.contains(base)) {
                Some(base) => taken.push(base),
                None => held += bytes(place),
            }
        }
        most = most.max(held);
        let dies = |place: &&Place| {
            unit.created.contains(place)
                && !taken.contains(place)
                && trace.storages[**place as usize].died == Some(at as Position)
        };
        held = held.saturating_sub(op.reads.iter().filter(dies).map(|&place| bytes(place)).sum());
    }
    most
}

fn merge(trace: &Trace, large: &Large, updates: &[Range<usize>], roomy: u64) -> Vec<Unit> {
    let mut read_last = vec![0_usize; trace.storages.len()];
    for &(position, place) in &trace.reads {
        read_last[place as usize] = read_last[place as usize].max(position as usize + 1);
    }
    // Whether all that `unit` makes is gone, for the program and for any reader, by the end of `next`.
    let passes_on = |unit: &Unit, next: &Unit| {
        unit.created.iter().all(|&place| {
            let died = trace.storages[place as usize].died;
            died.is_some_and(|died| (died as usize) < next.range.end) && read_last[place as usize] == 0
        })
    };
    let mut units: Vec<Unit> = Vec::new();
    let mut at = 0;
    let mut phases = updates.iter();
    let mut phase = phases.next();
    // Units before this index are closed: an update phase came between.
    let mut floor = 0;
    while at < trace.ops.len() {
        if let Some(range) = phase.filter(|range| range.start == at) {
            units.push(Unit { range: range.clone(), ..Unit::default() });
            at = range.end;
            floor = units.len();
            phase = phases.next();
            continue;
        }
        let op = &trace.ops[at];
        let is_large = |place: &&Place| large.is[**place as usize];
        let created: BTreeSet<Place> = op
            .writes
            .iter()
            .filter(is_large)
            .copied()
            .filter(|&place| trace.storages[place as usize].made_by == Some(at as Position))
            .collect();
        let mut next = Unit {
            range: at..at + 1,
            inputs: op.reads.iter().filter(is_large).copied().collect(),
            created,
            recordable: op.recordable && op.rule.is_none_or(|rule| rule.policy != CheckpointPolicy::MustSave),
            rule: op.rule,
        };
        while let Some(top) = units[floor..].last() {
            let joins = if next.is_rider() {
                top.has(&next.inputs)
            } else if top.is_rider() {
                next.has(&top.inputs)
            } else {
                let alike = top.rule == next.rule && top.recordable && next.recordable;
                alike && top.has(&next.inputs) && passes_on(top, &next) && {
                    let mut both = top.clone();
                    both.absorb(next.clone());
                    let together = footprint(trace, large, &both);
                    together <= roomy || together <= footprint(trace, large, top).max(footprint(trace, large, &next))
                }
            };
            if !joins {
                break;
            }
            let Some(mut top) = units.pop() else { break };
            top.absorb(next);
            next = top;
        }
        units.push(next);
        at += 1;
    }
    units
}

/// Merges neighbours of one kind that together touch at most `limit` bytes.
fn coarsen(trace: &Trace, units: Vec<Unit>, limit: u64) -> Vec<Unit> {
    let touched = |unit: &Unit| -> u64 {
        unit.inputs.iter().chain(&unit.created).map(|&place| trace.storages[place as usize].bytes).sum()
    };
    let is_update = |unit: &Unit| unit.inputs.is_empty() && unit.created.is_empty();
    let mut coarse: Vec<Unit> = Vec::new();
    for next in units {
        let joins = |top: &&mut Unit| {
            let alike =
                top.recordable == next.recordable && top.rule == next.rule && !is_update(top) && !is_update(&next);
            alike && touched(top) + touched(&next) <= limit
        };
        match coarse.last_mut().filter(joins) {
            Some(top) => top.absorb(next),
            None => coarse.push(next),
        }
    }
    coarse
}

fn build(
    trace: &Trace,
    name: &str,
    store_all: Vec<u64>,
    updates: &[Range<usize>],
    large: &Large,
    units: Vec<Unit>,
) -> Result<Lowered, GraphError> {
    let unit_of: Vec<usize> = {
        let mut of = vec![0; trace.ops.len()];
        for (index, unit) in units.iter().enumerate() {
            of[unit.range.clone()].fill(index);
        }
        of
    };
    // A large storage is a value unless it lives and dies inside one unit.
    let mut last_use: Vec<Option<usize>> = vec![None; trace.storages.len()];
    for (index, unit) in units.iter().enumerate() {
        for &place in &unit.inputs {
            last_use[place as usize] = Some(index);
        }
    }
    let is_value = |place: usize| {
        let storage = &trace.storages[place];
        large.is[place]
            && match (storage.made_by, storage.died) {
                (Some(made), Some(died)) => {
                    last_use[place].is_some() || unit_of[made as usize] != unit_of[died as usize]
                }
                _ => true,
            }
    };
    let mut builder = GraphBuilder::new(name);
    let mut places = Vec::new();
    let mut values: Vec<Option<ValueId>> = vec![None; trace.storages.len()];
    for (place, storage) in trace.storages.iter().enumerate() {
        if is_value(place) {
            let label = match storage.made_by {
                Some(position) => format!("{}.{position}", trace.name(position)),
                None => format!("input.{place}"),
            };
            values[place] = Some(builder.value(storage.bytes, label));
            places.push(place as Place);
        }
    }
    let beside = base(trace, large, &values);
    let constant = (0..trace.ops.len())
        .filter(|&at| phase_at(updates, at).is_none())
        .map(|at| beside[at])
        .max()
        .unwrap_or(trace.held_at_start)
        .max(trace.held_at_start - outside(trace, &values));
    builder.constant_bytes(constant);

    let turn = turning_point(trace, &store_all);
    let uses = Uses { trace, updates, large, values: &values, units: &units, unit_of: &unit_of, last_use: &last_use };
    let touches = uses.touches();
    let costs: Vec<u64> = units.iter().map(|unit| replay_cost(trace, large, &values, unit)).collect();
    let planned: u64 = costs.iter().sum();
    let total: u64 = trace.ops.iter().map(|op| op.cost_ns).sum();
    let mut rest = total.saturating_sub(planned);
    let first_backward = units.iter().position(|unit| unit.range.start >= turn).unwrap_or(units.len());
    let held: BTreeSet<ValueId> = touches.iter().flatten().copied().collect();
    let again = forced(trace, &units, first_backward, |place| {
        let lives_on =
            trace.storages[place as usize].died.is_none_or(|died| died as usize >= large.until[place as usize]);
        !lives_on && values[place as usize].is_some_and(|value| !held.contains(&value))
    });
    // The second value of a storage, and the first unit that reads it instead of the first.
    let mut second: BTreeMap<Place, (usize, ValueId)> = BTreeMap::new();
    for Again { before, places: made, .. } in &again {
        for &place in made {
            let made_by = trace.storages[place as usize].made_by.map_or("", |position| trace.name(position));
            let value = builder.value(trace.storages[place as usize].bytes, format!("{made_by}.{place} again"));
            second.insert(place, (*before, value));
            places.push(place);
        }
    }
    // What an update in the middle of the step cuts and the program still holds after it cannot be computed again from
    // then on: the update makes it anew.
    let mut survivors: Vec<Vec<ValueId>> = vec![Vec::new(); units.len()];
    let phases: Vec<Option<&Range<usize>>> =
        units.iter().map(|unit| updates.iter().find(|phase| phase.start == unit.range.start)).collect();
    for (index, phase) in phases.iter().enumerate() {
        let Some(phase) = phase else { continue };
        for (place, storage) in trace.storages.iter().enumerate() {
            let cut = large.until[place] == phase.start;
            let survives = storage.died.is_none_or(|died| died as usize >= phase.end) && phase.end < trace.ops.len();
            if cut && survives && values[place].is_some() && !second.contains_key(&(place as Place)) {
                let value = builder.value(storage.bytes, format!("cut.{place}"));
                second.insert(place as Place, (index + 1, value));
                places.push(place as Place);
                survivors[index].push(value);
            }
        }
    }
    let read_at = |index: usize, place: Place| match second.get(&place) {
        Some(&(from, value)) if index >= from => Some(value),
        _ => values[place as usize],
    };
    let mut runs = again.iter().peekable();
    let mut again_ops = Vec::new();
    let mut unpacks = BTreeSet::new();
    let mut small_forms = BTreeSet::new();
    let mut stubs = BTreeMap::new();
    let mut stub_values: BTreeMap<(Place, Need), ValueId> = BTreeMap::new();
    let stubbed = stub_uses(trace, &units, |place| values[place as usize].is_some() && !second.contains_key(&place));
    let mut weights = Vec::new();
    let mut ranges = Vec::new();
    let to_range = |range: &Range<usize>| range.start as Position..range.end as Position;
    for (index, unit) in units.iter().enumerate() {
        while let Some(Again { unit: first, places: made, .. }) = runs.next_if(|again| again.before == index) {
            let unit = &units[*first];
            let inputs = unit.inputs.iter().filter_map(|&place| read_at(index, place)).collect();
            let outputs = made.iter().filter_map(|&place| read_at(index, place)).collect();
            let beside =
                unit.created.iter().filter(|place| !made.contains(place) && values[**place as usize].is_some());
            let mut op = Op::new(unit_name(trace, large, unit) + " again", costs[*first] as f64, inputs, outputs);
            op.scratch_bytes = scratch(trace, large, &values, unit)
                + beside.map(|&place| trace.storages[place as usize].bytes).sum::<u64>();
            op.stage = trace.stage_name(trace.visit_of(to_range(&unit.range)));
            op.phase = Some(Phase::Backward);
            op.inputs.sort_unstable();
            weights.push(1.0);
            again_ops.push(builder.op(op));
            let start = units[index].range.start as Position;
            ranges.push(start..start);
        }
        let phase = phases[index];
        let weight = unit.rule.filter(|_| phase.is_none()).map_or(1.0, |rule| rule.policy.weight());
        let mut op = if let Some(phase) = phase {
            let alive = |place: &usize| {
                let storage = &trace.storages[*place];
                (storage.appeared as usize) < phase.start
                    && storage.died.is_none_or(|died| died as usize >= phase.start)
            };
            let alive = (0..values.len()).filter(alive).filter(|&place| values[place].is_some());
            let (cut, left): (Vec<usize>, Vec<usize>) = alive.partition(|&place| large.until[place] <= phase.start);
            let inputs: Vec<ValueId> = cut.iter().filter_map(|&place| read_at(index, place as Place)).collect();
            let outputs = std::mem::take(&mut survivors[index]);
            let bytes_of = |value: &ValueId| trace.storages[places[*value] as usize].bytes;
            let beside: u64 = left.iter().map(|&place| trace.storages[place].bytes).sum();
            let held = beside + inputs.iter().chain(&outputs).map(bytes_of).sum::<u64>();
            let most = store_all[phase.clone()].iter().max().copied().unwrap_or(0);
            let mut op = Op::new("update", std::mem::take(&mut rest) as f64, inputs, outputs);
            op.scratch_bytes = most.saturating_sub(held + constant);
            op.recomputable = false;
            op.phase = Some(Phase::Update);
            op
        } else {
            let inputs = unit.inputs.iter().filter_map(|&place| read_at(index, place)).collect();
            let outputs = unit.created.iter().filter_map(|&place| values[place as usize]).collect();
            let mut op = Op::new(unit_name(trace, large, unit), costs[index] as f64 * weight, inputs, outputs);
            op.scratch_bytes = scratch(trace, large, &values, unit);
            op.stage = trace.stage_name(trace.visit_of(to_range(&unit.range)));
            op.recomputable = unit.recordable && !unit.is_rider();
            op.phase = Some(if unit.range.start < turn { Phase::Forward } else { Phase::Backward });
            op
        };
        op.inputs.sort_unstable();
        let end = unit.range.end as Position;
        let mut with_stubs = Vec::new();
        for stub in stubbed.get(&index).into_iter().flatten() {
            if let (Some(&small), Some(value)) =
                (stub_values.get(&(stub.place, stub.need)), values[stub.place as usize])
            {
                with_stubs.push((op.alternatives.len(), *stub));
                op.alternatives.push(reading_stub(&op, value, small, stub, weight));
            }
        }
        ranges.push(to_range(&unit.range));
        weights.push(weight);
        let name = op.name.clone();
        let (phase, stage) = (op.phase, op.stage.clone());
        let form = form_of(trace, unit, &op, |value| places[value])
            .filter(|(place, form)| !second.contains_key(place) && form.cost_ns as f64 * weight <= op.cost);
        let made = match form {
            Some((place, form)) => {
                let small = builder.value(form.bytes, format!("{name} packed"));
                places.push(place);
                small_forms.insert(small);
                let (pack, unpack) = split(op, small, &form, trace.storages[place as usize].bytes, weight);
                let pack = builder.op(pack);
                let unpack = builder.op(unpack);
                unpacks.insert(unpack);
                // The first alternative of what unpacks is the op itself.
                stubs.extend(with_stubs.iter().map(|&(k, stub)| ((unpack, k + 1), stub)));
                weights.push(weight);
                ranges.push(end..end);
                pack
            }
            None => builder.op(op),
        };
        stubs.extend(with_stubs.into_iter().map(|(k, stub)| ((made, k), stub)));
        // Stubs of what this unit makes.
        for stub in stubbed.values().flatten().filter(|stub| unit.created.contains(&stub.place)) {
            let (key, Some(value)) = ((stub.place, stub.need), values[stub.place as usize]) else { continue };
            let Entry::Vacant(entry) = stub_values.entry(key) else { continue };
            let name = format!("{name} {}", stub.need.name());
            let small = *entry.insert(builder.value(stub.bytes, name.clone()));
            places.push(stub.place);
            small_forms.insert(small);
            let mut leave = Op::new(name, 0.0, vec![value], vec![small]);
            (leave.recomputable, leave.phase, leave.stage) = (false, phase, stage.clone());
            builder.op(leave);
            weights.push(1.0);
            ranges.push(end..end);
        }
        if !touches[index].is_empty() {
            let held = touches[index].iter().filter_map(|&value| read_at(index, places[value]));
            builder.op(hold(held.collect()));
            weights.push(1.0);
            ranges.push(end..end);
        }
    }
    if updates.is_empty() {
        // What outlives the step is there at its end.
        let survives = |&&place: &&Place| trace.storages[place as usize].died.is_none();
        let inputs = places.iter().filter(survives).filter_map(|&place| values[place as usize]).collect();
        let mut end = hold(inputs);
        end.cost = rest as f64;
        weights.push(1.0);
        builder.op(end);
        let last = trace.ops.len() as Position;
        ranges.push(last..last);
    }
    builder.results(Vec::new());
    let mut again = vec![false; ranges.len()];
    again_ops.into_iter().for_each(|op| again[op] = true);
    Ok(Lowered {
        graph: builder.build()?,
        weighted: weights.iter().any(|&weight| weight != 1.0),
        weights,
        again,
        unpacks,
        small_forms,
        stubs,
        ranges,
        places,
        values,
        small: large.small.clone(),
        until: large.until.clone(),
        updates: updates.iter().map(|phase| phase.start as Position).collect(),
        store_all,
        cost_ns: total,
    })
}

/// The form of the only value that an op makes, if it has one and no policy stands against it.
fn form_of(trace: &Trace, unit: &Unit, op: &Op, place_of: impl Fn(ValueId) -> Place) -> Option<(Place, TracedForm)> {
    let &[value] = op.outputs.as_slice() else { return None };
    let forced = unit.rule.is_some_and(|rule| rule.policy.is_forced());
    let place = place_of(value);
    trace.storages[place as usize].form.filter(|_| !forced).map(|form| (place, form))
}

/// Takes an op apart: into one that makes the form of its result, and one that makes the result from it, or as `op` does.
/// `weight` is that of a preference.
fn split(op: Op, small: ValueId, form: &TracedForm, bytes: u64, weight: f64) -> (Op, Op) {
    let unpacking = form.cost_ns as f64 * weight;
    let mut unpack =
        Op::new(format!("{} from {}", op.name, form.alternative.name()), unpacking, vec![small], Vec::new());
    unpack.outputs.clone_from(&op.outputs);
    (unpack.stage, unpack.phase) = (op.stage.clone(), op.phase);
    if op.recomputable {
        let (name, inputs) = (op.name.clone(), op.inputs.clone());
        unpack.alternatives.push(Alternative { name, cost: op.cost, inputs, scratch_bytes: op.scratch_bytes });
        unpack.alternatives.extend(op.alternatives.iter().cloned());
    }
    let mut pack = op;
    pack.outputs = vec![small];
    pack.cost -= unpacking;
    pack.scratch_bytes += bytes;
    pack.recomputable = false;
    for other in &mut pack.alternatives {
        other.cost -= unpacking;
        other.scratch_bytes += bytes;
    }
    (pack, unpack)
}

/// By unit, the storages of which it needs less than their numbers, whatever operation of it reads them.
fn stub_uses(trace: &Trace, units: &[Unit], is_value: impl Fn(Place) -> bool) -> BTreeMap<usize, Vec<TracedStub>> {
    let mut uses: BTreeMap<usize, Vec<TracedStub>> = BTreeMap::new();
    for (index, unit) in units.iter().enumerate() {
        if unit.rule.is_some_and(|rule| rule.policy.is_forced()) {
            continue;
        }
        let ops = &trace.ops[unit.range.clone()];
        for stub in ops.iter().filter_map(|op| op.stub).filter(|stub| unit.inputs.contains(&stub.place)) {
            let needs_more = |op: &TracedOp| {
                op.reads.contains(&stub.place)
                    && op.stub.is_none_or(|other| other.place != stub.place || other.need != stub.need)
            };
            if is_value(stub.place) && !ops.iter().any(needs_more) {
                let known = uses.entry(index).or_default();
                if known.iter().all(|other| other.place != stub.place) {
                    known.push(stub);
                }
            }
        }
    }
    uses
}

/// An op that reads a stub of one of its inputs.
fn reading_stub(op: &Op, value: ValueId, small: ValueId, stub: &TracedStub, weight: f64) -> Alternative {
    let mut inputs: Vec<ValueId> = op.inputs.iter().copied().filter(|&input| input != value).chain([small]).collect();
    inputs.sort_unstable();
    Alternative {
        name: format!("{} from {}", op.name, stub.need.name()),
        cost: op.cost + stub.cost_ns as f64 * weight,
        inputs,
        scratch_bytes: op.scratch_bytes + stub.stand_in,
    }
}

/// An op that does nothing but need `inputs`.
fn hold(inputs: Vec<ValueId>) -> Op {
    let mut op = Op::new("held", 0.0, inputs, Vec::new());
    op.recomputable = false;
    op
}

/// Bytes of values that were there before the step.
fn outside(trace: &Trace, values: &[Option<ValueId>]) -> u64 {
    let inputs = trace.storages.iter().zip(values).filter(|(s, v)| v.is_some() && s.made_by.is_none() && !s.uploaded);
    inputs.map(|(storage, _)| storage.bytes).sum()
}

/// Bytes held during each operation beside the values.
fn base(trace: &Trace, large: &Large, values: &[Option<ValueId>]) -> Vec<u64> {
    let end = trace.ops.len();
    let mut births = vec![0_u64; end + 1];
    let mut deaths = vec![0_u64; end + 1];
    let mut before = trace.held_at_start - outside(trace, values);
    let mut first_use = vec![None; trace.storages.len()];
    for (at, op) in trace.ops.iter().enumerate() {
        for &place in &op.reads {
            first_use[place as usize].get_or_insert(at);
        }
    }
    let mut taken = vec![false; trace.storages.len()];
    let in_place = |place: usize| {
        // In place beyond planning's reach: neither side is held back.
        let managed = |at: usize| large.is[at] || large.small[at];
        trace.storages[place].reuses.filter(|&base| !managed(place) && !managed(base as usize))
    };
    for place in 0..trace.storages.len() {
        if let Some(base) = in_place(place) {
            taken[base as usize] = true;
        }
    }
    for (place, storage) in trace.storages.iter().enumerate() {
        // A large storage that is no value lives inside a unit.
        if values[place].is_some() || large.is[place] {
            continue;
        }
        let appears = storage.made_by.is_some() || storage.uploaded;
        if appears && in_place(place).is_none() {
            births[(storage.appeared as usize).min(end)] += storage.bytes;
        }
        let died = storage.died.map(|died| died as usize);
        let held_on = large.small[place] && (storage.made_by.is_some() || first_use[place].is_some());
        let gone = match died {
            Some(died) if held_on && died < large.until[place] => Some(large.until[place]),
            other => other,
        };
        if let (Some(gone), false) = (gone, taken[place]) {
            deaths[gone.min(end)] += storage.bytes;
        }
    }
    let mut during = Vec::with_capacity(end);
    for at in 0..end {
        before += births[at];
        during.push(before);
        before = before.saturating_sub(deaths[at]);
    }
    during
}

/// Time to compute a unit's values again, in ns: that of the operations on which they depend. Small storages are still
/// there then, so what only they needed does not run.
fn replay_cost(trace: &Trace, large: &Large, values: &[Option<ValueId>], unit: &Unit) -> u64 {
    let mut needed: BTreeSet<Place> =
        unit.created.iter().copied().filter(|&place| values[place as usize].is_some()).collect();
    let mut cost = 0;
    for at in unit.range.clone().rev() {
        let op = &trace.ops[at];
        let makes = |place: &Place| trace.storages[*place as usize].made_by == Some(at as Position);
        let is_view = !op.writes.iter().any(makes);
        let touches = |place: &Place| needed.contains(place) || unit.inputs.contains(place);
        if op.writes.iter().any(|place| if is_view { touches(place) } else { needed.contains(place) && makes(place) }) {
            cost += op.cost_ns;
            needed.extend(op.reads.iter().copied().filter(|&place| large.is[place as usize]));
        }
    }
    cost
}

/// Most bytes that a unit holds while it runs beside its inputs and outputs.
fn scratch(trace: &Trace, large: &Large, values: &[Option<ValueId>], unit: &Unit) -> u64 {
    let inside = |place: Place| large.is[place as usize] && values[place as usize].is_none();
    let mut held = 0_u64;
    let mut most = 0;
    for at in unit.range.clone() {
        let op = &trace.ops[at];
        for &place in &op.writes {
            let storage = &trace.storages[place as usize];
            let fresh = large.is[place as usize] && storage.made_by == Some(at as Position);
            // In place of something that is not of this unit: counted in full, the other may have to stay.
            if fresh && !storage.reuses.is_some_and(inside) {
                held += storage.bytes;
            }
        }
        most = most.max(held + op.scratch);
        let mut gone: Vec<Place> = op.reads.iter().chain(&op.writes).copied().filter(|&place| inside(place)).collect();
        gone.sort_unstable();
        gone.dedup();
        for place in gone {
            let taken = op.writes.iter().any(|&out| trace.storages[out as usize].reuses == Some(place));
            if trace.storages[place as usize].died == Some(at as Position) && !taken {
                held = held.saturating_sub(trace.storages[place as usize].bytes);
            }
        }
    }
    let outputs: u64 = unit
        .created
        .iter()
        .filter(|&&place| values[place as usize].is_some())
        .map(|&place| trace.storages[place as usize].bytes)
        .sum();
    most.saturating_sub(outputs)
}

/// Which units read what, and where it was made.
struct Uses<'a> {
    trace: &'a Trace,
    updates: &'a [Range<usize>],
    large: &'a Large,
    values: &'a [Option<ValueId>],
    units: &'a [Unit],
    /// The unit of each operation.
    unit_of: &'a [usize],
    /// The last unit that reads each storage.
    last_use: &'a [Option<usize>],
}

impl Uses<'_> {
    /// Whether no unit can make a storage again.
    fn is_root(&self, storage: &TracedStorage) -> bool {
        storage.made_by.is_none_or(|made| !self.units[self.unit_of[made as usize]].recordable)
    }

    /// Values that cannot be computed again and that the program holds beyond the last unit that reads them, and values
    /// that the host reads, by the unit after which it does so.
    fn touches(&self) -> Vec<BTreeSet<ValueId>> {
        let &Self { trace, large, values, units, unit_of, last_use, .. } = self;
        let mut touches = vec![BTreeSet::new(); units.len()];
        for (place, storage) in trace.storages.iter().enumerate() {
            let (Some(value), Some(died)) = (values[place], storage.died) else { continue };
            let unit = unit_of[died as usize];
            let outlasts = last_use[place].is_none_or(|last| last < unit);
            // What an update has cut is a root from then on.
            let is_root = self.is_root(storage) || (died as usize) >= large.until[place];
            if is_root && outlasts && phase_at(self.updates, died as usize).is_none() {
                touches[unit].insert(value);
            }
        }
        for (unit, place) in self.unread() {
            touches[unit].extend(values[place as usize]);
        }
        for &(position, place) in &trace.reads {
            let unit = unit_of[position as usize];
            if units[unit].range.end < trace.ops.len() {
                touches[unit].extend(values[place as usize]);
            }
        }
        touches
    }

    /// What must be there while the program holds a storage that nothing reads any more, as a unit and a storage to be held
    /// until it.
    ///
    /// When the last unit that reads a root has run, the engine can let the root go only if what rests on it and is alive is
    /// there and becomes a root in its place, for what rests on it in turn. Where a plan may have given that up, because nothing
    /// reads it any more, the root stays until the program lets go of it, and what rests on both is looked at then; what is still read
    /// stays itself.
    fn unread(&self) -> BTreeSet<(usize, Place)> {
        let &Self { trace, large, values, unit_of, last_use, .. } = self;
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); trace.storages.len()];
        for (at, op) in trace.ops.iter().enumerate().filter(|(_, op)| op.recordable) {
            op.reads.iter().for_each(|&place| readers[place as usize].push(at));
        }
        let until = |place: usize| large.until[place];
        let ends = |place: usize| trace.storages[place].died.map(|died| (died as usize, unit_of[died as usize]));
        let mut held = BTreeSet::new();
        let mut seen = vec![0; trace.storages.len()];
        let mut walk = 0;
        // What rests on a root, by way of what has gone with it, and lives when the unit `gone` has run.
        let mut survivors = |root: usize, gone: usize| {
            walk += 1;
            let (mut stack, mut found) = (vec![root], Vec::new());
            while let Some(place) = stack.pop() {
                for &at in &readers[place] {
                    for made in trace.ops[at].writes.iter().map(|&made| made as usize) {
                        let made_at = trace.storages[made].made_by == Some(at as Position);
                        if !made_at || std::mem::replace(&mut seen[made], walk) == walk {
                            continue;
                        }
                        match ends(made) {
                            Some((_, unit)) if unit <= gone => stack.push(made),
                            Some((died, unit)) if died < until(made).min(until(root)) && values[made].is_some() => {
                                found.push((made, unit));
                            }
                            _ => {}
                        }
                    }
                }
            }
            found
        };
        let mut is_root: Vec<bool> = trace.storages.iter().map(|storage| self.is_root(storage)).collect();
        let mut roots: Vec<usize> = (0..is_root.len()).filter(|&place| is_root[place]).collect();
        while let Some(root) = roots.pop() {
            let (Some(_), Some((_, end))) = (values[root], ends(root)) else { continue };
            let mut gone = last_use[root].map_or(end, |last| last.max(end));
            let found = loop {
                let found = survivors(root, gone);
                let unread = found.iter().filter(|(made, _)| last_use[*made].is_none_or(|last| last <= gone));
                let units: Vec<usize> = unread.map(|(_, unit)| *unit).collect();
                let Some(&last) = units.iter().max() else { break found };
                held.extend(units.into_iter().map(|unit| (unit, root as Place)));
                gone = last;
            };
            for (made, unit) in found {
                held.extend(last_use[made].filter(|&last| last < unit).map(|_| (unit, made as Place)));
                if !std::mem::replace(&mut is_root[made], true) {
                    roots.push(made);
                }
            }
        }
        held
    }
}

/// Where forward turns into backward: the scalar made of nothing (the gradient of the loss) nearest to the peak.
pub(super) fn turning_point(trace: &Trace, store_all: &[u64]) -> usize {
    let peak = store_all.iter().enumerate().rev().max_by_key(|(_, bytes)| **bytes).map_or(0, |(at, _)| at);
    let seed = |at: &usize| {
        let op = &trace.ops[*at];
        op.reads.is_empty() && op.writes.iter().all(|&place| trace.storages[place as usize].bytes <= 8)
    };
    (0..trace.ops.len()).filter(seed).min_by_key(|&at| at.abs_diff(peak)).unwrap_or(peak)
}

/// Name of the costliest operation of a unit that makes something large.
fn unit_name(trace: &Trace, large: &Large, unit: &Unit) -> String {
    let makes = |at: usize| trace.ops[at].writes.iter().any(|&place| large.is[place as usize]);
    let at = unit.range.clone().max_by_key(|&at| (makes(at), trace.ops[at].cost_ns)).unwrap_or(unit.range.start);
    let name = trace.name(at as Position);
    match unit.range.len() {
        1 => format!("{name}.{at}"),
        count => format!("{name}.{at} and {} more", count - 1),
    }
}
