//! The driver: carries out on a backend what the core commands.
//!
//! The core (`burn-remat-core`) only decides. Here operations run, buffers are freed, tensors are compressed, clocks are read and failures are caught.
//! `operation.rs` describes the operations of the program to the core.

mod boxes;
mod clock;
mod code;
mod compress;
mod cut;
mod dry;
mod executor;
mod failures;
mod kinds;
mod layout;
mod lies;
mod look;
mod operation;
mod overwrites;
mod parts;
mod prepared;
mod run;
mod substitutes;
mod tensors;

use std::sync::{Arc, Mutex};

use burn_backend::{ExecutionError, MemoryPoolUsage, TensorData};
use burn_ir::{HandleKind, OperationIr, TensorId, TensorIr};
use burn_remat_core::{
    Buffer, Circumstances, Driver, Event, Failure, Kind, Need, OpKey, Ran, Run, Substitute, TensorFacts, Trace, World,
};
use burn_std::future::DynFut;

use crate::backend::{Padding, RematBackend};
use crate::budget::DisplayBytes;
use crate::compression::Compression;
use crate::config::MemoryProbe;
use crate::guide::Guide;
use crate::names::name_of;
use crate::panics::{caught, lock};
use crate::planning::Plans;
use crate::recording::Writer;
pub(crate) use boxes::Boxes;
use boxes::Operations;
use clock::Clock;
use compress::Compressor;
use executor::Executor;
use failures::{Late, watched};
use kinds::Names;
pub(crate) use operation::{asked, is_random, operation_name};
use prepared::Prepared;
use substitutes::{Substitutes, substitute};
pub(crate) use tensors::{fresh_id, typed};

/// Held while random numbers are drawn. A backend has one generator for all devices of a process, and numbers that are drawn again from a seed must not
/// mix with those of another device.
static GENERATOR: Mutex<()> = Mutex::new(());

/// What the program hands over.
pub(crate) enum Hand<B: RematBackend> {
    Nothing,
    Operation(Box<OperationIr>),
    Data(Box<TensorData>),
    Tensor(Box<(TensorIr, HandleKind<B>)>),
}

/// How a driver behaves.
pub(crate) struct Settings {
    pub alternatives: Compression,
    pub probe: Option<Arc<dyn MemoryProbe>>,
    pub recompute_limit: f64,
}

/// See the [module](self).
pub(crate) struct Drive<B: RematBackend> {
    executor: Executor<B>,
    settings: Settings,
    /// What the program hands over with the current call.
    pub hand: Hand<B>,
    /// An operation that is ready to run.
    prepared: Option<Prepared>,
    pub ops: Operations,
    names: Names,
    clock: Clock,
    compression: Compressor,
    substitutes: Substitutes,
    /// The first failure of a read that had left the engine.
    late: Late,
    /// Records what the program asks for, while it is recorded.
    pub recorder: Option<Box<Writer>>,
    pub plans: Plans,
}

impl<B: RematBackend> Drive<B> {
    fn new(executor: Executor<B>, settings: Settings, plans: Plans) -> Self {
        Self {
            executor,
            settings,
            hand: Hand::Nothing,
            prepared: None,
            ops: Operations::default(),
            names: Names::default(),
            clock: Clock::default(),
            compression: Compressor::default(),
            substitutes: Substitutes::default(),
            late: Late::default(),
            recorder: None,
            plans,
        }
    }

    /// A driver that uses the backend.
    pub fn real(device: B::Device, settings: Settings, plans: Plans) -> Self {
        Self::new(Executor::real(device), settings, plans)
    }

    /// A driver that executes nothing. A guide says what is written in place, and how long operations take.
    pub fn dry(device: B::Device, guide: Option<Arc<Guide>>, settings: Settings, plans: Plans) -> Self {
        Self::new(Executor::dry(device, guide), settings, plans)
    }

    pub fn padding(&self) -> Padding {
        self.executor.padding
    }

    /// What the core is told about a tensor.
    pub fn facts(&self, ir: &TensorIr) -> TensorFacts {
        self.executor.facts(ir)
    }

    /// Remembers the name of an operation's kind.
    #[inline]
    pub fn learn_name(&mut self, kind: Kind, op: &OperationIr) {
        self.names.learn(kind, op);
    }

    pub fn known_name(&self, kind: Kind) -> Option<&String> {
        self.names.of(kind)
    }

    /// The backend's handle of a resident tensor.
    pub fn handle(&mut self, ir: &TensorIr) -> Result<B::Handle, Failure> {
        self.executor.handle(ir)
    }

