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
    /// A buffer with an identity of its own for as long as it lives.
    Known {
        /// Its identity.
        key: u64,
        /// Its whole size in bytes, however little of it the tensor uses.
        bytes: u64,
    },
    /// The backend does not say (fused backends). The engine then counts the bytes of each tensor, and recognises views by their operations.
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
    /// A part. Later kernels give the same bits whether a result is such a part or fills a buffer of its own.
    Part,
    /// A part whose layout decides in which order later kernels add.
    LayoutDependentPart,
}

/// What the engine needs to know of a backend beyond Burn's [`BackendIr`].
pub trait RematBackend: BackendIr<Device: DeviceMemory> {
    /// Whether tensors are in the memory of this process, so that their elements can be read without a copy.
    const IS_HOST: bool = false;

    /// Whether operations run after their call has returned, and profiling windows measure the time of each.
    const HAS_CLOCK: bool = false;

    /// Whether the device joins consecutive elementwise operations into one kernel.
    const FUSES: bool = false;

    /// Opens a profiling window for the next operation, and only for that.
    fn window_start(device: &Self::Device) -> Result<Option<ProfileToken>, ExecutionError> {
        Self::profile_start(device)
    }

    /// Closes the window after that operation.
    fn window_end(device: &Self::Device, window: ProfileToken) -> Result<ProfileDuration, ExecutionError> {
        Self::profile_end(device, window, ProfileOptions::default())
    }

    /// The name of the device, with that of the card if there may be several. Measured times and plans are stored under this name.
    fn device_name(device: &Self::Device) -> String {
        Self::name(device)
    }

    /// The buffer behind `handle`. Views of one tensor must give the same one.
    fn buffer(handle: &Self::Handle) -> BufferId;

    /// Whether the elements of a tensor of this shape are contiguous, in the order of their indices.
    fn is_contiguous(handle: &Self::Handle, shape: &Shape) -> bool;

    /// The whole buffer of a tensor whose elements are contiguous, if it is in the memory of this process.
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

    /// Whether a result has the memory layout of an input that its operation writes over, and another layout if the operation may not write over it. If
    /// so, the engine uses [`strides`](Self::strides) and [`with_strides`](Self::with_strides).
    const LAYOUT_FOLLOWS_REUSE: bool = false;

    /// The strides of a tensor, in elements; `None` if strides do not describe its layout.
    fn strides(_handle: &Self::Handle, _shape: &Shape) -> Option<Strides> {
        None
    }

    /// The same tensor with its dimensions in the order of these strides. It is copied only if its layout differs, and the copy has no gaps.
    fn with_strides(handle: Self::Handle, _shape: &Shape, _strides: &Strides) -> Self::Handle {
        handle
    }

    /// Whether an operation that may write over a part of a buffer gives a result that is such a part, and otherwise one that fills a buffer of its own.
    /// If so, the engine uses [`extent`](Self::extent) and [`with_own_buffer`](Self::with_own_buffer).
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
