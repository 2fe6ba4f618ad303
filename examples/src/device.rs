//! Devices by their names on the command line.

use std::io::{Write, stderr};

use burn::tensor::Device;

/// The environment variable that names the device for the end-to-end tests.
const TEST_DEVICE: &str = "BURN_REMAT_TEST_DEVICE";

/// The device called `name`: `flex`, or `wgpu`, `vulkan` or `cuda` if the build has that feature.
///
/// # Errors
///
/// What the name should have been, or which feature to build with.
pub fn by_name(name: &str) -> Result<Device, String> {
    let missing = |feature: &str| {
        Err(format!("this build has no `{name}` device: build with `--features {feature}`, or use `--device flex`"))
    };
    match name {
        "flex" => Ok(Device::flex()),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Device::wgpu(burn::tensor::DeviceKind::default())),
        #[cfg(feature = "vulkan")]
        "vulkan" => Ok(Device::vulkan(burn::tensor::DeviceKind::default())),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Device::cuda(0)),
        #[allow(unreachable_patterns, reason = "a build with all features covers all names")]
        "wgpu" | "vulkan" | "cuda" => missing(name),
        _ => Err(format!("unknown device `{name}`: use flex, wgpu, vulkan or cuda")),
    }
}

/// Whether plain Burn fuses kernels on `device` that a remat device runs one by one, because it is not `fused`.
pub fn runs_other_kernels(device: &Device, fused: bool) -> bool {
    cfg!(feature = "fusion") && !fused && *device != Device::flex()
}

/// Name of the device that the end-to-end tests run on: the value of `BURN_REMAT_TEST_DEVICE`, otherwise `flex`.
pub fn name_under_test() -> String {
    std::env::var(TEST_DEVICE).unwrap_or_else(|_| "flex".to_owned())
}

/// The device that the end-to-end tests run on.
///
/// # Panics
///
/// If there is no device of that name: a test that silently ran on another one would prove nothing.
pub fn under_test() -> Device {
    by_name(&name_under_test()).unwrap_or_else(|error| panic!("{TEST_DEVICE}: {error}"))
}

/// Reports on the error stream that `test` is skipped on the device under test, and why.
pub fn skip(test: &str, why: &str) {
    // Written to the stream directly, because the output of a test that passes is not shown.
    let _ = writeln!(stderr(), "{test} is skipped on {}: {why}", name_under_test());
}

/// Whether the tests run on Flex. If not, reports that `test` is skipped and why.
pub fn is_flex(test: &str, why: &str) -> bool {
    let is_flex = name_under_test() == "flex";
    if !is_flex {
        skip(test, why);
    }
    is_flex
}
