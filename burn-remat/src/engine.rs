//! The engine of one device: a [`Machine`] that decides, and a [`Drive`] that carries out what it commands.

use std::path::Path;

use burn_backend::{ExecutionError, TensorData};
use burn_ir::{HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Alternative, Asking, CheckpointPolicy, Entered, Failure, Kind, LayoutFollows, Machine, Most};
use burn_std::future::DynFut;
use burn_std::id::StreamId;

use crate::backend::RematBackend;
use crate::config::{Rehearsal, RematConfig};
use crate::drive::{Boxes, Drive, Hand, Settings, asked, operation_name};
use crate::error::RematError;
use crate::names::{NameId, name_of};
use crate::planning::{PlanReport, Plans, Wait};
use crate::recording::Writer;
use crate::rehearse::Seen;
use crate::report::{CompressionReport, PatchedSteps, RematReport, StageReport};

/// See the [module](self).
pub(crate) struct Engine<B: RematBackend> {
    machine: Machine<Drive<B>>,
    device: B::Device,
    config: RematConfig,
}

fn thread() -> u64 {
    StreamId::current().value
}

impl<B: RematBackend> Engine<B> {
    /// Makes an engine on `device` that holds nothing.
    pub fn new(device: B::Device, config: RematConfig) -> Self {
        let name = config.plans_for(&B::device_name(&device));
        let plans = Plans::new(config.planning_in_force(), name, config.rehearsal.is_some());
        let settings = Settings {
            alternatives: config.compression,
            probe: config.probe.clone(),
            recompute_limit: config.recompute_limit,
        };
        let mut world = match &config.rehearsal {
            Some(Rehearsal::Dry(guide)) => Drive::dry(device.clone(), guide.clone(), settings, plans),
            _ => Drive::real(device.clone(), settings, plans),
        };
        if matches!(config.rehearsal, Some(Rehearsal::Dry(_))) {
            world.recorder = Some(Box::new(Writer::keeping()));
        }
        let machine = Machine::new(config.of_core(layout::<B>(&config)), world);
        Self { machine, device, config }
    }

    /// Takes one operation of the program.
    pub fn register(&mut self, mut op: Box<OperationIr>) {
        let world = self.machine.world_mut();
        if let OperationIr::Init(_) = &*op {
            return world.ops.boxes.keep(op);
        }
        let asked = asked::<B>(&mut op, &self.device, world.padding());
        world.learn_name(asked.kind, &op);
        if let Some(recorder) = &mut world.recorder {
            recorder.begin(thread(), &asked, || operation_name(&op));
        }
        world.hand = Hand::Operation(op);
        self.machine.operation(thread(), &asked);
        if let Some(recorder) = &mut self.machine.world_mut().recorder {
            recorder.end();
        }
    }

    /// The program drops a tensor.
    pub fn drop_tensor(&mut self, id: TensorId) {
        // Autodiff, a cache or another thread may let go only now of what an earlier rehearsal on this device has left.
        if self.machine.world().recorder.is_some() && self.machine.has(id.value()) {
            self.note(|| Asking::Drop { thread: thread(), tensor: id.value() });
        }
        self.machine.dropped(thread(), id.value());
    }

    /// Empty boxes for operations.
    #[inline]
    pub fn boxes(&mut self) -> &mut Boxes {
        &mut self.machine.world_mut().ops.boxes
    }

    /// Takes data of the host as tensor `id`.
    pub fn upload(&mut self, id: TensorId, data: TensorData) {
        let ir = TensorIr { id, shape: data.shape().clone(), dtype: data.dtype(), status: TensorStatus::ReadOnly };
        self.arrive(&ir, Hand::Data(data.into()));
    }

    /// Takes a tensor of the same backend, moved to this engine's device, as `ir`.
    pub fn import(&mut self, ir: TensorIr, tensor: HandleKind<B>) {
        self.arrive(&ir.clone(), Hand::Tensor((ir, tensor).into()));
    }

    fn arrive(&mut self, ir: &TensorIr, hand: Hand<B>) {
        let world = self.machine.world_mut();
        let facts = world.facts(ir);
        world.hand = hand;
        self.machine.upload(thread(), facts);
        if let Some(recorder) = &mut self.machine.world_mut().recorder {
            recorder.upload(thread(), facts);
        }
    }

    /// Records what the program asks for, if a recording is being made.
    #[inline]
    fn note(&mut self, asking: impl FnOnce() -> Asking) {
        if let Some(recorder) = &mut self.machine.world_mut().recorder {
            recorder.ask(asking());
        }
    }

