//! A plan carried to other shapes.
//!
//! Passes that do the same on tensors of other sizes (batches of other lengths, the last batch of an epoch) need the same decisions,
//! roughly. So one that has no plan of its own goes by the plan of another like it: operation by operation what it does and to which
//! tensors must be the same, sizes need not. What the plan gives up goes only when room is needed, and first; where that is not enough, more goes, by when
//! the plan says that it is needed next. So a smaller pass recomputes less than the plan says, and a larger one keeps to the budget.
//!
//! The sizes that are met make a trace of the pass, from which a plan of its own is made. What no operation reads keeps the size that the plan knows.

use alloc::sync::Arc;

use rustc_hash::FxHashMap;

use crate::facts::{Need, TensorFacts};
use crate::trace::{Number, Place, Trace, TracedForm};

/// Of a pass that goes by a plan for other sizes: those that were met, and what the plan has given up so far.
#[derive(Default)]
pub(crate) struct Carried {
    tensors: FxHashMap<Number, TensorFacts>,
    storages: FxHashMap<Place, (u64, Option<TracedForm>)>,
    given_up: FxHashMap<Place, Option<Need>>,
}

impl Carried {
    /// A tensor of the plan turns out to be this one.
    pub fn meet(&mut self, number: Number, facts: TensorFacts) {
        self.tensors.insert(number, facts);
    }

    /// A storage of the plan turns out to take so many bytes, and to be compressed in this way if at all.
    pub fn measure(&mut self, place: Place, bytes: u64, form: Option<TracedForm>) {
        self.storages.entry(place).or_insert((bytes, form));
    }

    /// The plan keeps a storage no longer; what reads it needs no more of it than this, if it says so.
    pub fn give_up(&mut self, place: Place, need: Option<Need>) {
        let known = self.given_up.entry(place).or_insert(need);
        *known = need.or(*known);
    }

    /// The plan wants a storage to be there again.
    pub fn take_back(&mut self, place: Place) {
        self.given_up.remove(&place);
    }

    /// Whether the plan has given a storage up, and what would do in its place.
    pub fn is_given_up(&self, place: Place) -> Option<Option<Need>> {
        self.given_up.get(&place).copied()
    }

    /// The same under the numbers of another plan.
    pub fn renumbered(mut self, places: &FxHashMap<Place, Place>, numbers: &FxHashMap<Number, Number>) -> Self {
        let place = |old: Place| places.get(&old).copied();
        self.tensors = self.tensors.into_iter().filter_map(|(old, facts)| Some((*numbers.get(&old)?, facts))).collect();
        self.storages = self.storages.into_iter().filter_map(|(old, size)| Some((place(old)?, size))).collect();
        self.given_up.clear();
        self
    }

    /// What was planned, in the sizes that were met. `held_at_start` bytes were there when it began.
    pub fn trace(&self, planned: &Arc<Trace>, held_at_start: u64) -> Trace {
        let mut trace = Trace::clone(planned);
        for (&number, facts) in &self.tensors {
            let tensor = &mut trace.tensors[number as usize];
            (tensor.shape, tensor.bytes, tensor.buffer_bytes) = (facts.shape, facts.bytes, facts.buffer_bytes);
        }
        // What is brought back may lie in another buffer than the step gave it: where sizes are those of the plan, so are the buffers.
        let is_planned =
            |(&number, facts): (&Number, &TensorFacts)| planned.tensors[number as usize].shape == facts.shape;
        let is_resized = !self.tensors.iter().all(is_planned);
        for (&place, &(bytes, form)) in self.storages.iter().filter(|_| is_resized) {
            let storage = &mut trace.storages[place as usize];
            (storage.bytes, storage.form) = (bytes, form.or(storage.form.filter(|_| storage.bytes == bytes)));
        }
        for stub in trace.ops.iter_mut().filter_map(|op| op.stub.as_mut()) {
            let (old, new) = (planned.storages[stub.place as usize].bytes, trace.storages[stub.place as usize].bytes);
            let scaled = |bytes: u64| (u128::from(bytes) * u128::from(new)).div_ceil(u128::from(old.max(1))) as u64;
            (stub.bytes, stub.stand_in) = (scaled(stub.bytes), scaled(stub.stand_in));
        }
        let there = trace.storages.iter().filter(|storage| storage.made_by.is_none() && !storage.uploaded);
        trace.held_at_start = held_at_start.max(there.map(|storage| storage.bytes).sum());
        trace.sign();
        trace
    }
}
