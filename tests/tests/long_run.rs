//! A long training run does not grow: shapes change from step to step, with validation in between.
//!
//! Measured are the process's own size (resident pages), the engine's tensors and recipes, and the files of the cache, half way
//! and at the end.

use std::path::PathBuf;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::is_flex;

const WIDTH: usize = 16;
/// Rows of a batch: as many shapes as there are buckets of lengths.
const ROWS: [usize; 7] = [48, 32, 64, 33, 17, 64, 50];
const VALIDATE_EVERY: usize = 50;
/// Steps in which every shape is seen often enough to be planned.
const SEEN: usize = 8 * ROWS.len();
/// By how many bytes a process may grow in the second half: fragmentation of the heap.
const SLACK: u64 = 8 << 20;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    dropout: Dropout,
}

impl Net {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y =
            self.layers.iter().fold(x.clone(), |x, layer| self.dropout.forward(layer.forward(x).tanh().exp().log()));
        (y - x).powf_scalar(2.0).mean()
    }
}

fn batch(step: usize, device: &Device) -> Tensor<2> {
    let rows = ROWS[step % ROWS.len()];
    let values: Vec<f32> = (0..rows * WIDTH).map(|at| ((at * 31 + step * 17) % 113) as f32 / 113.0).collect();
    Tensor::from_data(TensorData::new(values, [rows, WIDTH]), device)
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("this is a Linux system");
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("resident pages");
    pages * 4096
}

/// Trains, validates now and then, and calls `looked` after each tenth of the steps. Returns the losses of the validations.
fn train(device: &Device, steps: usize, mut looked: impl FnMut(usize)) -> Vec<f32> {
    let training = device.clone().autodiff();
    training.seed(9);
    let mut net = Net {
        layers: (0..4).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&training)).collect(),
        dropout: DropoutConfig::new(0.1).init(),
    };
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..steps {
        let gradients = GradientsParams::from_grads(net.loss(batch(step, &training)).backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
        if step < SEEN {
            // Whether a planner is quick must make no difference. Plain Burn has none.
            let _ = device.remat_wait_for_plan(Duration::from_secs(60));
        }
        if step % VALIDATE_EVERY == 0 {
            let valid = net.valid();
            losses.extend((0..3).map(|at| valid.loss(batch(at, device)).into_scalar::<f32>()));
        }
        if (step + 1) % (steps / 10) == 0 {
            looked(step + 1);
        }
    }
    losses
}

fn check(steps: usize) {
    let folder = std::env::temp_dir().join(format!("burn-remat-long-{}", std::process::id()));
    let config = RematConfig::new("46 KiB").with_cache(&folder).with_time_limit(Duration::from_millis(50));
    let device = Device::flex().remat(config).unwrap();
    let files = |folder: &PathBuf| {
        let plans = std::fs::read_dir(folder.join("burn-remat-plans"));
        plans.map_or(0, |plans| plans.count())
    };
    let mut looks = Vec::new();
    let losses = train(&device, steps, |step| {
        let report = device.remat_report().unwrap();
        looks.push((resident(), report.tensors + report.recipes, files(&folder)));
        println!("step {step}: {:?}", looks.last());
    });
    let files = files(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    let report = device.remat_report().unwrap();
    println!("{report}");
    assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{report}");
    assert!(report.plan.as_ref().is_some_and(|plan| plan.steps_followed as usize > steps / 2), "{report}");
    // By the middle, every shape has its plan.
    let (first, last) = (looks[looks.len() / 2], looks[looks.len() - 1]);
    assert!(last.0 <= first.0 + SLACK, "the process grew: {looks:?}");
    assert!(last.1 <= first.1 + 8, "the engine grew: {looks:?}");
    assert!(files <= 4 * ROWS.len(), "{files} files of plans");
    assert_eq!(losses, train(&Device::flex(), steps, |_| {}));
}

#[test]
fn a_long_training_with_changing_shapes_does_not_grow() {
    if is_flex("a_long_training_with_changing_shapes_does_not_grow", "the process's memory is that of the device") {
        check(700);
    }
}

#[test]
#[ignore = "100,000 steps: some ten minutes"]
fn a_hundred_thousand_steps_do_not_grow() {
    if is_flex("a_hundred_thousand_steps_do_not_grow", "the process's memory is that of the device") {
        check(100_000);
    }
}
