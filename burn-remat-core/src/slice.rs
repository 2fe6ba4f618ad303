//! A part of a trace, as a step of its own.
//!
//! What existed before the part counts as present when it begins: no decision can be made on it. All numbers (of operations,
//! storages, tensors, stages) start again, so that the same work has the same signatures wherever it occurs in a program.
//!
//! Complexity: O(operations + storages + tensors).

use core::ops::Range;

use alloc::vec;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;

use crate::facts::Rule;
use crate::trace::{Between, Number, Place, Position, Trace, TracedOp, TracedStorage, TracedStub, TracedTensor};

/// A tensor that takes at most one part in this many of the largest one saved by the forward pass is glue, and begins no pass.
const SMALL: u64 = 64;

impl Trace {
    /// The pass with which a stretch of operations ends: from the first operation that something kept for the backward pass depends on, to where the
    /// pass was over. `None` if there is none.
    pub fn pass(&self) -> Option<Self> {
        let end = self.over.map_or(self.ops.len(), |over| (over as usize).min(self.ops.len()));
        let seed = (self.seed? as usize).min(end);
        // What outlives the pass existed before it. So did the parameters, which do not outlive it if somebody holds what the pass has made until they are
        // updated again: these are what one update has made and another takes over.
        let mut replaced = vec![false; self.storages.len()];
        for op in self.ops.iter().filter(|op| op.updates) {
            op.reads.iter().for_each(|&place| replaced[place as usize] = true);
        }
        let is_made_by_update =
            |storage: &TracedStorage| storage.made_by.is_some_and(|at| self.ops[at as usize].updates);
        let dies_by = |storage: &TracedStorage, at: usize| storage.died.is_some_and(|died| died as usize <= at);
        let comes_and_goes = |place: usize| {
            let storage = &self.storages[place];
            dies_by(storage, end) && !(replaced[place] && is_made_by_update(storage))
        };
        let is_kept = |place: usize| comes_and_goes(place) && !dies_by(&self.storages[place], seed);
        let is_made = |place: &usize| self.storages[*place].made_by.is_some_and(|at| (at as usize) < seed);
        let saved = (0..self.storages.len()).filter(is_made).filter(|&place| is_kept(place));
        // Compared with what else is saved, not with the peak, so that passes of two kinds that begin alike begin with the same operation.
        let small = saved.map(|place| self.storages[place].bytes).max().unwrap_or(0) / SMALL;
        let passes = |place: usize| self.storages[place].bytes > small && comes_and_goes(place);
        let is_saved = |place: usize| self.storages[place].bytes > small && is_kept(place);
        let mut needed: Vec<bool> = (0..self.storages.len()).map(is_saved).collect();
        let mut start = None;
        for (at, op) in self.ops[..seed].iter().enumerate().rev() {
            let makes = |place: &&Place| self.storages[**place as usize].made_by == Some(at as Position);
            if op.writes.iter().filter(makes).any(|&place| needed[place as usize]) {
                start = Some(at);
                for &place in &op.reads {
                    needed[place as usize] |= passes(place as usize);
                }
            }
        }
        let mut pass = Slice::new(self, start?..end).cut();
        pass.ops.iter_mut().for_each(|op| op.updates = false);
        Some(pass)
    }

    /// The part of a stretch of operations that is planned: its pass. If nothing significant is saved, the stretch from one backward pass to the next is
    /// planned as a step.
    pub fn planned_part(self) -> Self {
        self.pass().unwrap_or_else(|| self.with_lasting_updates())
    }
}

struct Slice<'a> {
    whole: &'a Trace,
    range: Range<usize>,
    part: Trace,
    places: FxHashMap<Place, Place>,
    numbers: FxHashMap<Number, Number>,
    visits: FxHashMap<u32, u32>,
    scopes: FxHashMap<u32, u32>,
}

impl<'a> Slice<'a> {
    /// A pass begins with its first operation: what happened just before it is in the past.
    fn new(whole: &'a Trace, range: Range<usize>) -> Self {
        let part = Trace {
            held_at_start: whole.held_before(range.start),
            yielding: whole.yielding,
            is_pass: true,
            names: whole.names.clone(),
            ..Trace::default()
        };
        let (places, numbers, visits, scopes) = Default::default();
        Self { whole, range, part, places, numbers, visits, scopes }
    }

    fn cut(mut self) -> Trace {
        self.operations();
        self.between();
        self.part.sign();
        self.part
    }

    /// Whether what happened before the operation at `position` happens within the part.
    fn is_within(&self, position: Position) -> bool {
        position as usize > self.range.start
    }