    /// Reads a resident tensor. The future does not hold the engine.
    pub fn read(
        &mut self,
        ir: TensorIr,
        circumstances: Circumstances,
    ) -> Result<DynFut<Result<TensorData, ExecutionError>>, Failure> {
        let read = caught(|| self.executor.read(ir));
        let told = self.tells(circumstances);
        match read {
            Ok(read) => Ok(watched(read, told, self.late.clone())),
            Err(cause) => Err(told.explain("read", &cause).into()),
        }
    }

    /// Waits for the device.
    pub fn sync(&self, circumstances: Circumstances) -> Result<(), ExecutionError> {
        let told = || self.tells(circumstances);
        match caught(|| self.executor.sync()) {
            Ok(done) => done.map_err(|error| told().name_memory("sync", error)),
            Err(cause) => Err(ExecutionError::with_context(told().explain("sync", &cause))),
        }
    }

    /// Seeds the backend's generator.
    pub fn seed(&self, seed: u64) {
        let _alone = lock(&GENERATOR);
        self.executor.seed(seed);
    }

    /// What the device's allocator holds, if the backend reports it.
    pub fn pool_usage(&self) -> Option<MemoryPoolUsage> {
        if self.executor.is_dry() { None } else { caught(|| B::memory_pool_usage(&self.executor.device)).ok()? }
    }

    /// The first failure of a read that was reported late.
    pub fn late_failure(&self) -> Option<Failure> {
        lock(&self.late).clone()
    }

    pub fn forget_late_failure(&self) {
        *lock(&self.late) = None;
    }

    /// The largest relative error of numbers that were rounded.
    pub fn largest_error(&self) -> f64 {
        self.compression.error
    }

    fn tells(&self, circumstances: Circumstances) -> failures::Told {
        let planner = self.plans.state.origin.as_ref().map_or("", |origin| origin.planner.as_str());
        failures::Told { circumstances, planner: planner.to_owned() }
    }

    /// Runs an operation and records how it went.
    fn run_recorded(&mut self, run: &Run<'_>) -> Result<Ran, Failure> {
        let spared = run.substitute.map(|(id, _)| id);
        let inputs = self.recorder.as_ref().and_then(|recorder| Some(recorder.inputs(run)?.to_vec()));
        // An evicted input has no buffer.
        let before: Option<Vec<Option<Buffer>>> = inputs.map(|inputs| {
            let mut buffer = |id| self.executor.buffer(id).ok().map(Into::into);
            inputs.iter().map(|input| (spared != Some(input.id)).then(|| buffer(input.id)).flatten()).collect()
        });
        let ran = self.run_prepared(run);
        if let (Some(recorder), Some(before)) = (&mut self.recorder, before) {
            recorder.ran(run, &before, ran.as_ref().map_err(|failure| &**failure));
        }
        ran
    }

    /// The name of a kind of operation, or `else_`.
    fn name_or(&self, kind: Kind, else_: &str) -> String {
        self.known_name(kind).cloned().unwrap_or_else(|| else_.to_owned())
    }
}

impl<B: RematBackend> Driver for Drive<B> {
    fn explain(&self, kind: Kind, cause: &Failure, circumstances: Circumstances) -> Failure {
        self.tells(circumstances).explain(&self.name_or(kind, "moving a tensor"), cause).into()
    }

    #[inline]
    fn needs(&mut self, run: &Run<'_>) -> u64 {
        let bytes = self.prepare(run);
        if let Some(recorder) = &mut self.recorder {
            recorder.needs(run, bytes);
        }
        bytes
    }

    fn arrangement(&mut self) -> u64 {
        let arrangement = self.arrangement_of_taken();
        if let Some(recorder) = &mut self.recorder {
            recorder.arrangement(arrangement);
        }
        arrangement
    }

    #[inline]
    fn run(&mut self, run: &Run<'_>) -> Result<Ran, Failure> {
        if self.recorder.is_some() { self.run_recorded(run) } else { self.run_prepared(run) }
    }

    fn arrive(&mut self, id: u64) -> Result<Buffer, Failure> {
        let (id, executor) = (TensorId::new(id), &mut self.executor);
        let hand = std::mem::replace(&mut self.hand, Hand::Nothing);
        caught(|| match hand {
            Hand::Data(data) => executor.upload(id, *data),
            Hand::Tensor(moved) => executor.import(&moved.0, moved.1),
            Hand::Nothing | Hand::Operation(_) => {}
        })?;
        let buffer = self.executor.buffer_of_new(id.value())?.into();
        if let Some(recorder) = &mut self.recorder {
            recorder.arrives(buffer);
        }
        Ok(buffer)
    }

