//! Budgets for Burn's own `Device`: [`RematExt`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use burn_remat_core::CheckpointPolicy;

use super::control::{EngineControl, control_of, engine_of};
use super::group::remat;
#[cfg(feature = "serve")]
use super::serve;
use crate::config::RematConfig;
use crate::error::RematError;
use crate::rehearse::rehearsed;
use crate::report::RematReport;
use crate::stage::Stage;

/// Memory budgets for [`Device`]: see the [example](crate) of the crate.
pub trait RematExt: Sized {
    /// Makes a device like this one that evicts and recomputes tensors to stay within a budget.
    ///
    /// `config` is a budget (`"8 GiB"`, `"60%"`, `"80% free"`, a number of bytes) or a whole [`RematConfig`]. Every call makes another
    /// device with a budget of its own. An autodiff device gives an autodiff device.
    ///
    /// # Errors
    ///
    /// An invalid budget or setting, or a device that cannot have a budget.
    fn remat(&self, config: impl Into<RematConfig>) -> Result<Device, RematError>;

    /// Makes a device like this one with a budget in bytes and a plan for every step that `train` does. The plans come from a dry run
    /// before anything is allocated, so that the first step already fits. `train` must do at least three training steps. Reads give
    /// zeros in the dry run, and what `train` returns is dropped.
    ///
    /// # Errors
    ///
    /// As [`remat`](Self::remat) and [`minimum_budget`](crate::minimum_budget).
    fn remat_rehearsed<R>(
        &self,
        config: impl Into<RematConfig>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Device, RematError>;

    /// Reports what this remat device has done so far. Waits for its pending operations.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_report(&self) -> Result<RematReport, RematError>;

    /// Resets the counters of [`remat_report`](Self::remat_report).
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    fn remat_reset_report(&self) -> Result<(), RematError>;

    /// Waits until the planner in the background is done, for at most `limit`. Returns `false` if the time is up first, or if no training step has been
    /// seen three times, so that planning has not begun. A plan is followed from the next step on.
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

    /// Opens a stage with a policy, which says what may happen to the tensors that autodiff saves in it.
    fn remat_stage_with(&self, name: &str, policy: CheckpointPolicy) -> Stage;

    /// Marks the beginning of a training step, in order with the operations. Without marks the device finds the steps by
    /// itself; with marks it knows them exactly. On any other device this does nothing.
    fn remat_mark_step(&self);

    /// Records what the program asks of this remat device from now on: operations, sizes, drops, reads, marks and stages, but no data.
    /// [`RecordedProgram`](crate::RecordedProgram) can replay it, and `remat-plan` can plan it, so a bug report can become a test. The recording
    /// ends when the [`Recording`] is finished or dropped. A step of a few thousand operations takes about a megabyte.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_remat::{RecordedProgram, RematExt};
    ///
    /// let path = std::env::temp_dir().join(format!("recording-{}.jsonl", std::process::id()));
    /// let device = Device::flex().remat("64 MiB")?;
    /// let recording = device.remat_record(&path)?;
    /// let x = Tensor::<2>::ones([64, 64], &device);
    /// assert_eq!(x.clone().matmul(x).sum().into_scalar::<f32>(), 262144.0);
    /// recording.finish()?;
    ///
    /// let recorded = RecordedProgram::read(&path)?;
    /// let replayed = recorded.replay(recorded.config())?;
    /// assert_eq!(replayed.peak_bytes, device.remat_report()?.peak_bytes);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device, [`RematError::Recording`] if the file cannot be created or
    /// the device has been used already.
    fn remat_record(&self, path: impl AsRef<Path>) -> Result<Recording, RematError>;

    /// Lets [`remat_mark_step`](Self::remat_mark_step) send its marks to this remote device. Call it only for a device that burn-remat
    /// serves ([`serve`](crate::serve)) in another process: any other remote device refuses a mark as an unknown operation. Stages are
    /// not sent.
    #[cfg(feature = "serve")]
    fn remat_enable_remote_marks(&self);
}

impl RematExt for Device {
    fn remat(&self, config: impl Into<RematConfig>) -> Result<Device, RematError> {
        remat(self, config.into())
    }

    fn remat_rehearsed<R>(
        &self,
        config: impl Into<RematConfig>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Device, RematError> {
        rehearsed(self, config.into(), |device| drop(train(device)))
    }

    fn remat_report(&self) -> Result<RematReport, RematError> {
        let engine = engine_of(self)?;
        // An error of earlier work is in the report.
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
            serve::mark_step(&plain);
        }
    }

    fn remat_record(&self, path: impl AsRef<Path>) -> Result<Recording, RematError> {
        let engine = engine_of(self)?;
        engine.record(path.as_ref())?;
        Ok(Recording { engine: Some(engine) })
    }

    #[cfg(feature = "serve")]
    fn remat_enable_remote_marks(&self) {
        serve::remember(self.clone().without_autodiff());
    }
}

/// A recording in progress: see [`RematExt::remat_record`].
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    engine: Option<Arc<dyn EngineControl>>,
}

impl Recording {
    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// The first error of the file system.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.engine.take().map_or(Ok(()), |engine| engine.finish_recording())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.engine.take().map(|engine| engine.finish_recording()) {
            log::error!("the recording is incomplete: {error}");
        }
    }
}
