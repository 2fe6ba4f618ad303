//! Programs other than a plain training loop.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use burn_remat::{RandomPolicy, RematConfig, RematExt};
use burn_remat_examples::device::under_test;
use burn_remat_tests::alone;

/// A chain of layers with elementwise operations between them, large enough to have something to evict.
fn deep(x: Tensor<2>, weights: &[Tensor<2>]) -> Tensor<2> {
    weights.iter().fold(x, |x, weight| (x.clone().matmul(weight.clone()).tanh() * 1.5 + x).exp().log())
}

fn weights(device: &Device, layers: usize) -> Vec<Tensor<2>> {
    (0..layers)
        .map(|layer| {
            let values: Vec<f32> = (0..32 * 32).map(|at| ((at * 7 + layer * 13) % 101) as f32 / 500.0 - 0.1).collect();
            Tensor::from_data(TensorData::new(values, [32, 32]), device).require_grad()
        })
        .collect()
}

fn input(device: &Device, rows: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * 32).map(|at| (at % 17) as f32 / 17.0).collect();
    Tensor::from_data(TensorData::new(values, [rows, 32]), device)
}

fn bytes(tensor: Tensor<2>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

/// Runs `program` on plain Flex and under a tight and a loose budget, and compares what it returns.
fn same_everywhere(program: impl Fn(&Device) -> Vec<Vec<u8>>) {
    let expected = program(&under_test().autodiff());
    for budget in ["96 KiB", "200 KiB", "unlimited"] {
        let device = under_test().autodiff().remat(budget).unwrap();
        assert_eq!(program(&device), expected, "{budget}");
        let report = device.remat_report().unwrap();
        assert_eq!(report.failure, None);
        assert_eq!((report.tensors, report.live_bytes, report.recipes), (0, 0, 0), "{budget}: {report}");
    }
}

#[test]
fn shapes_may_change_between_steps() {
    same_everywhere(|device| {
        let weights = weights(device, 6);
        [16, 64, 3, 64, 31, 1]
            .into_iter()
            .flat_map(|rows| {
                let gradients = deep(input(device, rows), &weights).sum().backward();
                weights.iter().map(|weight| bytes(weight.grad(&gradients).unwrap())).collect::<Vec<_>>()
            })
            .collect()
    });
}

#[test]
fn a_step_may_read_a_middle_tensor() {
    same_everywhere(|device| {
        let weights = weights(device, 8);
        let middle = deep(input(device, 48), &weights[..4]);
        let end = deep(middle.clone(), &weights[4..]);
        let before = bytes(middle.clone());
        let gradients = end.clone().sum().backward();
        vec![before, bytes(end), bytes(middle), bytes(weights[0].grad(&gradients).unwrap())]
    });
}

#[test]
fn two_losses_may_share_their_activations() {
    same_everywhere(|device| {
        let weights = weights(device, 6);
        let shared = deep(input(device, 48), &weights[..3]);
        let first = deep(shared.clone(), &weights[3..]).mean();
        let second = (shared.clone() * shared).sum();
        let both = (first.clone() + second).backward();
        // A second graph over the same parameters, after the backward pass of the first.
        let again = deep(input(device, 40), &weights).mean().backward();
        vec![bytes(first.unsqueeze()), bytes(weights[0].grad(&both).unwrap()), bytes(weights[0].grad(&again).unwrap())]
    });
}

#[test]
fn gradients_may_be_accumulated() {
    let _alone = alone();
    same_everywhere(|device| {
        let mut model = LinearConfig::new(32, 32).init(device);
        model.weight = Param::from_tensor(weights(device, 1).remove(0).detach());
        model.bias = None;
        let mut optimizer = AdamConfig::new().init();
        let mut accumulator = GradientsAccumulator::new();
        for step in 0..12 {
            let loss = model.forward(input(device, 8 + step)).tanh().sum();
            accumulator.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
            if step % 4 == 3 {
                model = optimizer.step(1e-2, model, accumulator.grads());
            }
        }
        vec![bytes(model.weight.val())]
    });
}

#[test]
fn a_model_can_be_saved_and_loaded() {
    #[derive(Module, Debug)]
    struct Pair {
        first: Linear,
        second: Linear,
    }
    let _alone = alone();
    let device = under_test().remat("1 MiB").unwrap();
    let new = |device: &Device| Pair {
        first: LinearConfig::new(32, 32).init(device),
        second: LinearConfig::new(32, 32).init(device),
    };
    let model = new(&device);
    let output = |model: &Pair, device: &Device| bytes(model.second.forward(model.first.forward(input(device, 4))));
    let expected = output(&model, &device);
    let record = model.into_record();
    for target in [device, under_test()] {
        let loaded = new(&target).load_record(record.clone());
        assert_eq!(output(&loaded.to_device(&target), &target), expected);
    }
}

#[test]
fn threads_may_create_tensors_at_once() {
    let device = under_test().remat("64 KiB").unwrap();
    let sums: Vec<f32> = std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..4)
            .map(|number| {
                let device = device.clone();
                scope.spawn(move || {
                    let kept: Vec<Tensor<2>> =
                        (0..20).map(|at| Tensor::ones([16, 16], &device) * (number * 100 + at) as f32 + 1.0).collect();
                    kept.into_iter().map(|tensor| tensor.mean().into_scalar::<f32>()).sum::<f32>()
                })
            })
            .collect();
        loaders.into_iter().map(|loader| loader.join().unwrap()).collect()
    });
    let expected = |number: usize| (0..20).map(|at| (number * 100 + at) as f32 + 1.0).sum::<f32>();
    assert_eq!(sums, (0..4).map(expected).collect::<Vec<_>>());
    assert_eq!(device.remat_report().unwrap().tensors, 0);
}

