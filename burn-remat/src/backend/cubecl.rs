//! What the engine needs from Burn's GPU backend.
//!
//! Burn's dispatch has one type for it, `burn_cubecl::Cube`. This is the backend itself, or a fusing backend around it if any crate of the build enables
//! `burn-cubecl/fusion`, as Burn's default features do. The engine works with both.

use std::any::TypeId;
use std::hash::{Hash, Hasher};
#[cfg(feature = "cuda")]
use std::panic::catch_unwind;

use burn_backend::cubecl::dtype_to_elem_type;
use burn_backend::tensor::IndexingUpdateOp;
use burn_backend::{Backend, DType, ExecutionError, ProfileDuration, ProfileToken, Shape};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeBackend, CubeDevice};
use burn_fusion::{Fusion, FusionBackend};
use burn_ir::{BackendIr, BaseOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr, TensorHandle};
use burn_std::tensor::contiguous_strides;
use burn_std::tensor::layout::{dim_order, nested_dim_order};
use burn_std::{Metadata, Strides};
use cubecl_kernels::device::WgpuDeviceKind;
use cubecl_kernels::features::AtomicUsage;
use cubecl_kernels::ir::Type;
#[cfg(feature = "cuda")]
use cudarc::driver::CudaContext;
use rustc_hash::FxHasher;

use super::memory::{DeviceMemory, host_free_bytes};
use super::padding::Padding;
use super::strides::lie_alike;
use super::traits::{BufferId, Extent, RematBackend};

/// Whether this build has Burn's kernel fusion.
pub(crate) fn has_fusion() -> bool {
    TypeId::of::<Cube>() != TypeId::of::<CubeBackend>()
}

impl RematBackend for CubeBackend {
    const HAS_CLOCK: bool = true;
    // Elementwise kernels walk through a tensor in its memory order (burn-cubecl's `kernel/memory_order.rs`).
    const LAYOUT_FOLLOWS_REUSE: bool = true;

    fn device_name(device: &CubeDevice) -> String {
        format!("{} on {}", <Self as Backend>::name(device), device.client().properties().identity.name)
    }

    fn buffer(handle: &Self::Handle) -> BufferId {
        let mut hasher = FxHasher::default();
        handle.handle.memory.clone().binding().id().hash(&mut hasher);
        // The size of the whole allocation, rounded up as the pool does.
        BufferId::Known { key: hasher.finish(), bytes: handle.handle.size() }
    }

    fn is_contiguous(handle: &Self::Handle, shape: &Shape) -> bool {
        let tensor = tensor(handle.clone(), shape);
        // The strides of dimensions of size one count too: they decide how many elements a kernel takes at once.
        !tensor.meta.is_tiled() && *tensor.meta.strides() == contiguous_strides(shape)
    }

    fn strides(handle: &Self::Handle, shape: &Shape) -> Option<Strides> {
        let tensor = tensor(handle.clone(), shape);
        tensor.qparams.is_none().then(|| tensor.meta.strides().clone())
    }

    fn with_strides(handle: Self::Handle, shape: &Shape, strides: &Strides) -> Self::Handle {
        let mut tensor = tensor(handle, shape);
        if !lie_alike(shape, tensor.meta.strides(), strides)
            && let Some(order) = nested_dim_order(shape, strides)
        {
            let mut back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
            tensor = permute(into_contiguous(permute(tensor, &order)), &back);
        }
        if lie_alike(shape, tensor.meta.strides(), strides) {
            *tensor.meta = Metadata::new(shape.clone(), strides.clone());
        }
        CubeBackend::float_tensor_handle(tensor)
    }

    const PARTS_FOLLOW_REUSE: bool = true;

    fn extent(handle: &Self::Handle, shape: &Shape) -> Extent {
        let tensor = tensor(handle.clone(), shape);
        let alignment = tensor.client.properties().memory.alignment.max(1);
        // The scales of a quantized tensor are stored behind its values.
        if tensor.qparams.is_some() || tensor.handle.size_in_used().next_multiple_of(alignment) >= tensor.handle.size()
        {
            Extent::Whole
        } else if dim_order(tensor.meta.shape(), tensor.meta.strides()).is_some() {
            // There are no gaps between its elements.
            Extent::Part
        } else {
            // Reductions merge dimensions that have no gaps between them (burn-cubecl's `kernel/reduce/base.rs`).
            Extent::LayoutDependentPart
        }
    }

    fn with_own_buffer(handle: Self::Handle, shape: &Shape) -> Self::Handle {
        let part = tensor(handle, shape);
        let mut whole = part.handle.clone();
        (whole.offset_start, whole.offset_end) = (None, None);
        // The bytes are copied as they are, whatever type they have.
        let dtype = DType::U32;
        let flat = Metadata::new([whole.size() as usize / dtype.size()], [1]);
        let copy = CubeTensor::new(part.client.clone(), whole, flat, part.device.clone(), dtype).copy();
        let mut moved = copy.handle;
        (moved.offset_start, moved.offset_end) = (part.handle.offset_start, part.handle.offset_end);
        CubeBackend::float_tensor_handle(CubeTensor { handle: moved, ..part })
    }

