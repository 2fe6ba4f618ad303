//! The graph of a step that is divided into units.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn_remat_core::{Need, Place, Position, TracedStub};
use burn_remat_plan::{GraphBuilder, GraphError, Op, OpId, Phase, ValueId};

use super::divided::Divided;
use super::forced::{Again, forced};
use super::forms::{form_of, reading_stub, split, stub_uses};
use super::lowered::{Forms, Lowered};
use super::phases::turning_point;
use super::units::Unit;
use crate::planning::stages::Staged;

/// Builds the graph.
///
/// # Errors
///
/// Why the graph is not valid.
pub(super) fn build(step: &Divided<'_>, name: &str, store_all: Vec<u64>) -> Result<Lowered, GraphError> {
    let mut build = Build::new(step, name, &store_all);
    let again = build.again();
    build.survivors();
    build.read_in_part =
        stub_uses(step.trace, step.units, |place| step.value(place).is_some() && !build.second.contains_key(&place));
    let mut runs = again.iter().peekable();
    for (index, unit) in step.units.iter().enumerate() {
        while let Some(again) = runs.next_if(|again| again.before == index) {
            build.run_again(again);
        }
        build.unit(index, unit);
    }
    build.end();
    let Draft { graph, places, ranges, weights, again, forms } = build.draft;
    Ok(Lowered {
        graph: graph.build()?,
        ranges,
        places,
        values: step.values.clone(),
        small: step.large.small.clone(),
        until: step.large.until.clone(),
        store_all,
        cost_ns: step.trace.ops.iter().map(|op| op.cost_ns).sum(),
        weights,
        again,
        forms,
    })
}

/// The parts of the graph that exist so far, and what they stand for.
struct Draft {
    graph: GraphBuilder,
    places: Vec<Place>,
    ranges: Vec<Range<Position>>,
    weights: Vec<f64>,
    again: Vec<bool>,
    forms: Forms,
}

impl Draft {
    fn value(&mut self, place: Place, bytes: u64, name: String) -> ValueId {
        self.places.push(place);
        self.graph.value(bytes, name)
    }

    /// A value that stands for a form or a stub of another one.
    fn small_form(&mut self, place: Place, bytes: u64, name: String) -> ValueId {
        let value = self.value(place, bytes, name);
        self.forms.small.insert(value);
        value
    }

    /// Adds an op that stands for these operations. A preference has multiplied its cost by `weight`.
    fn op(&mut self, op: Op, range: Range<Position>, weight: f64) -> OpId {
        self.ranges.push(range);
        self.weights.push(weight);
        self.again.push(false);
        self.graph.op(op)
    }
}

/// A graph in the making.
struct Build<'a> {
    step: &'a Divided<'a>,
    store_all: &'a [u64],
    /// The first operation of the backward pass.
    turn: usize,
    constant: u64,
    /// The time of each unit, and what is left of the step's time.
    costs: Vec<u64>,
    rest: u64,
    /// Values that must be resident after each unit.
    touches: Vec<BTreeSet<ValueId>>,
    /// The second value of a storage, and the first unit that reads it.
    second: BTreeMap<Place, (usize, ValueId)>,
    /// What each update makes anew.
    survivors: Vec<Vec<ValueId>>,
    /// For each unit, the storages of which it needs only the signs or the shape.
    read_in_part: BTreeMap<usize, Vec<TracedStub>>,
    stub_values: BTreeMap<(Place, Need), ValueId>,
    draft: Draft,
}

impl<'a> Build<'a> {
    /// A graph with the values of all storages that have one.
    fn new(step: &'a Divided<'a>, name: &str, store_all: &'a [u64]) -> Self {
        let trace = step.trace;
        let constant = step.constant();
        let mut draft = Draft {
            graph: GraphBuilder::new(name),
            places: Vec::new(),
            ranges: Vec::new(),
            weights: Vec::new(),
            again: Vec::new(),
            forms: Forms::default(),
        };
        draft.graph.constant_bytes(constant);
        for (place, storage) in trace.storages.iter().enumerate().filter(|(place, _)| step.values[*place].is_some()) {
            let name = match storage.made_by {
                Some(position) => format!("{}.{position}", trace.name(position)),
                None => format!("input.{place}"),
            };
            draft.value(place as Place, storage.bytes, name);
        }
        let costs: Vec<u64> = step.units.iter().map(|unit| step.replay_cost(unit)).collect();
        let total: u64 = trace.ops.iter().map(|op| op.cost_ns).sum();
        Self {
            step,
            store_all,
            turn: turning_point(trace, store_all),
            constant,
            rest: total.saturating_sub(costs.iter().sum()),
            costs,
            touches: step.touches(),
            second: BTreeMap::new(),
            survivors: vec![Vec::new(); step.units.len()],
            read_in_part: BTreeMap::new(),
            stub_values: BTreeMap::new(),
            draft,
        }
    }

