//! Where operations run: on the backend, or nowhere.
//!
//! A *dry* executor keeps only the shapes and buffers of tensors. Operations take no time and no memory, reads give zeros.
//! Which results are written in place cannot be seen there: a guide, the trace of a real step that does the same
//! operations on other shapes, tells it; without one only arithmetic is taken to be in place, so that the estimate errs to the safe side.

use std::sync::Arc;

use burn_backend::{DType, ExecutionError, Shape, TensorData};
use burn_ir::{HandleKind, OperationIr, TensorId, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;
use burn_std::future::DynFut;
use burn_std::quantization::{QuantScheme, global_scale_dtype, params_shape};
use rustc_hash::FxHashMap;

use super::layout::Layout;
use super::operation::{is_reshape, is_view};
use crate::backend::{BufferId, Extent, MemoryOrder, Padding, RematBackend, tensor_bytes, typed};
use burn_remat_core::Trace;

/// See the [module](self).
pub(super) enum Executor<B: RematBackend> {
    Backend(TensorInterpreter<B>),
    Dry(Dry),
}

impl<B: RematBackend> Executor<B> {
    pub fn real(device: B::Device) -> Self {
        Self::Backend(TensorInterpreter::new(device))
    }

    pub fn dry(guide: Option<Arc<Trace>>, padding: Padding) -> Self {
        Self::Dry(Dry::new(guide, padding))
    }

    /// Runs an operation, which is taken out of its place.
    #[inline]
    pub fn run(&mut self, op: &mut OperationIr) {
        match self {
            Self::Backend(interpreter) => {
                interpreter.register_op(std::mem::replace(op, OperationIr::Drop(super::bare(0))))
            }
            Self::Dry(dry) => dry.run(op),
        }
    }

    /// Frees a tensor's data.
    #[inline]
    pub fn free(&mut self, id: u64) {
        self.run(&mut OperationIr::Drop(TensorIr { status: TensorStatus::ReadWrite, ..super::bare(id) }));
    }

    pub fn as_dry(&mut self) -> Option<&mut Dry> {
        match self {
            Self::Backend(_) => None,
            Self::Dry(dry) => Some(dry),
        }
    }

    /// The buffer of a resident tensor.
    #[inline]
    pub fn buffer(&mut self, tensor: &TensorIr) -> BufferId {
        match self {
            Self::Backend(interpreter) => B::buffer(&looked_at(interpreter, tensor)),
            Self::Dry(dry) => dry
                .buffers
                .get(&tensor.id)
                .map_or(BufferId::Unknown, |buffer| BufferId::Known { key: buffer.key, bytes: buffer.bytes }),
        }
    }

    /// Whether the elements of a resident tensor lie in order.
    pub fn is_in_order(&mut self, tensor: &TensorIr) -> bool {
        match self {
            Self::Backend(interpreter) => B::is_in_order(&looked_at(interpreter, tensor), &tensor.shape),
            Self::Dry(dry) => dry.buffers.get(&tensor.id).is_some_and(|buffer| buffer.in_order),
        }
    }

    /// What a resident tensor that is smaller than its buffer takes of it.
    pub fn extent(&mut self, tensor: &TensorIr) -> Extent {
        match self.handle(tensor) {
            Some(handle) => B::extent(&handle, &tensor.shape),
            None if !B::LAYOUT_FOLLOWS_REUSE && self.is_in_order(tensor) => Extent::TellingPart,
            None => Extent::Part,
        }
    }

    /// In which order a resident tensor lies in memory.
    pub fn memory_order(&mut self, tensor: &TensorIr) -> Option<MemoryOrder> {
        B::memory_order(&self.handle(tensor)?, &tensor.shape)
    }

    /// Copies a resident tensor into another buffer if it does not lie as it should.
    pub fn lay(&mut self, Layout { out, order }: &Layout) {
        let Self::Backend(interpreter) = self else { return };
        let handle = interpreter.get_tensor_handle(out);
        if B::memory_order(&handle, &out.shape).as_ref() != Some(order) {
            let tensor = typed::<B>(B::laid(handle, &out.shape, order), out.shape.clone(), out.dtype);
            interpreter.register_tensor_to_device(out.id, tensor);
        }
    }

    pub fn upload(&mut self, id: TensorId, data: TensorData) {
        match self {
            Self::Backend(interpreter) => interpreter.register_tensor_data_id(id, data),
            Self::Dry(dry) => dry.add(id, dry.padding.tensor(data.shape(), data.dtype())),
        }
    }

    pub fn import(&mut self, ir: &TensorIr, tensor: HandleKind<B>) {
        match self {
            Self::Backend(interpreter) => interpreter.register_tensor_to_device(ir.id, tensor),
            Self::Dry(dry) => dry.add(ir.id, dry.padding.tensor(&ir.shape, ir.dtype)),
        }
    }

    pub fn alias(&mut self, new: TensorId, source: TensorId) {
        match self {
            Self::Backend(interpreter) => interpreter.register_alias(new, source),
            Self::Dry(dry) => dry.share(new, source),
        }
    }

    /// Makes `new` a copy of `source` in a buffer of the same size.
    pub fn copy(&mut self, source: &TensorIr, new: &TensorIr) {
        if let Self::Backend(interpreter) = self {
            let handle = B::copied(interpreter.get_tensor_handle(source), &source.shape);
            interpreter.register_tensor_to_device(new.id, typed::<B>(handle, new.shape.clone(), new.dtype));
        }
    }

    pub fn read(&mut self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        match self {
            Self::Backend(interpreter) => interpreter.read_tensor_async(tensor),
            Self::Dry(_) => {
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

    /// The backend's handle, where there is a backend.
    pub fn handle(&mut self, tensor: &TensorIr) -> Option<B::Handle> {
        match self {
            Self::Backend(interpreter) => Some(looked_at(interpreter, tensor)),
            Self::Dry(_) => None,
        }
    }

    pub fn sync(&self) -> Result<(), ExecutionError> {
        match self {
            Self::Backend(interpreter) => interpreter.sync(),
            Self::Dry(_) => Ok(()),
        }
    }

    pub fn seed(&self, seed: u64) {
        if let Self::Backend(interpreter) = self {
            interpreter.seed(seed);
        }
    }

    pub fn is_dry(&self) -> bool {
        matches!(self, Self::Dry(_))
    }
}

/// The handle of a tensor for somebody who only looks at it: asked for one that an operation takes, the interpreter gives it away.
#[inline]
fn looked_at<B: RematBackend>(interpreter: &mut TensorInterpreter<B>, tensor: &TensorIr) -> B::Handle {
    match tensor.status {
        TensorStatus::ReadOnly => interpreter.get_tensor_handle(tensor),
        _ => interpreter.get_tensor_handle(&TensorIr { status: TensorStatus::ReadOnly, ..tensor.clone() }),
    }
}

fn quantized_zeros(shape: Shape, scheme: QuantScheme) -> TensorData {
    let (values, scales) = (vec![0_i8; shape.num_elements()], params_shape(&shape, &scheme).num_elements());
    let global = global_scale_dtype(&scheme).map(|_| 1.0);
    TensorData::quantized(values, shape, scheme, &vec![1.0; scales], global)
}

#[derive(Clone, Copy)]
struct Buffer {
    key: u64,
    bytes: u64,
    /// Whether the tensor's elements lie in order: reshaping another copies it.
    in_order: bool,
}

/// Where an operation writes a result.
enum Outcome {
    /// It looks at the buffer of the input with this number in another way.
    View(usize),
    /// Into the buffer of a consumed input.
    InPlace,
    New,
}

/// How many operations of the guide are looked through for the one at hand.
const WINDOW: usize = 4;

/// Tensors without data.
#[derive(Default)]
pub(super) struct Dry {
    buffers: FxHashMap<TensorId, Buffer>,
    owners: FxHashMap<u64, u32>,
    next: u64,
    guide: Option<Arc<Trace>>,
    /// The guide's operation that the next one should be, and the one that the operation at hand is.
    expected: usize,
    guiding: Option<usize>,
    padding: Padding,
}

impl Dry {
    pub fn new(guide: Option<Arc<Trace>>, padding: Padding) -> Self {
        Self { guide, padding, ..Self::default() }
    }

    /// The operation that runs next is of this kind, and the one at `position` of its step. A first step has operations that
    /// the guide, which is a later one, has not.
    pub fn at(&mut self, position: usize, kind: u64) {
        if position == 0 {
            self.expected = 0;
        }
        let Some(guide) = &self.guide else { return };
        let ahead = guide.ops[self.expected.min(guide.ops.len())..].iter().take(WINDOW);
        self.guiding = ahead.zip(self.expected..).find(|(op, _)| op.kind == kind).map(|(_, at)| at);
        if let Some(at) = self.guiding {
            self.expected = at + 1;
        }
    }

    /// Time that the guide measured for this operation, scaled to `bytes`; without a guide the bytes themselves stand for
    /// it.
    pub fn cost(&self, bytes: u64) -> u64 {
        let Some((guide, at)) = self.guide.as_ref().zip(self.guiding) else { return bytes.max(1) };
        let op = &guide.ops[at];
        let touched: u64 = op.reads.iter().chain(&op.writes).map(|&p| guide.storages[p as usize].bytes).sum();
        (op.cost_ns as f64 * bytes as f64 / touched.max(1) as f64) as u64 + 1
    }

    /// A buffer of so many bytes.
    fn add(&mut self, id: TensorId, bytes: u64) {
        self.next += 1;
        self.buffers.insert(id, Buffer { key: self.next, bytes, in_order: true });
        self.owners.insert(self.next, 1);
    }

    fn share(&mut self, new: TensorId, source: TensorId) {
        if let Some(&buffer) = self.buffers.get(&source) {
            self.buffers.insert(new, buffer);
            *self.owners.entry(buffer.key).or_default() += 1;
        }
    }

    fn drop_tensor(&mut self, id: TensorId) {
        let Some(buffer) = self.buffers.remove(&id) else { return };
        if let Some(owners) = self.owners.get_mut(&buffer.key) {
            *owners -= 1;
            if *owners == 0 {
                self.owners.remove(&buffer.key);
            }
        }
    }

    /// What the guide's operation here did for its output `k`; `None` if it does not know.
    fn guided(&self, k: usize) -> Option<Outcome> {
        let (guide, at) = self.guide.as_ref().zip(self.guiding)?;
        let op = &guide.ops[at];
        let place = *op.writes.get(k)?;
        let storage = &guide.storages[place as usize];
        Some(if storage.made_by != Some(at as u32) {
            Outcome::View(op.reads.iter().position(|&read| read == place)?)
        } else if storage.reuses.is_some() {
            Outcome::InPlace
        } else {
            Outcome::New
        })
    }

    fn run(&mut self, op: &OperationIr) {
        if let OperationIr::Drop(tensor) = op {
            self.drop_tensor(tensor.id);
            return;
        }
        let mut inputs: Vec<TensorIr> = Vec::new();
        for input in op.inputs() {
            match inputs.iter_mut().find(|known| known.id == input.id) {
                Some(known) if input.status == TensorStatus::ReadWrite => known.status = input.status,
                Some(_) => {}
                None => inputs.push(input.clone()),
            }
        }
        let mut free: Vec<TensorId> = inputs
            .iter()
            .filter(|input| input.status == TensorStatus::ReadWrite)
            .filter(|input| self.buffers.get(&input.id).is_some_and(|b| self.owners.get(&b.key) == Some(&1)))
            .map(|input| input.id)
            .collect();
        for (k, output) in op.outputs().enumerate() {
            let bytes = self.padding.tensor(&output.shape, output.dtype);
            let base = inputs.first().and_then(|base| self.buffers.get(&base.id)).is_none_or(|base| base.in_order);
            let guess = match op {
                op if is_reshape(op) && !base => Outcome::New,
                op if is_view(op) => Outcome::View(0),
                OperationIr::NumericFloat(..) | OperationIr::NumericInt(..) => Outcome::InPlace,
                _ => Outcome::New,
            };
            let fits = free.iter().position(|id| self.buffers.get(id).is_some_and(|buffer| buffer.bytes == bytes));
            match (self.guided(k).unwrap_or(guess), fits) {
                (Outcome::View(input), _) if input < inputs.len() => {
                    self.share(output.id, inputs[input].id);
                    if let (false, Some(buffer)) = (is_reshape(op), self.buffers.get_mut(&output.id)) {
                        buffer.in_order = false;
                    }
                }
                (Outcome::InPlace, Some(at)) => self.share(output.id, free.swap_remove(at)),
                _ => self.add(output.id, bytes),
            }
        }
        for input in inputs.iter().filter(|input| input.status == TensorStatus::ReadWrite) {
            self.drop_tensor(input.id);
        }
    }
}
