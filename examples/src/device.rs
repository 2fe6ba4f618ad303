//! Devices by the names of the command line.

use burn::tensor::Device;

/// The device called `name`: `flex`, or `wgpu`, `vulkan`, `cuda` where the build has that feature.
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
        "wgpu" | "vulkan" | "cuda" => missing(name),
        _ => Err(format!("unknown device `{name}`: use flex, wgpu, vulkan or cuda")),
    }
}