    fn alias(&mut self, new: u64, source: u64) -> Buffer {
        self.executor.alias(TensorId::new(new), TensorId::new(source));
        // If the backend does not say, it is counted by its own bytes.
        self.executor.buffer(new).map_or(Buffer::Unknown, Into::into)
    }

    #[inline]
    fn free(&mut self, id: u64) {
        self.executor.free(id);
    }

    fn forget(&mut self, op: OpKey) {
        let op = self.ops.kept.remove(op as usize);
        self.ops.boxes.keep(op);
    }

    fn output(&mut self, op: OpKey, k: usize) -> TensorFacts {
        let output = self.ops.kept.get(op as usize).and_then(|op| op.outputs().nth(k));
        let nothing = TensorFacts { id: 0, shape: 0, bytes: 0, buffer_bytes: 0 };
        output.map_or(nothing, |ir| self.executor.facts(ir))
    }

    fn compress(&mut self, id: u64) -> Option<(u64, u64)> {
        self.compression.compress(&mut self.executor, id)
    }

    fn decompress(&mut self, id: u64) -> Result<(Buffer, u64), Failure> {
        let (buffer, ns) = self.compression.decompress(&mut self.executor, id)?;
        Ok((buffer.into(), ns))
    }

    fn discard(&mut self, id: u64) {
        self.compression.discard(id);
    }

    fn gone(&mut self, id: u64) {
        self.compression.forget(id);
    }

    fn substitute(&mut self, id: u64, need: Need) -> Option<Substitute> {
        if !self.settings.alternatives.allows(need.alternative()) {
            return None;
        }
        let ir = self.prepared.as_ref()?.op.inputs().find(|ir| ir.id.value() == id)?;
        let substitute = substitute(&mut self.executor, &mut self.compression, ir, need);
        if let Some(recorder) = &mut self.recorder {
            recorder.substitute(substitute);
        }
        substitute
    }

    fn leave_substitute(&mut self, id: u64, need: Need) -> Option<(u64, u64)> {
        self.substitutes.leave(&mut self.executor, &mut self.compression, id, need)
    }

    fn drop_substitute(&mut self, id: u64) {
        self.substitutes.discard(id);
    }

    fn pool_in_use(&mut self) -> Option<u64> {
        self.pool_usage().map(|usage| usage.bytes_in_use + usage.bytes_padding)
    }

    fn trim_pool(&mut self) {
        let _ = caught(|| B::memory_cleanup(&self.executor.device));
    }

    fn end_step(&mut self, trace: Option<&mut Trace>) {
        self.clock.read(trace);
    }

    fn name(&self, kind: Kind) -> String {
        self.name_or(kind, "an operation")
    }

    fn stage_name(&self, name: u32) -> Option<Arc<str>> {
        name_of(name)
    }

    fn in_words(&self, event: &Event) -> Failure {
        match *event {
            Event::BelowFloor { budget, floor, kind } => {
                let op = self.name_or(kind, "reading or uploading a tensor");
                let least = DisplayBytes(floor);
                format!(
                    "the budget of {} is below the floor: `{op}` needs {least} at once, none of which can be evicted. Set a \
                     budget of at least {floor} bytes (later operations may need more: `minimum_budget` says how much), or make the \
                     batch smaller.",
                    DisplayBytes(budget)
                )
                .into()
            }
            _ => format!("{event:?}").into(),
        }
    }

    #[inline]
    fn tell(&mut self, event: Event) {
        match event {
            Event::Runs(_) | Event::Recomputes(_) | Event::Evicts(_) | Event::Compresses(_) | Event::StepEnds => {}
            Event::BelowFloor { .. } => {
                log::warn!("{} The run goes on with as little memory as possible.", self.in_words(&event))
            }
            Event::Budget { first_step, budget } => {
                log::info!("the first step held {first_step} bytes: the budget is {budget} bytes from now on");
            }
            Event::GaveUp => log::warn!(
                "recomputation in this step exceeded {} times its own compute time: the rest of the step \
                 evicts nothing. Raise the budget, or the limit with `with_recompute_limit`.",
                self.settings.recompute_limit
            ),
            Event::Failed(failure) => log::error!("{failure}"),
            Event::Deviates { at, live, foreseen } => {
                log::debug!("after operation {at}, {live} bytes are held, but the plan predicted {foreseen}");
            }
        }
    }
}

impl<B: RematBackend> World for Drive<B> {
    type Planning = Plans;

    fn planning(&self) -> &Plans {
        &self.plans
    }

    fn planning_mut(&mut self) -> &mut Plans {
        &mut self.plans
    }
}
