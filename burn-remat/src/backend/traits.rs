//! [`RematBackend`]: what the engine needs to know of a backend beyond Burn's own traits.

use burn_backend::{DType, ExecutionError, ProfileDuration, ProfileOptions, ProfileToken, Shape};
use burn_ir::{BackendIr, OperationIr};
use burn_remat_core::Buffer;
use burn_std::Strides;

use super::memory::DeviceMemory;
use super::padding::Padding;

/// Which buffer a tensor handle keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferId {
    /// A buffer that can be told apart from all others while it lives.
    Known {
        /// Its identity.
        key: u64,
        /// Its whole size in bytes, however little of it the tensor uses.
        bytes: u64,
    },
    /// The backend does not say (fused backends): the engine counts the bytes of each tensor, and knows views by their operations.
    Unknown,
}

impl BufferId {
    /// The buffer's size, as far as it is known.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Known { bytes, .. } => bytes,
            Self::Unknown => 0,
        }
    }
}

impl From<BufferId> for Buffer {
    fn from(id: BufferId) -> Self {
        match id {
            BufferId::Known { key, bytes } => Self::Known { identity: key, bytes },
            BufferId::Unknown => Self::Unknown,
        }
    }
}

/// How much of its buffer a tensor uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// All of it.
    Whole,
    /// A part. Later kernels give the same bits whether a result is such a part, or fills a buffer of its own.
    Part,
    /// A part whose layout decides in which order later kernels add.
    LayoutDependentPart,
}

/// What the engine needs to know of a backend beyond Burn's [`BackendIr`].
pub trait RematBackend: BackendIr<Device: DeviceMemory> {
    /// Whether tensors lie in the memory of this process, so that reading their elements copies nothing.
    const IS_HOST: bool = false;

    /// Whether operations run after their call has returned, and profiling windows measure the time of each.
    const HAS_CLOCK: bool = false;

    /// Whether the device joins elementwise operations that follow one another into one kernel.
    const FUSES: bool = false;

    /// Opens a profiling window for one operation, the next.
    fn window_start(device: &Self::Device) -> Result<Option<ProfileToken>, ExecutionError> {
        Self::profile_start(device)
    }

    /// Closes it, with the operation in it.
    fn window_end(device: &Self::Device, window: ProfileToken) -> Result<ProfileDuration, ExecutionError> {
        Self::profile_end(device, window, ProfileOptions::default())
    }

    /// The name of the device, with that of the card if there may be several. Measured times and plans belong to this name.
    fn device_name(device: &Self::Device) -> String {
        Self::name(device)
    }

    /// The buffer behind `handle`. Views of one tensor must give the same one.
    fn buffer(handle: &Self::Handle) -> BufferId;

    /// Whether the elements of a tensor of this shape are contiguous, in the order of their indices.
    fn is_contiguous(handle: &Self::Handle, shape: &Shape) -> bool;

    /// The whole buffer of a tensor whose elements lie in order, if it is in the memory of this process.
    fn host_bytes(_handle: &Self::Handle) -> Option<&[u8]> {
        None
    }

    /// A tensor that has a shape but no elements, for operations that need nothing else.
    fn without_data(_shape: &Shape, _dtype: DType) -> Option<Self::Handle> {
        None
    }

    /// What the device's allocator adds to tensors.
    fn padding(_device: &Self::Device) -> Padding {
        Padding::default()
    }

    /// Whether a result lies in memory as the input over which an operation may write, and in another way where it may
    /// not. Then [`strides`](Self::strides) and [`with_strides`](Self::with_strides) are asked.
    const LAYOUT_FOLLOWS_REUSE: bool = false;

    /// The strides of a tensor, in elements; `None` where they do not say how it lies.
    fn strides(_handle: &Self::Handle, _shape: &Shape) -> Option<Strides> {
        None
    }

    /// The same tensor with its dimensions in the order of these strides, copied only where it lies otherwise. Gaps are left out then.
    fn with_strides(handle: Self::Handle, _shape: &Shape, _strides: &Strides) -> Self::Handle {
        handle
    }

    /// Whether a result is a part of its buffer where an operation may write over such a part, and else fills one of its own. Then
    /// [`extent`](Self::extent) and [`with_own_buffer`](Self::with_own_buffer) are asked.
    const PARTS_FOLLOW_REUSE: bool = false;

    /// How much of its buffer a tensor uses.
    fn extent(_handle: &Self::Handle, _shape: &Shape) -> Extent {
        Extent::Whole
    }

    /// The same tensor in a copy of its whole buffer.
    fn with_own_buffer(handle: Self::Handle, _shape: &Shape) -> Self::Handle {
        handle
    }

    /// Whether `op` gives the same bits whenever it runs on the same inputs. If not, its results are kept and never computed again.
    fn is_deterministic(_device: &Self::Device, _op: &OperationIr) -> bool {
        true
    }
}