    /// The value of a storage that a unit reads.
    fn read_at(&self, index: usize, place: Place) -> Option<ValueId> {
        match self.second.get(&place) {
            Some(&(from, value)) if index >= from => Some(value),
            _ => self.step.value(place),
        }
    }

    /// The units that run again because of a policy, each with values of its own.
    fn again(&mut self) -> Vec<Again> {
        let Divided { trace, large, units, .. } = *self.step;
        let first_backward = units.iter().position(|unit| unit.range.start >= self.turn).unwrap_or(units.len());
        let held: BTreeSet<ValueId> = self.touches.iter().flatten().copied().collect();
        let again = forced(trace, units, first_backward, |place| {
            let died = trace.storages[place as usize].died;
            let lives_on = died.is_none_or(|died| died as usize >= large.until[place as usize]);
            !lives_on && self.step.value(place).is_some_and(|value| !held.contains(&value))
        });
        for Again { before, places, .. } in &again {
            for &place in places {
                let storage = &trace.storages[place as usize];
                let made_by = storage.made_by.map_or("", |position| trace.name(position));
                let value = self.draft.value(place, storage.bytes, format!("{made_by}.{place} again"));
                self.second.insert(place, (*before, value));
            }
        }
        again
    }

    /// What an update in the middle of the step cuts, and the program still holds after it, cannot be computed again from then on. In the graph, the
    /// update makes it anew.
    fn survivors(&mut self) {
        let Divided { trace, large, units, .. } = *self.step;
        for (index, unit) in units.iter().enumerate() {
            let Some(phase) = self.step.phase_of(unit) else { continue };
            for (at, storage) in trace.storages.iter().enumerate() {
                let place = at as Place;
                let survives =
                    storage.died.is_none_or(|died| died as usize >= phase.end) && phase.end < trace.ops.len();
                let cut = large.until[at] == phase.start && self.step.value(place).is_some();
                if cut && survives && !self.second.contains_key(&place) {
                    let value = self.draft.value(place, storage.bytes, format!("cut.{place}"));
                    self.second.insert(place, (index + 1, value));
                    self.survivors[index].push(value);
                }
            }
        }
    }

    /// Adds an op that runs a unit again.
    fn run_again(&mut self, again: &Again) {
        let (step, index) = (self.step, again.before);
        let unit = &step.units[again.unit];
        let inputs = unit.inputs.iter().filter_map(|&place| self.read_at(index, place)).collect();
        let outputs = again.places.iter().filter_map(|&place| self.read_at(index, place)).collect();
        let beside = unit.created.iter().filter(|place| !again.places.contains(place) && step.value(**place).is_some());
        let mut op = Op::new(step.name(unit) + " again", self.costs[again.unit] as f64, inputs, outputs);
        op.scratch_bytes = step.scratch(unit) + beside.map(|&place| step.bytes(place)).sum::<u64>();
        op.stage = self.stage(unit);
        op.phase = Some(Phase::Backward);
        op.inputs.sort_unstable();
        let start = step.units[index].range.start as Position;
        let op = self.draft.op(op, start..start, 1.0);
        self.draft.again[op] = true;
    }

    fn stage(&self, unit: &Unit) -> Option<String> {
        self.step.trace.stage_name(self.step.trace.visit_of(positions(unit)))
    }

    /// Adds the op of a unit, the ops for its forms and stubs, and one for what must be resident after it.
    fn unit(&mut self, index: usize, unit: &Unit) {
        let update = self.step.phase_of(unit);
        let weight = unit.rule.filter(|_| update.is_none()).map_or(1.0, |rule| rule.policy.weight());
        let mut op = match update {
            Some(phase) => self.update(index, phase),
            None => self.computation(index, unit, weight),
        };
        op.inputs.sort_unstable();
        let like = Op { inputs: Vec::new(), outputs: Vec::new(), alternatives: Vec::new(), ..op.clone() };
        self.compute(index, unit, op, weight);
        self.leave_stubs(unit, &like);
        if !self.touches[index].is_empty() {
            let touched = self.touches[index].iter();
            let held = touched.filter_map(|&value| self.read_at(index, self.draft.places[value])).collect();
            self.draft.op(hold(held), behind(unit), 1.0);
        }
    }

    fn computation(&self, index: usize, unit: &Unit, weight: f64) -> Op {
        let inputs = unit.inputs.iter().filter_map(|&place| self.read_at(index, place)).collect();
        let outputs = unit.created.iter().filter_map(|&place| self.step.value(place)).collect();
        let mut op = Op::new(self.step.name(unit), self.costs[index] as f64 * weight, inputs, outputs);
        op.scratch_bytes = self.step.scratch(unit);
        op.stage = self.stage(unit);
        op.recomputable = unit.recordable && !unit.is_rider();
        op.phase = Some(if unit.range.start < self.turn { Phase::Forward } else { Phase::Backward });
        op
    }

