//! Tensors by their numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use burn_backend::{DType, Shape};
use burn_ir::{HandleKind, TensorHandle, TensorId, TensorIr, TensorStatus};

use crate::backend::RematBackend;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A tensor id that no other tensor of this process has.
pub(crate) fn fresh_id() -> TensorId {
    TensorId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

/// A description without the shape, for when only the number counts.
pub(super) fn bare(id: u64) -> TensorIr {
    TensorIr { id: TensorId::new(id), shape: Shape::new([]), status: TensorStatus::ReadOnly, dtype: DType::F32 }
}

/// A handle as a tensor of its type.
pub(crate) fn typed<B: RematBackend>(handle: B::Handle, shape: Shape, dtype: DType) -> HandleKind<B> {
    let tensor = TensorHandle { handle, shape };
    if let DType::QFloat(_) = dtype {
        HandleKind::Quantized(B::quantized_tensor(tensor))
    } else if dtype.is_float() {
        HandleKind::Float(B::float_tensor(tensor))
    } else if dtype.is_bool() {
        HandleKind::Bool(B::bool_tensor(tensor))
    } else {
        HandleKind::Int(B::int_tensor(tensor))
    }
}
