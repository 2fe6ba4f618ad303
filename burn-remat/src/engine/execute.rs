//! One operation of the program, from its inputs to its results: the steps are told in the [module](super) above.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use burn_ir::{OperationIr, TensorId, TensorStatus};
use smallvec::SmallVec;

use super::executor::Executor;
use super::failures::panic_message;
use super::layout::{Layout, Taken};
use super::operation::{is_mask, is_opaque, is_random, is_view, mark_read_only, operation_kind, operation_name};
use super::table::{Description, Recipe, StorageKey, TensorKey};
use super::updates::Update;
use super::{Engine, Failure, GENERATOR, KEEP_ROOT_RATIO, Keys, Outs};
use crate::backend::{BufferId, RematBackend, lock};
use crate::checkpoint::{CheckpointPolicy, Rule};
use crate::config::RandomPolicy;
use crate::planning::Position;

/// Recorded operations beyond which the older half is forgotten even without a step boundary, unless steps are that long.
const HISTORY_LIMIT: u64 = 200_000;

/// What becomes of an operation that consumes roots.
struct Settled {
    /// Whether it can run again.
    recordable: bool,
    /// Whether it takes a root, whose place its results take.
    replaces: bool,
    /// What to seed the generator with before it runs.
    seed: Option<u64>,
    /// Whether its results, if they are roots, are surely no parameters.
    passing: bool,
    /// Whether its results take the place of what earlier steps have computed.
    state: bool,
}

impl<B: RematBackend> Engine<B> {
    pub(super) fn execute(&mut self, mut op: OperationIr) {
        self.clock += 1;
        self.stats.operations += 1;
        self.light &= self.is_ample(self.storages.live);
        let kind = operation_kind(&op);
        self.serving = kind;
        self.names.entry(kind).or_insert_with(|| operation_name(&op));
        let outs: Outs = op.outputs().map(Description::of).collect();
        let produced = op.outputs().map(|out| self.allocated(out)).sum();
        let (inputs, mut consumed) = match self.bind(&op) {
            Ok(bound) => bound,
            Err(failure) => return self.register_failed(outs, failure),
        };
        for &input in &inputs {
            self.tensors[input].pins += 1;
        }
        self.aside.now = self.aside.is_other_thread();
        let aside = self.aside.now;
        if !aside && self.begins_step(&inputs, &consumed) {
            self.end_step(self.clock, true);
        }
        self.position += u32::from(!aside);
        self.executing = !aside;
        let watched = !aside && (self.tracer.is_some() || self.follow.is_some());
        let rule = self.stages.rule(self.step_number);
        let signature = if watched { self.signature(kind, rule, &outs, &inputs, &consumed) } else { 0 };
        let dying = consumed.clone();
        let (mut lent, mut began) = (Keys::new(), false);
        let mut before: SmallVec<[Option<StorageKey>; 4]> = SmallVec::new();
        let done = self.bring_in(&op, (kind, signature), &inputs).and_then(|()| {
            let taken = self.taken(&op, &inputs);
            before.extend(inputs.iter().map(|&input| self.tensors[input].storage));
            let settled = self.settle_roots(&mut op, &outs, &inputs, &mut consumed, produced);
            let Settled { recordable, replaces, seed, .. } = settled;
            self.keep_parts(&mut op, &inputs, &mut consumed);
            // Only now: what was brought back to cut a root free would take the room of the outputs.
            let need = self.new_bytes(&op, produced, &inputs, &consumed);
            self.make_room(need);
            let layout = self.layout(&op, &inputs, taken, &consumed);
            let forms = if replaces || aside { SmallVec::new() } else { self.forms_of(&op) };
            let update = self.update_of(&dying, &outs);
            let kept = (recordable && !self.light).then(|| (self.boxed(&op), taken));
            let views = is_view(&op);
            let traced = if watched { self.trace_inputs(&inputs) } else { SmallVec::new() };
            let stub = if self.tracer.is_some() && !aside { self.traced_stub(&op) } else { None };
            self.lend_all(&mut op, &inputs, taken, &mut consumed, &mut lent)?;
            let position = (!aside).then(|| self.last_position());
            began = true;
            let cost_ns = self.run(op, seed, kind, position, layout)?;
            Ok((kept, settled, cost_ns, views, update, traced, forms, stub))
        });
        match done {
            Ok((kept, settled, cost_ns, views, update, traced, forms, stub)) => {
                let Settled { recordable, seed, passing, state, .. } = settled;
                self.stats.compute_ns += cost_ns;
                self.step.compute_ns += cost_ns;
                let stage = self.stages.current();
                self.count_in_stage(stage, cost_ns);
                let outputs: SmallVec<[TensorKey; 2]> =
                    outs.into_iter().map(|out| self.insert(out, kind, None)).collect();
                self.note_succession(&inputs, &dying, &outputs);
                if recordable {
                    self.note_computed(&inputs, &outputs);
                }
                if let Some(op) = kept {
                    self.record(op, &inputs, &outputs, seed, cost_ns, rule);
                }
                if let Some(Update::Parameter(before)) = update {
                    self.note_update();
                    if !aside {
                        outputs.iter().for_each(|&output| self.note_parameter(output, before));
                    }
                }
                for &output in &outputs {
                    let tensor = &mut self.tensors[output];
                    (tensor.passing, tensor.state) = (passing, state);
                    tensor.eligible |= seed.is_some() && !passing;
                }
                for (&output, form) in outputs.iter().zip(forms) {
                    self.tensors[output].form = form;
                }
                let settled = self.settle(&outputs, &inputs, &consumed, views, kind);
                self.share_names(&inputs, &before, &outputs, views);
                if settled.is_ok() {
                    outputs.iter().for_each(|&output| self.settle_form(output));
                }
                if watched {
                    let about = (kind, signature, cost_ns, self.scratch);
                    self.trace_op(
                        about,
                        (recordable, update.is_some(), views),
                        (rule, stub),
                        &traced,
                        &consumed,
                        &outputs,
                    );
                    self.follow_outputs(&outputs, cost_ns);
                } else if aside {
                    self.note_aside(&outputs);
                }
                if let Err(failure) = settled {
                    self.remember(&failure);
                    for output in outputs {
                        self.fail(output, failure.clone());
                    }
                }
            }
            Err(failure) => {
                self.forget_step();
                for &input in consumed.iter().filter(|_| began) {
                    // The backend may or may not have taken it; either way it is dead.
                    self.release(input);
                }
                self.register_failed(outs, failure);
            }
        }
        lent.into_iter().for_each(|stand_in| self.unpin(stand_in));
        for &input in &dying {
            self.kill(input);
        }
        self.executing = false;
        for &input in &inputs {
            self.unpin(input);
        }
        if self.follow.is_some() && !aside {
            self.follow_after();
            self.watch_budget();
        }
        let boundary = if aside { None } else { self.detector.observe(self.computed_bytes, self.clock) };
        if let Some(boundary) = boundary {
            self.end_step(boundary, true);
        } else if self.recipes.len() as u64 > HISTORY_LIMIT.max(2 * self.detector.longest()) {
            self.forget_before(self.clock - HISTORY_LIMIT / 2);
        }
    }

