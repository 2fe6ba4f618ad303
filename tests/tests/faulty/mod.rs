//! `Faulty<B>`: a backend that fails, panics or waits at a chosen moment, and that counts by itself what it holds.
//!
//! It is Burn's router over a channel whose client runs every operation on `B`. So it sits exactly where a backend
//! sits, below `Remat`, and the engine knows nothing of it. A *moment* is the n-th call of one kind since it was armed.
//! A call that fails also loses what it was to consume, as does a kernel that panics.
//!
//! Bytes are counted by buffer, from what `B` itself reports after every operation: O(log tensors) each.

#![allow(dead_code, reason = "each test file uses only some of it")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use burn_backend::{DType, DTypeUsageSet, DeviceId, DeviceOps, DeviceSettings, ExecutionError, Shape, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_ir::{
    BackendIr, GraphBindings, GraphId, HandleKind, OperationIr, TensorHandle, TensorId, TensorIr, TensorStatus,
};
use burn_remat::{BufferId, DeviceMemory, RematBackend, RoutedChannel};
use burn_router::{
    BackendRouter, MultiBackendBridge, RouterChannel, RouterClient, RouterTensor, TensorInterpreter, get_client,
};
use burn_std::future::DynFut;
use parking_lot::Mutex;

/// The backend: Flex, with faults.
pub type Faulty = BackendRouter<FaultyChannel>;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// An operation runs.
    Run,
    /// Data from the host arrives.
    Upload,
    /// A tensor is read.
    Read,
    /// The backend is asked for the buffer of a tensor.
    Query,
    /// The program waits for the device.
    Sync,
}

impl Moment {
    pub const ALL: [Self; 5] = [Self::Run, Self::Upload, Self::Read, Self::Query, Self::Sync];
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The call panics.
    Panic,
    /// The call returns an error: only reads and syncs, since other calls cannot return one.
    Error,
    /// The read panics when its result is awaited.
    LatePanic,
    /// The call takes some time.
    Delay,
}

/// A fault at the `at`-th call of a kind, counted from 0.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub moment: Moment,
    pub at: u64,
    pub kind: Kind,
}

/// The text of every planted failure.
pub const CAUSE: &str = "a planted fault";

const DELAY: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Watch {
    fault: Option<Fault>,
    has_struck: bool,
    counts: BTreeMap<Moment, u64>,
    held: BTreeMap<TensorId, BufferId>,
    /// How many tensors share a buffer, and its bytes.
    buffers: BTreeMap<u64, (u64, u64)>,
    bytes: u64,
    peak: u64,
}

impl Watch {
    /// Counts a call; returns the fault planted at it, if any.
    fn pass(&mut self, moment: Moment) -> Option<Kind> {
        let count = self.counts.entry(moment).or_default();
        let at = std::mem::replace(count, *count + 1);
        let fault = self.fault.filter(|fault| fault.moment == moment && fault.at == at)?;
        self.has_struck = true;
        Some(fault.kind)
    }

    /// A tensor now has a buffer.
    fn add(&mut self, id: TensorId, buffer: BufferId) {
        self.remove(id);
        self.held.insert(id, buffer);
        if let BufferId::Known { key, bytes } = buffer {
            let (owners, known) = self.buffers.entry(key).or_default();
            // The address may now belong to another buffer, if an operation has released the previous one.
            self.bytes = self.bytes - *known + bytes;
            (*owners, *known) = (*owners + 1, bytes);
        }
        self.peak = self.peak.max(self.bytes);
    }

    /// A tensor is gone, and, if it was the last one of a buffer, its bytes too.
    fn remove(&mut self, id: TensorId) {
        let Some(BufferId::Known { key, .. }) = self.held.remove(&id) else { return };
        let Some((owners, bytes)) = self.buffers.get_mut(&key) else { return };
        *owners -= 1;
        if *owners == 0 {
            self.bytes -= *bytes;
            self.buffers.remove(&key);
        }
    }
}

/// A separate device for every test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultyDevice(u16);

impl FaultyDevice {
    pub fn new() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn client(&self) -> FaultyClient {
        get_client::<FaultyChannel>(self)
    }

    /// Counts calls from here on, and plants a fault.
    pub fn arm(&self, fault: Option<Fault>) {
        let shared = self.client().0;
        let mut watch = shared.watch.lock();
        watch.fault = fault;
        watch.has_struck = false;
        watch.counts.clear();
        watch.peak = watch.bytes;
    }

