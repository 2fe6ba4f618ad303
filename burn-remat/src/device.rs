//! Budgets for Burn's own `Device`: [`RematExt`].
//!
//! A program that uses `burn::Tensor` reaches only the backends that Burn's dispatch lists. One of these is the group of devices, whose
//! members may run any backend: a remat device is a group with one member. Everything happens in this process; what Burn's operations
//! cannot say (where steps and stages begin, what was done so far) goes straight to the engine, which each device is listed with here.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::backend::{DispatchDevice, GradientCheckpointingStrategy, GroupDevice};
use burn::tensor::Device;
use burn_remat_core::{CheckpointPolicy, Trace};
use burn_router::get_client;

use crate::backend::{Remat, RematBackend, RematChannel, RematClient, RematDevice, lock};
use crate::config::RematConfig;
use crate::drive::panic_message;
use crate::error::RematError;
#[cfg(feature = "learner")]
use crate::learner::Usage;
use crate::rehearse::Rehearsal;
use crate::report::RematReport;
use crate::stage::{self, NameId, Stage};

/// Memory budgets for [`Device`]: see the [example](crate) of the crate.
pub trait RematExt: Sized {
    /// A device like this one on which tensors are evicted and recomputed to stay inside a budget.
    ///
    /// `config` is a budget (`"8 GiB"`, `"60%"`, `"80% free"`, a number of bytes) or a whole [`RematConfig`]. Every call makes another
    /// device with a budget of its own. An autodiff device gives an autodiff device.
    ///
    /// # Errors
    ///
    /// A budget that cannot be, or a device that cannot carry one.
    fn remat(&self, config: impl Into<RematConfig>) -> Result<Device, RematError>;

    /// A device like this one with a budget in bytes and a plan for every step that `train` does, made on a dry device
    /// before anything is allocated, so that the first step already fits. `train` is to do at least three training steps; reads
    /// give zeros there, and what it returns is dropped.
    ///
    /// # Errors
    ///
    /// As [`remat`](Self::remat) and [`minimum_budget`](crate::minimum_budget).
    fn remat_rehearsed<R>(
        &self,
        config: impl Into<RematConfig>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Device, RematError>;

    /// What this remat device has done so far. Waits for its pending operations.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_report(&self) -> Result<RematReport, RematError>;

    /// Starts the counters of [`remat_report`](Self::remat_report) anew.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_reset_report(&self) -> Result<(), RematError>;

    /// Waits for as long as a planner is at work in the background, at most for `limit`; `false` if the time was up first, or if no
    /// training step has been seen often enough (three times) for planning to begin. A plan found is in force from the next step on.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_wait_for_plan(&self, limit: Duration) -> Result<bool, RematError>;

    /// Opens a stage: until the guard is dropped, the operations of this thread on this device belong to it, in the report, in
    /// pictures, and in the graph that is planned. Stages nest. An empty `name` opens none; on any other device this
    /// does nothing.
    ///
    /// Names are kept for as long as the process runs: give a stage the same name in every step. The attribute
    /// [`remat`](macro@crate::remat) does this for a whole method.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_remat::RematExt;
    ///
    /// let device = Device::flex().remat("64 MiB")?;
    /// let x = Tensor::<2>::ones([8, 8], &device);
    /// let y = {
    ///     let _stage = device.remat_stage("encoder");
    ///     x.clone().matmul(x)
    /// };
    /// assert_eq!(y.sum().into_scalar::<f32>(), 512.0);
    /// assert_eq!(device.remat_report()?.stages[0].stage, "encoder");
    /// # Ok::<(), burn_remat::RematError>(())
    /// ```
    fn remat_stage(&self, name: &str) -> Stage;

    /// Opens a stage of whose results `policy` says what may happen to them.
    fn remat_stage_with(&self, name: &str, policy: CheckpointPolicy) -> Stage;

    /// Says that a training step begins here, in order with the operations. Without marks the engine finds the steps
    /// itself; with them it knows exactly. On any other device this does nothing.
    fn remat_mark_step(&self);

    /// Writes down what the program asks of this remat device from here on (operations, sizes, drops, reads, marks, stages; no data), so that
    /// [`Recorded`](crate::Recorded) can play it back and `remat-plan` plan it: a bug report that becomes a test. Ends when the
    /// [`Recording`] is finished or dropped. A step of a few thousand operations takes about a megabyte.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_remat::{Recorded, RematExt};
    ///
    /// let path = std::env::temp_dir().join(format!("recording-{}.jsonl", std::process::id()));
    /// let device = Device::flex().remat("64 MiB")?;
    /// let recording = device.remat_record(&path)?;
    /// let x = Tensor::<2>::ones([64, 64], &device);
    /// assert_eq!(x.clone().matmul(x).sum().into_scalar::<f32>(), 262144.0);
    /// recording.finish()?;
    ///
    /// let recorded = Recorded::read(&path)?;
    /// let played = recorded.play(recorded.config())?;
    /// assert_eq!(played.peak_bytes, device.remat_report()?.peak_bytes);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device, [`RematError::Recording`] where the file cannot be made or the device has been used already.
    fn remat_record(&self, path: impl AsRef<Path>) -> Result<Recording, RematError>;

    /// Says that this remote device is one that burn-remat serves ([`serve`](crate::serve)) in another process: from now on
    /// [`remat_mark_step`](Self::remat_mark_step) is sent to it. Any other remote device would refuse it as an unknown
    /// operation. Stages are not sent: their names are known only in this process.
    #[cfg(feature = "serve")]
    fn remat_is_served(&self);
}

impl RematExt for Device {
    fn remat(&self, config: impl Into<RematConfig>) -> Result<Device, RematError> {
        let config = config.into();
        let device = with_backend(self, config.fusion, GroupOfOne { config })?;
        Ok(with_autodiff_of(self, device))
    }

