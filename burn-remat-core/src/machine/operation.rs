//! How an operation is processed: what it reads is brought back, room is made, it runs, what it made is counted, and it is recorded as
//! the recipe for that.

use alloc::format;

use smallvec::SmallVec;

use super::Machine;
use super::call::{Call, Made, Settled, Update};
use crate::driver::{Buffer, Event, OpKey, Ran, Run, Source, World};
use crate::facts::{CheckpointPolicy, Failure, Operation, ThreadId};
use crate::history::{Again, Recipe, Small};
use crate::keys::{BufferKey, Keys, TensorKey, add};
use crate::passes::Part;

/// With more recorded operations than this, the older half is forgotten even without a step boundary, unless steps are that long.
const HISTORY_LIMIT: u64 = 200_000;

/// What was recorded for an operation.
struct Recorded {
    op: OpKey,
    again: Again,
    cost_ns: u64,
}

impl<W: World> Machine<W> {
    /// Serves an operation of the program, which the world has ready.
    pub fn operation(&mut self, thread: ThreadId, op: &Operation) {
        self.begin(thread, op.kind);
        self.counters.operations += 1;
        self.own.records |= !self.is_ample(self.ledger.live);
        self.world.tell(Event::Runs(op.kind));
        let mut call = Call::default();
        if let Err(failure) = self.bind(op, &mut call) {
            self.register_failed(&op.outputs, failure);
            return call.dying.into_iter().for_each(|input| self.kill(input));
        }
        for &input in &call.inputs {
            self.pin(input);
        }
        self.meet_operation(thread, op, &call);
        if !self.now.foreign {
            if self.begins_step(&call.inputs, &call.dying) || self.begins_anew(op, &call) {
                self.end_step(self.now.clock, true);
            }
            self.shorten_trace();
        }
        self.steps.position += u32::from(!self.now.foreign);
        self.steps.executing = !self.now.foreign;
        call.watched = !self.now.foreign && (self.watch.tracer.is_some() || self.watch.follow.is_some());
        (call.rule, call.signature) = match op.known {
            Some(known) => known,
            None => (self.stages.rule(thread, Some(self.steps.number).filter(|_| !self.now.foreign)), 0),
        };
        if call.watched && op.known.is_none() {
            call.signature = self.signature(op, &call);
        }
        if let Err(failure) = self.bring_in(op, &mut call).and_then(|()| self.carry_out(op, &mut call)) {
            self.abort(op, &call, failure);
        }
        self.close(&call);
    }

    /// Looks up what an operation reads.
    fn bind(&self, op: &Operation, call: &mut Call) -> Result<(), Failure> {
        let mut unknown = None;
        for input in &op.inputs {
            let Some(key) = self.history.find(input.id) else {
                unknown = unknown.or(Some(input.id));
                continue;
            };
            call.inputs.push(key);
            if input.last {
                call.dying.push(key);
            }
        }
        call.produced = op.produced();
        let lacks = |id| format!("`{}` reads tensor {id}, which this device does not have", self.name(op.kind)).into();
        unknown.map_or(Ok(()), |id| Err(lacks(id)))
    }

    /// Makes the inputs resident.
    fn bring_in(&mut self, op: &Operation, call: &mut Call) -> Result<(), Failure> {
        if self.watch.follow.is_none() {
            self.begin_pass(op, call);
        }
        if self.is_planned() {
            self.follow_before(op, call);
        }
        // Only now: the plan may just have left a substitute, or may no longer be followed.
        self.ensure_inputs(op, call)
    }

    /// Makes all inputs resident, except one of which a sufficient substitute is left.
    pub(super) fn ensure_inputs(&mut self, op: &Operation, call: &Call) -> Result<(), Failure> {
        let spared = self.history.spared(op.weak).map(|(key, _)| key);
        for &input in call.inputs.iter().filter(|&&input| spared != Some(input)) {
            let tensors = &self.history.tensors;
            let is_backward = |&input: &TensorKey| tensors[input].lineage.part == Part::Backward;
            if tensors[input].lineage.is.parted && !call.inputs.iter().any(is_backward) {
                self.note_wanted(input);
            }
            self.ensure(input)?;
            self.history.tensors[input].lineage.used = self.now.clock;
        }
        Ok(())
    }

