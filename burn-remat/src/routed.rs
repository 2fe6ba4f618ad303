//! A backend of your own below [`Remat`](crate::Remat) that sees every operation as data before it runs.
//!
//! Burn's backend traits have about 400 methods. Its router reduces them to one, which gets the operation as data: if you write a channel for the router,
//! you have a whole backend, `BackendRouter<MyChannel>`, which may count, log, delay or refuse operations. A [`RoutedChannel`] says which backend runs
//! the operations in the end. The engine asks that backend about buffers. The tests plant faults in this way (`tests/tests/faulty`).

use burn_backend::{Backend, BackendTypes, Shape, TensorMetadata};
use burn_ir::{BackendIr, OperationIr, TensorIr, TensorStatus};
use burn_router::{BackendRouter, MultiBackendBridge, RouterChannel, RouterTensor};
use burn_std::Strides;

use crate::backend::{BufferId, DeviceMemory, Extent, Padding, RematBackend};

/// A channel of Burn's router on which [`Remat`](crate::Remat) can be built.
///
/// Compressed forms that need direct access to memory (signs of an activation) are not available, because the elements are behind the channel.
pub trait RoutedChannel:
    RouterChannel<
        Device: DeviceMemory,
        Bridge: MultiBackendBridge<TensorHandle = <<Self as RoutedChannel>::Below as BackendIr>::Handle>,
    >
{
    /// The backend that runs the operations.
    type Below: RematBackend;

    /// Its device.
    fn below(device: &Self::Device) -> <Self::Below as BackendTypes>::Device;
}

/// The tensor of the backend below that a handle stands for.
fn below<C: RoutedChannel>(handle: &RouterTensor<C::Client>) -> <C::Below as BackendIr>::Handle {
    let ir = TensorIr { id: handle.id(), shape: handle.shape(), status: TensorStatus::ReadOnly, dtype: handle.dtype() };
    C::get_tensor_handle(&ir, &handle.client)
}

/// A handle in place of `handle` for another tensor of the same shape and type.
fn instead<C: RoutedChannel>(
    handle: &RouterTensor<C::Client>,
    tensor: <C::Below as BackendIr>::Handle,
) -> RouterTensor<C::Client> {
    C::register_tensor(&handle.client, tensor, handle.shape(), handle.dtype())
}

impl<C: RoutedChannel> RematBackend for BackendRouter<C> {
    const IS_HOST: bool = C::Below::IS_HOST;
    const LAYOUT_FOLLOWS_REUSE: bool = C::Below::LAYOUT_FOLLOWS_REUSE;
    const PARTS_FOLLOW_REUSE: bool = C::Below::PARTS_FOLLOW_REUSE;

    fn device_name(device: &Self::Device) -> String {
        format!("{} over {}", Self::name(device), C::Below::device_name(&C::below(device)))
    }

    fn buffer(handle: &Self::Handle) -> BufferId {
        C::Below::buffer(&below::<C>(handle))
    }

    fn is_contiguous(handle: &Self::Handle, shape: &Shape) -> bool {
        C::Below::is_contiguous(&below::<C>(handle), shape)
    }

    fn padding(device: &Self::Device) -> Padding {
        C::Below::padding(&C::below(device))
    }

    fn strides(handle: &Self::Handle, shape: &Shape) -> Option<Strides> {
        C::Below::strides(&below::<C>(handle), shape)
    }

    fn with_strides(handle: Self::Handle, shape: &Shape, strides: &Strides) -> Self::Handle {
        let laid = C::Below::with_strides(below::<C>(&handle), shape, strides);
        instead::<C>(&handle, laid)
    }

    fn extent(handle: &Self::Handle, shape: &Shape) -> Extent {
        C::Below::extent(&below::<C>(handle), shape)
    }

    fn with_own_buffer(handle: Self::Handle, shape: &Shape) -> Self::Handle {
        let copied = C::Below::with_own_buffer(below::<C>(&handle), shape);
        instead::<C>(&handle, copied)
    }

    fn is_deterministic(device: &Self::Device, op: &OperationIr) -> bool {
        C::Below::is_deterministic(&C::below(device), op)
    }
}
