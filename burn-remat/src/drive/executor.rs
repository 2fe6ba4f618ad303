//! Where operations run: on the backend, or nowhere.
//!
//! On a *dry* executor operations take no time and no memory, and reads give zeros: see `dry.rs`.

use std::sync::Arc;

use burn_backend::{DType, ExecutionError, Shape, TensorData};
use burn_ir::{HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_remat_core::{Failure, TensorFacts};
use burn_router::TensorInterpreter;
use burn_std::Strides;
use burn_std::future::DynFut;
use burn_std::quantization::{QuantScheme, global_scale_dtype, params_shape};

use super::boxes::take;
use super::dry::Dry;
use super::look::Shown;
use super::operation::facts;
use super::tensors::{bare, typed};
use crate::backend::{BufferId, Extent, Padding, RematBackend, tensor_bytes};
use crate::guide::Guide;
use crate::panics::caught;

/// See the [module](self).
pub(super) struct Executor<B: RematBackend> {
    place: Place<B>,
    pub device: B::Device,
    /// What the device's allocator adds to tensors.
    pub padding: Padding,
}

enum Place<B: RematBackend> {
    Backend(Shown<B>),
    Dry(Dry),
}

/// The layout that a result must have.
pub(super) struct Layout {
    pub out: TensorIr,
    pub strides: Strides,
}

impl<B: RematBackend> Executor<B> {
    pub fn real(device: B::Device) -> Self {
        let padding = B::padding(&device);
        Self { place: Place::Backend(Shown::new(device.clone())), device, padding }
    }

    pub fn dry(device: B::Device, guide: Option<Arc<Guide>>) -> Self {
        let padding = B::padding(&device);
        Self { place: Place::Dry(Dry::new(guide, padding, B::IS_HOST)), device, padding }
    }

    /// What the core is told about a tensor.
    pub fn facts(&self, ir: &TensorIr) -> TensorFacts {
        facts(ir, self.padding)
    }

    /// Runs an operation, which is taken out of `op`.
    #[inline]
    pub fn run(&mut self, op: &mut OperationIr) {
        match &mut self.place {
            Place::Backend(interpreter) => interpreter.register_op(take(op)),
            Place::Dry(dry) => dry.run(op),
        }
    }

    /// Frees a tensor's data.
    #[inline]
    pub fn free(&mut self, id: u64) {
        self.run(&mut OperationIr::Drop(TensorIr { status: TensorStatus::ReadWrite, ..bare(id) }));
    }

    pub fn as_dry(&mut self) -> Option<&mut Dry> {
        match &mut self.place {
            Place::Backend(_) => None,
            Place::Dry(dry) => Some(dry),
        }
    }

    /// The buffer of a resident tensor. If the backend panics, this question and the others fail with its message.
    #[inline]
    pub fn buffer(&mut self, id: u64) -> Result<BufferId, Failure> {
        let id = TensorId::new(id);
        match &mut self.place {
            Place::Backend(interpreter) => caught(|| interpreter.buffer(id)),
            Place::Dry(dry) => Ok(dry.buffer(id)),
        }
    }

    /// The buffer of a tensor that was just made. If the backend fails to say, the tensor is freed.
    pub fn buffer_of_new(&mut self, id: u64) -> Result<BufferId, Failure> {
        let buffer = self.buffer(id);
        if buffer.is_err() {
            self.free(id);
        }
        buffer
    }

    /// Whether the elements of a resident tensor are in order.
    pub fn is_in_order(&mut self, tensor: &TensorIr) -> Result<bool, Failure> {
        match &mut self.place {
            Place::Backend(interpreter) => caught(|| B::is_contiguous(&looked_at(interpreter, tensor), &tensor.shape)),
            Place::Dry(dry) => Ok(dry.is_in_order(tensor)),
        }
    }

    /// How a resident tensor uses its buffer, if this is larger than the tensor.
    pub fn extent(&mut self, tensor: &TensorIr) -> Result<Extent, Failure> {
        match &mut self.place {
            Place::Backend(interpreter) => caught(|| B::extent(&looked_at(interpreter, tensor), &tensor.shape)),
            Place::Dry(dry) if !B::LAYOUT_FOLLOWS_REUSE && dry.is_in_order(tensor) => Ok(Extent::LayoutDependentPart),
            Place::Dry(_) => Ok(Extent::Part),
        }
    }

    /// The strides of a resident tensor.
    pub fn strides(&mut self, tensor: &TensorIr) -> Result<Option<Strides>, Failure> {
        match &mut self.place {
            Place::Backend(interpreter) => caught(|| B::strides(&looked_at(interpreter, tensor), &tensor.shape)),
            Place::Dry(_) => Ok(None),
        }
    }

    /// Gives a resident tensor the strides that it must have, in another buffer if they move its elements.
    pub fn lay(&mut self, Layout { out, strides }: &Layout) {
        let Place::Backend(interpreter) = &mut self.place else { return };
        let handle = interpreter.get_tensor_handle(out);
        if B::strides(&handle, &out.shape).as_ref() != Some(strides) {
            let tensor = typed::<B>(B::with_strides(handle, &out.shape, strides), out.shape.clone(), out.dtype);
            interpreter.register_tensor_to_device(out.id, tensor);
        }
    }

    pub fn upload(&mut self, id: TensorId, data: TensorData) {
        match &mut self.place {
            Place::Backend(interpreter) => interpreter.register_tensor_data_id(id, data),
            Place::Dry(dry) => dry.arrive(id, data.shape(), data.dtype()),
        }
    }

    pub fn import(&mut self, ir: &TensorIr, tensor: HandleKind<B>) {
        match &mut self.place {
            Place::Backend(interpreter) => interpreter.register_tensor_to_device(ir.id, tensor),
            Place::Dry(dry) => dry.arrive(ir.id, &ir.shape, ir.dtype),
        }
    }

    pub fn alias(&mut self, new: TensorId, source: TensorId) {
        match &mut self.place {
            Place::Backend(interpreter) => interpreter.register_alias(new, source),
            Place::Dry(dry) => dry.share(new, source),
        }
    }

    /// Makes `new` a copy of `source` in a buffer of the same size.
    pub fn copy(&mut self, source: &TensorIr, new: &TensorIr) {
        if let Place::Backend(interpreter) = &mut self.place {
            let handle = B::with_own_buffer(interpreter.get_tensor_handle(source), &source.shape);
            interpreter.register_tensor_to_device(new.id, typed::<B>(handle, new.shape.clone(), new.dtype));
        }
    }

    pub fn read(&mut self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        match &mut self.place {
            Place::Backend(interpreter) => interpreter.read_tensor_async(tensor),
            Place::Dry(_) => {
                let data = match tensor.dtype {
                    DType::QFloat(scheme) => quantized_zeros(tensor.shape, scheme),
                    dtype => TensorData::from_bytes_vec(
                        vec![0; tensor_bytes(&tensor.shape, dtype) as usize],
                        tensor.shape,
                        dtype,
                    ),
                };
                Box::pin(std::future::ready(Ok(data)))
            }
        }
    }

    /// The backend's handle.
    ///
    /// # Errors
    ///
    /// The message with which the backend panics, or that there is no handle.
    pub fn handle(&mut self, tensor: &TensorIr) -> Result<B::Handle, Failure> {
        match &mut self.place {
            Place::Backend(interpreter) => caught(|| looked_at(interpreter, tensor)),
            Place::Dry(_) => Err("a dry device holds no data".into()),
        }
    }

    pub fn sync(&self) -> Result<(), ExecutionError> {
        match &self.place {
            Place::Backend(interpreter) => interpreter.sync(),
            Place::Dry(_) => Ok(()),
        }
    }

    pub fn seed(&self, seed: u64) {
        if let Place::Backend(interpreter) = &self.place {
            interpreter.seed(seed);
        }
    }

    pub fn is_dry(&self) -> bool {
        matches!(self.place, Place::Dry(_))
    }
}

/// The handle of a tensor, to look at. It is requested as read-only: otherwise the interpreter may give the handle away.
#[inline]
fn looked_at<B: RematBackend>(interpreter: &mut TensorInterpreter<B>, tensor: &TensorIr) -> B::Handle {
    let only_read;
    let tensor = match tensor.status {
        TensorStatus::ReadOnly => tensor,
        _ => {
            only_read = TensorIr { status: TensorStatus::ReadOnly, ..tensor.clone() };
            &only_read
        }
    };
    interpreter.get_tensor_handle(tensor)
}

fn quantized_zeros(shape: Shape, scheme: QuantScheme) -> TensorData {
    let (values, scales) = (vec![0_i8; shape.num_elements()], params_shape(&shape, &scheme).num_elements());
    let global = global_scale_dtype(&scheme).map(|_| 1.0);
    TensorData::quantized(values, shape, scheme, &vec![1.0; scales], global)
}