    /// Begins to record what the program asks for.
    pub fn record(&mut self, path: &Path) -> Result<(), RematError> {
        let refused = |reason: String| Err(RematError::Recording { reason });
        let recorder = self.machine.world().recorder.as_ref();
        if recorder.is_some_and(|recorder| recorder.has_file()) {
            return refused("this device is being recorded already".to_owned());
        }
        if self.machine.holdings().tensors > 0 || self.machine.counters().operations > 0 {
            return refused("this device has been used: begin right after `remat`, before the first tensor".to_owned());
        }
        let (name, config) = (B::device_name(&self.device), self.config.of_core(layout::<B>(&self.config)));
        let mut recorder = self.machine.world_mut().recorder.take().unwrap_or_default();
        let begun = recorder.begin_file(path, &name, self.config.budget, &config);
        self.machine.world_mut().recorder = Some(recorder).filter(|recorder| begun.is_ok() || recorder.keeps());
        begun.or_else(|error| refused(format!("{}: {error}", path.display())))
    }

    /// Ends the recording.
    pub fn finish_recording(&mut self) -> std::io::Result<()> {
        let world = self.machine.world_mut();
        let graph = world.plans.state.schedule.as_ref().map(|schedule| &schedule.lowered.graph);
        let result = world.recorder.as_mut().map_or(Ok(()), |recorder| recorder.finish_file(graph));
        world.recorder = world.recorder.take().filter(|recorder| recorder.keeps());
        result
    }

    /// Makes `new` a second name for the buffer of `source`.
    pub fn alias(&mut self, new: TensorId, source: TensorId) {
        self.note(|| Asking::Alias { thread: thread(), new: new.value(), source: source.value() });
        self.machine.alias(thread(), new.value(), source.value());
    }

    /// Reads a tensor. The future does not hold the engine.
    pub fn read(&mut self, ir: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let result = self.with_resident(&ir, |machine, ir| {
            let circumstances = machine.circumstances();
            machine.world_mut().read(ir, circumstances)
        });
        result.unwrap_or_else(|failure| {
            let error = ExecutionError::with_context(failure.to_string());
            Box::pin(std::future::ready(Err(error)))
        })
    }

    /// The backend's handle of a tensor.
    pub fn handle(&mut self, ir: &TensorIr) -> Result<B::Handle, Failure> {
        self.with_resident(ir, |machine, ir| machine.world_mut().handle(&ir))
    }

    fn with_resident<T>(
        &mut self,
        ir: &TensorIr,
        action: impl FnOnce(&mut Machine<Drive<B>>, TensorIr) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let read = TensorIr { status: TensorStatus::ReadOnly, ..ir.clone() };
        let last = ir.status == TensorStatus::ReadWrite;
        self.note(|| Asking::Read { thread: thread(), tensor: ir.id.value(), last });
        self.machine.read(thread(), ir.id.value(), last, |machine| action(machine, read))
    }

    /// Waits for all work. Returns the first failure of what this thread has asked for since its last call.
    pub fn sync(&mut self) -> Result<(), ExecutionError> {
        self.machine.world().sync(self.machine.circumstances())?;
        match self.machine.take_failure(thread()) {
            Some(failure) => Err(ExecutionError::with_context(failure.to_string())),
            None => Ok(()),
        }
    }

    /// Seeds the backend's generator and the engine's own.
    pub fn seed(&mut self, seed: u64) {
        self.note(|| Asking::Seed { seed });
        self.machine.seed(seed);
        self.machine.world().seed(seed);
    }

    /// The program says that a step begins here.
    pub fn mark(&mut self) {
        self.note(|| Asking::Mark { thread: thread() });
        self.machine.mark(thread());
    }

    /// A stage begins.
    pub fn enter_stage(&mut self, name: NameId, number: i64, policy: Option<CheckpointPolicy>) {
        self.note(|| {
            let name = name_of(name).map_or_else(String::new, |name| name.to_string());
            Asking::Enter { thread: thread(), name, number, policy }
        });
        self.machine.enter_stage(thread(), Entered { name, number, policy });
    }

    /// A stage ends.
    pub fn leave_stage(&mut self, number: i64) {
        self.note(|| Asking::Leave { number });
        self.machine.leave_stage(number);
    }

    /// What was seen, on a rehearsal device.
    ///
    /// # Errors
    ///
    /// [`RematError::Unfollowed`].
    pub fn rehearsed(&mut self) -> Result<Seen, RematError> {
        let world = self.machine.world_mut();
        let recording = world.recorder.as_mut().map(|recorder| recorder.kept()).transpose()?;
        let (steps, recording) = (world.plans.rehearsed().to_vec(), recording.unwrap_or_default().into());
        Ok(Seen { device: self.config.plans_for(&B::device_name(&self.device)), steps, recording })
    }

