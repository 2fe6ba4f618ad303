//! Steps are found without marks, whatever updates the parameters.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::tensor::{Device, Tensor, TensorData, activation};
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::under_test;

const STEPS: usize = 8;

#[derive(Module, Debug)]
struct Model {
    norm: LayerNorm,
    first: Linear,
    statistics: BatchNorm,
    middle: Vec<Linear>,
    last: Linear,
    dropout: Dropout,
}

impl Model {
    fn new(device: &Device) -> Self {
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

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = activation::relu(self.statistics.forward(self.first.forward(self.norm.forward(x))));
        let x = self.middle.iter().fold(x, |x, layer| self.dropout.forward(activation::gelu(layer.forward(x))));
        self.last.forward(x)
    }

    fn gradients(&self, step: usize, device: &Device) -> GradientsParams {
        let x = input(step, device);
        // What is uploaded is written over after it has been read.
        let x = x.clone() * x.clone().powf_scalar(2.0).mean().unsqueeze() + x * 0.5;
        let y = self.forward(x.clone());
        GradientsParams::from_grads((y - x).powf_scalar(2.0).mean().backward(), self)
    }
}

fn input(step: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..40 * 12).map(|at| ((at * 31 + step * 17) % 113) as f32 / 113.0).collect();
    Tensor::from_data(TensorData::new(values, [40, 12]), device)
}

/// Devices on which steps are found in different ways: nothing is recorded; no plan is followed; plans are.
fn devices() -> Vec<(&'static str, Device)> {
    let config = |budget: &str| RematConfig::new(budget).without_cache();
    let planned = config("60%").with_time_limit(Duration::from_millis(100));
    let remat = |config: RematConfig| under_test().remat(config).unwrap();
    vec![
        ("unlimited", remat(config("unlimited").without_planning())),
        ("online", remat(config("70%").without_planning())),
        ("planned", remat(planned)),
    ]
}

/// Steps found by the end of each of `STEPS` rounds of `round`.
fn found(device: &Device, rounds: usize, mut round: impl FnMut(usize, &Device)) -> Vec<u64> {
    let _ = env_logger::try_init();
    let training = device.clone().autodiff();
    training.seed(3);
    let steps = (0..rounds).map(|step| {
        round(step, &training);
        device.remat_report().unwrap().steps
    });
    steps.collect()
}

/// One step for every round, each found in the round that follows.
fn check_optimizer(name: &str, optimizer: impl Fn() -> ModuleOptimizer) {
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, STEPS, |step, device| {
            let (mut optimizer, model) = training.take().unwrap_or_else(|| (optimizer(), Model::new(device)));
            let gradients = model.gradients(step, device);
            let model = optimizer.step(1e-3, model, gradients);
            training = Some((optimizer, model));
        });
        assert_eq!(steps, (0..STEPS as u64).collect::<Vec<_>>(), "{name}, {kind}");
    }
}

#[test]
fn every_optimizer_shows_where_steps_begin() {
    let momentum = || MomentumConfig::new().with_nesterov(true);
    check_optimizer("sgd", || SgdConfig::new().init());
    check_optimizer("sgd with momentum and decay", || {
        SgdConfig::new().with_momentum(Some(momentum())).with_weight_decay(Some(WeightDecayConfig::new(0.1))).init()
    });
    check_optimizer("adam", || AdamConfig::new().init());
    check_optimizer("adam with amsgrad", || AdamConfig::new().with_amsgrad(true).init());
    check_optimizer("adamw", || AdamWConfig::new().init());
    check_optimizer("adamw with amsgrad", || AdamWConfig::new().with_amsgrad(true).init());
    check_optimizer("adamw without decay", || AdamWConfig::new().with_weight_decay(0.0).init());
    check_optimizer("adamw, cautious", || AdamWConfig::new().with_cautious_weight_decay(true).init());
    check_optimizer("adagrad", || AdaGradConfig::new().init());
    check_optimizer("adan", || AdanConfig::new().init());
    check_optimizer("adan with decay", || AdanConfig::new().with_weight_decay(0.1).init());
    check_optimizer("adan with decay, no proximal step", || {
        AdanConfig::new().with_weight_decay(0.1).with_no_prox(true).init()
    });
    check_optimizer("rmsprop", || RmsPropConfig::new().with_centered(true).with_momentum(0.5).init());
    check_optimizer("lion", || LionConfig::new().with_weight_decay(0.1).init());
    check_optimizer("lamb", || LambConfig::new().init());
    check_optimizer("adafactor", || AdafactorConfig::new().init());
}

