//! Models that are not a single chain of layers, or not the same chain in each round.

use burn::module::{Initializer, Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::*;
use burn::tensor::{Device, Tensor, activation};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, input, rounds, trained, weights};

/// Whether a random event with probability 1 in `of` happens here.
fn happens(round: usize, at: usize, of: u64) -> bool {
    let mixed = (round as u64 * 64 + at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40).is_multiple_of(of)
}

/// One layer in four is skipped, a different one in each round.
pub fn skipping(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 10), |net, round| {
        let kept = net.layers.iter().enumerate().filter(|&(at, _)| !happens(round, at, 4));
        let y = kept.fold(input(round, ROWS, device), |x, (_, layer)| net.layer(layer, x));
        GradientsParams::from_grads(y.powf_scalar(2.0).mean().backward(), net)
    });
    weights(&net)
}

/// The output is taken after six, eight or ten layers.
pub fn early_exit(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 10), |net, round| {
        let layers = 6 + 2 * (round * 5 % 3);
        let y = net.layers[..layers].iter().fold(input(round, ROWS, device), |x, layer| net.layer(layer, x));
        GradientsParams::from_grads(y.abs().mean().backward(), net)
    });
    weights(&net)
}

#[derive(Module, Debug)]
struct Recurrent {
    cell: Linear,
    head: Linear,
}

/// Truncated back-propagation through eight time steps: the state continues from window to window, its gradient does not.
pub fn truncated(device: &Device) -> Vec<Vec<u8>> {
    let linear = |from, to| LinearConfig::new(from, to).init(device);
    let mut model = Recurrent { cell: linear(2 * WIDTH, WIDTH), head: linear(WIDTH, WIDTH) };
    let mut optimizer = SgdConfig::new().init();
    let mut state: Tensor<2> = Tensor::zeros([ROWS, WIDTH], device);
    for round in 0..rounds() {
        begin_round(device);
        state = state.detach();
        let mut losses: Tensor<1> = Tensor::zeros([1], device);
        for moment in 0..8 {
            let x = input(8 * round + moment, ROWS, device);
            state = activation::tanh(model.cell.forward(Tensor::cat(vec![x.clone(), state], 1)));
            losses = losses + (model.head.forward(state.clone()) - x).powf_scalar(2.0).mean();
        }
        let gradients = GradientsParams::from_grads(losses.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
    }
    vec![bytes(model.cell.weight.val()), bytes(model.head.weight.val()), bytes(state)]
}

/// A generator, and a critic that distinguishes its output from the data, each with an optimizer of its own; the critic learns twice as often.
pub fn adversaries(device: &Device) -> Vec<Vec<u8>> {
    let (mut maker, mut critic) = (Net::new(device, 5), Net::new(device, 5));
    let (mut maker_optimizer, mut critic_optimizer) = (AdamConfig::new().init(), RmsPropConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let noise = input(3 * round, ROWS, device);
        let (made, data) = (maker.forward(noise.clone()).detach(), input(3 * round + 1, ROWS, device));
        let loss = critic.forward(made).mean() - critic.forward(data).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &critic);
        critic = critic_optimizer.step(1e-3, critic, gradients);
        if round % 2 == 1 {
            let loss = -critic.forward(maker.forward(noise)).mean();
            let gradients = GradientsParams::from_grads(loss.backward(), &maker);
            maker = maker_optimizer.step(1e-3, maker, gradients);
        }
    }
    weights(&maker).into_iter().chain(weights(&critic)).collect()
}

/// Two networks as in tutorials: the critic learns from data and from generated samples with one backward pass each, and the same forward pass of the
/// generator then serves the generator.
pub fn made_once(device: &Device, order: [bool; 2]) -> Vec<Vec<u8>> {
    let (mut maker, mut critic) = (Net::new(device, 6), Net::new(device, 4));
    let (mut maker_optimizer, mut critic_optimizer) = (AdamConfig::new().init(), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let (noise, data) = (input(2 * round, ROWS, device), input(2 * round + 1, ROWS, device));
        let judged = |critic: &Net, x: Tensor<2>, is_made: bool| {
            let wanted = if is_made { 0.0 } else { 1.0 };
            (critic.forward(x).mean_dim(1) - wanted).powf_scalar(2.0).mean()
        };
        let mut gradients = GradientsAccumulator::new();
        let mut made = None;
        for is_made in order {
            let x = match is_made {
                true => made.insert(maker.forward(noise.clone())).clone().detach(),
                false => data.clone(),
            };
            let loss = judged(&critic, x, is_made);
            gradients.accumulate(&critic, GradientsParams::from_grads(loss.backward(), &critic));
        }
        critic = critic_optimizer.step(1e-3, critic, gradients.grads());
        let loss = judged(&critic, made.unwrap(), false);
        let gradients = GradientsParams::from_grads(loss.backward(), &maker);
        maker = maker_optimizer.step(1e-3, maker, gradients);
    }
    weights(&maker).into_iter().chain(weights(&critic)).collect()
}

#[derive(Module, Debug)]
struct Encoders {
    left: Net,
    right: Net,
}

/// Two encoders, whose outputs for the same row should be more alike than those for different rows.
pub fn contrastive(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Encoders { left: Net::new(device, 4), right: Net::new(device, 6) };
    let mut optimizer = AdamWConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let left = model.left.forward(x.clone());
        let right = model.right.forward(x.flip([1]));
        let alike = left.clone().matmul(right.clone().transpose()) / 8.0;
        let same = (left * right).sum_dim(1) / 8.0;
        let rows = activation::log_softmax(alike.clone(), 1).mean();
        let columns = activation::log_softmax(alike, 0).mean();
        let loss = rows + columns - same.mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    weights(&model.left).into_iter().chain(weights(&model.right)).collect()
}

#[derive(Module, Debug)]
struct Adapted {
    base: Net,
    down: Vec<Param<Tensor<2>>>,
    up: Vec<Param<Tensor<2>>>,
}

/// A frozen base, with trained adapters of rank four on each layer.
pub fn adapters(device: &Device) -> Vec<Vec<u8>> {
    let normal = Initializer::Normal { mean: 0.0, std: 0.02 };
    let params = |shape| (0..8).map(|_| normal.init(shape, device)).collect();
    let base = Net::new(device, 8).no_grad();
    let mut model = Adapted { base, down: params([WIDTH, 4]), up: params([4, WIDTH]) };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let mut x = input(round, ROWS, device);
        for (at, layer) in model.base.layers.iter().enumerate() {
            let adapter = x.clone().matmul(model.down[at].val()).matmul(model.up[at].val());
            x = activation::gelu(layer.forward(model.base.norm.forward(x.clone())) + adapter * 2.0) + x;
        }
        let gradients = GradientsParams::from_grads(x.powf_scalar(2.0).mean().backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    model.down.iter().chain(&model.up).map(|param| bytes(param.val())).collect()
}
