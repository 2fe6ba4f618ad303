//! Quantized tensors on a remat device: a frozen quantized base with trained adapters, recomputation, bytes, and moves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{DType, Device, Distribution, Tensor, TensorData, activation};
use burn_remat::{AdvancedConfig, RematConfig, RematExt, RematReport};
use burn_remat_examples::device::{is_flex, under_test};
use burn_remat_tests::alone;

const STEPS: usize = 14;
/// Steps before the run waits for the planner.
const SEEN: usize = 6;
const WIDTH: usize = 64;
const RANK: usize = 4;
const LAYERS: usize = 6;

/// One scale in total and one per block, values of a byte and of less, packed and not packed.
fn schemes() -> Vec<QuantScheme> {
    let bytes = QuantScheme::default().with_value(QuantValue::Q8S);
    let packed = QuantScheme::default().with_store(QuantStore::PackedU32(0));
    vec![
        bytes.with_store(QuantStore::Native),
        bytes.with_store(QuantStore::PackedU32(0)),
        packed.with_value(QuantValue::Q4S).per_block([32], ScaleDtype::F32),
        packed.with_value(QuantValue::Q2F).per_block([16], ScaleDtype::F16),
    ]
}

/// The schemes that the device under test supports.
fn supported() -> Vec<QuantScheme> {
    let schemes: Vec<QuantScheme> =
        schemes().into_iter().filter(|scheme| under_test().supports_dtype(DType::QFloat(*scheme))).collect();
    assert!(!schemes.is_empty());
    schemes
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 0.3), device)
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Trains low-rank adapters beside quantized weights that stay as they are. Returns losses and adapters, bit for bit.
fn adapters(device: &Device, scheme: &QuantScheme, mut after_step: impl FnMut(usize)) -> Vec<u32> {
    let device = &device.clone().autodiff();
    device.seed(5);
    let base: Vec<Tensor<2>> = (0..LAYERS).map(|_| random([WIDTH, WIDTH], device).quantize_dynamic(scheme)).collect();
    let mut down: Vec<Tensor<2>> = (0..LAYERS).map(|_| random([WIDTH, RANK], device).require_grad()).collect();
    let mut up: Vec<Tensor<2>> = (0..LAYERS).map(|_| Tensor::zeros([RANK, WIDTH], device).require_grad()).collect();
    let (input, target) = (random([96, WIDTH], device), random([96, WIDTH], device));
    let mut seen = Vec::new();
    for step in 0..STEPS {
        device.remat_mark_step();
        let mut x = input.clone();
        for (at, base) in base.iter().enumerate() {
            // One layer dequantizes its weights, the next multiplies by the quantized ones, as a module would.
            let frozen =
                if at % 2 == 0 { x.clone().matmul(base.clone().dequantize()) } else { x.clone().matmul(base.clone()) };
            x = activation::gelu(frozen + x.matmul(down[at].clone()).matmul(up[at].clone()));
        }
        let loss = (x - target.clone()).powi_scalar(2).mean();
        let mut gradients = loss.backward();
        for weight in down.iter_mut().chain(&mut up) {
            let gradient = weight.grad_remove(&mut gradients).unwrap();
            *weight = Tensor::from_inner(weight.clone().inner() - gradient * 0.05).require_grad();
        }
        seen.extend(bits(loss));
        after_step(step);
    }
    seen.extend(down.into_iter().chain(up).flat_map(bits));
    seen
}

fn under(scheme: &QuantScheme, config: RematConfig) -> (Vec<u32>, RematReport) {
    let device = under_test().remat(config.without_cache().with_time_limit(Duration::from_secs(1))).unwrap();
    let trained = adapters(&device, scheme, |step| {
        if step + 1 == SEEN {
            assert!(device.remat_wait_for_plan(Duration::from_secs(120)).unwrap());
        } else if step == SEEN {
            device.remat_reset_report().unwrap();
        }
    });
    (trained, device.remat_report().unwrap())
}

#[test]
fn adapters_on_a_quantized_base_train_as_on_plain_burn() {
    let _alone = alone();
    let _ = env_logger::try_init();
    for scheme in supported() {
        let plain = adapters(&under_test(), &scheme, |_| {});
        let (stored, unlimited) = under(&scheme, RematConfig::default().advanced(AdvancedConfig::without_planning));
        assert!(stored == plain, "{scheme:?} without a limit");
        for share in [85, 70] {
            let (trained, report) = under(&scheme, RematConfig::new(unlimited.peak_bytes * share / 100));
            println!("{scheme:?} at {share}%:\n{report}");
            assert!(trained == plain, "{scheme:?} at {share}%: {report}");
            assert_eq!((report.failure.as_deref(), report.steps_over_budget), (None, 0), "{scheme:?}: {report}");
            assert!(report.recomputed_operations > 0, "{scheme:?}: {report}");
            let plan = report.plan.as_ref().unwrap_or_else(|| panic!("{scheme:?} at {share}%: {report}"));
            assert_eq!((plan.steps_left, plan.deviation_bytes), (0, 0), "{scheme:?} at {share}%: {report}");
            assert_eq!((report.tensors, report.live_bytes), (0, 0), "{scheme:?} at {share}%: {report}");
        }
    }
}

