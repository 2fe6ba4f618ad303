//! Random programs on the backend itself: the engine gives the same bits as the backend below it, whatever the budget.
//!
//! Larger than the rule: `run`, because it is one table of actions.

use std::cell::Cell;

use burn::backend::DispatchDevice;
use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::{Backend, FloatDType, IntDType, Shape, TensorData, TensorMetadata};
use burn_flex::Flex;
use burn_remat::{Remat, RematBackend, RematConfig, RematDevice};
use burn_remat_examples::device::under_test;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

const SIDE: usize = 16;
/// Bytes of one tensor.
const UNIT: u64 = (SIDE * SIDE * 4) as u64;

/// A test of any backend.
trait OnBackend {
    fn run<B: RematBackend>(device: B::Device);
}

/// Runs a test on the backend of the device under test.
fn on_backend<T: OnBackend>() {
    match under_test().as_dispatch() {
        DispatchDevice::Flex(device) => T::run::<Flex>(*device),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => T::run::<burn_cubecl::Cube>(device.clone()),
        other => panic!("no backend for {other:?} is known here"),
    }
}

/// One instruction; numbers refer to live tensors, wrapped around.
#[derive(Clone, Debug)]
enum Instruction {
    Upload(u8),
    Constant(u8),
    /// Makes a new tensor and keeps the operand.
    Unary(u8, usize),
    /// Consumes the operand, so that it may be written in place.
    Consume(u8, usize),
    Binary(u8, usize, usize),
    View(usize),
    /// An operation with two results.
    Two(usize),
    /// Half of the rows, by another operation: it may overwrite them where they are.
    Rows(u8, usize),
    /// A mean over all values of some rows, transposed.
    Whole(usize),
    DropRows(usize),
    Drop(usize),
    Read(usize),
    Step,
}

fn instruction() -> impl Strategy<Value = Instruction> {
    use Instruction::*;
    let at = 0..64_usize;
    prop_oneof![
        2 => any::<u8>().prop_map(Upload),
        1 => any::<u8>().prop_map(Constant),
        6 => (any::<u8>(), at.clone()).prop_map(|(op, a)| Unary(op, a)),
        3 => (any::<u8>(), at.clone()).prop_map(|(op, a)| Consume(op, a)),
        6 => (any::<u8>(), at.clone(), at.clone()).prop_map(|(op, a, b)| Binary(op, a, b)),
        2 => at.clone().prop_map(View),
        1 => at.clone().prop_map(Two),
        2 => (any::<u8>(), at.clone()).prop_map(|(op, a)| Rows(op, a)),
        2 => at.clone().prop_map(Whole),
        1 => at.clone().prop_map(DropRows),
        3 => at.clone().prop_map(Drop),
        2 => at.prop_map(Read),
        1 => Just(Step),
    ]
}

fn unary<B: Backend>(op: u8, x: B::FloatTensorPrimitive) -> B::FloatTensorPrimitive {
    match op % 4 {
        0 => B::float_tanh(x),
        1 => B::float_mul_scalar(x, 0.75.into()),
        2 => B::float_add_scalar(x, 0.5.into()),
        _ => B::float_recip(B::float_add_scalar(B::float_abs(x), 1.0.into())),
    }
}

