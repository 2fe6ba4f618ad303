//! A model that has its own configuration: [`RematModule`].

use burn::tensor::Device;

use crate::config::RematConfig;
use crate::door::RematExt;
use crate::error::RematError;

/// A model that says how much memory it may be trained in. The attribute [`remat`](macro@crate::remat) implements it.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use burn_remat::{RematExt, RematModule, remat};
///
/// #[remat(budget = "64 MiB", planner = "auto", time_limit = 10)]
/// #[derive(Module, Debug)]
/// struct Model {
///     layer: Linear,
/// }
///
/// let device = Model::remat_device(&Device::flex())?;
/// let model = Model { layer: LinearConfig::new(8, 8).init(&device.clone().autodiff()) };
/// let loss = model.layer.forward(Tensor::<2>::ones([4, 8], &device)).sum();
/// assert!(loss.into_scalar::<f32>().is_finite());
/// assert_eq!(device.remat_report()?.budget_bytes, Some(64 << 20));
/// # Ok::<(), burn_remat::RematError>(())
/// ```
pub trait RematModule {
    /// The budget, the planner and the other settings.
    fn remat_config() -> RematConfig;

    /// Makes a device like `device` with this configuration. Every call makes another device with a budget of its own.
    ///
    /// # Errors
    ///
    /// As [`RematExt::remat`].
    fn remat_device(device: &Device) -> Result<Device, RematError> {
        device.remat(Self::remat_config())
    }
}