    /// The operation's inputs, each once, and those that it consumes.
    fn bind(&self, op: &OperationIr) -> Result<(Keys, Keys), Failure> {
        let mut inputs = Keys::new();
        let mut consumed = Keys::new();
        for input in op.inputs() {
            let Some(&key) = self.index.get(&input.id) else {
                return Err(format!(
                    "`{}` reads tensor {}, which this device does not have",
                    operation_name(op),
                    input.id
                )
                .into());
            };
            if !inputs.contains(&key) {
                inputs.push(key);
            }
            if input.status == TensorStatus::ReadWrite {
                consumed.push(key);
            }
        }
        Ok((inputs, consumed))
    }

    /// Makes the inputs resident.
    fn bring_in(&mut self, op: &OperationIr, about: (u64, u64), inputs: &[TensorKey]) -> Result<(), Failure> {
        if self.follow.is_some() && !self.aside.now {
            self.follow_before(op, about, inputs);
        }
        // Only now: the plan may have left a stub just now, or be followed no more.
        let spared = self.spared(op);
        for &input in inputs.iter().filter(|&&input| spared != Some(input)) {
            self.ensure(input)?;
            self.tensors[input].used = self.clock;
        }
        Ok(())
    }

    /// Bytes of the evictable buffers among `inputs`, each once.
    fn evictable_bytes(&self, inputs: &[TensorKey]) -> u64 {
        let mut bytes = 0;
        for (at, &input) in inputs.iter().enumerate() {
            let Some(key) = self.tensors[input].storage else { continue };
            let storage = self.storages.get(key);
            if storage.roots == 0 && !inputs[..at].iter().any(|&other| self.tensors[other].storage == Some(key)) {
                bytes += storage.bytes;
            }
        }
        bytes
    }

