//! Steps are found without marks, whatever updates the parameters.

mod rounds;

use burn::module::Module;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::tensor::Device;
use burn_remat_examples::device::under_test;
use rounds::{Model, STEPS, devices, found};

/// Checks that there is one step for every round, each found in the next round, when training starts with this optimizer and model.
fn check(name: &str, start: impl Fn(&Device) -> (ModuleOptimizer, Model)) {
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, STEPS, |step, device| {
            let (mut optimizer, model) = training.take().unwrap_or_else(|| start(device));
            let gradients = model.gradients(step, device);
            let model = optimizer.step(1e-3, model, gradients);
            training = Some((optimizer, model));
        });
        assert_eq!(steps, (0..STEPS as u64).collect::<Vec<_>>(), "{name}, {kind}");
    }
}

fn check_optimizer(name: &str, optimizer: impl Fn() -> ModuleOptimizer) {
    check(name, |device| (optimizer(), Model::new(device)));
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
        check(&format!("loaded, {at}"), |device| (new().load_record(before.to_record()), trained.clone().fork(device)));
    }
}
