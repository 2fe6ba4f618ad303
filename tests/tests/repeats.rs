//! Operations that run again give the same bits, whichever kernel was chosen (tuned) for them when they first ran.

use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData};
use burn_remat::{AdvancedConfig, RematConfig, RematExt};
use burn_remat_examples::device::under_test;

const BUDGET: usize = 4 << 20;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1013) as f32 / 307.0 - 1.65).collect()
}

fn matrix(rows: usize, columns: usize, seed: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers(rows * columns, seed), [rows, columns]), device)
}

fn images(shape: [usize; 4], seed: usize, device: &Device) -> Tensor<4> {
    Tensor::from_data(TensorData::new(numbers(shape.iter().product(), seed), shape), device)
}

/// Uploads as much as the budget, which cannot be evicted, so everything else that can be evicted is.
fn evict_all(device: &Device) {
    let everything = Tensor::<1>::from_data(TensorData::new(vec![0.0_f32; BUDGET / 4], [BUDGET / 4]), device);
    // An upload stays on the host until an operation reads it.
    assert_eq!(everything.narrow(0, 0, 1).into_scalar::<f32>(), 0.0);
}

/// The bits of sums over results, which are evicted and summed again, twice.
fn bits_again<const D: usize>(
    device: &Device,
    results: &[Tensor<D>],
    sums: impl Fn(Tensor<D>) -> Vec<Tensor<1>>,
) -> Vec<u32> {
    let mut seen = Vec::new();
    for again in 0..3 {
        for result in results {
            seen.extend(Tensor::cat(sums(result.clone()), 0).into_data().try_to_vec::<f32>().unwrap());
        }
        if again < 2 {
            evict_all(device);
        }
    }
    seen.into_iter().map(f32::to_bits).collect()
}

