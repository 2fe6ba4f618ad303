//! The remat devices of this process, and the requests to their engines that are not operations.

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_remat_core::CheckpointPolicy;

use crate::config::RematConfig;
use crate::error::RematError;
use crate::names::NameId;
use crate::panics::lock;
use crate::rehearse::Seen;
use crate::report::RematReport;
#[cfg(feature = "learner")]
use crate::report::Usage;

/// Requests to an engine that are not operations, the same for all backends.
pub(crate) trait EngineControl: Debug + Send + Sync {
    fn mark_step(&self);
    fn enter_stage(&self, name: NameId, number: i64, policy: Option<CheckpointPolicy>);
    fn leave_stage(&self, number: i64);
    fn report(&self) -> RematReport;
    fn reset_report(&self);
    fn wait_for_plan(&self, limit: Duration) -> bool;
    fn rehearsed(&self) -> Result<Seen, RematError>;
    #[cfg(feature = "learner")]
    fn usage(&self) -> Usage;
    /// Begins to record what the program asks for.
    fn record(&self, path: &Path) -> Result<(), RematError>;
    fn finish_recording(&self) -> std::io::Result<()>;
    /// Forgets everything, and goes on as a new engine would.
    fn restart(&self, config: RematConfig);
}

/// The remat devices made by this process and their engines.
static ENGINES: Mutex<Vec<(Device, Arc<dyn EngineControl>)>> = Mutex::new(Vec::new());

static ANY_DEVICE: AtomicBool = AtomicBool::new(false);

/// Whether this process has made a remat device.
pub(crate) fn any_device() -> bool {
    ANY_DEVICE.load(Ordering::Acquire)
}

/// Remembers that `plain`, a device without autodiff, is a remat device with this engine.
pub(super) fn remember(plain: Device, engine: Arc<dyn EngineControl>) {
    lock(&ENGINES).push((plain, engine));
    ANY_DEVICE.store(true, Ordering::Release);
}

/// Forgets `plain`, which is no longer in use.
pub(super) fn forget(plain: &Device) {
    lock(&ENGINES).retain(|(known, _)| known != plain);
}

/// The engine of a device without autodiff, if it is a remat device of this process.
pub(crate) fn control_of(plain: &Device) -> Option<Arc<dyn EngineControl>> {
    if !matches!(plain.as_dispatch(), DispatchDevice::Group(_)) {
        return None;
    }
    lock(&ENGINES).iter().find(|(known, _)| known == plain).map(|(_, engine)| engine.clone())
}

/// The engine of a device.
///
/// # Errors
///
/// [`RematError::NotRemat`] if it is not a remat device of this process.
pub(crate) fn engine_of(device: &Device) -> Result<Arc<dyn EngineControl>, RematError> {
    control_of(&device.clone().without_autodiff()).ok_or_else(|| RematError::NotRemat { device: format!("{device:?}") })
}