/// Runs a program and returns everything that it reads, including the live tensors at the end.
fn run<B: Backend>(program: &[Instruction], device: &B::Device, step: impl Fn()) -> Vec<Vec<u8>> {
    let shape = Shape::new([SIDE, SIDE]);
    let read = |tensor: B::FloatTensorPrimitive| {
        let data = burn_std::reader::try_read_sync(B::float_into_data(tensor)).unwrap().unwrap();
        data.as_bytes().to_vec()
    };
    let mut live: Vec<B::FloatTensorPrimitive> = vec![B::float_ones(shape.clone(), device, FloatDType::F32)];
    let (mut seen, mut rows) = (Vec::new(), Vec::new());
    // Its rounding reveals the order of the rows.
    let whole = |rows: B::FloatTensorPrimitive| {
        let mean = B::float_mean(B::float_sin(B::float_swap_dims(rows.clone(), 0, 1)));
        B::float_add(mean, B::float_mean(B::float_swap_dims(rows, 0, 1)))
    };
    for instruction in program {
        let count = live.len();
        let at = |index: &usize| index % count;
        match instruction {
            Instruction::Upload(seed) => {
                let values: Vec<f32> =
                    (0..SIDE * SIDE).map(|k| ((k * 31 + *seed as usize) % 97) as f32 / 97.0).collect();
                live.push(B::float_from_data(TensorData::new(values, [SIDE, SIDE]), device));
            }
            Instruction::Constant(value) => {
                let value = f32::from(*value) / 256.0;
                live.push(B::float_full(shape.clone(), value.into(), device, FloatDType::F32));
            }
            Instruction::Unary(op, a) => live.push(unary::<B>(*op, live[at(a)].clone())),
            Instruction::Consume(op, a) => {
                let taken = live.swap_remove(at(a));
                live.push(unary::<B>(*op, taken));
            }
            Instruction::Binary(op, a, b) => {
                let (a, b) = (live[at(a)].clone(), live[at(b)].clone());
                live.push(match op % 3 {
                    0 => B::float_tanh(B::float_matmul(a, b)),
                    1 => B::float_mul(a, b),
                    _ => B::float_sub(a, b),
                });
            }
            Instruction::View(a) => live.push(B::float_swap_dims(live[at(a)].clone(), 0, 1)),
            Instruction::Two(a) => {
                let (values, indices) = B::float_max_dim_with_indices(live[at(a)].clone(), 1, IntDType::I32);
                let rows = B::float_expand(values, shape.clone());
                let chosen = B::float_gather(1, rows.clone(), B::int_expand(indices, shape.clone()));
                live.push(B::float_add(rows, chosen));
            }
            Instruction::Rows(op, a) => {
                let from = if op & 4 == 0 { 0 } else { SIDE / 2 };
                let half = [(from..from + SIDE / 2).into(), (0..SIDE).into()];
                let taken = if op & 8 == 0 || count == 1 { live[at(a)].clone() } else { live.swap_remove(at(a)) };
                rows.push(unary::<B>(*op, B::float_slice(taken, &half)));
            }
            Instruction::Whole(a) if !rows.is_empty() => {
                let sum = whole(rows[a % rows.len()].clone());
                live.push(B::float_expand(B::float_reshape(sum, Shape::new([1, 1])), shape.clone()));
            }
            Instruction::DropRows(a) if !rows.is_empty() => drop(rows.swap_remove(a % rows.len())),
            Instruction::Whole(_) | Instruction::DropRows(_) => {}
            Instruction::Drop(a) => {
                if count > 1 {
                    live.swap_remove(at(a));
                }
            }
            Instruction::Read(a) => seen.push(read(live[at(a)].clone())),
            Instruction::Step => step(),
        }
        assert_eq!(live[0].shape(), shape);
    }
    seen.extend(rows.into_iter().map(whole).chain(live).map(read));
    seen
}

struct RandomPrograms;

impl OnBackend for RandomPrograms {
    fn run<B: RematBackend>(device: B::Device) {
        // If every operation is a kernel launch, fewer cases must be enough.
        let cases = if B::IS_HOST { 200 } else { 20 };
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let input = (proptest::collection::vec(instruction(), 1..120), 3..40_u64, any::<bool>());
        // Budgets that are smaller than what the program holds without one, and how many of them were kept.
        let (small, kept) = (Cell::new(0), Cell::new(0));
        let computes_the_same = |(program, units, marked): (Vec<Instruction>, u64, bool)| {
            let expected = run::<B>(&program, &device, || {});
            let unlimited = RematDevice::new(device.clone(), RematConfig::default()).unwrap();
            run::<Remat<B>>(&program, &unlimited, || {});
            let stored = unlimited.report::<B>().peak_bytes;
            let budget = units * UNIT;
            let device = RematDevice::new(device.clone(), RematConfig::new(budget)).unwrap();
            let step = || {
                if marked {
                    device.mark_step::<B>()
                }
            };
            let seen = run::<Remat<B>>(&program, &device, step);
            prop_assert_eq!(&seen, &expected);
            let report = device.report::<B>();
            prop_assert_eq!(report.failure.clone(), None);
            // How an operation writes its result is known only once it has run: until then it may take that much more than was left for
            // it. A test in the core, with an observer that knows the program, checks that nothing evictable ever exceeds the budget.
            prop_assert!(report.peak_bytes <= budget.max(stored) + UNIT, "{stored} without a budget: {}", report);
            if budget < stored {
                small.set(small.get() + 1);
                kept.set(kept.get() + usize::from(report.peak_bytes <= budget));
            }
            prop_assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{}", report);
            Ok(())
        };
        // The same programs each time.
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        if let Err(failure) = runner.run(&input, computes_the_same) {
            panic!("{failure}");
        }
        let (small, kept) = (small.get(), kept.get());
        println!("{kept} of {small} budgets below what is held without one were kept");
        assert!(small * 2 > cases as usize && kept * 5 > small * 2, "{kept} of {small}");
    }
}