    /// Decides which consumed roots the operation may really take, and whether it can be recorded.
    ///
    /// A consumed root on which recipes depend is taken only if history can be cut there. Either way the outputs become
    /// roots, so that no chain of updates grows behind them; only a root that is small beside the outputs is kept for
    /// their sake.
    ///
    fn settle_roots(
        &mut self,
        op: &mut OperationIr,
        outs: &Outs,
        inputs: &[TensorKey],
        consumed: &mut Keys,
        produced: u64,
    ) -> Settled {
        for &key in consumed.iter() {
            let tensor = &self.tensors[key];
            if tensor.recipe.is_none() && !tensor.held && !tensor.dependents.is_empty() {
                self.cut(key, true);
            }
        }
        let light = self.light;
        let mut kept: SmallVec<[TensorId; 2]> = SmallVec::new();
        let (mut replaces, mut replaces_other, mut replaces_parameter) = (false, false, false);
        let training = self.detector.has_begun();
        consumed.retain(|key| {
            let tensor = &self.tensors[*key];
            if tensor.recipe.is_some() || (light && tensor.computed) {
                if tensor.held {
                    kept.push(tensor.id);
                }
                return !tensor.held;
            }
            let small = tensor.bytes.saturating_mul(KEEP_ROOT_RATIO) <= produced;
            let takes = !small && !tensor.held;
            replaces |= takes;
            replaces_other |= takes && !tensor.passing;
            let alike = outs.iter().any(|out| out.shape == tensor.shape);
            let succeeded = alike && (tensor.read > 0 || tensor.updated > 0 || inputs.len() == 1);
            replaces_parameter |= takes && tensor.may_be_parameter() && (succeeded || !training);
            let keep = (small && !light) || tensor.held || !tensor.dependents.is_empty();
            if keep {
                kept.push(tensor.id);
            }
            !keep
        });
        if !kept.is_empty() {
            mark_read_only(op, &kept);
        }
        let random = is_random(op);
        let seed = (random && self.config.random == RandomPolicy::Reseed).then(|| self.next_seed());
        let differs = self.is_unrepeatable(op);
        let recordable = !replaces && !is_opaque(op) && !differs && (!random || seed.is_some());
        let passing = !replaces_other && (replaces || differs || is_mask(op));
        Settled { recordable, replaces, seed, passing, state: replaces && !replaces_parameter }
    }

    /// Whether the device may compute another result when `op` runs again.
    fn is_unrepeatable(&mut self, op: &OperationIr) -> bool {
        let differs = !B::repeats(&self.device, op);
        if differs && !self.stats.unrepeatable.contains(&self.serving) {
            self.stats.unrepeatable.push(self.serving);
        }
        differs
    }

    /// On a dry device, the time that an operation would take; it also learns there where in its step it is.
    fn dry_cost(&mut self, op: &OperationIr, kind: u64) -> Option<u64> {
        if !self.executor.is_dry() {
            return None;
        }
        let position = self.last_position() as usize;
        let Executor::Dry(dry) = &mut self.executor else { return None };
        dry.at(position, kind);
        let touched = op.inputs().chain(op.outputs()).map(|tensor| Description::of(tensor).bytes).sum();
        Some(dry.cost(touched))
    }

    /// Runs an operation on the backend and returns the time it took, in ns. `position` is that of an operation of the step.
    #[inline]
    pub(super) fn run(
        &mut self,
        op: OperationIr,
        seed: Option<u64>,
        kind: u64,
        position: Option<Position>,
        layout: Option<Layout>,
    ) -> Result<u64, Failure> {
        let dry = self.dry_cost(&op, kind);
        let timed = self.begin_timing(&op, kind);
        let _alone = is_random(&op).then(|| lock(&GENERATOR));
        let executor = &mut self.executor;
        let probe = self.config.probe.as_deref();
        let before = probe.map_or(0, |probe| {
            probe.reset_peak();
            probe.current()
        });
        let start = Instant::now();
        // An operation is large: it is moved as seldom as can be.
        let result = catch_unwind(AssertUnwindSafe(move || {
            if let Some(seed) = seed {
                executor.seed(seed);
            }
            executor.run(op);
            if let Some(layout) = layout {
                executor.lay(&layout);
            }
        }));
        let elapsed = start.elapsed().as_nanos() as u64;
        self.rise = probe.map_or(0, |probe| probe.peak().saturating_sub(before));
        let known = self.end_timing(timed, result.is_ok(), position);
        let elapsed = dry.or(known).unwrap_or(elapsed);
        result.map(|()| elapsed.max(1)).map_err(|payload| {
            let cause = panic_message(&*payload);
            let name = self.names.get(&kind).map_or("an operation", String::as_str);
            let failure: Failure = self.circumstances().explain(name, cause).into();
            self.remember(&failure);
            failure
        })
    }

