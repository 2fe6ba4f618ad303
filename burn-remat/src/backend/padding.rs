//! The memory that a tensor takes: its elements, and what the device's allocator adds to them.

use burn_backend::{DType, Shape};
use burn_std::quantization::{QuantScheme, QuantStore, global_scale_dtype, scale_size};

/// What an allocator adds to the bytes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Buffer sizes are multiples of this many bytes, a power of two.
    pub alignment: u64,
    /// Whether rows (along the last dimension) are padded too, as on CUDA.
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
    /// Rows are padded to at least this many bytes. A row of one element is not padded.
    const LEAST_ROW: u64 = 16;

    /// Size of a buffer for this many bytes.
    pub fn buffer(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.alignment).unwrap_or(bytes)
    }

    /// Size of a new buffer for a tensor of this shape.
    pub fn tensor(&self, shape: &Shape, dtype: DType) -> u64 {
        self.around(tensor_bytes(shape, dtype), shape, dtype)
    }

    /// The same, for when the [bytes of its elements](tensor_bytes) are known.
    #[inline]
    pub(crate) fn around(&self, bytes: u64, shape: &Shape, dtype: DType) -> u64 {
        if let DType::QFloat(scheme) = dtype {
            let unpacked = || shape.num_elements() as u64 + 4 * scales_of(shape, &scheme);
            return self.buffer(if self.unpacks_quantized { unpacked() } else { bytes });
        }
        let element = dtype.size() as u64;
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

/// Bytes of the elements of a tensor. Those of a quantized tensor are packed as its scheme says, and include the scales.
#[inline]
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
            // A scheme that does not fit the shape is rejected where it is used.
            let packed = rank.checked_sub(from_last + 1).map_or(1, |axis| shape[axis].max(1)) as u64;
            let words = packed.div_ceil(scheme.num_quants().max(1) as u64);
            count / packed * words * scheme.size_bits_stored().div_ceil(8) as u64
        }
    };
    let global = global_scale_dtype(scheme).map_or(0, scale_size);
    values + scales_of(shape, scheme) * scale_size(scheme.scale_dtype()) as u64 + global as u64
}

/// How many scales a quantized tensor has: one, or one per block.
fn scales_of(shape: &Shape, scheme: &QuantScheme) -> u64 {
    match scheme.block_size() {
        Some(block) if block.as_slice().len() <= shape.num_dims() => {
            let blocks = shape.iter().zip(block.to_dim_vec(shape.num_dims()));
            blocks.map(|(&dim, block)| dim.div_ceil(usize::from(block).max(1)) as u64).product()
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
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
            // With the second shape, the last word of a row is only partly filled.
            for shape in [[8, 16], [6, 12], [1, 8]].map(Shape::from) {
                let written = quantized_data_len(&scheme, &shape) as u64;
                assert_eq!(Padding::default().tensor(&shape, DType::QFloat(scheme)), written, "{scheme:?} {shape:?}");
                assert_eq!(tensor_bytes(&shape, DType::QFloat(scheme)), written, "{scheme:?} {shape:?}");
            }
        }
    }
}