    /// Runs the operation, whose inputs are resident.
    fn carry_out(&mut self, op: &Operation, call: &mut Call) -> Result<(), Failure> {
        // As the program sees it, so before anything is decided here.
        call.expected = self.expected(op, &call.inputs);
        let settled = self.settle_roots(op, call);
        let Settled { recordable, replaces, seed, .. } = settled;
        self.own.taken = core::mem::take(&mut call.consumed);
        self.cut_behind_large_roots(op, call.produced);
        call.consumed = core::mem::take(&mut self.own.taken);
        let limited = self.room.budget.is_some() || self.stages.any_forced || self.config.rehearsing;
        let substitute = self.history.spared(op.weak);
        let mut outputs: SmallVec<[u64; 2]> = SmallVec::new();
        add(&mut outputs, op.outputs.iter().map(|output| output.id));
        let (watch, position) = (&self.watch, self.last_position());
        let own = !self.now.foreign && !self.now.beside;
        let planned = watch.follow.as_ref().filter(|follow| own && follow.measures.is_none());
        let planned_ns =
            planned.and_then(|follow| follow.schedule.trace.ops.get(position as usize)).map(|op| op.cost_ns);
        let run = Run {
            source: Source::AtHand { only_read: &call.only_read },
            kind: op.kind,
            outputs: &outputs,
            substitute: substitute.map(|(key, need)| (self.history.tensors[key].facts.id, need)),
            seed,
            keep: recordable && self.own.records,
            compressible: self.own.records && limited && !op.nature.view && !replaces && !self.now.foreign,
            position: own.then_some(position),
            timed: watch.tracer.is_some() || watch.follow.as_ref().is_some_and(|follow| follow.measures.is_some()),
            planned_ns,
            reuse: call.expected.map(|expected| self.reused(expected, &call.inputs)),
        };
        // Only now: what was brought back to release a root would take the room of the outputs.
        let least = self.world.needs(&run);
        let need =
            self.new_bytes((op.kind, false), &op.outputs, call.produced, &call.inputs, &call.consumed).max(least);
        let need = need.saturating_add(self.stand_in(substitute));
        self.own.taken = core::mem::take(&mut call.consumed);
        self.own.ready = true;
        self.make_room(need);
        self.own.ready = false;
        call.consumed = core::mem::take(&mut self.own.taken);
        let update = self.update_of(&call.dying, &op.outputs);
        if call.watched {
            call.traced = self.trace_inputs(op, &call.inputs);
        }
        call.began = true;
        match &self.world.run(&run) {
            Ok(ran) => {
                self.complete(op, call, ran, settled, update);
                Ok(())
            }
            Err(cause) => Err(self.has_failed(op.kind, cause)),
        }
    }

    /// Counts what it made, and records it.
    fn complete(&mut self, op: &Operation, call: &Call, ran: &Ran, settled: Settled, update: Option<Update>) {
        self.count_run(ran.ns);
        let mut outputs: SmallVec<[TensorKey; 2]> = SmallVec::new();
        add(&mut outputs, op.outputs.iter().map(|&output| self.insert(output, None)));
        let (inputs, outputs) = (&*call.inputs, &*outputs);
        self.note_succession(inputs, &call.dying, outputs);
        if settled.computes {
            self.note_computed(inputs, outputs);
            self.note_part(op, call, outputs);
        } else {
            self.note_descent(inputs, &call.consumed, outputs);
        }
        if let Some(kept) = ran.kept {
            let again = Again { seed: settled.seed, expected: call.expected.unwrap_or(0) };
            let recorded = Recorded { op: kept, again, cost_ns: ran.ns };
            self.record(op, call, outputs, recorded);
        }
        self.note_updates(update, outputs);
        for (&output, (_, compressible)) in outputs.iter().zip(&ran.buffers) {
            let tensor = &mut self.history.tensors[output];
            let is = &mut tensor.lineage.is;
            (is.passing, is.state) = (settled.passing, settled.state);
            is.eligible |= settled.seed.is_some() && !settled.passing;
            if let Some(compressible) = compressible {
                tensor.small = Some(Small { compressible: Some(*compressible), ..Small::default() }.into());
                self.reserve_for(compressible.bytes);
            }
        }
        let base = inputs.first().filter(|_| op.nature.view).and_then(|&base| self.history.tensors[base].buffer);
        let made = Made::of(ran, outputs, op.nature.view);
        let counted = self.settle(&made, inputs, &call.consumed);
        self.share_aliases(inputs, base, outputs);
        if call.watched {
            self.trace_op(op, call, outputs, ran.ns, (settled.in_trace, update.is_some()));
            self.follow_outputs(outputs, ran.ns);
        } else if self.now.foreign || self.now.beside && !self.is_carried() {
            self.note_foreign(outputs);
        }
        if let Err(failure) = counted {
            self.remember(&failure);
            for &output in outputs {
                self.fail(output, failure.clone());
            }
        }
    }

    /// The operation did not run.
    fn abort(&mut self, op: &Operation, call: &Call, failure: Failure) {
        self.forget_step();
        for &input in call.consumed.iter().filter(|_| call.began) {
            // The backend may or may not have taken it over; either way it is dead.
            self.release(input);
        }
        self.register_failed(&op.outputs, failure);
    }

    /// What is done after an operation, whether it succeeded or not.
    fn close(&mut self, call: &Call) {
        for &input in &call.dying {
            self.kill(input);
        }
        self.steps.executing = false;
        for &input in &call.inputs {
            self.unpin(input);
        }
        if self.now.foreign {
            return;
        }
        if self.watch.follow.is_some() {
            if !self.now.beside {
                self.follow_after();
            }
            self.watch_budget();
        }
        self.end_pass(self.now.clock + 1, |_, _| false);
        let (bytes, clock) = (self.steps.computed_bytes, self.now.clock);
        if let Some(boundary) = self.steps.detector.observe(bytes, clock) {
            // If several backward passes are accumulated, each of them is a rise and a fall, but not a step.
            if self.steps.has_backwards(clock) {
                self.forget(boundary);
            } else {
                self.end_step(boundary, true);
            }
        } else if self.history.recipes.len() as u64 > HISTORY_LIMIT.max(2 * self.steps.detector.longest()) {
            self.forget_before(clock - HISTORY_LIMIT / 2, |_| false);
        }
    }