    /// Whether the fault has occurred.
    pub fn has_struck(&self) -> bool {
        self.client().0.watch.lock().has_struck
    }

    /// Calls of a kind since it was armed.
    pub fn calls(&self, moment: Moment) -> u64 {
        self.client().0.watch.lock().counts.get(&moment).copied().unwrap_or_default()
    }

    /// Tensors that the backend holds, and bytes of their buffers.
    pub fn held(&self) -> (usize, u64) {
        let shared = self.client().0;
        let watch = shared.watch.lock();
        (watch.held.len(), watch.bytes)
    }

    /// Most bytes held at once since it was armed, as counted by the backend.
    pub fn peak(&self) -> u64 {
        self.client().0.watch.lock().peak
    }
}

impl burn_std::device::Device for FaultyDevice {
    fn from_id(id: DeviceId) -> Self {
        Self(id.index_id)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(0, self.0)
    }
}

impl DeviceOps for FaultyDevice {
    fn defaults(&self) -> DeviceSettings {
        FlexDevice.defaults()
    }
}

impl DeviceMemory for FaultyDevice {}

/// See the [module](self).
#[derive(Clone)]
pub struct FaultyChannel;

/// Moves tensors between devices.
pub struct FaultyBridge;

type Handle = <Flex as BackendIr>::Handle;

impl MultiBackendBridge for FaultyBridge {
    type TensorHandle = Handle;
    type Device = FaultyDevice;

    fn change_backend_float(handle: Handle, _shape: Shape, _device: &FaultyDevice) -> Handle {
        handle
    }

    fn change_backend_int(handle: Handle, _shape: Shape, _device: &FaultyDevice) -> Handle {
        handle
    }

    fn change_backend_bool(handle: Handle, _shape: Shape, _device: &FaultyDevice) -> Handle {
        handle
    }
}

impl RoutedChannel for FaultyChannel {
    type Below = Flex;

    fn below(_device: &FaultyDevice) -> FlexDevice {
        FlexDevice
    }
}

impl RouterChannel for FaultyChannel {
    type Device = FaultyDevice;
    type Bridge = FaultyBridge;
    type Client = FaultyClient;

    fn name(device: &FaultyDevice) -> String {
        format!("faulty-{}", device.0)
    }

    fn init_client(device: &FaultyDevice) -> FaultyClient {
        FaultyClient(Arc::new(Shared {
            device: device.clone(),
            interpreter: Mutex::new(TensorInterpreter::new(FlexDevice)),
            watch: Mutex::default(),
        }))
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &FaultyClient) -> Handle {
        client.strike(Moment::Query, || {});
        let handle = client.0.interpreter.lock().get_tensor_handle(tensor);
        if tensor.status == TensorStatus::ReadWrite {
            client.0.watch.lock().remove(tensor.id);
        }
        handle
    }

    fn register_tensor(
        client: &FaultyClient,
        handle: Handle,
        shape: Shape,
        dtype: DType,
    ) -> RouterTensor<FaultyClient> {
        let id = client.create_empty_handle();
        client.0.interpreter.lock().register_tensor_to_device(id, typed(handle, shape.clone(), dtype));
        client.note(&[id]);
        RouterTensor::new(id, shape, dtype, client.clone())
    }
}

fn typed(handle: Handle, shape: Shape, dtype: DType) -> HandleKind<Flex> {
    let tensor = TensorHandle { handle, shape };
    match dtype {
        DType::QFloat(_) => HandleKind::Quantized(Flex::quantized_tensor(tensor)),
        _ if dtype.is_float() => HandleKind::Float(Flex::float_tensor(tensor)),
        _ if dtype.is_bool() => HandleKind::Bool(Flex::bool_tensor(tensor)),
        _ => HandleKind::Int(Flex::int_tensor(tensor)),
    }
}

struct Shared {
    device: FaultyDevice,
    interpreter: Mutex<TensorInterpreter<Flex>>,
    watch: Mutex<Watch>,
}

/// Runs operations, unless a fault is planted there.
#[derive(Clone)]
pub struct FaultyClient(Arc<Shared>);

impl fmt::Debug for FaultyClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultyClient").field(&self.0.device).finish()
    }
}