    fn remat_rehearsed<R>(
        &self,
        config: impl Into<RematConfig>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Device, RematError> {
        crate::rehearse::rehearsed(self, config.into(), |device| drop(train(device)))
    }

    fn remat_report(&self) -> Result<RematReport, RematError> {
        let engine = engine_of(self)?;
        // An error of earlier work stands in the report.
        let _ = self.sync();
        Ok(engine.report())
    }

    fn remat_reset_report(&self) -> Result<(), RematError> {
        let engine = engine_of(self)?;
        let _ = self.sync();
        engine.reset_report();
        Ok(())
    }

    fn remat_wait_for_plan(&self, limit: Duration) -> Result<bool, RematError> {
        let engine = engine_of(self)?;
        let _ = self.sync();
        Ok(engine.wait_for_plan(limit))
    }

    fn remat_stage(&self, name: &str) -> Stage {
        Stage::on(self, name, None)
    }

    fn remat_stage_with(&self, name: &str, policy: CheckpointPolicy) -> Stage {
        Stage::on(self, name, Some(policy))
    }

    fn remat_mark_step(&self) {
        let plain = self.clone().without_autodiff();
        if let Some(engine) = control_of(&plain) {
            engine.mark_step();
        } else {
            #[cfg(feature = "serve")]
            crate::serve::mark_step(&plain);
        }
    }

    fn remat_record(&self, path: impl AsRef<Path>) -> Result<Recording, RematError> {
        let engine = engine_of(self)?;
        engine.record(path.as_ref())?;
        Ok(Recording { engine: Some(engine) })
    }

    #[cfg(feature = "serve")]
    fn remat_is_served(&self) {
        crate::serve::remember(self.clone().without_autodiff());
    }
}

/// A recording under way: see [`RematExt::remat_record`].
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    engine: Option<Arc<dyn EngineControl>>,
}

impl Recording {
    /// Ends it.
    ///
    /// # Errors
    ///
    /// What the file system said first.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.engine.take().map_or(Ok(()), |engine| engine.finish_recording())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.engine.take().map(|engine| engine.finish_recording()) {
            log::error!("the recording is not whole: {error}");
        }
    }
}

