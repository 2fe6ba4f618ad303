//! Remat devices for Burn's own `Device`: groups with one member.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use burn::backend::{GradientCheckpointingStrategy, GroupDevice};
use burn::tensor::Device;
use burn_router::get_client;

use super::backends::{WithBackend, started, with_backend};
use super::client::{Remat, RematChannel};
use super::control::{EngineControl, engine_of, forget, remember};
use crate::backend::RematBackend;
use crate::config::{Rehearsal, RematConfig};
use crate::error::RematError;
use crate::panics::{lock, panic_message};
use crate::rehearse::Seen;

/// A remat device like `device`.
///
/// # Errors
///
/// An invalid configuration, or a device that cannot have a budget.
pub(crate) fn remat(device: &Device, config: RematConfig) -> Result<Device, RematError> {
    let made = with_backend(device, config.fusion, GroupOfOne { config })?;
    Ok(with_autodiff_of(device, made))
}

/// Makes a remat device on any backend, including those that Burn's own [`Device`] does not know.
///
/// This is [`RematExt::remat`](crate::RematExt::remat) for backends that Burn's dispatch does not list. Every call makes another device.
///
/// # Errors
///
/// As [`RematExt::remat`](crate::RematExt::remat).
///
/// ```
/// use burn::tensor::Tensor;
/// use burn_flex::{Flex, FlexDevice};
/// use burn_remat::remat_on;
///
/// let device = remat_on::<Flex>(FlexDevice, "1 MiB")?;
/// assert_eq!(Tensor::<1>::ones([4], &device).sum().into_scalar::<f32>(), 4.0);
/// # Ok::<(), burn_remat::RematError>(())
/// ```
pub fn remat_on<B: RematBackend>(device: B::Device, config: impl Into<RematConfig>) -> Result<Device, RematError> {
    GroupOfOne { config: config.into() }.run::<B>(device)
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
        remember(group.clone(), engine);
        Ok(group)
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

/// Runs `train` on a rehearsal device like `device`, and returns what was seen.
pub(crate) fn rehearse(
    device: &Device,
    config: &RematConfig,
    rehearsal: Rehearsal,
    train: impl FnOnce(&Device),
) -> Result<Seen, RematError> {
    let is_dry = matches!(rehearsal, Rehearsal::Dry(_));
    let config = config.rehearsing(rehearsal);
    let observed = match take_idle(device) {
        Some(Idle { observed, engine, .. }) => {
            engine.restart(config);
            remember(observed.clone(), engine);
            with_autodiff_of(device, observed)
        }
        None => remat(device, config)?,
    };
    let trained = catch_unwind(AssertUnwindSafe(|| train(&observed)));
    let engine = engine_of(&observed)?;
    let _ = observed.sync();
    let seen = engine.rehearsed();
    // It holds nothing any more, and can be used for the next rehearsal.
    engine.restart(RematConfig::default());
    let observed = observed.without_autodiff();
    forget(&observed);
    lock(&IDLE).push(Idle { base: device.clone().without_autodiff(), observed, engine });
    match trained {
        Err(payload) if is_dry => return Err(RematError::DryRun { reason: panic_message(&*payload).to_owned() }),
        Err(payload) => resume_unwind(payload),
        Ok(()) => {}
    }
    let seen = seen?;
    if seen.steps.is_empty() { Err(RematError::NoSteps) } else { Ok(seen) }
}

/// A device that no rehearsal uses at the moment.
struct Idle {
    /// The device that it was made for.
    base: Device,
    observed: Device,
    engine: Arc<dyn EngineControl>,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// The device of an earlier rehearsal on a device like `device`. Reusing it matters: Burn keeps the threads of every connection for as long as the
/// process runs, and a search rehearses many times.
fn take_idle(device: &Device) -> Option<Idle> {
    let plain = device.clone().without_autodiff();
    let mut idle = lock(&IDLE);
    let at = idle.iter().position(|known| known.base == plain)?;
    Some(idle.swap_remove(at))
}
