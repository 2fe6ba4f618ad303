//! What the engine needs from Flex, Burn's CPU backend.

use burn_backend::{DType, Shape};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_ir::HandleKind;
use burn_std::Bytes;

use super::padding::Padding;
use super::traits::{BufferId, Extent, RematBackend};

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

    fn is_contiguous(handle: &Self::Handle, _shape: &Shape) -> bool {
        flex_tensor(handle).is_some_and(FlexTensor::is_contiguous)
    }

    fn host_bytes(handle: &Self::Handle) -> Option<&[u8]> {
        flex_tensor(handle).filter(|tensor| tensor.is_contiguous()).map(FlexTensor::bytes)
    }

    const PARTS_FOLLOW_REUSE: bool = true;

    fn extent(handle: &Self::Handle, shape: &Shape) -> Extent {
        match flex_tensor(handle) {
            Some(tensor) if tensor.bytes().len() > shape.num_elements() * tensor.dtype().size() => {
                if tensor.is_contiguous() { Extent::LayoutDependentPart } else { Extent::Part }
            }
            _ => Extent::Whole,
        }
    }

    fn with_own_buffer(handle: Self::Handle, _shape: &Shape) -> Self::Handle {
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

    fn without_data(shape: &Shape, dtype: DType) -> Option<Self::Handle> {
        // One element is enough. Kernels access elements through slices, so a kernel that did need them would panic at the second one.
        let one = Bytes::from_bytes_vec(vec![0; dtype.size()]);
        Some(HandleKind::Float(FlexTensor::new(one, Layout::contiguous(shape.clone()), dtype)))
    }
}

/// A tensor that is not quantized. Quantized ones keep their values and scales in two places.
fn flex_tensor(handle: &HandleKind<Flex>) -> Option<&FlexTensor> {
    match handle {
        HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => Some(tensor),
        HandleKind::Quantized(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::ops::{FloatTensorOps, IntTensorOps, ModuleOps};
    use burn_backend::{Distribution, FloatDType, IntDType};
    use burn_flex::FlexDevice;
    use burn_std::ops::{InterpolateMode, InterpolateOptions};

    use super::*;

    /// The operations for which `weak_input` says that they need only a shape.
    #[test]
    fn what_needs_only_a_shape_does_without_data() {
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
            let shell = Flex::without_data(&shape, DType::F32).unwrap();
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
