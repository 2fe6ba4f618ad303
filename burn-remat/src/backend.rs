//! `Remat<B>`: a backend decorator below autodiff.
//!
//! Burn's router turns every tensor operation into data ([`OperationIr`]) and hands it to a client. Ours owns the
//! engine. `Remat<B>` is that router over our client, so that it is a [`Backend`](burn_backend::Backend) wherever `B`
//! is: `Autodiff<Remat<Flex>>` records saved activations as router handles and never notices that their buffers come
//! and go.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn_backend::{
    DType, DTypeUsageSet, DeviceId, DeviceOps, DeviceSettings, ExecutionError, FloatDType, ProfileDuration,
    ProfileOptions, ProfileToken, Shape, TensorData,
};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_ir::{
    BackendIr, GraphBindings, GraphId, HandleKind, OperationIr, TensorHandle, TensorId, TensorIr, TensorStatus,
};
use burn_remat_core::{CheckpointPolicy, Trace};
use burn_router::{BackendRouter, Graph, MultiBackendBridge, RouterChannel, RouterClient, RouterTensor, get_client};
use burn_std::Bytes;
use burn_std::future::DynFut;
use burn_std::quantization::{QuantScheme, QuantStore, global_scale_dtype, scale_size};
use parking_lot::MappedMutexGuard;
use smallvec::SmallVec;

use crate::config::RematConfig;
use crate::engine::Engine;
use crate::error::RematError;
use crate::intake::{Call, Intake};
use crate::memory::DeviceMemory;
use crate::reads::Reads;
use crate::report::RematReport;
use crate::stage::NameId;

/// A backend whose tensors are evicted and recomputed to stay inside a memory budget.
///
/// Its device is a [`RematDevice`], which carries the budget.
///
/// ```
/// use burn_autodiff::Autodiff;
/// use burn_backend::{AutodiffBackend, FloatDType, Shape, ops::FloatTensorOps};
/// use burn_flex::{Flex, FlexDevice};
/// use burn_remat::{Remat, RematConfig, RematDevice};
///
/// type B = Autodiff<Remat<Flex>>;
///
/// let device = RematDevice::new(FlexDevice, RematConfig::new("16 MiB"))?;
/// let x = B::float_set_require_grad(B::float_ones(Shape::new([4]), &device, FloatDType::F32), true);
/// let gradients = B::backward(B::float_sum(B::float_exp(x)));
/// # drop(gradients);
/// println!("{}", device.report::<Flex>());
/// # Ok::<(), burn_remat::RematError>(())
/// ```
pub type Remat<B> = BackendRouter<RematChannel<B>>;

/// Which buffer a tensor handle keeps alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferId {
    /// A buffer that can be told apart from all others while it lives.
    Known {
        /// Its identity.
        key: u64,
        /// Its whole size, however little of it the tensor looks at.
        bytes: u64,
    },
    /// The backend does not tell (fused backends): the engine counts the tensor's own bytes and takes views for views.
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

/// What an allocator adds to the bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Buffers are multiples of so many bytes: a power of two.
    pub alignment: u64,
    /// Whether rows, along the last dimension, are padded too, as on CUDA.
    pub pads_rows: bool,
    /// Whether quantized values take a byte each, whatever their scheme says, and their scales four, as on Flex.
    pub unpacks_quantized: bool,
}

impl Default for Padding {
    fn default() -> Self {
        Self { alignment: 1, pads_rows: false, unpacks_quantized: false }
    }
}

impl Padding {
    /// Least bytes of a row that is padded; a row of one element is not.
    const LEAST_ROW: u64 = 16;

