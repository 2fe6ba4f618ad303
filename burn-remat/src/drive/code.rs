//! Packs numbers into fewer bytes, and unpacks them.
//!
//! If numbers do not fit a code, their bytes are stored unchanged. So packing never changes a bit, except with [`Code::Bf16`].

use burn_backend::{DType, Shape, TensorData};
use bytemuck::try_cast_slice;

/// A way to pack numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Code {
    /// Zeros and ones as bits.
    Bits,
    /// Whole numbers from 0, in one, two or four bytes.
    Bytes1,
    Bytes2,
    Bytes4,
    /// 32-bit floating point in 16 bits, rounded to nearest.
    Bf16,
    /// The bytes unchanged, outside of the device.
    Whole,
    /// One bit for each number: whether it is above zero or NaN. Unpacked, these are ones and zeros.
    Signs,
}

impl Code {
    /// The smallest code for whole numbers below `end`.
    pub fn below(end: usize) -> Option<Self> {
        match end {
            0..=0x100 => Some(Self::Bytes1),
            0x101..=0x1_0000 => Some(Self::Bytes2),
            0x1_0001..=0x1_0000_0000 => Some(Self::Bytes4),
            _ => None,
        }
    }

    /// Size of `count` packed numbers of one type, in bytes. One of these says whether the numbers could be packed.
    pub fn bytes(self, count: usize, dtype: DType) -> usize {
        1 + match self {
            Self::Bits | Self::Signs => count.div_ceil(8),
            Self::Whole => count * dtype.size(),
            _ => count * self.width(),
        }
    }

    /// Bytes of the device's memory that packed numbers of this size take: none if they are outside of it.
    pub fn on_device(self, bytes: usize) -> u64 {
        if self == Self::Whole { 0 } else { bytes as u64 }
    }

    /// Bytes of one packed number, if it has whole bytes of its own.
    fn width(self) -> usize {
        match self {
            Self::Bits | Self::Bytes1 | Self::Whole | Self::Signs => 1,
            Self::Bytes2 | Self::Bf16 => 2,
            Self::Bytes4 => 4,
        }
    }

    /// Packs numbers of one type, given as bytes. If they do not fit the code, the result is these bytes, marked as such.
    pub fn pack(self, bytes: &[u8], dtype: DType) -> Vec<u8> {
        let count = bytes.len() / dtype.size().max(1);
        let mut packed = Vec::with_capacity(self.bytes(count, dtype));
        packed.push(1);
        let fits = match (self, dtype) {
            (Self::Bits, DType::F32) => try_cast_slice(bytes).is_ok_and(|values| pack_bits(values, &mut packed)),
            (Self::Bits, DType::Bool(_)) if dtype.size() == 1 => pack_bools(bytes, &mut packed),
            (Self::Signs, DType::F32) => try_cast_slice(bytes).is_ok_and(|values: &[f32]| {
                append_bits(values, &mut packed, |&value| u8::from(value.is_nan() || value > 0.0));
                true
            }),
            (Self::Bf16, DType::F32) => {
                let data = TensorData::from_bytes_vec(bytes.to_vec(), [count], dtype);
                packed.extend_from_slice(data.convert_dtype(DType::BF16).as_bytes());
                true
            }
            (_, DType::I64) => {
                try_cast_slice::<_, i64>(bytes).is_ok_and(|values| self.pack_numbers(values, &mut packed))
            }
            (_, DType::I32) => {
                try_cast_slice::<_, i32>(bytes).is_ok_and(|values| self.pack_numbers(values, &mut packed))
            }
            _ => false,
        };
        if !fits {
            packed.clear();
            packed.push(0);
            packed.extend_from_slice(bytes);
        }
        packed
    }

