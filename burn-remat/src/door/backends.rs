//! From Burn's `Device` to the backend behind it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::DispatchDevice;
use burn::tensor::Device;

use super::remat_device::RematDevice;
use crate::backend::RematBackend;
use crate::config::RematConfig;
use crate::error::RematError;
use crate::panics::panic_message;

/// Work to be done with the backend behind a [`Device`].
pub(super) trait WithBackend {
    type Output;

    fn run<B: RematBackend>(self, device: B::Device) -> Result<Self::Output, RematError>;
}

/// Does `work` with the backend behind `device`.
///
/// # Errors
///
/// [`RematError::UnsupportedDevice`], and those of `work`.
pub(super) fn with_backend<W: WithBackend>(device: &Device, fusion: bool, work: W) -> Result<W::Output, RematError> {
    let unsupported =
        |reason: &str| RematError::UnsupportedDevice { device: format!("{device:?}"), reason: reason.to_owned() };
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) if fusion && crate::backend::has_fusion() => {
            work.run::<burn_cubecl::Cube>(device.clone())
        }
        DispatchDevice::Group(_) => Err(unsupported(
            "it is a remat device already, or another group of devices. Use the plain device, such as `Device::flex()`",
        )),
        #[cfg(feature = "serve")]
        DispatchDevice::Remote(_) => Err(unsupported(
            "it is on another machine or in another process. Give the budget to the device there, with the `serve` command",
        )),
        _ if fusion => Err(unsupported(
            "it has no kernel fusion. Fusion needs a GPU and a build with the feature `fusion`; without `with_fusion()` operations \
             run one by one",
        )),
        DispatchDevice::Flex(device) => work.run::<burn_flex::Flex>(*device),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => work.run::<burn_cubecl::CubeBackend>(device.clone()),
        #[allow(unreachable_patterns)]
        _ => Err(unsupported("use a Flex, wgpu, Vulkan or CUDA device, with the feature of that name")),
    }
}

/// A remat device like `device`. It starts `device` first, because Burn panics if its driver or the card is missing.
pub(super) fn started<B: RematBackend>(
    device: B::Device,
    config: RematConfig,
) -> Result<RematDevice<B::Device>, RematError> {
    catch_unwind(AssertUnwindSafe(|| B::padding(&device))).map_err(|payload| RematError::UnsupportedDevice {
        device: format!("{device:?}"),
        reason: format!(
            "it does not start: {}; earlier log messages may say more. Is its driver installed, and does `vulkaninfo --summary` or `nvidia-smi` list the card?",
            panic_message(&*payload).lines().next().unwrap_or_default().trim_end_matches('.')
        ),
    })?;
    RematDevice::new(device, config.with_own_thread())
}

/// A configuration for `device`, if it is valid there. A share of free memory becomes bytes.
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
