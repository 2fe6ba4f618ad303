//! Writes down what a step does while it runs; see [`Trace`].

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::table::{Description, StorageKey, TensorKey};
use super::{Engine, Outs};
use crate::backend::RematBackend;
use crate::checkpoint::Rule;
use crate::planning::{Place, Position, Trace, TracedForm, TracedOp, TracedStorage, TracedStub};

/// Operations beyond which a step is not written down: a program without steps.
const LONGEST: usize = 100_000;

/// [`Tensor::origin`](super::table::Tensor) of a tensor that no operation of its step made.
pub(super) const EXTERNAL: u32 = u32::MAX;

/// Place of a tensor that came from the host while a plan was followed, until an operation reads it.
pub(super) const ARRIVED: Place = Place::MAX;

/// The origin of output `k` of the operation at `position`.
pub(super) fn origin(position: Position, k: usize) -> u32 {
    (position << 8) | (k as u32).min(0xff)
}

/// The operation of an [`origin`].
fn position_of(origin: u32) -> Position {
    origin >> 8
}

/// A trace in the making.
#[derive(Default)]
pub(super) struct Tracer {
    pub trace: Trace,
    /// Tensors of each storage that the program holds.
    pub owners: Vec<u32>,
    /// Storages from before the step by their key.
    externals: FxHashMap<StorageKey, Place>,
}

impl Tracer {
    pub fn new(held_at_start: u64) -> Self {
        Self { trace: Trace { held_at_start, ..Trace::default() }, ..Self::default() }
    }

    /// The finished trace, with the names of its operations.
    pub fn finish(mut self, names: &FxHashMap<u64, String>) -> Trace {
        let named = self.trace.ops.iter().filter_map(|op| Some((op.kind, names.get(&op.kind)?.clone())));
        self.trace.names = named.collect();
        let last = self.trace.ops.len().saturating_sub(1) as Position;
        for died in self.trace.storages.iter_mut().filter_map(|storage| storage.died.as_mut()) {
            *died = last.min(*died);
        }
        // Planning takes what was there away from what was held: the first must not be more, whatever happened.
        let there = |storage: &&TracedStorage| storage.made_by.is_none() && !storage.uploaded;
        let there = self.trace.storages.iter().filter(there).map(|storage| storage.bytes).sum();
        if there > self.trace.held_at_start {
            log::debug!("{there} bytes were there when a step began with {} held", self.trace.held_at_start);
            self.trace.held_at_start = there;
        }
        self.trace.keep_lasting_updates();
        self.trace.attribute_stages();
        self.trace
    }

    fn add(&mut self, storage: TracedStorage, owners: u32) -> Place {
        self.trace.storages.push(storage);
        self.owners.push(owners);
        (self.owners.len() - 1) as Place
    }

    /// The program has let go of one tensor of a storage.
    fn lose(&mut self, place: Place, position: Position) {
        let owners = &mut self.owners[place as usize];
        *owners = owners.saturating_sub(1);
        if *owners == 0 {
            self.trace.storages[place as usize].died.get_or_insert(position);
        }
    }
}

/// An input as it was before the operation ran.
pub(super) struct TracedInput {
    key: TensorKey,
    place: Place,
    storage: Option<StorageKey>,
}

impl<B: RematBackend> Engine<B> {
    /// Number of the operation that runs or ran last.
    pub(super) fn last_position(&self) -> Position {
        self.position.saturating_sub(1)
    }

