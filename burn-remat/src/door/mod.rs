//! How a program reaches an engine.
//!
//! A program that uses `burn::Tensor` reaches only the backends that Burn's dispatch lists. One of these is the group of devices, whose members may run
//! any backend: a remat device is a group with one member. Everything happens in this process. What Burn's operations cannot express (where steps and
//! stages begin, a request for a report) goes straight to the engine: `control.rs` lists the engine of each device.

mod backends;
mod client;
mod control;
mod device;
mod group;
mod intake;
mod queue;
mod reads;
mod remat_device;
#[cfg(feature = "serve")]
mod serve;
mod sync;

pub(crate) use backends::validated_on;
pub use client::{Remat, RematBridge, RematChannel, RematClient};
#[cfg(feature = "learner")]
pub(crate) use control::engine_of;
pub(crate) use control::{EngineControl, any_device, control_of};
pub use device::{Recording, RematExt};
pub use group::remat_on;
pub(crate) use group::{rehearse, remat};
pub use remat_device::RematDevice;
#[cfg(feature = "serve")]
pub use serve::{random_token, serve};