#[test]
fn tensors_dropped_while_unwinding_are_released() {
    let device = under_test().remat("96 KiB").unwrap();
    let unwound = std::thread::spawn({
        let device = device.clone();
        move || {
            let _kept: Vec<Tensor<2>> = (0..30).map(|at| (input(&device, 48) * at as f32).exp()).collect();
            std::panic::resume_unwind(Box::new("the program gives up"));
        }
    });
    assert!(unwound.join().is_err());
    let report = device.remat_report().unwrap();
    assert_eq!((report.tensors, report.live_bytes), (0, 0), "{report}");
    assert_eq!(bytes(Tensor::<2>::ones([2, 2], &device)).len(), 16);
}

#[test]
fn reseeded_random_results_are_drawn_again_alike() {
    let _alone = alone();
    let run = |budget: &str| {
        let config = RematConfig::new(budget).with_random(RandomPolicy::Reseed);
        let device = under_test().autodiff().remat(config).unwrap();
        device.seed(3);
        let weights = weights(&device, 6);
        let mut x = input(&device, 64);
        for weight in &weights {
            let mask = Tensor::<2>::random(x.dims(), Distribution::Bernoulli(0.7), &device);
            x = x.matmul(weight.clone()).tanh() * mask;
        }
        let gradients = x.sum().backward();
        let report = device.remat_report().unwrap();
        (weights.iter().map(|weight| bytes(weight.grad(&gradients).unwrap())).collect::<Vec<_>>(), report)
    };
    let (expected, stored) = run("unlimited");
    let (budgeted, report) = run(&(stored.peak_bytes * 6 / 10).to_string());
    assert_eq!(budgeted, expected);
    assert!(report.recomputed_operations > 0);
}

#[test]
fn numbers_drawn_on_two_devices_come_in_the_order_of_the_program() {
    let _alone = alone();
    let run = |[a, b]: [&Device; 2]| -> Vec<Vec<u8>> {
        a.seed(9);
        let draw = |at: usize| {
            let device = if at.is_multiple_of(3) { a } else { b };
            // What is queued before makes one device slower than the other.
            let x = input(device, 1 + at % 7);
            let busy = (0..at % 5).fold(x, |x, _| (x * 0.5).exp().log());
            Tensor::<2>::random([3, 3], Distribution::Default, device) + busy.mean().unsqueeze() * 0.0
        };
        let drawn: Vec<Tensor<2>> = (0..60).map(draw).collect();
        drawn.into_iter().map(bytes).collect()
    };
    let plain = under_test();
    let expected = run([&plain, &plain]);
    let [a, b] = [(), ()].map(|()| under_test().remat("unlimited").unwrap());
    for round in 0..20 {
        assert_eq!(run([&a, &b]), expected, "round {round}");
    }
}

#[test]
fn a_long_run_does_not_grow() {
    for budget in ["64 KiB", "112 KiB"] {
        let device = under_test().autodiff().remat(budget).unwrap();
        let mut weights = weights(&device, 4);
        let mut sizes = Vec::new();
        for step in 0..1000 {
            let mut gradients = deep(input(&device, 24), &weights).sum().backward();
            weights = weights
                .into_iter()
                .map(|weight| {
                    let gradient = weight.grad_remove(&mut gradients).unwrap();
                    Tensor::from_inner(weight.inner() - gradient * 1e-4).require_grad()
                })
                .collect();
            if step % 250 == 249 {
                let report = device.remat_report().unwrap();
                sizes.push((report.tensors, report.recipes, report.live_bytes));
            }
        }
        assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]), "{budget}: {sizes:?}");
        drop(weights);
        let report = device.remat_report().unwrap();
        assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{budget}: {report}");
    }
}