#[test]
fn random_programs_compute_the_same_bits_within_the_budget() {
    on_backend::<RandomPrograms>();
}

struct Counting;

impl OnBackend for Counting {
    fn run<B: RematBackend>(device: B::Device) {
        let device = RematDevice::new(device, RematConfig::new("1 MiB")).unwrap();
        let x = Remat::<B>::float_ones(Shape::new([SIDE, SIDE]), &device, FloatDType::F32);
        let held = || device.report::<B>().live_bytes;
        assert_eq!(held(), UNIT);
        let turned = Remat::<B>::float_swap_dims(x.clone(), 0, 1);
        assert_eq!(held(), UNIT);
        drop(turned);
        let x = Remat::<B>::float_add_scalar(x, 1.0.into());
        assert_eq!((held(), device.report::<B>().peak_bytes), (UNIT, UNIT));
        let y = Remat::<B>::float_add_scalar(x.clone(), 1.0.into());
        assert_eq!(held(), 2 * UNIT);
        drop((x, y));
        assert_eq!(held(), 0);
    }
}

#[test]
fn views_and_results_in_place_are_counted_once() {
    on_backend::<Counting>();
}

struct SecondResult;

impl OnBackend for SecondResult {
    fn run<B: RematBackend>(device: B::Device) {
        let device = RematDevice::new(device, RematConfig::new(9 * UNIT / 2)).unwrap();
        let x = run_chain::<Remat<B>>(&device);
        let (values, indices) = Remat::<B>::float_max_dim_with_indices(x, 1, IntDType::I32);
        let fill: Vec<_> = (0..8).map(|_| run_chain::<Remat<B>>(&device)).collect();
        drop(fill);
        let values = burn_std::reader::try_read_sync(Remat::<B>::float_into_data(values)).unwrap().unwrap();
        let indices = burn_std::reader::try_read_sync(Remat::<B>::int_into_data(indices)).unwrap().unwrap();
        assert!(values.iter::<f32>().all(|value| value > 0.0));
        assert!(indices.iter::<i32>().all(|index| index == 0));
    }
}

#[test]
fn a_second_result_is_brought_back_without_losing_the_first() {
    on_backend::<SecondResult>();
}

struct LastReader;

impl OnBackend for LastReader {
    fn run<B: RematBackend>(device: B::Device) {
        let budget = 4 * UNIT;
        let device = RematDevice::new(device, RematConfig::new(budget)).unwrap();
        let upload = || {
            let numbers: Vec<f32> = (0..SIDE * SIDE).map(|k| k as f32 / 1e3).collect();
            Remat::<B>::float_from_data(TensorData::new(numbers, [SIDE, SIDE]), &device)
        };
        let (x, other) = (upload(), upload());
        let rests_on_x = Remat::<B>::float_exp(x.clone());
        let first = Remat::<B>::float_matmul(other.clone(), other.clone());
        let second = Remat::<B>::float_matmul(first.clone(), first.clone());
        assert_eq!(device.report::<B>().evictions, 1, "what depends on x is evicted");
        let last = Remat::<B>::float_matmul(x, other.clone());
        let report = device.report::<B>();
        assert!(report.peak_bytes <= budget, "{report}");
        drop((other, rests_on_x, first, second, last));
    }
}

#[test]
fn what_is_brought_back_for_the_last_reader_of_an_upload_leaves_room_for_its_result() {
    on_backend::<LastReader>();
}

/// A tensor that takes three operations to compute.
fn run_chain<B: Backend>(device: &B::Device) -> B::FloatTensorPrimitive {
    let x = B::float_ones(Shape::new([SIDE, SIDE]), device, FloatDType::F32);
    B::float_tanh(B::float_exp(B::float_mul_scalar(x, 0.5.into())))
}