    fn count_run(&mut self, ns: u64) {
        self.counters.times.compute += ns;
        self.steps.totals.compute_ns += ns;
        let path = self.stages.current(self.now.thread);
        self.count_in_stage(path, ns);
    }

    fn record(&mut self, op: &Operation, call: &Call, outputs: &[TensorKey], recorded: Recorded) {
        let Recorded { op: kept, again, cost_ns } = recorded;
        let thread = self.now.thread;
        let policy = call.rule.map(|rule| rule.policy);
        if policy == Some(CheckpointPolicy::MustRecompute) && self.watch.follow.is_none() {
            let tensors = &self.history.tensors;
            let made = outputs.iter().map(|&output| (output, tensors[output].facts.id));
            self.stages.note_forced(thread, made);
        }
        self.history.record(Recipe {
            op: kept,
            kind: op.kind,
            nature: op.nature,
            weak: op.weak,
            inputs: Keys::from_slice(&call.inputs),
            outputs: outputs.iter().map(|&output| Some(output)).collect(),
            produced: call.produced,
            again,
            cost_ns,
            born: self.now.clock,
            seen: 0,
            stage: (self.stages.current(thread), policy),
        });
    }

    /// An operation that can run again has read `inputs` and made `outputs`.
    fn note_computed(&mut self, inputs: &[TensorKey], outputs: &[TensorKey]) {
        let clock = self.now.clock;
        for &input in inputs {
            let tensor = &mut self.history.tensors[input];
            let last = core::mem::replace(&mut tensor.lineage.read, clock);
            if tensor.may_be_parameter() {
                self.steps.detector.parameter_read(last);
                if tensor.lineage.updated == 0 {
                    self.steps.detector.root_read(last, clock);
                }
            }
        }
        for &output in outputs {
            let tensor = &mut self.history.tensors[output];
            (tensor.lineage.is.computed, tensor.lineage.is.counted) = (true, true);
            self.steps.computed_bytes += tensor.facts.bytes;
        }
    }

    /// Counts the buffers of what was just made, and frees those of consumed inputs that were not reused.
    ///
    /// # Errors
    ///
    /// The budget is exceeded and the configuration is strict.
    pub(super) fn settle(
        &mut self,
        made: &Made<'_>,
        inputs: &[TensorKey],
        consumed: &[TensorKey],
    ) -> Result<(), Failure> {
        let base = inputs.first().and_then(|&input| self.history.tensors[input].buffer);
        let mut left: SmallVec<[BufferKey; 4]> = SmallVec::new();
        for &input in consumed {
            let owner = self.history.tensors[input].as_owner(input);
            if let Some(buffer) = self.history.tensors[input].buffer.take() {
                self.ledger.detach(buffer, owner);
                left.push(buffer);
            }
        }
        let before = self.ledger.live;
        for (&output, &(buffer, _)) in made.outputs.iter().zip(made.buffers) {
            let tensor = &mut self.history.tensors[output];
            // Pinned until it is counted.
            tensor.pins += 1;
            let (identity, bytes) = match (buffer, base) {
                (Buffer::Known { identity, bytes }, _) => (identity, bytes),
                (Buffer::Unknown, Some(base)) if made.view => {
                    let base = self.ledger.get(base);
                    (base.identity, base.bytes)
                }
                (Buffer::Unknown, _) => (1 << 63 | tensor.facts.id, tensor.facts.buffer_bytes),
            };
            let buffer = self.ledger.attach(identity, bytes, tensor.as_owner(output), self.steps.number);
            (tensor.buffer, tensor.lineage.used) = (Some(buffer), self.now.clock);
        }
        let new = self.ledger.live.saturating_sub(before);
        let scratch = made.rise.unwrap_or(0).saturating_sub(new);
        self.counters.scratch.note(scratch, self.now.kind);
        self.watch.scratch = if self.config.count_workspaces { scratch } else { 0 };
        self.room.reuse.learn(new + self.watch.scratch);
        // What was taken over was needed until now.
        left.sort_unstable();
        left.dedup();
        let was_needed = left.iter().map(|&buffer| self.ledger.get(buffer)).filter(|entry| !entry.is_fixed());
        let gone: u64 = was_needed.map(|entry| entry.bytes).sum();
        let result = self.account(gone, made.beside);
        for &buffer in &left {
            self.ledger.sweep(buffer);
        }
        self.read_pool();
        for &id in made.left {
            self.world.free(id);
        }
        for &output in made.outputs {
            self.unpin(output);
        }
        result
    }

    fn read_pool(&mut self) {
        if self.room.pool.is_due() {
            let used = self.world.pool_in_use();
            self.room.pool.read(used, self.ledger.live, self.room.budget);
        }
    }
}