    /// What an operation does, in terms that are the same in every step.
    pub(super) fn signature(
        &self,
        kind: u64,
        rule: Option<Rule>,
        outs: &Outs,
        inputs: &[TensorKey],
        consumed: &[TensorKey],
    ) -> u64 {
        let mut hasher = FxHasher::default();
        kind.hash(&mut hasher);
        if let Some(rule) = rule {
            rule.hash(&mut hasher);
        }
        for Description { shape, dtype, .. } in outs {
            (shape, dtype).hash(&mut hasher);
        }
        for &input in inputs {
            let tensor = &self.tensors[input];
            if tensor.step == self.step_number && tensor.origin != EXTERNAL {
                tensor.origin.hash(&mut hasher);
            } else {
                (tensor.shape, tensor.dtype, EXTERNAL).hash(&mut hasher);
            }
            consumed.contains(&input).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The place of a tensor in the trace; one that comes from before the step gets one now.
    pub(super) fn place_of(&mut self, key: TensorKey) -> Option<Place> {
        let position = self.last_position();
        let tracer = self.tracer.as_mut()?;
        let tensor = &self.tensors[key];
        if tensor.step == self.step_number {
            return Some(tensor.place);
        }
        // Another thread's work, or something brought back: it was not there when the step began.
        let uploaded = tensor.storage.is_none_or(|storage| {
            self.storages.leave_aside(storage) || self.storages.get(storage).step == self.step_number
        });
        let known = tensor.storage.and_then(|storage| tracer.externals.get(&storage).copied());
        let place = match (known, tensor.storage) {
            (Some(place), _) => place,
            (None, storage) => {
                let bytes = self.storages.bytes_of(tensor, self.padding);
                let owners = storage.map_or(1, |storage| {
                    let owners = self.storages.get(storage).owners.iter();
                    owners.filter(|&&owner| self.tensors[owner].alive).count() as u32
                });
                let appeared = if uploaded { position } else { 0 };
                let about =
                    TracedStorage { bytes, made_by: None, uploaded, appeared, died: None, reuses: None, form: None };
                let place = tracer.add(about, owners);
                if let Some(storage) = storage {
                    tracer.externals.insert(storage, place);
                }
                place
            }
        };
        let tensor = &mut self.tensors[key];
        (tensor.step, tensor.place, tensor.origin) = (self.step_number, place, EXTERNAL);
        Some(place)
    }

    /// The inputs of an operation about to run.
    pub(super) fn trace_inputs(&mut self, inputs: &[TensorKey]) -> SmallVec<[TracedInput; 4]> {
        if self.tracer.is_none() {
            return SmallVec::new();
        }
        let traced = |&key: &TensorKey| {
            let place = self.place_of(key)?;
            Some(TracedInput { key, place, storage: self.tensors[key].storage })
        };
        inputs.iter().filter_map(traced).collect()
    }

    /// Writes an operation down that has run.
    pub(super) fn trace_op(
        &mut self,
        about: (u64, u64, u64, u64),
        (recordable, updates, view): (bool, bool, bool),
        (rule, stub): (Option<Rule>, Option<(TensorKey, TracedStub)>),
        inputs: &[TracedInput],
        consumed: &[TensorKey],
        outputs: &[TensorKey],
    ) {
        let (kind, signature, cost_ns, scratch) = about;
        let position = self.last_position();
        let visit = self.visit();
        if self.tracer.as_ref().is_some_and(|tracer| tracer.trace.ops.len() >= LONGEST) {
            self.tracer = None;
        }
        let forms: SmallVec<[Option<TracedForm>; 2]> = outputs.iter().map(|&output| self.traced_form(output)).collect();
        let Some(tracer) = self.tracer.as_mut() else { return };
        let mut writes: SmallVec<[Place; 2]> = SmallVec::new();
        for (k, &output) in outputs.iter().enumerate() {
            let storage = self.tensors[output].storage;
            let sibling = outputs[..k].iter().position(|&other| self.tensors[other].storage == storage);
            let base = inputs.iter().find(|input| input.storage.is_some() && input.storage == storage);
            let place = match (base, sibling) {
                (Some(base), _) if view || !consumed.contains(&base.key) => base.place,
                (None, Some(sibling)) => writes[sibling],
                (base, _) => {
                    // A base that was brought back may lie in a larger buffer than the one that the step gave it.
                    let bytes = match base {
                        Some(base) => tracer.trace.storages[base.place as usize].bytes,
                        None => self.storages.bytes_of(&self.tensors[output], self.padding),
                    };
                    let about = TracedStorage {
                        bytes,
                        made_by: Some(position),
                        uploaded: false,
                        appeared: position,
                        died: None,
                        reuses: base.map(|base| base.place),
                        form: forms[k],
                    };
                    tracer.add(about, 0)
                }
            };
            tracer.owners[place as usize] += 1;
            writes.push(place);
            let tensor = &mut self.tensors[output];
            (tensor.step, tensor.place, tensor.origin) = (self.step_number, place, origin(position, k));
        }
        let stub = stub.and_then(|(key, stub)| {
            let place = inputs.iter().find(|input| input.key == key)?.place;
            Some(TracedStub { place, ..stub })
        });
        let reads = inputs.iter().map(|input| input.place).collect();
        tracer.trace.ops.push(TracedOp {
            signature,
            kind,
            reads,
            writes,
            cost_ns,
            scratch,
            recordable,
            updates,
            visit,
            rule,
            stub,
        });
    }

    /// Writes down that the operation that made a tensor of this step has updated a parameter.
    pub(super) fn trace_update(&mut self, key: TensorKey) {
        let tensor = &self.tensors[key];
        if let Some(tracer) = self.tracer.as_mut()
            && tensor.step == self.step_number
            && tensor.origin != EXTERNAL
            && let Some(op) = tracer.trace.ops.get_mut(position_of(tensor.origin) as usize)
        {
            op.updates = true;
        }
    }

    /// Writes down that the program lets go of a tensor that it still holds.
    pub(super) fn trace_kill(&mut self, key: TensorKey) {
        let tensor = &self.tensors[key];
        let aside = tensor.storage.is_none_or(|storage| self.storages.get(storage).aside);
        if self.tracer.is_none() || (aside && tensor.step != self.step_number) {
            return;
        }
        let position = if self.executing { self.last_position() } else { self.position };
        let place = self.place_of(key);
        if let (Some(tracer), Some(place)) = (self.tracer.as_mut(), place) {
            tracer.lose(place, position);
        }
    }

    /// Writes down a tensor that came from the host, or another name of one that was there, at `place`.
    pub(super) fn trace_arrival(&mut self, key: TensorKey, place: Option<Place>) {
        let bytes = self.storages.bytes_of(&self.tensors[key], self.padding);
        let Some(tracer) = self.tracer.as_mut() else {
            let tensor = &mut self.tensors[key];
            (tensor.step, tensor.place, tensor.origin) = (self.step_number, ARRIVED, EXTERNAL);
            return;
        };
        let place = place.unwrap_or_else(|| {
            let about = TracedStorage {
                bytes,
                made_by: None,
                uploaded: true,
                appeared: self.position,
                died: None,
                reuses: None,
                form: None,
            };
            tracer.add(about, 0)
        });
        tracer.owners[place as usize] += 1;
        let tensor = &mut self.tensors[key];
        (tensor.step, tensor.place, tensor.origin) = (self.step_number, place, EXTERNAL);
    }

    /// Writes down that the host reads a tensor.
    pub(super) fn trace_read(&mut self, key: TensorKey) {
        let place = self.place_of(key);
        if let (Some(tracer), Some(place)) = (self.tracer.as_mut(), place) {
            tracer.trace.reads.push((self.position.saturating_sub(1), place));
        }
    }

    /// Goes on as if the first operations of this step, which were those of `trace`, had been written down.
    pub(super) fn resume_trace(&mut self, trace: &Trace, position: Position) {
        let first_unseen = trace.ops[..position as usize]
            .iter()
            .flat_map(|op| op.reads.iter().chain(&op.writes))
            .max()
            .map_or(0, |place| *place as usize + 1);
        let mut tracer = Tracer::new(self.held_at_start);
        tracer.trace.ops.extend_from_slice(&trace.ops[..position as usize]);
        tracer.trace.storages.extend_from_slice(&trace.storages[..first_unseen]);
        tracer.trace.visits.extend_from_slice(&trace.visits);
        // The program may call its stages otherwise this time.
        tracer.trace.visits.resize(self.visits(), "".into());
        let seen = |&&(at, place): &&(Position, Place)| at < position && (place as usize) < first_unseen;
        tracer.trace.reads.extend(trace.reads.iter().filter(seen));
        tracer.owners = vec![0; first_unseen];
        for (_, tensor) in &mut self.tensors {
            if tensor.step == self.step_number && tensor.place == ARRIVED {
                let about = TracedStorage {
                    bytes: self.storages.bytes_of(tensor, self.padding),
                    made_by: None,
                    uploaded: true,
                    appeared: position,
                    died: None,
                    reuses: None,
                    form: None,
                };
                tensor.place = tracer.add(about, u32::from(tensor.alive));
            } else if tensor.step == self.step_number && (tensor.place as usize) < first_unseen {
                if tensor.alive {
                    tracer.owners[tensor.place as usize] += 1;
                }
                if let (EXTERNAL, Some(storage)) = (tensor.origin, tensor.storage) {
                    tracer.externals.insert(storage, tensor.place);
                }
            } else if tensor.step == self.step_number {
                // Its place was never written down: it counts as having been there.
                tensor.step = self.step_number.wrapping_sub(1);
            }
        }
        for (storage, owners) in tracer.trace.storages.iter_mut().zip(&tracer.owners) {
            if storage.uploaded && *owners == 0 && storage.died.is_none_or(|died| died >= position) {
                // It arrived unseen: it is among those above.
                storage.bytes = 0;
            }
            if *owners > 0 {
                storage.died = None;
            } else {
                storage.died.get_or_insert(position.saturating_sub(1));
            }
        }
        self.tracer = Some(tracer);
    }
}