/// `device`, with autodiff if `original` has it.
fn with_autodiff_of(original: &Device, device: Device) -> Device {
    match original.gradient_checkpointing_strategy() {
        None => device,
        Some(GradientCheckpointingStrategy::Disabled) => device.autodiff(),
        Some(GradientCheckpointingStrategy::Balanced) => device.autodiff().gradient_checkpointing(),
    }
}

/// What the adapter asks of an engine, whatever its backend.
pub(crate) trait EngineControl: Debug + Send + Sync {
    fn mark_step(&self);
    fn enter_stage(&self, name: NameId, number: i64, policy: Option<CheckpointPolicy>);
    fn leave_stage(&self, number: i64);
    fn report(&self) -> RematReport;
    fn reset_report(&self);
    fn wait_for_plan(&self, limit: Duration) -> bool;
    fn rehearsed(&self) -> Vec<Trace>;
    #[cfg(feature = "learner")]
    fn usage(&self) -> Usage;
    fn record(&self, path: &Path) -> Result<(), RematError>;
    fn finish_recording(&self) -> std::io::Result<()>;
    /// Forgets everything, and goes on as a new engine would.
    fn restart(&self, config: RematConfig);
}

impl<B: RematBackend> EngineControl for RematClient<B> {
    fn mark_step(&self) {
        self.mark_step();
    }

    fn enter_stage(&self, name: NameId, number: i64, policy: Option<CheckpointPolicy>) {
        self.enter_stage(name, number, policy);
    }

    fn leave_stage(&self, number: i64) {
        self.leave_stage(number);
    }

    fn report(&self) -> RematReport {
        self.report()
    }

    fn reset_report(&self) {
        self.reset_report();
    }

    fn wait_for_plan(&self, limit: Duration) -> bool {
        self.wait_for_plan(limit)
    }

    fn rehearsed(&self) -> Vec<Trace> {
        self.rehearsed()
    }

    #[cfg(feature = "learner")]
    fn usage(&self) -> Usage {
        self.usage()
    }

    fn record(&self, path: &Path) -> Result<(), RematError> {
        self.record(path)
    }

    fn finish_recording(&self) -> std::io::Result<()> {
        self.finish_recording()
    }

    fn restart(&self, config: RematConfig) {
        self.restart(config);
    }
}

/// Runs `train` on a device like `device` that is only looked at, and gives the steps that it did, each kind once, in
/// order.
pub(crate) fn rehearse(
    device: &Device,
    config: &RematConfig,
    rehearsal: Rehearsal,
    train: impl FnOnce(&Device),
) -> Result<Vec<Trace>, RematError> {
    let config = config.rehearsing(rehearsal);
    let observed = match take_idle(device) {
        Some(Idle { observed, engine, .. }) => {
            engine.restart(config);
            lock(&ENGINES).push((observed.clone(), engine));
            with_autodiff_of(device, observed)
        }
        None => device.remat(config)?,
    };
    train(&observed);
    let engine = engine_of(&observed)?;
    let _ = observed.sync();
    let traces = engine.rehearsed();
    // It holds nothing any more, and waits for the next rehearsal.
    engine.restart(RematConfig::default());
    let observed = observed.without_autodiff();
    lock(&ENGINES).retain(|(known, _)| *known != observed);
    lock(&IDLE).push(Idle { base: device.clone().without_autodiff(), observed, engine });
    if traces.is_empty() { Err(RematError::NoSteps) } else { Ok(traces) }
}

/// A device of an earlier rehearsal on a device like `device`: Burn keeps the threads of every connection for as long as the
/// process runs, and a search rehearses many times.
fn take_idle(device: &Device) -> Option<Idle> {
    let plain = device.clone().without_autodiff();
    let mut idle = lock(&IDLE);
    let at = idle.iter().position(|known| known.base == plain)?;
    Some(idle.swap_remove(at))
}

/// The remat devices made by this process and their engines.
static ENGINES: Mutex<Vec<(Device, Arc<dyn EngineControl>)>> = Mutex::new(Vec::new());

