//! A model to be trained in rounds, and how many steps a device finds in each.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData, activation};
use burn_remat::{AdvancedConfig, RematConfig, RematExt};
use burn_remat_examples::device::under_test;

/// Rounds of a training.
pub const STEPS: usize = 8;

#[derive(Module, Debug)]
pub struct Model {
    norm: LayerNorm,
    first: Linear,
    statistics: BatchNorm,
    middle: Vec<Linear>,
    pub last: Linear,
    dropout: Dropout,
}

impl Model {
    pub fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(24, 24).init(device);
        Self {
            norm: LayerNormConfig::new(12).init(device),
            first: LinearConfig::new(12, 24).init(device),
            statistics: BatchNormConfig::new(24).init(device),
            middle: vec![layer(), layer(), layer()],
            last: LinearConfig::new(24, 12).with_bias(false).init(device),
            dropout: DropoutConfig::new(0.2).init(),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = activation::relu(self.statistics.forward(self.first.forward(self.norm.forward(x))));
        let x = self.middle.iter().fold(x, |x, layer| self.dropout.forward(activation::gelu(layer.forward(x))));
        self.last.forward(x)
    }

    pub fn gradients(&self, step: usize, device: &Device) -> GradientsParams {
        let x = input(step, device);
        // What is uploaded is overwritten after it has been read.
        let x = x.clone() * x.clone().powf_scalar(2.0).mean().unsqueeze() + x * 0.5;
        let y = self.forward(x.clone());
        GradientsParams::from_grads((y - x).powf_scalar(2.0).mean().backward(), self)
    }
}

pub fn input(step: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..40 * 12).map(|at| ((at * 31 + step * 17) % 113) as f32 / 113.0).collect();
    Tensor::from_data(TensorData::new(values, [40, 12]), device)
}

/// Devices on which steps are found in different ways: nothing is recorded; no plan is followed; plans are followed.
pub fn devices() -> Vec<(&'static str, Device)> {
    let config = |budget: &str| RematConfig::new(budget).without_cache();
    let planned = config("60%").with_time_limit(Duration::from_millis(100));
    let remat = |config: RematConfig| under_test().remat(config).unwrap();
    vec![
        ("unlimited", remat(config("unlimited").advanced(AdvancedConfig::without_planning))),
        ("online", remat(config("70%").advanced(AdvancedConfig::without_planning))),
        ("planned", remat(planned)),
    ]
}

/// The number of steps found by the end of each of this many rounds.
pub fn found(device: &Device, rounds: usize, mut round: impl FnMut(usize, &Device)) -> Vec<u64> {
    let _ = env_logger::try_init();
    let training = device.clone().autodiff();
    training.seed(3);
    let steps = (0..rounds).map(|step| {
        round(step, &training);
        device.remat_report().unwrap().steps
    });
    steps.collect()
}
