//! What the engine asks of Burn's GPU backend.
//!
//! `burn_cubecl::Cube` is one of two types: the plain backend, or the fusing one around it where any crate of the build asks
//! for `burn-cubecl/fusion`, which Burn's default features do. Both are served.

use std::hash::{Hash, Hasher};

use burn_backend::DType;
use burn_backend::cubecl::dtype_to_elem_type;
use burn_backend::tensor::IndexingUpdateOp;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{Cube, CubeDevice};
use burn_ir::{BackendIr, BaseOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr};
use cubecl_kernels::features::AtomicUsage;
use cubecl_kernels::ir::Type;
use rustc_hash::FxHasher;

use crate::backend::{BufferId, RematBackend};

impl RematBackend for Cube {
    const HAS_CLOCK: bool = <Cube as BackendIr>::Handle::IS_PLAIN;

    fn buffer(handle: &Self::Handle) -> BufferId {
        handle.buffer()
    }

    fn is_in_order(handle: &Self::Handle) -> bool {
        handle.is_in_order()
    }

    fn alignment(device: &CubeDevice) -> u64 {
        device.client().properties().memory.alignment
    }

    fn repeats(device: &CubeDevice, op: &OperationIr) -> bool {
        match op {
            // One addition per part of the input, in the order in which the parts are done.
            OperationIr::NumericFloat(dtype, NumericOperationIr::Sum(_)) => !adds_atomically(device, *dtype),
            OperationIr::BaseFloat(BaseOperationIr::Scatter(op)) => {
                !matches!(op.update, IndexingUpdateOp::Add) || !adds_atomically(device, op.out.dtype)
            }
            // One unit per value: those with the same index race.
            OperationIr::BaseFloat(BaseOperationIr::ScatterNd(_)) => false,
            OperationIr::Module(ModuleOperationIr::DeformableConv2dBackward(_)) => false,
            _ => true,
        }
    }
}

/// Whether kernels on `device` may add to one number from several threads: then the order of additions is left to chance.
fn adds_atomically(device: &CubeDevice, dtype: DType) -> bool {
    let usage = device.client().properties().atomic_type_usage(Type::atomic(dtype_to_elem_type(dtype)));
    usage.contains(AtomicUsage::Add)
}

/// A handle of one of the two types.
trait CubeHandle {
    /// Whether it is that of the plain backend. The other one runs operations when it has found with which to join them.
    const IS_PLAIN: bool;

    fn buffer(&self) -> BufferId;

    fn is_in_order(&self) -> bool;
}

impl CubeHandle for CubeTensor {
    const IS_PLAIN: bool = true;

    fn buffer(&self) -> BufferId {
        let mut hasher = FxHasher::default();
        self.handle.memory.clone().binding().id().hash(&mut hasher);
        // The size of the whole allocation, rounded up as the pool does.
        BufferId::Known { key: hasher.finish(), bytes: self.handle.size() }
    }

    fn is_in_order(&self) -> bool {
        self.is_contiguous()
    }
}

impl<R: burn_fusion::FusionRuntime> CubeHandle for burn_fusion::FusionTensor<R> {
    const IS_PLAIN: bool = false;

    fn buffer(&self) -> BufferId {
        BufferId::Unknown
    }

    fn is_in_order(&self) -> bool {
        // Nobody knows until it has run.
        false
    }
}
