//! Steps are found without marks, whatever else a program does.

mod rounds;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::*;
use burn::tensor::{Tensor, activation};
use rounds::{Model, STEPS, devices, found, input};

/// Steps found in each round but the first.
fn by_round(steps: &[u64]) -> Vec<u64> {
    steps.windows(2).map(|pair| pair[1] - pair[0]).collect()
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
        assert!(by_round(&steps[3..]).iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}

#[test]
fn two_models_in_turn_take_one_step() {
    for (kind, device) in devices().into_iter().skip(1) {
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
        // The generator's loss goes through the critic while what the critic has computed is alive: both updates belong to one step.
        assert!(by_round(&steps[2..]).iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
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
        // The next step begins where the new parameters are first read: in the next round, in a validation, or in the average at the end of a round.
        let is_told = |(round, &steps): (usize, &u64)| [round as u64, round as u64 + 1].contains(&steps);
        assert!(steps.iter().enumerate().all(is_told), "{kind}: {steps:?}");
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
        assert!(by_round(&steps[18..]).iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}

#[test]
fn copies_of_the_model_may_be_kept() {
    const ROUNDS: usize = 24;
    for (kind, device) in devices() {
        let (mut training, mut best) = (None, None);
        let steps = found(&device, ROUNDS, |step, device| {
            let (mut optimizer, mut model): (ModuleOptimizer, Model) =
                training.take().unwrap_or_else(|| (AdamWConfig::new().init(), Model::new(device)));
            let gradients = model.gradients(step, device);
            model = optimizer.step(1e-3, model, gradients);
            if step % 8 == 5 {
                best = Some(model.clone());
            }
            training = Some((optimizer, model));
        });
        drop(best.take());
        // The step from which a copy is kept ends together with the next one.
        let eight_rounds = |from: usize| steps[from + 8] - steps[from];
        assert!((0..ROUNDS - 8).all(|from| eight_rounds(from) >= 6), "{kind}: {steps:?}");
    }
}

#[test]
fn an_evaluation_may_come_first() {
    const BATCHES: usize = 60;
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, STEPS, |step, device| {
            let (mut optimizer, model): (ModuleOptimizer, Model) = training.take().unwrap_or_else(|| {
                let model = Model::new(device);
                let plain = device.clone().inner();
                let valid = model.valid();
                (0..BATCHES).for_each(|batch| drop(valid.forward(input(batch, &plain)).into_data()));
                (AdamConfig::new().init(), model)
            });
            let gradients = model.gradients(step, device);
            let model = optimizer.step(1e-3, model, gradients);
            training = Some((optimizer, model));
        });
        assert!(by_round(&steps).iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}

/// The loss of one model goes through another that was updated just before, while everything that the first has computed is alive.
#[test]
fn no_step_begins_while_much_is_alive() {
    // If nothing is recorded, nothing is lost.
    for (kind, device) in devices().into_iter().skip(1) {
        let mut training = None;
        let steps = found(&device, 2 * STEPS, |step, device| {
            let (mut critic, mut optimizer, mut generator, mut other): (_, ModuleOptimizer, _, ModuleOptimizer) =
                training.take().unwrap_or_else(|| {
                    let adam = || AdamConfig::new().init();
                    (Model::new(device), adam(), Model::new(device), adam())
                });
            let fake = generator.forward(input(step, device));
            let loss = (critic.forward(fake.clone().detach()) - critic.forward(input(step + 1, device))).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &critic);
            critic = optimizer.step(1e-3, critic, gradients);
            let gradients = GradientsParams::from_grads(critic.forward(fake).mean().backward(), &generator);
            generator = other.step(1e-3, generator, gradients);
            training = Some((critic, optimizer, generator, other));
        });
        assert!(by_round(&steps[2..]).iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}

#[test]
fn an_average_of_the_model_may_take_part_in_the_step() {
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, 2 * STEPS, |step, device| {
            let (mut optimizer, mut model, mut teacher): (ModuleOptimizer, Model, Tensor<2>) =
                training.take().unwrap_or_else(|| {
                    let model = Model::new(device);
                    let teacher = model.last.weight.val().inner();
                    (AdamWConfig::new().init(), model, teacher)
                });
            let y = model.forward(input(step, device));
            let wanted =
                Tensor::<2>::from_inner(input(step, &device.clone().inner()).matmul(teacher.clone().transpose()));
            let y = y.matmul(model.last.weight.val().transpose());
            let gradients = GradientsParams::from_grads((y - wanted).powf_scalar(2.0).mean().backward(), &model);
            model = optimizer.step(1e-3, model, gradients);
            teacher = teacher * 0.9 + model.last.weight.val().inner() * 0.1;
            training = Some((optimizer, model, teacher));
        });
        assert!(by_round(&steps[2..]).iter().all(|&steps| steps == 1), "{kind}: {steps:?}");
    }
}

#[test]
fn many_models_one_after_the_other_are_found_as_fast() {
    const ROUNDS: usize = 24;
    for (kind, device) in devices() {
        let mut training = None;
        let steps = found(&device, 4 * ROUNDS, |step, device| {
            if step % ROUNDS == 0 {
                training = None;
            }
            let (mut optimizer, model): (ModuleOptimizer, Model) =
                training.take().unwrap_or_else(|| (AdamConfig::new().init(), Model::new(device)));
            let gradients = model.gradients(step, device);
            let model = optimizer.step(1e-3, model, gradients);
            training = Some((optimizer, model));
        });
        let of_model = |k: usize| steps[(k + 1) * ROUNDS - 1] - steps[k * ROUNDS];
        assert!((0..4).all(|k| of_model(k) >= 12), "{kind}: {steps:?}");
    }
}