    /// Bytes of a buffer that holds so many.
    pub fn buffer(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.alignment).unwrap_or(bytes)
    }

    /// Bytes of a new buffer for a tensor of this shape.
    pub fn tensor(&self, shape: &Shape, dtype: DType) -> u64 {
        if let DType::QFloat(scheme) = dtype {
            let bytes = if self.unpacks_quantized {
                shape.num_elements() as u64 + 4 * scales_of(shape, &scheme)
            } else {
                quantized_bytes(shape, &scheme)
            };
            return self.buffer(bytes);
        }
        let element = dtype.size() as u64;
        let bytes = (shape.num_elements() as u64).saturating_mul(element);
        let last = shape.iter().last().copied().unwrap_or(1) as u64;
        if !self.pads_rows || last <= 1 {
            return self.buffer(bytes);
        }
        let row = last.saturating_mul(element);
        let align = row.checked_next_power_of_two().unwrap_or(row).max(Self::LEAST_ROW).min(self.alignment);
        let padded = row.checked_next_multiple_of(align).unwrap_or(row);
        self.buffer((bytes / row).saturating_mul(padded))
    }
}

/// Bytes of the elements of a tensor; of a quantized one with its scales, packed as its scheme says.
pub(crate) fn tensor_bytes(shape: &Shape, dtype: DType) -> u64 {
    match dtype {
        DType::QFloat(scheme) => quantized_bytes(shape, &scheme),
        _ => (shape.num_elements() as u64).saturating_mul(dtype.size() as u64),
    }
}

fn quantized_bytes(shape: &Shape, scheme: &QuantScheme) -> u64 {
    let (count, rank) = (shape.num_elements() as u64, shape.num_dims());
    let values = match scheme.store {
        QuantStore::Native => count,
        QuantStore::PackedU32(from_last) | QuantStore::PackedNative(from_last) => {
            // A scheme that does not fit the shape is refused where it is used.
            let packed = rank.checked_sub(from_last + 1).map_or(1, |axis| shape[axis].max(1)) as u64;
            let words = packed.div_ceil(scheme.num_quants().max(1) as u64);
            count / packed * words * scheme.size_bits_stored().div_ceil(8) as u64
        }
    };
    let global = global_scale_dtype(scheme).map_or(0, scale_size);
    values + scales_of(shape, scheme) * scale_size(scheme.scale_dtype()) as u64 + global as u64
}

/// How many scales a quantized tensor has: one, or one a block.
fn scales_of(shape: &Shape, scheme: &QuantScheme) -> u64 {
    match scheme.block_size() {
        Some(block) if block.as_slice().len() <= shape.num_dims() => {
            let blocks = shape.iter().zip(block.to_dim_vec(shape.num_dims()));
            blocks.map(|(&dim, block)| dim.div_ceil(usize::from(block).max(1)) as u64).product()
        }
        _ => 1,
    }
}

/// What a tensor takes of its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// All of it.
    Whole,
    /// A part. Later kernels give the same bits whether a result is such a part, or fills a buffer of its own.
    Part,
    /// A part by which later kernels choose in which order they add.
    TellingPart,
}

/// The dimensions of a tensor as they lie in memory, outermost first; those of size one come first of all, by number.
pub type MemoryOrder = SmallVec<[usize; 6]>;

/// What the engine needs to know of a backend beyond Burn's [`BackendIr`].
pub trait RematBackend: BackendIr<Device: DeviceMemory> {
    /// Whether tensors lie in this process's memory, so that looking at their numbers moves none.
    const IS_HOST: bool = false;

    /// Whether operations run after their call has returned, and profiling windows tell what each of them takes.
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

    /// The device by name, with the card where one name stands for several: measured times and plans are for it alone.
    fn device_name(device: &Self::Device) -> String {
        Self::name(device)
    }

    /// The buffer behind `handle`. Views of one tensor must give the same one.
    fn buffer(handle: &Self::Handle) -> BufferId;

    /// Whether the elements of a tensor of this shape lie one after the other in the order of their indices.
    fn is_in_order(handle: &Self::Handle, shape: &Shape) -> bool;