impl FaultyClient {
    /// Panics or waits if that is planted here. Calls `before` first if it panics, to do what a failing call does with its inputs.
    fn strike(&self, moment: Moment, before: impl FnOnce()) -> Option<Kind> {
        let kind = self.0.watch.lock().pass(moment);
        match kind {
            Some(Kind::Delay) => std::thread::sleep(DELAY),
            Some(Kind::Panic) => {
                before();
                panic!("{CAUSE} at a {moment:?}");
            }
            _ => {}
        }
        kind
    }

    /// Notes new tensors and their buffers.
    fn note(&self, ids: &[TensorId]) {
        let mut interpreter = self.0.interpreter.lock();
        let mut watch = self.0.watch.lock();
        for &id in ids {
            let ir = TensorIr { id, shape: Shape::new([]), status: TensorStatus::ReadOnly, dtype: DType::F32 };
            watch.add(id, Flex::buffer(&interpreter.get_tensor_handle(&ir)));
        }
    }

    /// Removes tensors that an operation was to consume.
    fn take(&self, ids: &[TensorId], has_run: bool) {
        for &id in ids {
            // An operation that failed has made nothing, but the router drops its outputs all the same.
            let is_held = self.0.watch.lock().held.contains_key(&id);
            if !has_run && is_held {
                let ir = TensorIr { id, shape: Shape::new([]), status: TensorStatus::ReadWrite, dtype: DType::F32 };
                self.0.interpreter.lock().register_op(OperationIr::Drop(ir));
            }
            self.0.watch.lock().remove(id);
        }
    }
}

impl RouterClient for FaultyClient {
    type Device = FaultyDevice;

    fn register_op(&self, op: OperationIr) {
        let taken: Vec<TensorId> =
            op.inputs().filter(|input| input.status == TensorStatus::ReadWrite).map(|input| input.id).collect();
        let made: Vec<TensorId> = op.outputs().map(|output| output.id).collect();
        if let OperationIr::Drop(tensor) = &op {
            return self.take(&[tensor.id], false);
        }
        self.strike(Moment::Run, || self.take(&taken, false));
        self.0.interpreter.lock().register_op(op);
        self.note(&made);
        self.take(&taken, true);
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        let taken: &[TensorId] = if tensor.status == TensorStatus::ReadWrite { &[tensor.id] } else { &[] };
        let kind = self.strike(Moment::Read, || self.take(taken, false));
        let cause = format!("{CAUSE} at a {:?}", Moment::Read);
        match kind {
            Some(Kind::Error) => {
                self.take(taken, false);
                Box::pin(std::future::ready(Err(ExecutionError::with_context(cause))))
            }
            Some(Kind::LatePanic) => {
                self.take(taken, false);
                Box::pin(async move { panic!("{cause}") })
            }
            _ => {
                let read = self.0.interpreter.lock().read_tensor_async(tensor.clone());
                self.take(taken, true);
                read
            }
        }
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        match self.strike(Moment::Sync, || {}) {
            Some(Kind::Error) => Err(ExecutionError::with_context(format!("{CAUSE} at a {:?}", Moment::Sync))),
            _ => self.0.interpreter.lock().sync(),
        }
    }

    fn flush(&self) {}

    fn create_empty_handle(&self) -> TensorId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        TensorId::new(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        self.strike(Moment::Upload, || {});
        let (id, shape, dtype) = (self.create_empty_handle(), data.shape().clone(), data.dtype());
        self.0.interpreter.lock().register_tensor_data_id(id, data);
        self.note(&[id]);
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    fn device(&self) -> FaultyDevice {
        self.0.device.clone()
    }

    fn seed(&self, seed: u64) {
        self.0.interpreter.lock().seed(seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        self.0.interpreter.lock().dtype_usage(dtype)
    }

    fn register_and_execute_graph(&self, _id: GraphId, _operations: Vec<OperationIr>, _bindings: GraphBindings) {
        unreachable!("nothing fuses here");
    }

    fn execute_graph(&self, _id: GraphId, _bindings: GraphBindings) {
        unreachable!("nothing fuses here");
    }

    fn register_alias(&self, new: TensorId, source: TensorId) {
        self.0.interpreter.lock().register_alias(new, source);
        self.note(&[new]);
    }
}