#[test]
fn a_quantized_tensor_is_computed_again() {
    let _alone = alone();
    for scheme in supported() {
        let run = |device: &Device| {
            device.seed(1);
            device.remat_mark_step();
            let x = random([64, 64], device);
            let quantized: Vec<Tensor<2>> =
                (1..=24).map(|k| (x.clone() * f64::from(k)).exp().quantize_dynamic(&scheme)).collect();
            // Backwards, so that the first ones have long been evicted.
            let sums = quantized.into_iter().rev().map(|q| bits(q.dequantize().sum_dim(1)));
            sums.collect::<Vec<_>>()
        };
        let unlimited = under_test().remat("unlimited").unwrap();
        run(&unlimited);
        let budget = unlimited.remat_report().unwrap().peak_bytes * 6 / 10;
        // However short the steps seem to it, it may recompute whatever it must.
        let device = under_test()
            .remat(RematConfig::new(budget).advanced(|advanced| advanced.with_recompute_limit(1e6)))
            .unwrap();
        assert!(run(&device) == run(&under_test()), "{scheme:?}");
        let report = device.remat_report().unwrap();
        assert!(report.evictions > 0 && report.recomputed_operations > 0, "{scheme:?}: {report}");
        assert!(report.peak_bytes <= budget, "{scheme:?}: {report}");
    }
}

/// What Flex holds: one byte per value, whatever the scheme says, and four per scale.
#[test]
fn quantized_storages_are_counted_as_they_are() {
    if !is_flex("quantized_storages_are_counted_as_they_are", "sizes are those of Flex") {
        return;
    }
    for (scheme, scales) in schemes().into_iter().zip([1, 1, 32 * 2, 32 * 4]) {
        let device = under_test().remat("1 MiB").unwrap();
        let held = || device.remat_report().unwrap().live_bytes;
        let q = Tensor::<2>::ones([32, 64], &device).quantize_dynamic(&scheme);
        let _ = q.clone().dequantize().sum().into_data();
        assert_eq!(held(), 32 * 64 + 4 * scales, "{scheme:?}");
        // A view takes nothing; with one scale per block Flex makes another tensor.
        let view = q.clone().transpose();
        let _ = view.clone().dequantize().sum().into_data();
        let tensors = if scheme.block_size().is_none() { 1 } else { 2 };
        assert_eq!(held(), tensors * (32 * 64 + 4 * scales), "{scheme:?}");
        drop((q, view));
        assert_eq!(held(), 0, "{scheme:?}");
    }
}

#[test]
fn quantized_tensors_move_and_are_read_and_uploaded() {
    let _alone = alone();
    for scheme in supported() {
        let (plain, device) = (under_test(), under_test().remat("1 MiB").unwrap());
        let q = random([32, 64], &plain).quantize_dynamic(&scheme);
        let expected = bits(q.clone().dequantize());
        let there = q.clone().to_device(&device);
        assert_eq!(bits(there.clone().dequantize()), expected, "{scheme:?}");
        let data: TensorData = there.clone().into_data();
        let back = Tensor::<2>::from_data(data, &device);
        assert_eq!(bits(back.dequantize()), expected, "{scheme:?}");
        assert_eq!(bits(there.to_device(&plain).dequantize()), expected, "{scheme:?}");
    }
}

/// Burn's router cannot do this. The README names the workaround: via the plain device.
#[test]
fn a_quantized_tensor_cannot_move_between_two_remat_devices_and_nothing_else_is_lost() {
    let scheme = supported()[0];
    let (a, b) = (under_test().remat("1 MiB").unwrap(), under_test().remat("1 MiB").unwrap());
    let q = Tensor::<2>::ones([32, 64], &a).quantize_dynamic(&scheme);
    let expected = bits(q.clone().dequantize());
    let moved = catch_unwind(AssertUnwindSafe(|| q.clone().to_device(&b)));
    assert!(moved.is_err(), "Burn now moves quantized tensors between groups: remove the limitation from the README");
    let moved = q.clone().to_device(&under_test()).to_device(&b);
    assert_eq!(bits(moved.dequantize()), expected);
    assert_eq!(bits(q.dequantize()), expected);
}