    /// The whole buffer of a tensor whose elements lie in order, where it is in this process's memory.
    fn host_bytes(_handle: &Self::Handle) -> Option<&[u8]> {
        None
    }

    /// A tensor that has a shape and no numbers, for operations that look at nothing else.
    fn shell(_shape: &Shape, _dtype: DType) -> Option<Self::Handle> {
        None
    }

    /// What the device's allocator adds to tensors.
    fn padding(_device: &Self::Device) -> Padding {
        Padding::default()
    }

    /// Whether a result lies in memory as the input over which an operation may write, and in another way where it may
    /// not. Then [`memory_order`](Self::memory_order) and [`laid`](Self::laid) are asked.
    const LAYOUT_FOLLOWS_REUSE: bool = false;

    /// In which order a tensor lies in memory; `None` where elements share memory, so that nothing is written over it.
    fn memory_order(_handle: &Self::Handle, _shape: &Shape) -> Option<MemoryOrder> {
        None
    }

    /// The same tensor in a buffer of its own where it lies in memory in `order`.
    fn laid(handle: Self::Handle, _shape: &Shape, _order: &MemoryOrder) -> Self::Handle {
        handle
    }

    /// Whether a result is a part of its buffer where an operation may write over such a part, and else fills one of its own. Then
    /// [`extent`](Self::extent) and [`copied`](Self::copied) are asked.
    const PARTS_FOLLOW_REUSE: bool = false;

    /// What a tensor takes of its buffer.
    fn extent(_handle: &Self::Handle, _shape: &Shape) -> Extent {
        Extent::Whole
    }

    /// The same tensor in a copy of its whole buffer.
    fn copied(handle: Self::Handle, _shape: &Shape) -> Self::Handle {
        handle
    }

    /// Whether `op` gives the same bits when it runs again on the same inputs. What does not is kept rather than computed
    /// again.
    fn repeats(_device: &Self::Device, _op: &OperationIr) -> bool {
        true
    }
}

impl RematBackend for Flex {
    const IS_HOST: bool = true;

    fn buffer(handle: &Self::Handle) -> BufferId {
        let (tensor, scales) = match handle {
            HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => (tensor, 0),
            HandleKind::Quantized(tensor) => (tensor.tensor(), size_of_val(tensor.scales())),
        };
        let bytes = tensor.bytes();
        // Empty buffers share one dangling address.
        if bytes.is_empty() {
            return BufferId::Unknown;
        }
        BufferId::Known { key: bytes.as_ptr() as u64, bytes: (bytes.len() + scales) as u64 }
    }

    fn padding(_device: &Self::Device) -> Padding {
        Padding { unpacks_quantized: true, ..Padding::default() }
    }

    fn is_in_order(handle: &Self::Handle, _shape: &Shape) -> bool {
        flex_tensor(handle).is_some_and(FlexTensor::is_contiguous)
    }

    fn host_bytes(handle: &Self::Handle) -> Option<&[u8]> {
        flex_tensor(handle).filter(|tensor| tensor.is_contiguous()).map(FlexTensor::bytes)
    }

    const PARTS_FOLLOW_REUSE: bool = true;

    fn extent(handle: &Self::Handle, shape: &Shape) -> Extent {
        match flex_tensor(handle) {
            Some(tensor) if tensor.bytes().len() > shape.num_elements() * tensor.dtype().size() => {
                if tensor.is_contiguous() { Extent::TellingPart } else { Extent::Part }
            }
            _ => Extent::Whole,
        }
    }

    fn copied(handle: Self::Handle, _shape: &Shape) -> Self::Handle {
        let copied = |tensor: FlexTensor| {
            let bytes = Bytes::from_bytes_vec(tensor.bytes().to_vec());
            FlexTensor::new(bytes, tensor.layout().clone(), tensor.dtype())
        };
        match handle {
            HandleKind::Float(tensor) => HandleKind::Float(copied(tensor)),
            HandleKind::Int(tensor) => HandleKind::Int(copied(tensor)),
            HandleKind::Bool(tensor) => HandleKind::Bool(copied(tensor)),
            HandleKind::Quantized(tensor) => HandleKind::Quantized(tensor),
        }
    }

