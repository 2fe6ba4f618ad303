//! Training keeps to what was promised before it.

use std::time::Duration;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData, activation};
use burn_remat::{RematConfig, RematExt, largest_batch, minimum_budget};
use burn_remat_examples::device::under_test;

const BATCH: usize = 12;
const STEPS: usize = 12;

/// Convolutions whose stride leaves a remainder: Burn cuts the gradients of their weights from larger ones.
#[derive(Module, Debug)]
struct Strided {
    stages: Vec<Stage>,
    last: Linear,
    dropout: Dropout,
}

#[derive(Module, Debug)]
struct Stage {
    down: Conv2d,
    keep: Conv2d,
    norm: BatchNorm,
}

impl Strided {
    fn new(device: &Device) -> Self {
        let conv = |channels: [usize; 2], stride| {
            let config = Conv2dConfig::new(channels, [3, 3]).with_stride([stride, stride]);
            config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).with_bias(false).init(device)
        };
        let stage = |channels: [usize; 2]| Stage {
            down: conv(channels, 2),
            keep: conv([channels[1], channels[1]], 1),
            norm: BatchNormConfig::new(channels[1]).init(device),
        };
        Self {
            stages: vec![stage([3, 16]), stage([16, 32]), stage([32, 48])],
            last: LinearConfig::new(48 * 4 * 4, 10).init(device),
            dropout: DropoutConfig::new(0.2).init(),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.stages.iter().fold(x, |x, stage| {
            let x = activation::relu(stage.down.forward(x));
            self.dropout.forward(activation::relu(stage.norm.forward(stage.keep.forward(x.clone()))) + x)
        });
        self.last.forward(x.flatten(1, 3))
    }
}

/// The weights of the last layer.
fn train(device: &Device, batch: usize, steps: usize) -> Vec<u8> {
    let training = device.clone().autodiff();
    training.seed(5);
    let (mut model, mut optimizer) = (Strided::new(&training), AdamConfig::new().init());
    for step in 0..steps {
        if device.remat_report().is_ok() {
            device.remat_wait_for_plan(Duration::from_secs(20)).unwrap();
        }
        let pixels: Vec<f32> = (0..batch * 3 * 32 * 32).map(|at| ((at * 7 + step * 13) % 101) as f32 / 101.0).collect();
        let x = Tensor::from_data(TensorData::new(pixels, [batch, 3, 32, 32]), &training);
        let gradients = model.forward(x).powf_scalar(2.0).mean().backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    model.last.weight.val().into_data().as_bytes().to_vec()
}

#[test]
fn what_is_named_before_training_is_kept() {
    let _ = env_logger::try_init();
    let plain = train(&under_test(), BATCH, STEPS);
    let needs = minimum_budget(&under_test(), |device| drop(train(device, BATCH, 4))).unwrap();
    println!("{needs:?}");
    // From the first step on, with plans that were made beforehand.
    let config = RematConfig::new(needs.minimum_bytes).without_cache().with_time_limit(Duration::from_secs(2));
    let device = under_test().remat_rehearsed(config.clone(), |dry| drop(train(dry, BATCH, 4))).unwrap();
    assert_eq!(train(&device, BATCH, STEPS), plain);
    let report = device.remat_report().unwrap();
    println!("{report}");
    assert_eq!((report.steps_over_budget, report.failure.as_ref()), (0, None), "{report}");

    // And with plans that are made once steps have been seen.
    let device = under_test().remat(config).unwrap();
    assert_eq!(train(&device, BATCH, STEPS), plain);
    let report = device.remat_report().unwrap();
    println!("{report}");
    assert!(report.steps_over_budget <= 4, "{report}");
    // What the first steps needed is reported as that: the budget is not called too small.
    let is_told = report.to_string().contains("before the plan");
    assert_eq!(is_told, report.steps_over_budget > 0 && report.floor_bytes > needs.minimum_bytes, "{report}");
    assert!(!report.to_string().contains("too small"), "{report}");

    let found = largest_batch(&under_test(), needs.store_all_bytes, 0.5, |device, batch| {
        train(device, batch, 4);
    })
    .unwrap();
    println!("{found:?}");
    assert!(found.batch > BATCH, "{found:?}");
    let device = found.device(&under_test()).unwrap();
    assert_eq!(train(&device, found.batch, STEPS), train(&under_test(), found.batch, STEPS));
    let report = device.remat_report().unwrap();
    println!("{report}");
    assert_eq!((report.steps_over_budget, report.failure.as_ref()), (0, None), "{report}");
    assert_eq!(report.plan.as_ref().map(|plan| plan.steps_left), Some(0), "{report}");
}