#[test]
fn a_loaded_optimizer_shows_them_too() {
    let optimizers: [fn() -> ModuleOptimizer; 4] = [
        || AdamConfig::new().init(),
        || AdamWConfig::new().init(),
        || AdaGradConfig::new().init(),
        || RmsPropConfig::new().with_momentum(0.5).init(),
    ];
    for (at, new) in optimizers.into_iter().enumerate() {
        let plain = under_test().autodiff();
        let (mut before, mut trained) = (new(), Model::new(&plain));
        for step in 0..2 {
            let gradients = trained.gradients(step, &plain);
            trained = before.step(1e-3, trained, gradients);
        }
        for (kind, device) in devices() {
            let mut training = None;
            let steps = found(&device, STEPS, |step, device| {
                let (mut optimizer, model) = training
                    .take()
                    .unwrap_or_else(|| (new().load_record(before.to_record()), trained.clone().fork(device)));
                let gradients = model.gradients(step, device);
                let model = optimizer.step(1e-3, model, gradients);
                training = Some((optimizer, model));
            });
            assert_eq!(steps, (0..STEPS as u64).collect::<Vec<_>>(), "{at}, {kind}");
        }
    }
}

#[test]
fn a_small_part_of_a_model_may_be_trained() {
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, STEPS, |step, device| {
            let (mut optimizer, frozen, model): (ModuleOptimizer, Vec<Linear>, Linear) =
                training.take().unwrap_or_else(|| {
                    let layer = |_| LinearConfig::new(12, 12).init(device).no_grad();
                    (AdamWConfig::new().init(), (0..30).map(layer).collect(), LinearConfig::new(12, 12).init(device))
                });
            let x = frozen.iter().fold(input(step, device), |x, layer| activation::gelu(layer.forward(x)));
            let gradients = GradientsParams::from_grads(model.forward(x).powf_scalar(2.0).mean().backward(), &model);
            let model = optimizer.step(1e-3, model, gradients);
            training = Some((optimizer, frozen, model));
        });
        let later: Vec<u64> = steps[3..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(later.iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}

#[test]
fn two_models_in_turn_take_two_steps() {
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, STEPS, |step, device| {
            let (mut critic, mut optimizer, mut generator, mut other): (_, ModuleOptimizer, _, ModuleOptimizer) =
                training.take().unwrap_or_else(|| {
                    let adam = AdamConfig::new().init();
                    (Model::new(device), AdamWConfig::new().init(), Model::new(device), adam)
                });
            let fake = generator.forward(input(step, device)).detach();
            let loss = (critic.forward(fake) - critic.forward(input(step + 1, device))).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &critic);
            critic = optimizer.step(1e-3, critic, gradients);
            let loss = critic.forward(generator.forward(input(step + 2, device))).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &generator);
            generator = other.step(1e-3, generator, gradients);
            training = Some((critic, optimizer, generator, other));
        });
        let by_round: Vec<u64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(by_round[1..].iter().all(|&steps| steps == 2), "{kind}: {steps:?}");
    }
}

#[test]
fn averages_validation_and_accumulation_add_no_steps() {
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, STEPS, |step, device| {
            let (mut optimizer, mut model, mut average): (ModuleOptimizer, Model, Tensor<2>) =
                training.take().unwrap_or_else(|| {
                    let model = Model::new(device);
                    let average = model.last.weight.val().inner();
                    (AdamWConfig::new().init(), model, average)
                });
            let mut gradients = GradientsAccumulator::new();
            (0..3).for_each(|part| gradients.accumulate(&model, model.gradients(3 * step + part, device)));
            model = optimizer.step(1e-3, model, gradients.grads());
            average = average * 0.9 + model.last.weight.val().inner() * 0.1;
            if step % 2 == 1 {
                let valid = model.valid();
                let plain = device.clone().inner();
                (0..4).for_each(|batch| drop(valid.forward(input(batch, &plain)).into_data()));
            }
            training = Some((optimizer, model, average));
        });
        // A validation reads the new parameters first: there the next step begins.
        let by_two_rounds: Vec<u64> = steps.windows(3).map(|rounds| rounds[2] - rounds[0]).collect();
        assert!(by_two_rounds.iter().all(|&steps| steps == 2), "{kind}: {steps:?}");
    }
}

#[test]
fn a_model_that_comes_later_is_found() {
    const ROUNDS: usize = 30;
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, ROUNDS, |step, device| {
            if step == 5 {
                training = None;
            }
            let (mut optimizer, model): (ModuleOptimizer, Model) =
                training.take().unwrap_or_else(|| (AdamWConfig::new().init(), Model::new(device)));
            let gradients = model.gradients(step, device);
            let model = optimizer.step(1e-3, model, gradients);
            training = Some((optimizer, model));
        });
        assert_eq!(steps[4], 4, "{kind}: {steps:?}");
        let later: Vec<u64> = steps[18..].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(later.iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}