    fn shell(shape: &Shape, dtype: DType) -> Option<Self::Handle> {
        // Kernels reach numbers through slices: one that wanted them after all would be stopped at the first but one.
        let one = Bytes::from_bytes_vec(vec![0; dtype.size()]);
        Some(HandleKind::Float(FlexTensor::new(one, Layout::contiguous(shape.clone()), dtype)))
    }
}

/// A tensor that is not quantized: the numbers of those that are stand in two places.
fn flex_tensor(handle: &HandleKind<Flex>) -> Option<&FlexTensor> {
    match handle {
        HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => Some(tensor),
        HandleKind::Quantized(_) => None,
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A tensor id that no other tensor of this process has.
pub(crate) fn fresh_id() -> TensorId {
    TensorId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}

// ---- device

/// Devices of one process that carry a configuration, by slot. Slot 0 is every device's plain, unlimited one.
static SLOTS: Mutex<BTreeMap<u16, (DeviceId, RematConfig)>> = Mutex::new(BTreeMap::new());
/// Set in the index of a device id that belongs to a slot.
const SLOT_BIT: u16 = 1 << 15;

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere must not take the tensors of other threads with it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device of backend `B` with a budget of its own.
///
/// Every [`new`](Self::new) makes another: several budgets on one piece of hardware do not know of each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RematDevice<D> {
    inner: D,
    slot: u16,
}

impl<D: DeviceMemory> RematDevice<D> {
    /// A device like `inner` on which `config` applies.
    ///
    /// # Errors
    ///
    /// The configuration's own error, [`RematError::FreeMemory`] where a share of free memory is asked for and not known, or
    /// [`RematError::TooManyDevices`] after 32,767 devices in one process.
    pub fn new(inner: D, config: impl Into<RematConfig>) -> Result<Self, RematError> {
        let config = config.into().validated_on(&inner)?;
        let mut slots = lock(&SLOTS);
        let slot = slots.last_key_value().map_or(1, |(last, _)| last + 1);
        if slot >= SLOT_BIT {
            return Err(RematError::TooManyDevices);
        }
        slots.insert(slot, (inner.id(), config));
        Ok(Self { inner, slot })
    }

    /// The device without the budget.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What the engine of this device has done so far.
    pub fn report<B: RematBackend<Device = D>>(&self) -> RematReport {
        get_client::<RematChannel<B>>(self).report()
    }

    /// Tells the engine that a training step begins here; see [`RematExt::remat_mark_step`](crate::RematExt).
    pub fn mark_step<B: RematBackend<Device = D>>(&self) {
        get_client::<RematChannel<B>>(self).mark_step();
    }

    /// Waits for as long as a planner is at work, at most for `limit`; `false` if the time was up first, or if no step has been
    /// seen often enough for planning to begin. The plan is in force from the next step on.
    pub fn wait_for_plan<B: RematBackend<Device = D>>(&self, limit: Duration) -> bool {
        get_client::<RematChannel<B>>(self).wait_for_plan(limit)
    }

    /// Starts the counters of [`report`](Self::report) anew.
    pub fn reset_report<B: RematBackend<Device = D>>(&self) {
        get_client::<RematChannel<B>>(self).reset_report();
    }
}

impl<D: DeviceOps> burn_std::device::Device for RematDevice<D> {
    fn from_id(id: DeviceId) -> Self {
        if id.index_id & SLOT_BIT == 0 {
            return Self { inner: D::from_id(id), slot: 0 };
        }
        let slot = id.index_id & !SLOT_BIT;
        let inner = lock(&SLOTS).get(&slot).map_or_else(D::default, |(inner, _)| D::from_id(*inner));
        Self { inner, slot }
    }

    fn to_id(&self) -> DeviceId {
        let id = self.inner.to_id();
        if self.slot == 0 { id } else { DeviceId { type_id: id.type_id, index_id: SLOT_BIT | self.slot } }
    }
}

impl<D: DeviceOps> DeviceOps for RematDevice<D> {
    fn defaults(&self) -> DeviceSettings {
        self.inner.defaults()
    }
}

// ---- router glue

/// Connects Burn's router to the engines; see [`Remat`].
pub struct RematChannel<B>(PhantomData<fn() -> B>);

impl<B> Clone for RematChannel<B> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

/// Moves tensors between remat devices of one backend.
pub struct RematBridge<B>(PhantomData<fn() -> B>);

impl<B: RematBackend> MultiBackendBridge for RematBridge<B> {
    type TensorHandle = B::Handle;
    type Device = RematDevice<B::Device>;

    fn change_backend_float(handle: B::Handle, shape: Shape, device: &Self::Device) -> B::Handle {
        B::float_tensor_handle(B::float_to_device(B::float_tensor(TensorHandle { handle, shape }), &device.inner))
    }

    fn change_backend_int(handle: B::Handle, shape: Shape, device: &Self::Device) -> B::Handle {
        B::int_tensor_handle(B::int_to_device(B::int_tensor(TensorHandle { handle, shape }), &device.inner))
    }

    fn change_backend_bool(handle: B::Handle, shape: Shape, device: &Self::Device) -> B::Handle {
        B::bool_tensor_handle(B::bool_to_device(B::bool_tensor(TensorHandle { handle, shape }), &device.inner))
    }
}

impl<B: RematBackend> RouterChannel for RematChannel<B> {
    type Device = RematDevice<B::Device>;
    type Bridge = RematBridge<B>;
    type Client = RematClient<B>;

    fn name(device: &Self::Device) -> String {
        format!("remat<{}>", B::name(&device.inner))
    }

    fn init_client(device: &Self::Device) -> RematClient<B> {
        let config = lock(&SLOTS).get(&device.slot).map(|(_, config)| config.clone()).unwrap_or_default();
        let own_thread = config.own_thread;
        RematClient(Arc::new(Shared {
            intake: Arc::new(Intake::new(Engine::new(device.inner.clone(), config), own_thread)),
            device: device.clone(),
            reads: Reads::default(),
            graphs: Mutex::default(),
        }))
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &RematClient<B>) -> B::Handle {
        match client.engine().handle(tensor) {
            Ok(handle) => handle,
            Err(failure) => {
                // The router's signature has no room for an error: the failure stands in the log and in the next sync,
                // and a tensor of floats shows it as NaN rather than as plausible numbers.
                log::error!("a tensor that leaves its remat device holds no data: {failure}");
                placeholder::<B>(tensor, &client.0.device.inner)
            }
        }
    }

    /// As the router's own, which leaves out quantized tensors.
    fn change_client_backend(
        tensor: RouterTensor<RematClient<B>>,
        device: &Self::Device,
    ) -> RouterTensor<RematClient<B>> {
        let source = tensor.client.clone();
        let ir = tensor.into_ir();
        let handle = Self::get_tensor_handle(&ir, &source);
        let (shape, dtype) = (ir.shape.clone(), ir.dtype);
        let moved = if let DType::QFloat(_) = dtype {
            let tensor = B::quantized_tensor(TensorHandle { handle, shape });
            B::quantized_tensor_handle(B::q_to_device(tensor, &device.inner))
        } else if dtype.is_float() {
            Self::Bridge::change_backend_float(handle, shape, device)
        } else if dtype.is_bool() {
            Self::Bridge::change_backend_bool(handle, shape, device)
        } else {
            Self::Bridge::change_backend_int(handle, shape, device)
        };
        Self::register_tensor(&get_client::<Self>(device), moved, ir.shape, ir.dtype)
    }

    fn register_tensor(
        client: &RematClient<B>,
        handle: B::Handle,
        shape: Shape,
        dtype: DType,
    ) -> RouterTensor<RematClient<B>> {
        let id = fresh_id();
        let tensor = typed::<B>(handle, shape.clone(), dtype);
        let ir = TensorIr { id, shape: shape.clone(), dtype, status: TensorStatus::ReadOnly };
        client.engine().import(ir, tensor);
        RouterTensor::new(id, shape, dtype, client.clone())
    }
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

fn placeholder<B: RematBackend>(tensor: &TensorIr, device: &B::Device) -> B::Handle {
    let shape = tensor.shape.clone();
    if let DType::QFloat(scheme) = tensor.dtype {
        // Its numbers have no NaN: only the log and the next sync tell.
        B::quantized_tensor_handle(B::quantize_dynamic(B::float_zeros(shape, device, FloatDType::F32), &scheme))
    } else if tensor.dtype.is_float() {
        B::float_tensor_handle(B::float_full(shape, f32::NAN.into(), device, tensor.dtype.into()))
    } else if tensor.dtype.is_bool() {
        B::bool_tensor_handle(B::bool_zeros(shape, device, tensor.dtype.into()))
    } else {
        B::int_tensor_handle(B::int_zeros(shape, device, tensor.dtype.into()))
    }
}

struct Shared<B: RematBackend> {
    intake: Arc<Intake<B>>,
    device: RematDevice<B::Device>,
    reads: Reads,
    /// Operation groups that a fusing caller replays by id.
    graphs: Mutex<BTreeMap<u64, Graph>>,
}

/// Hands operations to the engine of one device.
pub struct RematClient<B: RematBackend>(Arc<Shared<B>>);

impl<B: RematBackend> Clone for RematClient<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: RematBackend> fmt::Debug for RematClient<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RematClient").field(&self.0.device).finish()
    }
}

