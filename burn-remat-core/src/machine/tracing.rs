//! Traces what a step does while it runs; see [`Trace`].

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Machine;
use super::call::{Call, Traced, TracedInput};
use crate::driver::{Substitute, World};
use crate::facts::Operation;
use crate::history::{ARRIVED, Spot, Tensor};
use crate::keys::TensorKey;
use crate::trace::{
    Between, EXTERNAL, Place, Position, Trace, TracedOp, TracedStorage, TracedStub, TracedTensor, origin, signature,
};
use crate::tracer::{LONGEST, Tracer};

/// A storage that was not made by an operation of the step.
fn from_outside(bytes: u64, uploaded: bool, appeared: Position) -> TracedStorage {
    TracedStorage { bytes, made_by: None, uploaded, appeared, died: None, reuses: None, form: None }
}

fn traced_tensor(tensor: &Tensor, place: Place) -> TracedTensor {
    let facts = tensor.facts;
    TracedTensor { place, shape: facts.shape, bytes: facts.bytes, buffer_bytes: facts.buffer_bytes }
}

impl<W: World> Machine<W> {
    /// Number of the operation that runs or ran last.
    pub(super) fn last_position(&self) -> Position {
        self.steps.position.saturating_sub(1)
    }

    /// The signature of an operation, in terms that are the same in every step.
    pub(super) fn signature(&self, op: &Operation, call: &Call) -> u64 {
        self.signature_in(op, call, Some(self.steps.number))
    }

    /// The same within a given step; `None` for a step that begins with this operation.
    pub(super) fn signature_in(&self, op: &Operation, call: &Call, step: Option<u32>) -> u64 {
        let inputs = call.inputs.iter().map(|&input| {
            let tensor = &self.history.tensors[input];
            let origin = if step == Some(tensor.spot.step) { tensor.spot.origin } else { EXTERNAL };
            (origin, tensor.facts.shape, call.dying.contains(&input))
        });
        signature(op.kind, call.rule, op.outputs.iter().map(|output| output.shape), inputs)
    }

    pub(super) fn bytes_of(&self, key: TensorKey) -> u64 {
        let tensor = &self.history.tensors[key];
        tensor.buffer.map_or(tensor.facts.buffer_bytes, |buffer| self.ledger.get(buffer).bytes)
    }

    /// Whether a tensor that the step did not make has come since the step began: it was uploaded, made by another thread, or brought back. The step
    /// uses its buffer from now on.
    pub(super) fn has_come(&mut self, key: TensorKey) -> bool {
        let (buffer, step) = (self.history.tensors[key].buffer, self.steps.number);
        buffer.is_none_or(|buffer| self.ledger.leave_foreign(buffer) || self.ledger.get(buffer).step == step)
    }

    /// The place of a tensor in the trace; a tensor from before the step gets one now.
    pub(super) fn place_of(&mut self, key: TensorKey) -> Option<Place> {
        let (position, step) = (self.last_position(), self.steps.number);
        self.watch.tracer.as_ref()?;
        let tensor = &self.history.tensors[key];
        if tensor.spot.step == step {
            return Some(tensor.spot.place);
        }
        let (buffer, uploaded) = (tensor.buffer, self.has_come(key));
        let bytes = self.bytes_of(key);
        // A tensor that is read here was not evicted when the step began.
        let stays = !uploaded && buffer.is_some_and(|buffer| self.yields(buffer));
        let tracer = self.watch.tracer.as_mut()?;
        // Not the key, which another buffer may have had.
        let serial = buffer.map(|buffer| self.ledger.get(buffer).serial);
        let known = serial.and_then(|serial| tracer.external(serial));
        let place = known.unwrap_or_else(|| {
            let owners = buffer.map_or(1, |buffer| {
                let owners = self.ledger.get(buffer).owners.iter();
                owners.filter(|&&owner| self.history.tensors[owner].alive).count() as u32
            });
            let place = tracer.add(from_outside(bytes, uploaded, if uploaded { position } else { 0 }));
            tracer.trace.held_at_start += if stays { bytes } else { 0 };
            tracer.hold(place, owners);
            if let Some(serial) = serial {
                tracer.set_external(serial, place);
            }
            place
        });
        let tensor = &mut self.history.tensors[key];
        let number = tracer.add_tensor(traced_tensor(tensor, place));
        if uploaded {
            tracer.trace.between.push((position, Between::Arrives(number)));
        }
        tensor.spot = Spot { step, place, origin: EXTERNAL, number };
        Some(place)
    }

    /// What an operation that is about to run reads, and what would be enough in place of one of its inputs.
    pub(super) fn trace_inputs(&mut self, op: &Operation, inputs: &[TensorKey]) -> Traced {
        if self.watch.tracer.is_none() {
            return Traced::default();
        }
        let mut traced = Traced::default();
        for &input in inputs {
            let Some(place) = self.place_of(input) else { continue };
            traced.inputs.push(TracedInput { place, buffer: self.history.tensors[input].buffer });
        }
        if let Some((id, need)) = op.weak
            && let Some(at) = op.inputs.iter().position(|input| input.id == id)
            // An input that is being replaced by its substitute has no data to examine.
            && self.history.spared(op.weak).is_none()
            && let Some(Substitute { bytes, stand_in, cost_ns, .. }) = self.world.substitute(id, need)
        {
            let place = traced.inputs[at].place;
            traced.stub = Some(TracedStub { place, need, bytes, stand_in, cost_ns });
        }
        traced
    }

