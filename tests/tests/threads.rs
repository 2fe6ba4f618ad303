//! A device that several threads use: what data loaders and metrics do there is not part of the training step.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::under_test;

const STEPS: usize = 24;
const ROWS: usize = 192;
const WIDTH: usize = 64;

#[derive(burn::module::Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

/// Batches made with operations on the device, by a thread that runs ahead.
fn loader(device: &Device) -> Receiver<(Tensor<2>, Tensor<2, Int>)> {
    let (sender, batches) = sync_channel(2);
    let device = device.clone();
    std::thread::spawn(move || {
        for step in 0..STEPS {
            let values: Vec<i32> = (0..ROWS * WIDTH).map(|at| ((at * 31 + step * 7) % 255) as i32).collect();
            let pixels = Tensor::<2, Int>::from_data(TensorData::new(values, [ROWS, WIDTH]), &device);
            let labels = pixels.clone().slice([0..ROWS, 0..1]).equal_elem(3).int();
            let x = (pixels.float() / 255.0 - 0.5) * 2.0;
            if sender.send((x, labels)).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_micros(300 * (step as u64 * 5 % 7)));
        }
    });
    batches
}

/// Losses of a training run whose batches come from another thread, and whose metrics are computed on a third one. How far these are ahead or behind is a
/// matter of luck, unless the training waits for each metric.
fn train(device: &Device, waits: bool) -> (Vec<f32>, Vec<f32>) {
    let training = device.clone().autodiff();
    training.seed(11);
    let mut tower = Tower { layers: (0..8).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&training)).collect() };
    let mut optimizer = AdamConfig::new().init();
    let batches = loader(device);
    let (outputs, to_measure) = sync_channel::<Tensor<2>>(4);
    let (measured, shares) = sync_channel(STEPS);
    let metrics = std::thread::spawn(move || {
        let share = |output: Tensor<2>| output.argmax(1).equal_elem(1).float().mean().into_scalar::<f32>();
        to_measure.into_iter().map(share).for_each(|share| measured.send(share).unwrap());
    });
    let (mut losses, mut found) = (Vec::new(), Vec::new());
    for (step, (x, labels)) in batches.into_iter().enumerate() {
        if step >= 8 {
            // Also for a new plan, made because the other threads now hold more.
            let _ = device.remat_wait_for_plan(Duration::from_secs(120));
        }
        let x = Tensor::from_inner(x);
        let y = tower.layers.iter().fold(x, |x, layer| layer.forward(x).tanh().exp().log());
        let loss = (y.clone() - Tensor::from_inner(labels.float())).powf_scalar(2.0).mean();
        outputs.send(y.inner()).unwrap();
        if waits {
            found.push(shares.recv().unwrap());
        }
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &tower);
        tower = optimizer.step(1e-3, tower, gradients);
    }
    drop(outputs);
    metrics.join().unwrap();
    found.extend(shares);
    (losses, found)
}

#[test]
fn several_threads_may_use_a_device() {
    // One test, because runs on the backend share its generator of random numbers.
    loaders_and_metrics_on_other_threads_leave_plans_alone();
    steps_on_threads_of_their_own_do_not_grow();
}

fn loaders_and_metrics_on_other_threads_leave_plans_alone() {
    let plain = train(&under_test(), false);
    for waits in [true, false] {
        let unlimited = under_test().remat("unlimited").unwrap();
        assert_eq!(train(&unlimited, waits), plain);
        let budget = unlimited.remat_report().unwrap().peak_bytes * 75 / 100;
        let device = under_test().remat(RematConfig::new(budget).without_cache()).unwrap();
        assert_eq!(train(&device, waits), plain);
        let report = device.remat_report().unwrap();
        assert!(report.recomputed_operations > 0, "{report}");
        assert_eq!(report.steps_over_budget, 0, "{report}");
        if waits {
            let plan = report.plan.as_ref().unwrap_or_else(|| panic!("{report}"));
            // All steps except the first ones after the plan came into force, and the last, which the program ends. If the loader holds more than there is room
            // for beside the plan, the plan is followed as far as there is room.
            let by_plan = plan.steps_followed + report.steps_guided;
            assert!(plan.steps_followed > 0 && by_plan as usize >= STEPS - 12 && plan.steps_left <= 1, "{report}");
        }
        assert_eq!((report.tensors, report.recipes), (0, 0), "{report}");
    }
}

/// Losses of a training run in which each step runs on a thread of its own; also the number of tensors and recipes known after each.
fn train_on_many_threads(device: &Device, marks: bool) -> (Vec<f32>, Vec<u64>) {
    let training = device.clone().autodiff();
    training.seed(5);
    let tower = Tower { layers: (0..4).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&training)).collect() };
    let mut state = Some((tower, AdamConfig::new().init()));
    let (mut losses, mut known) = (Vec::new(), Vec::new());
    for step in 0..60 {
        if step == 10 {
            let _ = device.remat_wait_for_plan(Duration::from_secs(120));
        }
        let (tower, mut optimizer) = state.take().unwrap();
        let run = || {
            if marks {
                device.remat_mark_step();
            }
            let x = Tensor::<2>::full([ROWS, WIDTH], 0.5, &training);
            let loss = tower.layers.iter().fold(x, |x, layer| layer.forward(x).tanh().exp().log()).sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &tower);
            (optimizer.step(1e-3, tower, gradients), optimizer, loss.into_scalar::<f32>())
        };
        let (tower, optimizer, loss) = std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        state = Some((tower, optimizer));
        losses.push(loss);
        known.extend(device.remat_report().map(|report| report.tensors + report.recipes));
    }
    (losses, known)
}

fn steps_on_threads_of_their_own_do_not_grow() {
    let (plain, _) = train_on_many_threads(&under_test(), false);
    for marks in [false, true] {
        let device = under_test().remat(RematConfig::new("700 KiB").without_cache()).unwrap();
        let (losses, known) = train_on_many_threads(&device, marks);
        let report = device.remat_report().unwrap();
        assert_eq!(losses, plain, "{report}");
        let (early, late) = (known[10..30].iter().max().unwrap(), known[40..].iter().max().unwrap());
        assert!(late <= early, "marks: {marks}, {known:?}");
        assert_eq!((report.tensors, report.recipes), (0, 0), "{report}");
        assert!(report.recomputed_operations > 0, "{report}");
        if marks {
            // The thread that marks is the one that trains: a different one each time.
            assert!(report.steps >= 59 && report.plan.as_ref().is_some_and(|plan| plan.steps_followed > 0), "{report}");
        }
    }
}