impl<B: RematBackend> RematClient<B> {
    fn engine(&self) -> MappedMutexGuard<'_, Engine<B>> {
        self.0.intake.engine()
    }

    /// Waits until the engine has taken all that was asked of it.
    fn catch_up(&self) {
        drop(self.engine());
    }

    pub(crate) fn report(&self) -> RematReport {
        self.engine().report()
    }

    #[cfg(feature = "learner")]
    pub(crate) fn usage(&self) -> crate::learner::Usage {
        self.engine().usage()
    }

    pub(crate) fn record(&self, path: &Path) -> Result<(), RematError> {
        self.engine().record(path)
    }

    pub(crate) fn finish_recording(&self) -> std::io::Result<()> {
        self.engine().finish_recording()
    }

    pub(crate) fn restart(&self, config: RematConfig) {
        let mut engine = self.engine();
        *engine = Engine::new(self.0.device.inner().clone(), config);
    }

    pub(crate) fn mark_step(&self) {
        self.0.intake.ask(Call::Mark);
    }

    pub(crate) fn enter_stage(&self, name: NameId, number: i64, policy: Option<CheckpointPolicy>) {
        self.0.intake.ask(Call::EnterStage(name, number, policy));
    }

    pub(crate) fn leave_stage(&self, number: i64) {
        self.0.intake.ask(Call::LeaveStage(number));
    }

    pub(crate) fn reset_report(&self) {
        self.engine().reset_report();
    }

    pub(crate) fn rehearsed(&self) -> Vec<Trace> {
        self.engine().rehearsed()
    }

    pub(crate) fn wait_for_plan(&self, limit: Duration) -> bool {
        let planning = self.engine().planning();
        planning.wait(limit)
    }

    fn replay_graph(&self, graph: &Graph, bindings: GraphBindings) {
        for op in graph.bind(bindings).operations {
            self.register_op(op);
        }
    }
}

