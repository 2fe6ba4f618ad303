//! Small forms of tensors that are otherwise dear to keep.
//!
//! An operation whose result has a small form is taken for three: one that makes the result under another name, one that
//! *packs* that into its small form and drops it, and one that *unpacks* the small form under the name that the program
//! knows. So the result can be evicted and comes back by unpacking, and everything else (history, traces, planners) sees
//! ordinary operations and weighs them by bytes and measured time. A random mask, which could not be computed again at all,
//! becomes a root of a thirty-second of its size.
//!
//! A form that does not hold the values after all is the values themselves: packing never fails and never changes a bit.

use burn_backend::{DType, TensorData};
use burn_ir::{
    CustomOpIr, FloatOperationIr, ModuleOperationIr, OperationIr, ScalarIr, TensorId, TensorIr, TensorStatus,
};

use super::table::Description;
use super::{Engine, fresh_id};
use crate::alternatives::Alternative;
use crate::backend::RematBackend;

const PACK: &str = "remat.pack";
const UNPACK: &str = "remat.unpack";

/// Tensors of fewer bytes are not packed.
const SMALLEST: u64 = 16 << 10;

/// A small form of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// Zeros and ones as bits.
    Bits = 1,
    /// Whole numbers from 0 in one byte, two, or four.
    Bytes1 = 2,
    Bytes2 = 3,
    Bytes4 = 4,
}

impl Code {
    fn of(number: i64) -> Option<Self> {
        [Self::Bits, Self::Bytes1, Self::Bytes2, Self::Bytes4].into_iter().find(|code| *code as i64 == number)
    }

    /// The smallest form for whole numbers below `end`.
    fn below(end: usize) -> Option<Self> {
        match end {
            0..=0x100 => Some(Self::Bytes1),
            0x101..=0x1_0000 => Some(Self::Bytes2),
            0x1_0001..=0x1_0000_0000 => Some(Self::Bytes4),
            _ => None,
        }
    }

    /// Bytes of the form of so many numbers: a byte that tells it from what could not be packed, and the numbers.
    fn bytes(self, count: usize) -> usize {
        1 + match self {
            Self::Bits => count.div_ceil(8),
            Self::Bytes1 => count,
            Self::Bytes2 => 2 * count,
            Self::Bytes4 => 4 * count,
        }
    }

    /// The form of `data`; its bytes themselves, marked, where they do not fit.
    fn pack(self, data: &TensorData) -> Vec<u8> {
        let mut packed = Vec::with_capacity(self.bytes(data.num_elements()));
        packed.push(self as u8);
        let fits = match (self, data.dtype()) {
            (Self::Bits, DType::F32) => data.as_slice::<f32>().is_ok_and(|values| pack_bits(values, &mut packed)),
            (_, DType::I64) => data.as_slice::<i64>().is_ok_and(|values| self.pack_numbers(values, &mut packed)),
            (_, DType::I32) => data.as_slice::<i32>().is_ok_and(|values| self.pack_numbers(values, &mut packed)),
            _ => false,
        };
        if !fits {
            packed.clear();
            packed.push(0);
            packed.extend_from_slice(data.as_bytes());
        }
        packed
    }

    fn pack_numbers<T: Copy + Into<i64>>(self, values: &[T], packed: &mut Vec<u8>) -> bool {
        let end = match self {
            Self::Bits => return false,
            Self::Bytes1 => 1_i64 << 8,
            Self::Bytes2 => 1 << 16,
            Self::Bytes4 => 1 << 32,
        };
        let fits = values.iter().all(|&value| (0..end).contains(&value.into()));
        if fits {
            match self {
                Self::Bits => {}
                Self::Bytes1 => packed.extend(values.iter().map(|&value| value.into() as u8)),
                Self::Bytes2 => values.iter().for_each(|&value| packed.extend((value.into() as u16).to_le_bytes())),
                Self::Bytes4 => values.iter().for_each(|&value| packed.extend((value.into() as u32).to_le_bytes())),
            }
        }
        fits
    }

    /// The numbers of `packed`.
    fn unpack(self, packed: &[u8], like: &TensorIr) -> Option<TensorData> {
        let (&mark, body) = packed.split_first()?;
        let (shape, count) = (like.shape.clone(), like.shape.num_elements());
        if mark == 0 {
            return Some(TensorData::from_bytes_vec(body.to_vec(), shape, like.dtype));
        }
        Some(match (self, like.dtype) {
            (Self::Bits, DType::F32) => TensorData::new(unpack_bits(body, count), shape),
            (_, DType::I64) => TensorData::new(self.numbers(body).collect::<Vec<i64>>(), shape),
            (_, DType::I32) => {
                TensorData::new(self.numbers(body).map(|value| value as i32).collect::<Vec<i32>>(), shape)
            }
            _ => return None,
        })
    }

