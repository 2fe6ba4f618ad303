//! A plan applied to other shapes.
//!
//! Passes that do the same on tensors of other sizes (batches of another length, the last batch of an epoch) need roughly the same
//! decisions. So a pass without a plan of its own follows the plan of a similar pass: each operation must be of the same kind and read
//! the same tensors, but sizes may differ. What the plan evicts is evicted only when room is needed, but before anything else; if that is not enough,
//! more is evicted, in the order of the next use in the plan. So a smaller pass recomputes less than the plan says, and a larger one keeps to the budget.
//!
//! The sizes seen on the way make a trace of the pass, from which its own plan is made. A tensor that no operation reads keeps its size in the plan.

use alloc::sync::Arc;

use rustc_hash::FxHashMap;

use crate::facts::{Need, TensorFacts};
use crate::trace::{Number, Place, Trace, TracedForm};

/// For a pass that follows a plan for other sizes: the sizes seen so far, and what the plan has evicted so far.
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

    /// Notes how many bytes a storage of the plan really takes, and how it can be compressed, if at all.
    pub fn measure(&mut self, place: Place, bytes: u64, form: Option<TracedForm>) {
        self.storages.entry(place).or_insert((bytes, form));
    }

    /// The plan evicts a storage; `need` is all that its later readers need of it, if the plan says so.
    pub fn give_up(&mut self, place: Place, need: Option<Need>) {
        let known = self.given_up.entry(place).or_insert(need);
        *known = need.or(*known);
    }

    /// The plan wants a storage back.
    pub fn take_back(&mut self, place: Place) {
        self.given_up.remove(&place);
    }

    /// Whether the plan has evicted a storage, and what is enough in its place.
    pub fn is_given_up(&self, place: Place) -> Option<Option<Need>> {
        self.given_up.get(&place).copied()
    }

    /// The same, renumbered for another plan.
    pub fn renumbered(mut self, places: &FxHashMap<Place, Place>, numbers: &FxHashMap<Number, Number>) -> Self {
        let place = |old: Place| places.get(&old).copied();
        self.tensors = self.tensors.into_iter().filter_map(|(old, facts)| Some((*numbers.get(&old)?, facts))).collect();
        self.storages = self.storages.into_iter().filter_map(|(old, size)| Some((place(old)?, size))).collect();
        self.given_up.clear();
        self
    }

    /// The planned trace with the sizes seen on the way. `held_at_start` bytes were held when the pass began.
    pub fn trace(&self, planned: &Arc<Trace>, held_at_start: u64) -> Trace {
        let mut trace = Trace::clone(planned);
        for (&number, facts) in &self.tensors {
            let tensor = &mut trace.tensors[number as usize];
            (tensor.shape, tensor.bytes, tensor.buffer_bytes) = (facts.shape, facts.bytes, facts.buffer_bytes);
        }
        // What is brought back may lie in another buffer than the one the step gave it. Where sizes match the plan, so do the buffers.
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