impl<B: RematBackend> RouterClient for RematClient<B> {
    type Device = RematDevice<B::Device>;

    fn register_op(&self, op: OperationIr) {
        self.0.reads.let_pass(&op);
        self.0.intake.register(op);
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let _announced = self.0.reads.announce(tensor.id);
        self.engine().read(tensor)
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        self.engine().sync()
    }

    fn flush(&self) {
        self.catch_up();
        if let Err(error) = B::flush(&self.0.device.inner) {
            log::error!("flushing the device failed: {error}");
        }
    }

    fn create_empty_handle(&self) -> TensorId {
        fresh_id()
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        let id = fresh_id();
        let (shape, dtype) = (data.shape().clone(), data.dtype());
        self.engine().upload(id, data);
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    fn device(&self) -> Self::Device {
        self.0.device.clone()
    }

    fn seed(&self, seed: u64) {
        self.engine().seed(seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(&self.0.device.inner, dtype)
    }

    fn profile_start(&self) -> Result<Option<ProfileToken>, ExecutionError> {
        self.catch_up();
        B::profile_start(&self.0.device.inner)
    }

    fn profile_end(&self, token: ProfileToken, options: ProfileOptions) -> Result<ProfileDuration, ExecutionError> {
        self.catch_up();
        B::profile_end(&self.0.device.inner, token, options)
    }

    fn profile_abandon(&self, token: ProfileToken) {
        B::profile_abandon(&self.0.device.inner, token);
    }

    fn register_and_execute_graph(&self, id: GraphId, operations: Vec<OperationIr>, bindings: GraphBindings) {
        let graph = Graph::new(operations);
        self.replay_graph(&graph, bindings);
        lock(&self.0.graphs).insert(id.0, graph);
    }

    fn execute_graph(&self, id: GraphId, bindings: GraphBindings) {
        let graph = lock(&self.0.graphs).get(&id.0).cloned();
        match graph {
            Some(graph) => self.replay_graph(&graph, bindings),
            None => log::error!("operation group {id:?} was never registered with this device"),
        }
    }

    fn register_alias(&self, new_id: TensorId, src_id: TensorId) {
        self.engine().alias(new_id, src_id);
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::ops::{FloatTensorOps, IntTensorOps, ModuleOps};
    use burn_backend::{Distribution, FloatDType, IntDType};
    use burn_flex::FlexDevice;
    use burn_std::ops::{InterpolateMode, InterpolateOptions};
    use burn_std::quantization::{QuantValue, ScaleDtype, quantized_data_len};

    use super::*;

    #[test]
    fn rows_are_padded_as_on_cuda() {
        let padding = Padding { alignment: 512, pads_rows: true, ..Padding::default() };
        let f32s = |shape: &[usize]| padding.tensor(&shape.to_vec().into(), DType::F32);
        // Rows of 12, 256, 260, 784 and 896 bytes begin every 16, 256, 512, 1024 and 1024 bytes; single elements do not.
        for (shape, bytes) in [
            (vec![64, 3], 64 * 16),
            (vec![8, 64], 8 * 256),
            (vec![8, 65], 8 * 512),
            (vec![2, 3, 196], 6 * 1024),
            (vec![2, 3, 224], 6 * 1024),
            (vec![1000, 1], 4096),
            (vec![300], 1536),
            (vec![], 512),
            (vec![0, 7], 0),
        ] {
            assert_eq!(f32s(&shape), bytes, "{shape:?}");
        }
        assert_eq!(Padding { pads_rows: false, ..padding }.tensor(&[8, 65].into(), DType::F32), 2560);
        assert_eq!(Padding::default().tensor(&[8, 65].into(), DType::F32), 2080);
    }

    #[test]
    fn quantized_tensors_take_what_burn_writes_for_them() {
        let (bytes, words) = (QuantStore::Native, QuantStore::PackedU32(0));
        let across = QuantStore::PackedU32(1);
        let scheme = |value, store| QuantScheme::default().with_value(value).with_store(store);
        for scheme in [
            scheme(QuantValue::Q8S, bytes),
            scheme(QuantValue::Q8F, words),
            scheme(QuantValue::Q4S, words).per_block([8], ScaleDtype::F16),
            scheme(QuantValue::Q2F, across).per_block([2, 4], ScaleDtype::F32),
            scheme(QuantValue::Q4F, words).per_block([4], ScaleDtype::UE4M3).per_tensor(ScaleDtype::F32),
        ] {
            // The second does not fill its words.
            for shape in [[8, 16], [6, 12], [1, 8]].map(Shape::from) {
                let written = quantized_data_len(&scheme, &shape) as u64;
                assert_eq!(Padding::default().tensor(&shape, DType::QFloat(scheme)), written, "{scheme:?} {shape:?}");
                assert_eq!(tensor_bytes(&shape, DType::QFloat(scheme)), written, "{scheme:?} {shape:?}");
            }
        }
    }

    /// The operations of which `weak_input` says so.
    #[test]
    fn what_needs_only_a_shape_does_with_a_shell() {
        let random =
            |shape: [usize; 4]| Flex::float_random(shape.into(), Distribution::Default, &FlexDevice, FloatDType::F32);
        let x = random([2, 3, 8, 8]);
        let gradient = random([2, 3, 4, 4]);
        let zeros = Flex::int_zeros([2, 3, 4, 4].into(), &FlexDevice, IntDType::I64);
        let modes = [InterpolateMode::Nearest, InterpolateMode::Bilinear, InterpolateMode::Bicubic];
        let results = |x: &FlexTensor| {
            let (x, gradient) = (|| x.clone(), || gradient.clone());
            let pooled = Flex::max_pool2d_with_indices_backward(
                x(),
                [2; 2],
                [2; 2],
                [0; 2],
                [1; 2],
                false,
                gradient(),
                zeros.clone(),
            );
            let mut results = vec![
                pooled.x_grad,
                Flex::avg_pool2d_backward(x(), gradient(), [2; 2], [2; 2], [0; 2], [1; 2], true, false),
                Flex::adaptive_avg_pool2d_backward(x(), gradient()),
            ];
            let resized = |mode| Flex::interpolate_backward(x(), gradient(), [4, 4], InterpolateOptions::new(mode));
            results.extend(modes.iter().cloned().map(resized));
            results.into_iter().map(FlexTensor::into_data).collect::<Vec<_>>()
        };
        let shell = |shape: Shape| {
            let shell = Flex::shell(&shape, DType::F32).unwrap();
            assert_eq!(Flex::buffer(&shell), Flex::buffer(&shell.clone()));
            assert!(matches!(Flex::buffer(&shell), BufferId::Known { bytes: 4, .. }));
            let HandleKind::Float(shell) = shell else { panic!("another kind of tensor") };
            shell
        };
        assert_eq!(results(&shell([2, 3, 8, 8].into())), results(&x));

        let random =
            |shape: [usize; 5]| Flex::float_random(shape.into(), Distribution::Default, &FlexDevice, FloatDType::F32);
        let (x, gradient) = (random([2, 3, 4, 6, 8]), random([2, 3, 2, 3, 4]));
        let zeros = Flex::int_zeros([2, 3, 2, 3, 4].into(), &FlexDevice, IntDType::I64);
        let results = |x: &FlexTensor| {
            let (x, gradient) = (|| x.clone(), || gradient.clone());
            let (two, none, one) = ([2; 3], [0; 3], [1; 3]);
            let pooled =
                Flex::max_pool3d_with_indices_backward(x(), two, two, none, one, false, gradient(), zeros.clone());
            let averaged = Flex::avg_pool3d_backward(x(), gradient(), two, two, none, one, true, false);
            [pooled.x_grad, averaged].map(FlexTensor::into_data)
        };
        assert_eq!(results(&shell([2, 3, 4, 6, 8].into())), results(&x));
    }
}