    fn numbers(self, body: &[u8]) -> impl Iterator<Item = i64> + '_ {
        let width = match self {
            Self::Bits | Self::Bytes1 => 1,
            Self::Bytes2 => 2,
            Self::Bytes4 => 4,
        };
        body.chunks_exact(width).map(|bytes| bytes.iter().rev().fold(0, |value, &byte| value << 8 | i64::from(byte)))
    }
}

const ONE: u32 = 1.0_f32.to_bits();

/// Appends zeros and ones as bits; `false` where a value is neither, to the bit. Two passes, each of which the compiler can
/// do for several values at once.
fn pack_bits(values: &[f32], packed: &mut Vec<u8>) -> bool {
    let fits = values.iter().fold(true, |fits, value| fits & matches!(value.to_bits(), 0 | ONE));
    let byte =
        |values: &[f32]| values.iter().rev().fold(0, |byte, value| byte << 1 | (value.to_bits() >> 29 & 1) as u8);
    let (whole, rest) = values.as_chunks::<8>();
    packed.extend(whole.iter().map(|values| byte(values)));
    if !rest.is_empty() {
        packed.push(byte(rest));
    }
    fits
}

fn unpack_bits(body: &[u8], count: usize) -> Vec<f32> {
    let values = |&byte: &u8| -> [f32; 8] { std::array::from_fn(|at| f32::from_bits(u32::from(byte >> at & 1) * ONE)) };
    let mut values: Vec<f32> = body.iter().flat_map(values).collect();
    values.truncate(count);
    values
}

/// How a result goes by its small form.
pub(super) struct SmallForm {
    pack: OperationIr,
    unpack: OperationIr,
    /// Bytes of the result.
    from: u64,
    /// Bytes of the small form.
    to: u64,
}

impl<B: RematBackend> Engine<B> {
    /// What follows an operation whose result has a small form that may be used; the result then has another name.
    pub(super) fn with_small_form(&self, op: &mut OperationIr) -> Option<SmallForm> {
        let limited = self.budget.is_some() || self.stages.any_forced || self.config.rehearsal.is_some();
        if !B::IS_HOST || self.light || !limited {
            return None;
        }
        let (alternative, code, result) = small_form(op)?;
        let from = Description::of(result).bytes;
        if from < SMALLEST || !self.config.alternatives.allows(alternative) {
            return None;
        }
        let known = result.clone();
        result.id = fresh_id();
        let raw = TensorIr { status: TensorStatus::ReadWrite, ..result.clone() };
        let to = code.bytes(known.shape.num_elements());
        let small = TensorIr { id: fresh_id(), shape: [to].into(), dtype: DType::U8, status: TensorStatus::NotInit };
        let custom = |id: &str, input: TensorIr, output: TensorIr| {
            let scalars = vec![ScalarIr::Int(code as i64)];
            OperationIr::Custom(CustomOpIr { id: id.to_owned(), inputs: vec![input], outputs: vec![output], scalars })
        };
        let last_use = TensorIr { status: TensorStatus::ReadWrite, ..small.clone() };
        Some(SmallForm { pack: custom(PACK, raw, small), unpack: custom(UNPACK, last_use, known), from, to: to as u64 })
    }

    /// Takes an operation whose result goes by a small form.
    pub(super) fn execute_with_small_form(&mut self, op: OperationIr, form: SmallForm) {
        self.execute(op);
        let before = self.stats.compute_ns;
        self.execute(form.pack);
        self.execute(form.unpack);
        self.stats.packed += 1;
        self.stats.packed_from += form.from;
        self.stats.packed_to += form.to;
        self.stats.packing_ns += self.stats.compute_ns - before;
    }
}