    fn pack_numbers<T: Copy + Into<i64>>(self, values: &[T], packed: &mut Vec<u8>) -> bool {
        let end = match self {
            Self::Bytes1 => 1_i64 << 8,
            Self::Bytes2 => 1 << 16,
            Self::Bytes4 => 1 << 32,
            Self::Bits | Self::Bf16 | Self::Whole | Self::Signs => return false,
        };
        let fits = values.iter().all(|&value| (0..end).contains(&value.into()));
        if fits {
            match self {
                Self::Bytes1 => packed.extend(values.iter().map(|&value| value.into() as u8)),
                Self::Bytes2 => values.iter().for_each(|&value| packed.extend((value.into() as u16).to_le_bytes())),
                _ => values.iter().for_each(|&value| packed.extend((value.into() as u32).to_le_bytes())),
            }
        }
        fits
    }

    /// Unpacks `packed`.
    pub fn unpack(self, packed: &[u8], shape: Shape, dtype: DType) -> Option<TensorData> {
        let (&mark, body) = packed.split_first()?;
        let count = shape.num_elements();
        if mark == 0 {
            return Some(TensorData::from_bytes_vec(body.to_vec(), shape, dtype));
        }
        Some(match (self, dtype) {
            (Self::Bits | Self::Signs, DType::F32) => {
                let value = |bit| f32::from_bits(u32::from(bit) * ONE);
                TensorData::new(unpack_bits(body, count, value), shape)
            }
            (Self::Bits, DType::Bool(_)) => {
                TensorData::from_bytes_vec(unpack_bits(body, count, |bit| bit), shape, dtype)
            }
            (Self::Bf16, DType::F32) => {
                TensorData::from_bytes_vec(body.to_vec(), shape, DType::BF16).convert_dtype(DType::F32)
            }
            (_, DType::I64) => TensorData::new(self.numbers(body).collect::<Vec<i64>>(), shape),
            (_, DType::I32) => {
                TensorData::new(self.numbers(body).map(|value| value as i32).collect::<Vec<i32>>(), shape)
            }
            _ => return None,
        })
    }

    fn numbers(self, body: &[u8]) -> impl Iterator<Item = i64> + '_ {
        let whole = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, &byte| value << 8 | i64::from(byte));
        body.chunks_exact(self.width()).map(whole)
    }
}

/// The largest relative error of `rounded`, without zeros and numbers that are not finite.
pub(super) fn relative_error(exact: &[u8], rounded: &[u8]) -> f64 {
    let (Ok(exact), Ok(rounded)) = (try_cast_slice::<_, f32>(exact), try_cast_slice::<_, f32>(rounded)) else {
        return 0.0;
    };
    let error = |(exact, rounded): (&f32, &f32)| f64::from((exact - rounded).abs()) / f64::from(exact.abs());
    exact.iter().zip(rounded).filter(|(exact, _)| exact.is_normal()).map(error).fold(0.0, f64::max)
}

const ONE: u32 = 1.0_f32.to_bits();

/// Appends zeros and ones as bits. Returns `false` if a value is not exactly one of these. There are two passes, each of which the compiler can
/// vectorise.
fn pack_bits(values: &[f32], packed: &mut Vec<u8>) -> bool {
    let fits = values.iter().fold(true, |fits, value| fits & matches!(value.to_bits(), 0 | ONE));
    append_bits(values, packed, |value| (value.to_bits() >> 29 & 1) as u8);
    fits
}

fn pack_bools(values: &[u8], packed: &mut Vec<u8>) -> bool {
    let fits = values.iter().fold(true, |fits, &value| fits & (value <= 1));
    append_bits(values, packed, |&value| value & 1);
    fits
}

fn append_bits<T>(values: &[T], packed: &mut Vec<u8>, bit: impl Fn(&T) -> u8) {
    let byte = |values: &[T]| values.iter().rev().fold(0, |byte, value| byte << 1 | bit(value));
    let (whole, rest) = values.as_chunks::<8>();
    packed.extend(whole.iter().map(|values| byte(values)));
    if !rest.is_empty() {
        packed.push(byte(rest));
    }
}

