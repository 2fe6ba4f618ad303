//! A device that several threads use: what data loaders and metrics do there is no part of the training step.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_remat::{RematConfig, RematExt, RematReport};

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

/// Losses of a training whose batches and metrics come from and go to other threads.
fn train(device: &Device) -> (Vec<f32>, Vec<f32>) {
    let training = device.clone().autodiff();
    training.seed(11);
    let mut tower = Tower { layers: (0..8).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&training)).collect() };
    let mut optimizer = AdamConfig::new().init();
    let batches = loader(device);
    let (outputs, to_measure) = sync_channel::<Tensor<2>>(4);
    let metrics = std::thread::spawn(move || {
        let share = |output: Tensor<2>| output.argmax(1).equal_elem(1).float().mean().into_scalar::<f32>();
        to_measure.into_iter().map(share).collect::<Vec<f32>>()
    });
    let mut losses = Vec::new();
    for (step, (x, labels)) in batches.into_iter().enumerate() {
        if step == 8 {
            let _ = device.remat_wait_for_plan(Duration::from_secs(120));
        }
        let x = Tensor::from_inner(x);
        let y = tower.layers.iter().fold(x, |x, layer| layer.forward(x).tanh().exp().log());
        let loss = (y.clone() - Tensor::from_inner(labels.float())).powf_scalar(2.0).mean();
        outputs.send(y.inner()).unwrap();
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &tower);
        tower = optimizer.step(1e-3, tower, gradients);
    }
    drop(outputs);
    (losses, metrics.join().unwrap())
}

fn under(budget: u64) -> ((Vec<f32>, Vec<f32>), RematReport) {
    let device = Device::flex().remat(RematConfig::new(budget).without_cache()).unwrap();
    (train(&device), device.remat_report().unwrap())
}

#[test]
fn loaders_and_metrics_on_other_threads_leave_plans_alone() {
    let plain = train(&Device::flex());
    let unlimited = Device::flex().remat("unlimited").unwrap();
    assert_eq!(train(&unlimited), plain);
    let peak = unlimited.remat_report().unwrap().peak_bytes;
    let budget = peak * 75 / 100;
    let (found, report) = under(budget);
    assert_eq!(found, plain, "{report}");
    assert!(report.recomputed_operations > 0, "{report}");
    let plan = report.plan.as_ref().unwrap_or_else(|| panic!("{report}"));
    // All but the first that the plan is in force for, and the last, which the program ends.
    assert!(plan.steps_followed as usize >= STEPS - 12 && plan.steps_left <= 1, "{report}");
    assert_eq!((report.tensors, report.recipes), (0, 0), "{report}");
}