    /// Traces an operation that has run.
    pub(super) fn trace_op(
        &mut self,
        op: &Operation,
        call: &Call,
        outputs: &[TensorKey],
        cost_ns: u64,
        (recordable, updates): (bool, bool),
    ) {
        let position = self.last_position();
        let (visit, path) = self.stages.visit(self.now.thread, self.steps.number);
        if self.watch.tracer.as_ref().is_some_and(|tracer| tracer.trace.ops.len() >= LONGEST) {
            self.watch.tracer = None;
        }
        if let (Some(tracer), Some(path)) = (&mut self.watch.tracer, path) {
            tracer.visit(path);
        }
        let places = self.trace_outputs(op, call, outputs);
        let Some(tracer) = self.watch.tracer.as_mut() else { return };
        let numbers =
            call.inputs.iter().map(|&input| (self.history.tensors[input].spot.number, call.dying.contains(&input)));
        tracer.trace.ops.push(TracedOp {
            signature: call.signature,
            kind: op.kind,
            nature: op.nature,
            reads: call.traced.inputs.iter().map(|input| input.place).collect(),
            inputs: numbers.collect(),
            outputs: outputs.first().map_or(0, |&output| self.history.tensors[output].spot.number),
            writes: places,
            cost_ns,
            scratch: self.watch.scratch,
            recordable,
            updates,
            visit,
            rule: call.rule,
            stub: call.traced.stub,
        });
        debug_assert_eq!(tracer.trace.ops.len(), position as usize + 1);
    }

    /// Begins the trace anew if it is long and a pass may begin here: what a program does between its passes, such as generating text, may be longer than
    /// any pass.
    pub(super) fn shorten_trace(&mut self) {
        let is_long = self.watch.tracer.as_ref().is_some_and(|tracer| tracer.trace.ops.len() >= LONGEST / 2);
        if is_long && self.steps.plans_passes(self.now.clock) && self.steps.passes.is_quiet() {
            self.watch.tracer = None;
            self.world.end_step(None);
            self.begin_unit(None);
        }
    }

    /// Gives the outputs of an operation their places.
    fn trace_outputs(&mut self, op: &Operation, call: &Call, outputs: &[TensorKey]) -> SmallVec<[Place; 2]> {
        let traced = &call.traced;
        let (position, step) = (self.last_position(), self.steps.number);
        let mut writes: SmallVec<[Place; 2]> = SmallVec::new();
        for (k, &output) in outputs.iter().enumerate() {
            let tensor = &self.history.tensors[output];
            let (buffer, bytes) = (tensor.buffer, self.bytes_of(output));
            let form = tensor.form();
            let sibling = outputs[..k].iter().position(|&other| self.history.tensors[other].buffer == buffer);
            let base = traced.inputs.iter().position(|input| input.buffer.is_some() && input.buffer == buffer);
            let is_view = |at: usize| op.nature.view || !call.consumed.contains(&call.inputs[at]);
            let Some(tracer) = self.watch.tracer.as_mut() else { break };
            let place = match (base, sibling) {
                (Some(base), _) if is_view(base) => traced.inputs[base].place,
                (None, Some(sibling)) => writes[sibling],
                (base, _) => {
                    let base = base.map(|base| traced.inputs[base].place);
                    // If the base was brought back, it may lie in a larger buffer than the one the step gave it.
                    let bytes = base.map_or(bytes, |base| tracer.trace.storages[base as usize].bytes);
                    tracer.add(TracedStorage {
                        bytes,
                        made_by: Some(position),
                        uploaded: false,
                        appeared: position,
                        died: None,
                        reuses: base,
                        form,
                    })
                }
            };
            tracer.hold(place, 1);
            writes.push(place);
            let tensor = &mut self.history.tensors[output];
            let number = tracer.add_tensor(traced_tensor(tensor, place));
            tensor.spot = Spot { step, place, origin: origin(position, k), number };
        }
        writes
    }

    /// Traces that the operation that made a tensor of this step has updated a parameter.
    pub(super) fn trace_update(&mut self, key: TensorKey) {
        let made_at = self.made_at(self.history.tensors[key].spot);
        if let (Some(tracer), Some(at)) = (self.watch.tracer.as_mut(), made_at)
            && let Some(op) = tracer.trace.ops.get_mut(at)
        {
            op.updates = true;
        }
    }

    /// Whether a tensor was made in this step by an operation that can run again.
    pub(super) fn is_traced_as_recordable(&self, tensor: &Tensor) -> bool {
        let ops = self.watch.tracer.as_ref().map(|tracer| &tracer.trace.ops);
        self.made_at(tensor.spot).and_then(|at| ops?.get(at)).is_some_and(|op| op.recordable)
    }