    /// Counts the buffers of freshly written outputs, and frees those of consumed inputs that were not reused.
    ///
    /// # Errors
    ///
    /// Over budget, where the configuration is strict.
    pub(super) fn settle(
        &mut self,
        outputs: &[TensorKey],
        inputs: &[TensorKey],
        consumed: &[TensorKey],
        views: bool,
        kind: u64,
    ) -> Result<(), Failure> {
        let fixed = self.storages.rooted + self.evictable_bytes(inputs);
        let mut left: SmallVec<[usize; 4]> = SmallVec::new();
        for &input in consumed {
            let tensor = &mut self.tensors[input];
            let fixed = tensor.is_fixed();
            if let Some(storage) = tensor.storage.take() {
                self.storages.detach(storage, input, fixed);
                left.push(storage);
            }
        }
        let before = self.storages.live;
        let base = inputs.first().and_then(|&input| self.tensors[input].storage).or(left.first().copied());
        for &output in outputs {
            let tensor = &self.tensors[output];
            let buffer = self.executor.buffer(&tensor.bare(TensorStatus::ReadOnly));
            let (key, bytes) = match (buffer, base) {
                (BufferId::Known { key, bytes }, _) => (key, bytes),
                (BufferId::Unknown, Some(base)) if views => {
                    let base = self.storages.get(base);
                    (base.key, base.bytes)
                }
                (BufferId::Unknown, _) => (1 << 63 | tensor.id.value(), self.padding.buffer(tensor.bytes)),
            };
            let fixed = tensor.is_fixed();
            let storage = self.storages.attach(key, bytes, output, fixed, self.step_number);
            let tensor = &mut self.tensors[output];
            tensor.storage = Some(storage);
            tensor.used = self.clock;
        }
        let new = self.storages.live.saturating_sub(before);
        self.scratch = std::mem::take(&mut self.rise).saturating_sub(new);
        if self.scratch > self.stats.scratch {
            (self.stats.scratch, self.stats.scratch_op) = (self.scratch, kind);
        }
        if !self.config.count_workspaces {
            self.scratch = 0;
        }
        self.reuse.learn(new + self.scratch);
        let result = self.account(fixed + new, kind);
        for storage in left {
            self.storages.sweep(storage);
        }
        self.read_pool();
        result
    }

    fn record(
        &mut self,
        (op, taken): (Box<OperationIr>, Taken),
        inputs: &[TensorKey],
        outputs: &[TensorKey],
        seed: Option<u64>,
        cost_ns: u64,
        rule: Option<Rule>,
    ) {
        let stage = self.stages.current();
        let policy = rule.map(|rule| rule.policy);
        if policy == Some(CheckpointPolicy::MustRecompute) && self.follow.is_none() {
            self.stages.note_forced(outputs.iter().map(|&output| (output, self.tensors[output].id)));
        }
        let recipe = self.recipes.insert(Recipe {
            op,
            taken,
            inputs: inputs.into(),
            outputs: outputs.iter().map(|&output| Some(output)).collect(),
            seed,
            cost_ns,
            born: self.clock,
            seen: 0,
            stage,
            policy,
        });
        for &input in inputs {
            self.tensors[input].dependents.push(recipe);
        }
        for &output in outputs {
            self.tensors[output].recipe = Some(recipe);
        }
    }

    /// An operation that can run again has read `inputs` and made `outputs`.
    fn note_computed(&mut self, inputs: &[TensorKey], outputs: &[TensorKey]) {
        for &input in inputs {
            let tensor = &mut self.tensors[input];
            let last = std::mem::replace(&mut tensor.read, self.clock);
            if tensor.may_be_parameter() && tensor.updated == 0 {
                self.detector.root_read(last, self.clock);
            }
        }
        for &output in outputs {
            let tensor = &mut self.tensors[output];
            tensor.computed = true;
            self.computed_bytes += tensor.bytes;
        }
    }

    /// A copy of an operation, in a box that is used again where there is one.
    fn boxed(&mut self, op: &OperationIr) -> Box<OperationIr> {
        match self.spare.pop() {
            Some(mut spare) => {
                *spare = op.clone();
                spare
            }
            None => Box::new(op.clone()),
        }
    }

    fn next_seed(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood): every seed differs and none depends on the backend's own generator.
        self.seeds = self.seeds.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut seed = self.seeds;
        seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        seed ^ (seed >> 31)
    }
}