    fn operations(&mut self) {
        for at in self.range.clone() {
            let op = &self.whole.ops[at];
            let inputs: Vec<(Number, bool)> =
                op.inputs.iter().map(|&(number, last)| (self.number(number), last)).collect();
            let outputs = self.part.tensors.len() as Number;
            for number in (op.outputs..).take(op.writes.len()) {
                self.number(number);
            }
            let visit = self.visit(op.visit);
            let rule = op.rule.map(|rule| {
                let next = self.scopes.len() as u32 + 1;
                Rule { scope: *self.scopes.entry(rule.scope).or_insert(next), ..rule }
            });
            let op = TracedOp {
                reads: op.reads.iter().map(|&place| self.place(place)).collect(),
                writes: op.writes.iter().map(|&place| self.place(place)).collect(),
                stub: op.stub.map(|stub| TracedStub { place: self.place(stub.place), ..stub }),
                inputs: inputs.into_iter().collect(),
                outputs: if op.writes.is_empty() { 0 } else { outputs },
                visit,
                rule,
                ..op.clone()
            };
            self.part.ops.push(op);
        }
    }

    fn between(&mut self) {
        let Range { start, end } = self.range;
        for &(at, event) in &self.whole.between {
            if !self.is_within(at) || at as usize > end {
                continue;
            }
            // Tensors that no operation of the part reads also arrive and are dropped.
            let event = match event {
                Between::Arrives(number) => Between::Arrives(self.number(number)),
                Between::Drops(number) => Between::Drops(self.number(number)),
                Between::Reads(number) => Between::Reads(self.number(number)),
            };
            self.part.between.push((at - start as Position, event));
        }
        let reads = self.whole.reads.iter().filter(|(at, _)| self.range.contains(&(*at as usize)));
        let reads = reads.filter_map(|(at, place)| Some((at - start as Position, *self.places.get(place)?)));
        self.part.reads = reads.collect();
    }

    fn visit(&mut self, visit: u32) -> u32 {
        if visit == 0 {
            return 0;
        }
        let next = self.visits.len() as u32 + 1;
        let path = &self.whole.visits;
        *self.visits.entry(visit).or_insert_with(|| {
            self.part.visits.push(path.get(visit as usize - 1).cloned().unwrap_or_default());
            next
        })
    }

    fn number(&mut self, number: Number) -> Number {
        if let Some(&known) = self.numbers.get(&number) {
            return known;
        }
        let tensor = self.whole.tensors[number as usize];
        let place = self.place(tensor.place);
        let new = self.part.tensors.len() as Number;
        self.part.tensors.push(TracedTensor { place, ..tensor });
        self.numbers.insert(number, new);
        new
    }

    fn place(&mut self, place: Place) -> Place {
        if let Some(&known) = self.places.get(&place) {
            return known;
        }
        let (start, end) = (self.range.start as Position, self.range.end as Position);
        let storage = self.whole.storages[place as usize].clone();
        let made_by = storage.made_by.filter(|&at| at >= start).map(|at| at - start);
        let uploaded = storage.uploaded && self.is_within(storage.appeared);
        let is_new = made_by.is_some() || uploaded;
        let base = storage.reuses.filter(|_| made_by.is_some()).map(|base| self.place(base));
        let new = self.part.storages.len() as Place;
        self.part.storages.push(TracedStorage {
            made_by,
            uploaded,
            appeared: if is_new { storage.appeared.saturating_sub(start) } else { 0 },
            died: storage.died.filter(|&died| died < end).map(|died| died.saturating_sub(start)),
            reuses: base,
            form: storage.form.filter(|_| made_by.is_some()),
            ..storage
        });
        self.places.insert(place, new);
        new
    }
}

impl Trace {
    /// Bytes held when the operation at `position` is about to begin, if nothing is evicted.
    fn held_before(&self, position: usize) -> u64 {
        let before = |at: Option<Position>| at.is_some_and(|at| (at as usize) < position);
        // What this operation is the last to use is still held; what was dropped just before it is not.
        let mut dropped = vec![true; self.storages.len()];
        if let Some(op) = self.ops.get(position) {
            op.reads.iter().for_each(|&place| dropped[place as usize] = false);
        }
        let mut taken = vec![false; self.storages.len()];
        for storage in self.storages.iter().filter(|storage| before(storage.made_by)) {
            if let Some(base) = storage.reuses {
                taken[base as usize] = true;
            }
        }
        let mut held = self.held_at_start;
        for (place, storage) in self.storages.iter().enumerate() {
            let was_there = storage.made_by.is_none() && !storage.uploaded;
            let has_come = before(storage.made_by) || storage.uploaded && storage.appeared as usize <= position;
            let drops = dropped[place] && storage.died.is_some_and(|died| died as usize == position);
            let is_held = (was_there || has_come) && !before(storage.died) && !drops && !taken[place];
            match (was_there, is_held) {
                (true, false) => held = held.saturating_sub(storage.bytes),
                (false, true) => held += storage.bytes,
                _ => {}
            }
        }
        held
    }
}