/// The alternative, the form and the result, for an operation that has one.
fn small_form(op: &mut OperationIr) -> Option<(Alternative, Code, &mut TensorIr)> {
    use burn_backend::Distribution::Bernoulli;
    match op {
        OperationIr::Float(_, FloatOperationIr::Random(random)) => {
            let is_mask = matches!(random.distribution, Bernoulli(_)) && random.out.dtype == DType::F32;
            is_mask.then_some((Alternative::MaskBits, Code::Bits, &mut random.out))
        }
        OperationIr::Module(ModuleOperationIr::MaxPool2dWithIndices(pool)) => {
            let [_, _, height, width] = pool.x.shape.dims();
            let code = Code::below(height * width)?;
            let is_wide = matches!(pool.out_indices.dtype, DType::I64 | DType::I32);
            is_wide.then_some((Alternative::SmallIndices, code, &mut pool.out_indices))
        }
        _ => None,
    }
}

/// Whether a custom operation is one of these, which can run again.
pub(super) fn is_coding(op: &CustomOpIr) -> bool {
    op.id == PACK || op.id == UNPACK
}

/// Runs one of them.
pub(super) fn run(
    op: &CustomOpIr,
    read: impl FnOnce(TensorIr) -> Option<TensorData>,
) -> Option<(TensorId, TensorData)> {
    let ([input], [output], [ScalarIr::Int(code)]) = (&op.inputs[..], &op.outputs[..], &op.scalars[..]) else {
        return None;
    };
    let (code, data) = (Code::of(*code)?, read(input.clone())?);
    let result = if op.id == PACK {
        let packed = code.pack(&data);
        let shape = [packed.len()];
        TensorData::new(packed, shape)
    } else {
        code.unpack(data.as_bytes(), output)?
    };
    Some((output.id, result))
}

#[cfg(test)]
mod tests {
    use burn_backend::Shape;

    use super::*;

    fn like(data: &TensorData) -> TensorIr {
        TensorIr { id: fresh_id(), shape: data.shape().clone(), dtype: data.dtype(), status: TensorStatus::NotInit }
    }

    fn round_trip(code: Code, data: TensorData) -> usize {
        let packed = code.pack(&data);
        assert_eq!(code.unpack(&packed, &like(&data)).as_ref(), Some(&data), "{code:?}");
        packed.len()
    }

    #[test]
    fn masks_and_indices_come_back_and_take_what_is_said() {
        for count in [0, 1, 7, 8, 9, 1000] {
            let mask: Vec<f32> = (0..count).map(|at| f32::from(u8::from(at * 7 % 3 == 1))).collect();
            assert_eq!(round_trip(Code::Bits, TensorData::new(mask, [count])), Code::Bits.bytes(count));
            for (code, end) in [(Code::Bytes1, 1 << 8), (Code::Bytes2, 1 << 16), (Code::Bytes4, 1_i64 << 32)] {
                let numbers: Vec<i64> = (0..count as i64).map(|at| (end - 1 - at * 37).rem_euclid(end)).collect();
                assert_eq!(round_trip(code, TensorData::new(numbers, [count])), code.bytes(count));
            }
            let numbers: Vec<i32> = (0..count as i32).collect();
            assert_eq!(round_trip(Code::Bytes2, TensorData::new(numbers, [count])), Code::Bytes2.bytes(count));
        }
        assert_eq!(Code::below(256), Some(Code::Bytes1));
        assert_eq!(Code::below(257), Some(Code::Bytes2));
        assert_eq!(Code::below(1 << 33), None);
    }

    #[test]
    fn what_does_not_fit_is_kept_as_it_is() {
        for value in [-0.0, 0.5, f32::NAN, 1.0 + f32::EPSILON] {
            let data = TensorData::new(vec![0.0, 1.0, value], [3]);
            let packed = Code::Bits.pack(&data);
            let back = Code::Bits.unpack(&packed, &like(&data)).unwrap();
            assert_eq!(back.as_bytes(), data.as_bytes());
        }
        for (code, number) in [(Code::Bytes1, 256), (Code::Bytes2, -1), (Code::Bytes4, 1 << 40)] {
            round_trip(code, TensorData::new(vec![3_i64, number], [2]));
        }
    }

    #[test]
    fn operations_that_are_not_these_are_refused() {
        let input = like(&TensorData::new(vec![0_u8], Shape::new([1])));
        let op = |inputs: Vec<TensorIr>, code| CustomOpIr {
            id: UNPACK.to_owned(),
            outputs: inputs.clone(),
            inputs,
            scalars: vec![ScalarIr::Int(code)],
        };
        let read = |_| Some(TensorData::new(Vec::<u8>::new(), [0]));
        assert!(run(&op(vec![], 1), read).is_none());
        assert!(run(&op(vec![input.clone()], 9), read).is_none());
        assert!(run(&op(vec![input], 1), read).is_none());
    }
}