    /// A handle to wait, without the engine, until no planner is at work.
    pub fn planning(&self) -> Wait {
        self.machine.world().plans.wait()
    }

    /// Counters for a metric.
    #[cfg(feature = "learner")]
    pub fn usage(&self) -> crate::report::Usage {
        let counters = self.machine.counters();
        crate::report::Usage {
            peak_bytes: counters.peak.bytes,
            budget_bytes: self.machine.budget(),
            compute_ns: counters.times.compute,
            recompute_ns: counters.times.recompute,
        }
    }

    /// What has happened so far.
    pub fn report(&self) -> RematReport {
        let (machine, world) = (&self.machine, self.machine.world());
        let (counters, holdings, pool) = (machine.counters(), machine.holdings(), world.pool_usage());
        let name = |kind: Kind| world.known_name(kind).cloned();
        let op = |most: Most| name(most.kind);
        let state = &world.plans.state;
        RematReport {
            device: B::device_name(&self.device),
            budget: self.config.budget,
            budget_bytes: machine.budget(),
            peak_bytes: counters.peak.bytes,
            peak_op: op(counters.peak),
            live_bytes: holdings.bytes,
            device_bytes: pool.as_ref().map(|usage| usage.bytes_in_use + usage.bytes_padding),
            device_reserved_bytes: pool.as_ref().map(|usage| usage.bytes_reserved),
            device_peak_bytes: machine.pool_peak(),
            room_bytes: machine.room_beside_tensors(),
            operations: counters.operations,
            recomputed_operations: counters.recomputed,
            compute_ns: counters.times.compute,
            recompute_ns: counters.times.recompute,
            compression: self.compression(),
            evictions: counters.evictions,
            steps: counters.steps,
            steps_over_budget: counters.steps_over_budget + u64::from(machine.is_over_budget()),
            scratch_bytes: self.config.probe.is_some().then_some(counters.scratch.bytes),
            scratch_op: op(counters.scratch),
            floor_bytes: counters.floor.bytes,
            floor_op: op(counters.floor),
            nondeterministic: counters.varying.iter().filter_map(|&kind| name(kind)).collect(),
            fused: B::FUSES,
            plan: PlanReport::of(
                &world.plans,
                (counters.times.followed, counters.times.followed_recompute),
                machine.budget(),
            ),
            planning_seconds: world.plans.planning_since().map(|since| since.elapsed().as_secs_f64()),
            planning_problem: state.problem.clone(),
            smallest_budget_bytes: state.smallest_budget(),
            steps_guided: state.guided,
            patched: PatchedSteps { steps: state.mended, skipped: state.skipped, added: state.added },
            why_no_plan: world.plans.why_none(),
            tensors: holdings.tensors as u64,
            recipes: holdings.recipes as u64,
            stages: self.stages(),
            failure: counters.failure.clone().or_else(|| world.late_failure()).as_deref().map(str::to_owned),
        }
    }

    fn compression(&self) -> Vec<CompressionReport> {
        let (counters, error) = (self.machine.counters(), self.machine.world().largest_error());
        let one = |alternative: &Alternative| {
            let counts = counters.alternatives[*alternative as usize];
            CompressionReport {
                name: alternative.name().to_owned(),
                tensors: counts.tensors,
                from_bytes: counts.from,
                to_bytes: counts.to,
                ns: counts.ns,
                largest_error: (*alternative == Alternative::Bf16).then_some(error),
            }
        };
        Alternative::ALL.iter().map(one).filter(|report| report.tensors > 0).collect()
    }

    fn stages(&self) -> Vec<StageReport> {
        let report = |(stage, counts): (&str, burn_remat_core::StageCounts)| StageReport {
            stage: stage.to_owned(),
            operations: counts.operations,
            compute_ns: counts.compute_ns,
            recomputed_operations: counts.recomputed,
            recompute_ns: counts.recompute_ns,
            recomputed_bytes: counts.recomputed_bytes,
        };
        self.machine.stages().map(report).collect()
    }

    /// Resets the counters. The peak starts from what is held.
    pub fn reset_report(&mut self) {
        self.machine.reset_counters();
        self.machine.world().forget_late_failure();
    }
}

/// Whether the layout of results on this backend depends on what operations write over.
fn layout<B: RematBackend>(config: &RematConfig) -> LayoutFollows {
    match (B::LAYOUT_FOLLOWS_REUSE, B::PARTS_FOLLOW_REUSE) {
        _ if matches!(config.rehearsal, Some(Rehearsal::Dry(_))) => LayoutFollows::Nothing,
        (true, _) => LayoutFollows::Reuse,
        (false, true) => LayoutFollows::Parts,
        (false, false) => LayoutFollows::Nothing,
    }
}