/// A device that no rehearsal uses at the moment.
struct Idle {
    /// The device that it stands for.
    base: Device,
    observed: Device,
    engine: Arc<dyn EngineControl>,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// The engine of a device without autodiff, if it is a remat device of this process.
pub(crate) fn control_of(plain: &Device) -> Option<Arc<dyn EngineControl>> {
    if !matches!(plain.as_dispatch(), DispatchDevice::Group(_)) {
        return None;
    }
    lock(&ENGINES).iter().find(|(known, _)| known == plain).map(|(_, engine)| engine.clone())
}

pub(crate) fn engine_of(device: &Device) -> Result<Arc<dyn EngineControl>, RematError> {
    control_of(&device.clone().without_autodiff()).ok_or_else(|| RematError::NotRemat { device: format!("{device:?}") })
}

/// Work to be done with the backend behind a [`Device`].
pub(crate) trait WithBackend {
    type Output;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<Self::Output, RematError>;
}

pub(crate) fn with_backend<W: WithBackend>(device: &Device, fusion: bool, work: W) -> Result<W::Output, RematError> {
    let unsupported =
        |reason: &str| RematError::UnsupportedDevice { device: format!("{device:?}"), reason: reason.to_owned() };
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) if fusion && crate::cubecl::has_fusion() => {
            work.run::<burn_cubecl::Cube>(device.clone())
        }
        DispatchDevice::Group(_) => Err(unsupported(
            "it is a group of devices, as every remat device is. Give the budget to the device itself: `Device::flex().remat(..)`",
        )),
        #[cfg(feature = "serve")]
        DispatchDevice::Remote(_) => Err(unsupported(
            "it is on another machine or in another process. Give the budget to the device there, with the `serve` command",
        )),
        _ if fusion => Err(unsupported(
            "it has no kernel fusion. That is there on a GPU, in a build with the feature `fusion`; without `with_fusion()` \
             operations run one by one",
        )),
        DispatchDevice::Flex(device) => work.run::<burn_flex::Flex>(*device),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => work.run::<burn_cubecl::CubeBackend>(device.clone()),
        #[allow(unreachable_patterns)]
        _ => Err(unsupported("use a Flex, wgpu, Vulkan or CUDA device, with the feature of that name")),
    }
}

/// A remat device like `device`, which is started first: where its driver or the card is missing Burn panics.
pub(crate) fn started<B: RematBackend>(
    device: B::Device,
    config: RematConfig,
) -> Result<RematDevice<B::Device>, RematError> {
    catch_unwind(AssertUnwindSafe(|| B::padding(&device))).map_err(|payload| RematError::UnsupportedDevice {
        device: format!("{device:?}"),
        reason: format!(
            "it does not start: {}; what was logged before may say more. Is its driver installed, and the card seen from here (`vulkaninfo --summary`, `nvidia-smi`)?",
            panic_message(&*payload).lines().next().unwrap_or_default().trim_end_matches('.')
        ),
    })?;
    RematDevice::new(device, config.with_own_thread())
}

/// A configuration for `device`, if it can be: a share of free memory is bytes there.
pub(crate) fn validated_on(device: &Device, config: RematConfig) -> Result<RematConfig, RematError> {
    with_backend(device, config.fusion, Validate { config })
}

struct Validate {
    config: RematConfig,
}

impl WithBackend for Validate {
    type Output = RematConfig;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<RematConfig, RematError> {
        self.config.validated_on(&device)
    }
}

struct GroupOfOne {
    config: RematConfig,
}

impl WithBackend for GroupOfOne {
    type Output = Device;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<Device, RematError> {
        let device = started::<B>(device, self.config)?;
        let group = GroupDevice::new::<Remat<B>>(std::slice::from_ref(&device)).map_err(|error| {
            RematError::UnsupportedDevice { device: format!("{:?}", device.inner()), reason: error.to_string() }
        })?;
        let group = Device::new(group);
        let engine = Arc::new(get_client::<RematChannel<B>>(&device));
        lock(&ENGINES).push((group.clone(), engine));
        stage::expect_devices();
        Ok(group)
    }
}