fn unpack_bits<T: Clone + Default>(body: &[u8], count: usize, value_of: impl Fn(u8) -> T) -> Vec<T> {
    let mut values = vec![T::default(); count];
    for (values, &byte) in values.chunks_mut(8).zip(body) {
        values.iter_mut().enumerate().for_each(|(at, value)| *value = value_of(byte >> at & 1));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(code: Code, data: &TensorData) -> (TensorData, usize) {
        let packed = code.pack(data.as_bytes(), data.dtype());
        (code.unpack(&packed, data.shape().clone(), data.dtype()).unwrap(), packed.len())
    }

    fn round_trip(code: Code, data: TensorData) {
        let (same, bytes) = back(code, &data);
        assert_eq!(same, data, "{code:?}");
        assert_eq!(bytes, code.bytes(data.num_elements(), data.dtype()), "{code:?}");
    }

    #[test]
    fn masks_and_indices_come_back_and_take_what_is_said() {
        for count in [0, 1, 7, 8, 9, 1000] {
            let is_one = |at: usize| at * 7 % 3 == 1;
            let mask: Vec<f32> = (0..count).map(|at| f32::from(u8::from(is_one(at)))).collect();
            round_trip(Code::Bits, TensorData::new(mask, [count]));
            round_trip(Code::Bits, TensorData::new((0..count).map(is_one).collect::<Vec<bool>>(), [count]));
            for (code, end) in [(Code::Bytes1, 1 << 8), (Code::Bytes2, 1 << 16), (Code::Bytes4, 1_i64 << 32)] {
                let numbers: Vec<i64> = (0..count as i64).map(|at| (end - 1 - at * 37).rem_euclid(end)).collect();
                round_trip(code, TensorData::new(numbers.clone(), [count]));
                round_trip(Code::Whole, TensorData::new(numbers, [count]));
            }
            round_trip(Code::Bytes2, TensorData::new((0..count as i32).collect::<Vec<i32>>(), [count]));
        }
        assert_eq!(Code::below(256), Some(Code::Bytes1));
        assert_eq!(Code::below(257), Some(Code::Bytes2));
        assert_eq!(Code::below(1 << 33), None);
    }

    #[test]
    fn what_does_not_fit_is_kept_as_it_is() {
        for value in [-0.0, 0.5, f32::NAN, 1.0 + f32::EPSILON] {
            let data = TensorData::new(vec![0.0, 1.0, value], [3]);
            assert_eq!(back(Code::Bits, &data).0.as_bytes(), data.as_bytes());
        }
        for (code, number) in [(Code::Bytes1, 256), (Code::Bytes2, -1), (Code::Bytes4, 1 << 40)] {
            let data = TensorData::new(vec![3_i64, number], [2]);
            assert_eq!(back(code, &data).0, data);
        }
    }

    #[test]
    fn signs_say_what_is_above_zero_or_no_number() {
        let values = [1e-40, -1e-40, 0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.0];
        let data = TensorData::new(values.to_vec(), [9]);
        let (signs, bytes) = back(Code::Signs, &data);
        assert_eq!(signs, TensorData::new(vec![1.0_f32, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0], [9]));
        assert_eq!(bytes, 3);
    }

    #[test]
    fn half_precision_is_off_by_one_part_in_256_at_most() {
        let values: Vec<f32> = (-2000..2000).map(|at| (at as f32 * 0.731).sin() * 10_f32.powi(at % 37)).collect();
        let data = TensorData::new(values, [4000]);
        let (rounded, bytes) = back(Code::Bf16, &data);
        let error = relative_error(data.as_bytes(), rounded.as_bytes());
        assert!(error > 1.0 / 600.0 && error <= 1.0 / 256.0, "{error}");
        assert_eq!(bytes, 8001);
        // Numbers that fit into 16 bits come back unchanged.
        let held = TensorData::new(vec![0.0, -0.0, 1.0, -1.5, 1024.0, f32::INFINITY, 1e-40_f32 * 0.0], [7]);
        assert_eq!(back(Code::Bf16, &held).0.as_bytes(), held.as_bytes());
    }
}