    /// The operation of this step that made the tensor at a spot.
    fn made_at(&self, Spot { step, origin, .. }: Spot) -> Option<usize> {
        (step == self.steps.number && origin != EXTERNAL).then_some((origin >> 8) as usize)
    }

    /// Traces that the program releases a tensor between operations.
    pub(super) fn trace_drop(&mut self, key: TensorKey) {
        if !self.history.tensors[key].alive || self.is_untraced(key) || self.place_of(key).is_none() {
            return;
        }
        let (position, number) = (self.steps.position, self.history.tensors[key].spot.number);
        if let Some(tracer) = self.watch.tracer.as_mut() {
            tracer.trace.between.push((position, Between::Drops(number)));
        }
    }

    /// Whether a tensor belongs to another thread or was saved by an earlier pass, and the step has not used it.
    fn is_untraced(&self, key: TensorKey) -> bool {
        let tensor = &self.history.tensors[key];
        let is_others = |buffer| self.ledger.get(buffer).foreign || self.yields(buffer);
        tensor.buffer.is_none_or(is_others) && tensor.spot.step != self.steps.number
    }

    /// Traces that the program releases a tensor that it still held.
    pub(super) fn trace_kill(&mut self, key: TensorKey) {
        if self.watch.tracer.is_none() || self.is_untraced(key) {
            return;
        }
        let position = if self.steps.executing { self.last_position() } else { self.steps.position };
        let place = self.place_of(key);
        if let (Some(tracer), Some(place)) = (self.watch.tracer.as_mut(), place) {
            tracer.lose(place, position);
        }
    }

    /// Traces a tensor that came from the host, or another name of an existing one, at `place`.
    pub(super) fn trace_arrival(&mut self, key: TensorKey, place: Option<Place>) {
        let (bytes, step, position) = (self.bytes_of(key), self.steps.number, self.steps.position);
        let tensor = &mut self.history.tensors[key];
        let Some(tracer) = self.watch.tracer.as_mut() else {
            tensor.spot = Spot { step, place: ARRIVED, origin: EXTERNAL, number: 0 };
            return;
        };
        let place = place.unwrap_or_else(|| tracer.add(from_outside(bytes, true, position)));
        tracer.hold(place, 1);
        let number = tracer.add_tensor(traced_tensor(tensor, place));
        tracer.trace.between.push((position, Between::Arrives(number)));
        tensor.spot = Spot { step, place, origin: EXTERNAL, number };
    }

    /// Traces that the host reads a tensor.
    pub(super) fn trace_read(&mut self, key: TensorKey) {
        let (place, position) = (self.place_of(key), self.steps.position);
        let number = self.history.tensors[key].spot.number;
        if let (Some(tracer), Some(place)) = (self.watch.tracer.as_mut(), place) {
            tracer.trace.reads.push((position.saturating_sub(1), place));
            tracer.trace.between.push((position, Between::Reads(number)));
        }
    }

    /// The finished trace, with the names of its operations.
    pub(super) fn finish_trace(&self, tracer: Tracer) -> Trace {
        let mut trace = tracer.finish();
        let mut names = FxHashMap::default();
        for op in &trace.ops {
            names.entry(op.kind).or_insert_with(|| self.name(op.kind));
        }
        trace.names = names;
        trace
    }

    /// Continues as if the first operations of this step, which were those of `trace`, had been traced.
    pub(super) fn resume_trace(&mut self, trace: &Trace, position: Position) {
        let mut tracer = Tracer::resumed(trace, position, (self.steps.held_at_start, self.watch.yielding));
        // The program may use other stage names this time.
        tracer.trace.visits.resize(self.stages.visits(self.steps.number), "".into());
        let (places, numbers) = (tracer.trace.storages.len(), tracer.trace.tensors.len());
        let step = self.steps.number;
        for key in self.history.tensors.iter().map(|(key, _)| key).collect::<alloc::vec::Vec<_>>() {
            let bytes = self.bytes_of(key);
            let tensor = &mut self.history.tensors[key];
            let spot = tensor.spot;
            if spot.step != step {
                continue;
            }
            if spot.place == ARRIVED {
                let place = tracer.add(from_outside(bytes, true, position));
                tracer.hold(place, u32::from(tensor.alive));
                let number = tracer.add_tensor(traced_tensor(tensor, place));
                tracer.trace.between.push((position, Between::Arrives(number)));
                tensor.spot = Spot { place, number, ..spot };
            } else if (spot.place as usize) < places && (spot.number as usize) < numbers {
                tracer.hold(spot.place, u32::from(tensor.alive));
                if let (EXTERNAL, Some(buffer)) = (spot.origin, tensor.buffer) {
                    tracer.set_external(self.ledger.get(buffer).serial, spot.place);
                }
            } else {
                // Its place was never traced: it is treated as if it had existed before the step.
                tensor.spot.step = step.wrapping_sub(1);
            }
        }
        tracer.settle_deaths(position);
        self.watch.tracer = Some(tracer);
    }
}