/// Reads a result, evicts it, and reads it again.
fn is_repeated<const D: usize>(name: &str, device: &Device, result: Tensor<D>) {
    let bits = |tensor: &Tensor<D>| -> Vec<u32> {
        let values = tensor.clone().into_data().try_to_vec::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    let first = bits(&result);
    let before = device.remat_report().unwrap().recomputed_operations;
    for again in 0..3 {
        evict_all(device);
        assert!(bits(&result) == first, "{name}: different bits when run again, attempt {again}");
    }
    let report = device.remat_report().unwrap();
    assert!(report.recomputed_operations >= before + 3 || !report.nondeterministic.is_empty(), "{name}: {report}");
}

/// A device that has not yet learned how much it must hold.
fn device() -> Device {
    under_test().remat(RematConfig::new(BUDGET as u64).advanced(AdvancedConfig::without_planning)).unwrap()
}

#[test]
fn kernels_give_the_same_bits_when_they_run_again() {
    for (rows, inner, columns) in [(1, 300, 200), (64, 64, 64), (200, 31, 77), (256, 256, 256), (33, 1000, 9)] {
        let device = &device();
        let (a, b) = (matrix(rows, inner, 1, device), matrix(inner, columns, 2, device));
        is_repeated(&format!("matmul of {rows}x{inner} and {inner}x{columns}"), device, a.clone().matmul(b.clone()));
    }
    for (channels, size, kernel) in [(1, 28, 3), (3, 17, 5), (16, 16, 1), (32, 8, 3)] {
        let device = &device();
        let x = images([4, channels, size, size], 3, device);
        let weight = images([8, channels, kernel, kernel], 4, device);
        let options = ConvOptions::new([1, 1], [kernel / 2; 2], [1, 1], 1);
        let y = conv2d(x.clone(), weight.clone(), None, options);
        is_repeated(&format!("conv of {channels} channels, {size} wide, kernel {kernel}"), device, y);
    }
    type Reduction = fn(Tensor<2>) -> Tensor<2>;
    let reductions: [(&str, Reduction); 4] = [
        ("sum of rows", |x| x.sum_dim(1)),
        ("mean of columns", |x| x.mean_dim(0)),
        ("sum", |x| x.sum().unsqueeze()),
        ("greatest of rows", |x| x.max_dim(1)),
    ];
    for (name, reduction) in reductions {
        let device = &device();
        let x = matrix(300, 500, 5, device);
        is_repeated(name, device, reduction(x.clone()));
    }
}

/// Sums over results of operations that may overwrite an input when they run again, but might not when they first ran. On a
/// GPU, a convolution's result has its channels last in memory, and so has what is written over it.
#[test]
fn sums_do_not_depend_on_what_was_written_over() {
    type Combination = fn(Tensor<4>, Tensor<4>) -> Tensor<4>;
    let combinations: [(&str, Combination); 5] = [
        ("sum", |a, b| a + b),
        ("product, the other way round", |a, b| b * a),
        ("ReLU", |a, _| burn::tensor::activation::relu(a)),
        ("mask filled", |a, b| a.mask_fill(b.greater_elem(0.0), 0.25)),
        ("mask where", |a, b| a.mask_where(b.clone().greater_elem(0.0), b)),
    ];
    let run = |device: &Device, combine: Combination, looked_at: bool| -> Vec<u32> {
        let x = images([4, 8, 24, 24], 6, device);
        let weight = images([16, 8, 3, 3], 7, device);
        let plain = images([4, 16, 24, 24], 8, device);
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let convolved = conv2d(x.clone(), weight.clone(), None, options);
        // While there is another view of it, it is not overwritten.
        let view = looked_at.then(|| {
            let view = convolved.clone().permute([0, 2, 3, 1]);
            evict_all(device);
            view
        });
        let combined = if looked_at {
            combine(convolved, plain.clone())
        } else {
            let combined = combine(convolved.clone(), plain.clone());
            drop(convolved);
            combined
        };
        evict_all(device);
        drop(view);
        let sums =
            Tensor::cat(vec![combined.clone().sum_dim(1).flatten::<1>(0, 3), combined.sum_dim(0).flatten(0, 3)], 0);
        sums.into_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
    };
    for (name, combine) in combinations {
        for looked_at in [false, true] {
            let device = device();
            let bits = run(&device, combine, looked_at);
            assert!(
                bits == run(&under_test(), combine, looked_at),
                "{name}, {looked_at}: bits differ from plain Burn's"
            );
            let report = device.remat_report().unwrap();
            assert!(report.recomputed_operations > 0, "{name}: {report}");
        }
    }
}

/// Sums over results in part of a buffer, or in one of their own: that depends on what the operation might overwrite.
#[test]
fn sums_do_not_depend_on_whose_buffer_a_result_is_in() {
    type Program = fn(Tensor<2>) -> Vec<Tensor<2>>;
    let programs: [(&str, Program); 6] = [
        ("rows of what is read again", |a| {
            let x = a.tanh();
            let rows = x.clone().narrow(0, 0, 256).mul_scalar(1.1);
            vec![rows, x.exp()]
        }),
        ("rows of what was uploaded", |a| vec![a.narrow(0, 0, 256).mul_scalar(1.1)]),
        ("rows of a result", |a| vec![a.tanh().narrow(0, 0, 256).exp()]),
        ("rows, masked", |a| {
            let rows = a.tanh().narrow(0, 128, 256);
            let mask = rows.clone().greater_elem(0.3);
            vec![rows.clone().mask_fill(mask.clone(), 0.25), rows.mask_fill(mask, 0.5)]
        }),
        ("two parts", |a| {
            let x = a.tanh();
            vec![x.clone().narrow(0, 0, 256) + x.narrow(0, 256, 256)]
        }),
        ("a part and a whole", |a| vec![a.clone().exp().narrow(0, 0, 256) * a.narrow(0, 0, 256).sin()]),
    ];
    let run = |device: &Device, program: Program| {
        bits_again(device, &program(matrix(512, 256, 9, device)), |result| {
            // Means, because GPUs add whole sums in a random order.
            let turned = result.swap_dims(0, 1);
            vec![turned.clone().mean(), turned.clone().sin().mean(), turned.cos().sum_dim(1).flatten(0, 1)]
        })
    };
    for (name, program) in programs {
        let device = device();
        assert!(run(&device, program) == run(&under_test(), program), "{name}: bits differ from plain Burn's");
    }
}

/// The same if the part has gaps: tokens of a batch of sequences without the first of each. Sums merge dimensions between which
/// there is no gap.
#[test]
fn sums_do_not_depend_on_gaps_between_sequences() {
    type Program = fn(Tensor<3>) -> Vec<Tensor<3>>;
    let programs: [(&str, Program); 6] = [
        ("tokens of what was uploaded", |x| vec![x.narrow(1, 64, 64).mul_scalar(1.1)]),
        ("tokens of a result", |x| vec![x.tanh().narrow(1, 64, 64).mul_scalar(1.1)]),
        ("tokens of what is read again", |x| {
            let x = x.tanh();
            let tokens = x.clone().narrow(1, 64, 64).exp();
            vec![tokens, x.sin()]
        }),
        ("both halves", |x| {
            let x = x.tanh();
            vec![x.clone().narrow(1, 0, 64).mul_scalar(1.1), x.narrow(1, 64, 64).mul_scalar(0.9)]
        }),
        ("tokens and a whole", |x| vec![x.clone().exp().narrow(1, 64, 64) * x.narrow(1, 0, 64).sin()]),
        ("tokens, masked", |x| {
            let tokens = x.tanh().narrow(1, 64, 64);
            let mask = tokens.clone().greater_elem(0.3);
            vec![tokens.mask_fill(mask, 0.25).add_scalar(0.1)]
        }),
    ];
    let run = |device: &Device, program: Program| {
        bits_again(device, &program(matrix(8 * 128, 64, 11, device).reshape([8, 128, 64])), |result| {
            [result.clone(), result.cos()].map(|result| result.sum_dims(&[0, 1]).flatten(0, 2)).to_vec()
        })
    };
    for (name, program) in programs {
        let device = device();
        assert!(run(&device, program) == run(&under_test(), program), "{name}: bits differ from plain Burn's");
    }
}

/// What comes back takes as many bytes as before, though its operation might overwrite more by then.
#[test]
fn a_part_comes_back_without_the_whole() {
    let device = &device();
    let x = matrix(512, 256, 10, device);
    let whole = x.clone().exp();
    let part = whole.clone().narrow(0, 0, 64).mul_scalar(2.0);
    drop(whole);
    let held = || device.remat_report().unwrap().live_bytes;
    device.sync().unwrap();
    let before = held();
    evict_all(device);
    assert!(held() < before);
    part.clone().into_data();
    assert_eq!(held(), before, "{}", device.remat_report().unwrap());
}
