//! What the engine needs from backends.

#[cfg(feature = "cubecl")]
mod cubecl;
mod flex;
mod memory;
mod padding;
mod strides;
mod traits;

#[cfg(feature = "cubecl")]
pub(crate) use cubecl::has_fusion;
pub use memory::DeviceMemory;
pub use padding::Padding;
pub(crate) use padding::tensor_bytes;
pub(crate) use strides::{Order, dense, lie_alike, walked};
pub use traits::{BufferId, Extent, RematBackend};