    fn update(&mut self, index: usize, phase: &Range<usize>) -> Op {
        let Divided { trace, large, .. } = *self.step;
        let alive = trace.storages.iter().enumerate().filter(|(place, storage)| {
            let died = storage.died.is_none_or(|died| died as usize >= phase.start);
            (storage.appeared as usize) < phase.start && died && self.step.values[*place].is_some()
        });
        let (cut, left): (Vec<_>, Vec<_>) = alive.partition(|(place, _)| large.until[*place] <= phase.start);
        let inputs: Vec<ValueId> = cut.iter().filter_map(|(place, _)| self.read_at(index, *place as Place)).collect();
        let outputs = std::mem::take(&mut self.survivors[index]);
        let bytes_of = |value: &ValueId| self.step.bytes(self.draft.places[*value]);
        let beside: u64 = left.iter().map(|(_, storage)| storage.bytes).sum();
        let held = beside + inputs.iter().chain(&outputs).map(bytes_of).sum::<u64>();
        let most = self.store_all[phase.clone()].iter().max().copied().unwrap_or(0);
        let mut op = Op::new("update", std::mem::take(&mut self.rest) as f64, inputs, outputs);
        op.scratch_bytes = most.saturating_sub(held + self.constant);
        op.recomputable = false;
        op.phase = Some(Phase::Update);
        op
    }

    /// Adds the op of a unit, with alternatives that read stubs. It becomes two ops if what it makes has a form.
    fn compute(&mut self, index: usize, unit: &Unit, mut op: Op, weight: f64) {
        let mut with_stubs = Vec::new();
        for stub in self.read_in_part.get(&index).into_iter().flatten() {
            let small = self.stub_values.get(&(stub.place, stub.need));
            if let (Some(&small), Some(value)) = (small, self.step.value(stub.place)) {
                with_stubs.push((op.alternatives.len(), *stub));
                op.alternatives.push(reading_stub(&op, value, small, stub, weight));
            }
        }
        let form = form_of(self.step.trace, unit, &op, |value| self.draft.places[value])
            .filter(|(place, form)| !self.second.contains_key(place) && form.cost_ns as f64 * weight <= op.cost);
        let draft = &mut self.draft;
        let Some((place, form)) = form else {
            let made = draft.op(op, positions(unit), weight);
            draft.forms.stubs.extend(with_stubs.into_iter().map(|(k, stub)| ((made, k), stub)));
            return;
        };
        let small = draft.small_form(place, form.bytes, format!("{} packed", op.name));
        let (pack, unpack) = split(op, small, &form, self.step.bytes(place), weight);
        let pack = draft.op(pack, positions(unit), weight);
        let unpack = draft.op(unpack, behind(unit), weight);
        draft.forms.unpacks.insert(unpack);
        // The first alternative of an op that unpacks is the op itself.
        let both = with_stubs.into_iter().flat_map(|(k, stub)| [((pack, k), stub), ((unpack, k + 1), stub)]);
        draft.forms.stubs.extend(both);
    }

    /// Adds ops that make stubs of what a unit makes, in the phase and stage of the unit's own op, `made`.
    fn leave_stubs(&mut self, unit: &Unit, made: &Op) {
        for stub in self.read_in_part.values().flatten().filter(|stub| unit.created.contains(&stub.place)) {
            let (key, Some(value)) = ((stub.place, stub.need), self.step.value(stub.place)) else { continue };
            let Entry::Vacant(entry) = self.stub_values.entry(key) else { continue };
            let name = format!("{} {}", made.name, stub.need.name());
            let small = *entry.insert(self.draft.small_form(stub.place, stub.bytes, name.clone()));
            let mut leave = Op::new(name, 0.0, vec![value], vec![small]);
            (leave.recomputable, leave.phase, leave.stage) = (false, made.phase, made.stage.clone());
            self.draft.op(leave, behind(unit), 1.0);
        }
    }

    /// If the step does not end with an update, adds an op that needs what outlives the step or is read when it is over.
    fn end(&mut self) {
        let trace = self.step.trace;
        if self.step.updates.is_empty() {
            let is_read = |place: Place| trace.reads.contains(&(trace.ops.len() as Position - 1, place));
            let survives = |&&place: &&Place| trace.storages[place as usize].died.is_none() || is_read(place);
            let places = self.draft.places.iter().filter(survives);
            let mut end = hold(places.filter_map(|&place| self.step.value(place)).collect());
            end.cost = self.rest as f64;
            let last = trace.ops.len() as Position;
            self.draft.op(end, last..last, 1.0);
        }
        self.draft.graph.results(Vec::new());
    }
}

fn positions(unit: &Unit) -> Range<Position> {
    unit.range.start as Position..unit.range.end as Position
}

/// The position of ops without operations that come right after a unit.
fn behind(unit: &Unit) -> Range<Position> {
    unit.range.end as Position..unit.range.end as Position
}

/// An op that does nothing but need `inputs`.
fn hold(inputs: Vec<ValueId>) -> Op {
    let mut op = Op::new("held", 0.0, inputs, Vec::new());
    op.recomputable = false;
    op
}
