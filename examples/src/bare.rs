//! Burn's router directly over a backend: what [`Remat`](burn_remat::Remat) is built from, without the engine. `overhead` uses it to tell which part of
//! a remat device's cost is the engine's.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::{Backend, DType, DTypeUsageSet, ExecutionError, Shape, TensorData};
use burn_flex::{Flex, FlexDevice};
use burn_ir::{BackendIr, GraphBindings, GraphId, OperationIr, TensorId, TensorIr};
use burn_router::{BackendRouter, MultiBackendBridge, RouterChannel, RouterClient, RouterTensor, TensorInterpreter};
use burn_std::future::DynFut;

/// Flex behind Burn's router and interpreter of operations. For one device, and for tensors that do not leave it.
pub type Bare = BackendRouter<BareChannel>;

type Handle = <Flex as BackendIr>::Handle;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// See the [module](self).
#[derive(Clone)]
pub struct BareChannel;

/// Moves nothing, because there is only one device.
pub struct BareBridge;

impl MultiBackendBridge for BareBridge {
    type TensorHandle = Handle;
    type Device = FlexDevice;

    fn change_backend_float(handle: Handle, _shape: Shape, _device: &FlexDevice) -> Handle {
        handle
    }

    fn change_backend_int(handle: Handle, _shape: Shape, _device: &FlexDevice) -> Handle {
        handle
    }

    fn change_backend_bool(handle: Handle, _shape: Shape, _device: &FlexDevice) -> Handle {
        handle
    }
}

impl RouterChannel for BareChannel {
    type Device = FlexDevice;
    type Bridge = BareBridge;
    type Client = BareClient;

    fn name(_device: &FlexDevice) -> String {
        "bare".to_owned()
    }

    fn init_client(_device: &FlexDevice) -> BareClient {
        BareClient(Arc::new(Mutex::new(TensorInterpreter::new(FlexDevice))))
    }

    fn get_tensor_handle(tensor: &TensorIr, client: &BareClient) -> Handle {
        client.interpreter().get_tensor_handle(tensor)
    }

    fn register_tensor(client: &BareClient, handle: Handle, shape: Shape, dtype: DType) -> RouterTensor<BareClient> {
        client.interpreter().register_tensor(handle, shape, dtype, client.clone())
    }
}

/// Runs operations as they arrive.
#[derive(Clone)]
pub struct BareClient(Arc<Mutex<TensorInterpreter<Flex>>>);

impl fmt::Debug for BareClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BareClient")
    }
}

impl BareClient {
    fn interpreter(&self) -> MutexGuard<'_, TensorInterpreter<Flex>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RouterClient for BareClient {
    type Device = FlexDevice;

    fn register_op(&self, op: OperationIr) {
        self.interpreter().register_op(op);
    }

    fn read_tensor_async(&self, tensor: TensorIr) -> DynFut<Result<TensorData, ExecutionError>> {
        self.interpreter().read_tensor_async(tensor)
    }

    fn sync(&self) -> Result<(), ExecutionError> {
        self.interpreter().sync()
    }

    fn flush(&self) {}

    fn create_empty_handle(&self) -> TensorId {
        TensorId::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    fn register_tensor_data(&self, data: TensorData) -> RouterTensor<Self> {
        let (id, shape, dtype) = (self.create_empty_handle(), data.shape().clone(), data.dtype());
        self.interpreter().register_tensor_data_id(id, data);
        RouterTensor::new(id, shape, dtype, self.clone())
    }

    fn device(&self) -> FlexDevice {
        FlexDevice
    }

    fn seed(&self, seed: u64) {
        Flex::seed(&FlexDevice, seed);
    }

    fn dtype_usage(&self, dtype: DType) -> DTypeUsageSet {
        Flex::dtype_usage(&FlexDevice, dtype)
    }

    fn register_and_execute_graph(&self, _id: GraphId, operations: Vec<OperationIr>, _bindings: GraphBindings) {
        log::error!("{} fused operations are not run: nothing is fused on a CPU", operations.len());
    }

    fn execute_graph(&self, _id: GraphId, _bindings: GraphBindings) {
        log::error!("fused operations are not run: nothing is fused on a CPU");
    }

    fn register_alias(&self, new_id: TensorId, src_id: TensorId) {
        self.interpreter().register_alias(new_id, src_id);
    }
}
