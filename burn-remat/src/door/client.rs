//! `Remat<B>`: a backend decorator below autodiff.
//!
//! Burn's router turns every tensor operation into data ([`OperationIr`]) and hands it to a client. Ours owns the engine. `Remat<B>` is that router with
//! our client, so it is a [`Backend`](burn_backend::Backend) wherever `B` is one: `Autodiff<Remat<Flex>>` records saved activations as router handles and
//! never notices that their buffers come and go.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn_backend::{
    DType, DTypeUsageSet, ExecutionError, FloatDType, ProfileDuration, ProfileOptions, ProfileToken, Shape, TensorData,
};
use burn_ir::{GraphBindings, GraphId, OperationIr, TensorHandle, TensorId, TensorIr, TensorStatus};
use burn_remat_core::CheckpointPolicy;
use burn_router::{BackendRouter, Graph, MultiBackendBridge, RouterChannel, RouterClient, RouterTensor, get_client};
use burn_std::future::DynFut;

use super::control::EngineControl;
use super::intake::{Call, Intake};
use super::queue::Turn;
use super::reads::Reads;
use super::remat_device::RematDevice;
use crate::backend::{DeviceMemory, RematBackend};
use crate::config::RematConfig;
use crate::drive::{fresh_id, typed};
use crate::engine::Engine;
use crate::error::RematError;
use crate::names::NameId;
use crate::panics::lock;
use crate::rehearse::Seen;
use crate::report::RematReport;
#[cfg(feature = "learner")]
use crate::report::Usage;

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
        B::float_tensor_handle(B::float_to_device(B::float_tensor(TensorHandle { handle, shape }), device.inner()))
    }

    fn change_backend_int(handle: B::Handle, shape: Shape, device: &Self::Device) -> B::Handle {
        B::int_tensor_handle(B::int_to_device(B::int_tensor(TensorHandle { handle, shape }), device.inner()))
    }

    fn change_backend_bool(handle: B::Handle, shape: Shape, device: &Self::Device) -> B::Handle {
        B::bool_tensor_handle(B::bool_to_device(B::bool_tensor(TensorHandle { handle, shape }), device.inner()))
    }
}

impl<B: RematBackend> RouterChannel for RematChannel<B> {
    type Device = RematDevice<B::Device>;
    type Bridge = RematBridge<B>;
    type Client = RematClient<B>;

    fn name(device: &Self::Device) -> String {
        format!("remat<{}>", B::name(device.inner()))
    }

    fn init_client(device: &Self::Device) -> RematClient<B> {
        let config = device.config();
        let own_thread = config.own_thread;
        RematClient(Arc::new(Shared {
            intake: Intake::new(Engine::new(device.inner().clone(), config), own_thread),
            device: device.clone(),
            reads: Reads::default(),
            graphs: Mutex::default(),
        }))
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &RematClient<B>) -> B::Handle {
        match client.engine().handle(tensor) {
            Ok(handle) => handle,
            Err(failure) => {
                // The router's signature cannot return an error. The failure is logged, the next sync returns it, and a tensor of floats is filled with
                // NaN rather than with plausible numbers.
                log::error!("a tensor that leaves its remat device holds no data: {failure}");
                placeholder::<B>(tensor, client.0.device.inner())
            }
        }
    }

    /// Like the router's own, but also moves quantized tensors.
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
            B::quantized_tensor_handle(B::q_to_device(tensor, device.inner()))
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

fn placeholder<B: RematBackend>(tensor: &TensorIr, device: &B::Device) -> B::Handle {
    let shape = tensor.shape.clone();
    if let DType::QFloat(scheme) = tensor.dtype {
        // Quantized numbers cannot be NaN: only the log and the next sync report the failure.
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
    intake: Intake<B>,
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
    fn engine(&self) -> Turn<'_, Engine<B>> {
        self.0.intake.engine()
    }

    /// Waits until the engine has handled all calls so far.
    fn catch_up(&self) {
        drop(self.engine());
    }

    fn replay_graph(&self, graph: &Graph, bindings: GraphBindings) {
        for op in graph.bind(bindings).operations {
            self.register_op(op);
        }
    }
}

impl<B: RematBackend> EngineControl for RematClient<B> {
    fn mark_step(&self) {
        self.0.intake.ask(Call::Mark);
    }

    fn enter_stage(&self, name: NameId, number: i64, policy: Option<CheckpointPolicy>) {
        self.0.intake.ask(Call::EnterStage(name, number, policy));
    }

    fn leave_stage(&self, number: i64) {
        self.0.intake.ask(Call::LeaveStage(number));
    }

    fn report(&self) -> RematReport {
        self.engine().report()
    }

    fn reset_report(&self) {
        self.engine().reset_report();
    }

    fn wait_for_plan(&self, limit: Duration) -> bool {
        let planning = self.engine().planning();
        planning.wait(limit)
    }

    fn rehearsed(&self) -> Result<Seen, RematError> {
        self.engine().rehearsed()
    }

    #[cfg(feature = "learner")]
    fn usage(&self) -> Usage {
        self.engine().usage()
    }

    fn record(&self, path: &Path) -> Result<(), RematError> {
        self.engine().record(path)
    }

    fn finish_recording(&self) -> std::io::Result<()> {
        self.engine().finish_recording()
    }

    fn restart(&self, config: RematConfig) {
        let mut engine = self.engine();
        *engine = Engine::new(self.0.device.inner().clone(), config);
    }
}

impl<D: DeviceMemory> RematDevice<D> {
    /// What the engine of this device has done so far.
    pub fn report<B: RematBackend<Device = D>>(&self) -> RematReport {
        get_client::<RematChannel<B>>(self).report()
    }

    /// Tells the engine that a training step begins here; see [`RematExt::remat_mark_step`](crate::RematExt).
    pub fn mark_step<B: RematBackend<Device = D>>(&self) {
        get_client::<RematChannel<B>>(self).mark_step();
    }

    /// Waits until no planner is at work, for at most `limit`. Returns `false` if the time is up first, or if no step has been seen often enough for
    /// planning to begin. The plan is followed from the next step on.
    pub fn wait_for_plan<B: RematBackend<Device = D>>(&self, limit: Duration) -> bool {
        get_client::<RematChannel<B>>(self).wait_for_plan(limit)
    }

    /// Resets the counters of [`report`](Self::report).
    pub fn reset_report<B: RematBackend<Device = D>>(&self) {
        get_client::<RematChannel<B>>(self).reset_report();
    }
}

impl<B: RematBackend> RouterClient for RematClient<B> {
    type Device = RematDevice<B::Device>;

    fn register_op(&self, mut op: OperationIr) {
        self.0.reads.let_pass(&op);
        self.0.intake.register(&mut op);
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
        if let Err(error) = B::flush(self.0.device.inner()) {
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
        self.0.intake.draws_next();
        self.engine().seed(seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(self.0.device.inner(), dtype)
    }

    fn profile_start(&self) -> Result<Option<ProfileToken>, ExecutionError> {
        self.catch_up();
        B::profile_start(self.0.device.inner())
    }

    fn profile_end(&self, token: ProfileToken, options: ProfileOptions) -> Result<ProfileDuration, ExecutionError> {
        self.catch_up();
        B::profile_end(self.0.device.inner(), token, options)
    }

    fn profile_abandon(&self, token: ProfileToken) {
        B::profile_abandon(self.0.device.inner(), token);
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