    fn padding(device: &CubeDevice) -> Padding {
        // cubecl-server's `PitchedMemoryLayoutPolicy`, which cubecl-cuda uses and cubecl-wgpu does not.
        let pads_rows = matches!(device, CubeDevice::Cuda(_) | CubeDevice::Hip(_));
        Padding { alignment: device.client().properties().memory.alignment.max(1), pads_rows, ..Padding::default() }
    }

    fn is_deterministic(device: &CubeDevice, op: &OperationIr) -> bool {
        match op {
            // One addition per part of the input, in the order in which the parts finish.
            OperationIr::NumericFloat(dtype, NumericOperationIr::Sum(_)) => !adds_atomically(device, *dtype),
            OperationIr::BaseFloat(BaseOperationIr::Scatter(op)) => {
                !adds(op.update) || !adds_atomically(device, op.out.dtype)
            }
            OperationIr::BaseFloat(BaseOperationIr::SelectAssign(op)) => {
                !adds(op.update) || !selects_atomically(device, op.out.dtype)
            }
            // Adds rows to the table by index.
            OperationIr::Module(ModuleOperationIr::EmbeddingBackward(op)) => !selects_atomically(device, op.out.dtype),
            OperationIr::Module(ModuleOperationIr::AttentionBackward(_)) => !adds_atomically(device, DType::F32),
            // One unit per value: units with the same index race.
            OperationIr::BaseFloat(BaseOperationIr::ScatterNd(_)) => false,
            OperationIr::Module(ModuleOperationIr::DeformableConv2dBackward(_)) => false,
            _ => true,
        }
    }
}

fn adds(update: IndexingUpdateOp) -> bool {
    matches!(update, IndexingUpdateOp::Add)
}

/// Whether rows are added to a tensor of this type in whatever order they finish. Types of 16 bits are added as 32 bits.
fn selects_atomically(device: &CubeDevice, dtype: DType) -> bool {
    let dtype = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    adds_atomically(device, dtype)
}

/// The tensor behind a handle, whatever its type. In a build with Burn's fusion, a handle does not know its shape.
fn tensor(handle: <CubeBackend as BackendIr>::Handle, shape: &Shape) -> CubeTensor {
    CubeBackend::float_tensor(TensorHandle { handle, shape: shape.clone() })
}

impl DeviceMemory for CubeDevice {
    fn free_bytes(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "cuda")]
            CubeDevice::Cuda(device) => cuda_free_bytes(device.index),
            // These use the host's memory.
            CubeDevice::Wgpu(device)
                if matches!(device.kind, WgpuDeviceKind::Cpu | WgpuDeviceKind::IntegratedGpu(_)) =>
            {
                host_free_bytes()
            }
            _ => None,
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda_free_bytes(index: usize) -> Option<u64> {
    // This panics if no driver can be loaded.
    let free = || CudaContext::new(index)?.mem_get_info();
    catch_unwind(free).ok()?.ok().map(|(free, _total)| free as u64)
}

/// Runs an operation only once it knows which others to fuse it with. Until then, nobody knows where its result will be.
impl<B: FusionBackend + RematBackend> RematBackend for Fusion<B> {
    const HAS_CLOCK: bool = B::HAS_CLOCK;
    const FUSES: bool = true;

    fn window_start(device: &Self::Device) -> Result<Option<ProfileToken>, ExecutionError> {
        // Operations that wait to be fused with later ones belong before the window.
        drained::<B, _>(device, B::window_start)
    }

    fn window_end(device: &Self::Device, window: ProfileToken) -> Result<ProfileDuration, ExecutionError> {
        drained::<B, _>(device, move |device| B::window_end(device, window))
    }

    fn device_name(device: &Self::Device) -> String {
        format!("fusion<{}>", B::device_name(device))
    }

    fn buffer(_handle: &Self::Handle) -> BufferId {
        BufferId::Unknown
    }

    fn is_contiguous(_handle: &Self::Handle, _shape: &Shape) -> bool {
        false
    }

    fn padding(device: &Self::Device) -> Padding {
        B::padding(device)
    }

    fn is_deterministic(device: &Self::Device, op: &OperationIr) -> bool {
        B::is_deterministic(device, op)
    }
}

/// Does `work` on the thread that fuses kernels, after everything that waits there has run.
fn drained<B: FusionBackend, T: Send + 'static>(
    device: &B::Device,
    work: impl FnOnce(&B::Device) -> Result<T, ExecutionError> + Send + 'static,
) -> Result<T, ExecutionError> {
    let there = device.clone();
    let done = burn_fusion::get_client::<B>(device).try_sync(move || work(&there));
    done.map_err(|error| ExecutionError::with_context(format!("{error:?}")))?
}

/// Whether several threads of a kernel on `device` may add to the same number. The order of the additions is then random.
fn adds_atomically(device: &CubeDevice, dtype: DType) -> bool {
    let usage = device.client().properties().atomic_type_usage(Type::atomic(dtype_to_elem_type(dtype)));
    usage.contains(AtomicUsage::Add)
}
