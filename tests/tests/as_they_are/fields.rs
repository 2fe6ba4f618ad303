//! Programs from other fields: what they compute in a round depends on chance, on data, or on earlier results.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, PaddingConfig2d};
use burn::optim::*;
use burn::tensor::{Device, Distribution, IndexingUpdateOp, Int, Tensor, activation};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, chance, input, labels, linear, numbers, rounds, weights};

#[derive(Module, Debug)]
struct Autoencoder {
    encoder: Net,
    mean: Linear,
    spread: Linear,
    back: Linear,
    decoder: Net,
}

/// A variational autoencoder: its code is drawn at random.
pub fn variational(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Autoencoder {
        encoder: Net::new(device, 4),
        mean: linear(WIDTH, 16, device),
        spread: linear(WIDTH, 16, device),
        back: linear(16, WIDTH, device),
        decoder: Net::new(device, 4),
    };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let seen = model.encoder.forward(x.clone());
        let (mean, spread) = (model.mean.forward(seen.clone()), model.spread.forward(seen));
        let noise = Tensor::random([ROWS, 16], Distribution::Normal(0.0, 1.0), device);
        let code = mean.clone() + noise * (spread.clone() * 0.5).exp();
        let made = model.decoder.forward(model.back.forward(code));
        let divergence = (spread.clone().exp() + mean.powf_scalar(2.0) - spread - 1.0).mean();
        let loss = (made - x).powf_scalar(2.0).mean() + divergence * 0.01;
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    weights(&model.encoder).into_iter().chain(weights(&model.decoder)).collect()
}

/// A denoiser at random levels of noise, and a moving average of its weights that generates an image now and then.
pub fn diffusion(device: &Device) -> Vec<Vec<u8>> {
    let mut net = Net::new(device, 8);
    let (mut average, mut optimizer, mut log) = (net.clone(), AdamWConfig::new().init(), Vec::new());
    let levels: Tensor<1> = Tensor::arange(1..101, device).float() / 101.0;
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let level = levels.clone().select(0, labels(round, ROWS, 100, device));
        let level: Tensor<2> = level.reshape([ROWS, 1]);
        let noise = x.random_like(Distribution::Normal(0.0, 1.0));
        let noisy = x * (level.clone().neg() + 1.0).sqrt() + noise.clone() * level.sqrt();
        let loss = (net.forward(noisy) - noise).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
        for (old, new) in average.layers.iter_mut().zip(&net.layers) {
            let new = new.weight.val().detach();
            old.weight = old.weight.clone().map(|old| old.detach() * 0.95 + new * 0.05);
        }
        if round % 10 == 9 {
            let mut picture = input(round, 32, device).inner();
            for _ in 0..4 {
                picture = picture.clone() - average.valid().forward(picture) * 0.1;
            }
            log.push(bytes(picture));
        }
    }
    log.into_iter().chain(weights(&net)).chain(weights(&average)).collect()
}

#[derive(Module, Debug)]
struct Player {
    body: Net,
    policy: Linear,
    value: Linear,
}

/// A policy that plays without gradients and then learns three times from the same episodes, part by part.
pub fn policy(device: &Device) -> Vec<Vec<u8>> {
    let mut player =
        Player { body: Net::new(device, 5), policy: linear(WIDTH, 8, device), value: linear(WIDTH, 1, device) };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() / 2 {
        begin_round(device);
        let (mut states, mut actions, mut before, mut gains) = (vec![], vec![], vec![], vec![]);
        let actor = player.valid();
        let mut state = input(round, ROWS, device).inner();
        for moment in 0..4 {
            let seen = actor.body.forward(state.clone());
            let odds = activation::log_softmax(actor.policy.forward(seen.clone()), 1);
            let action = (odds.clone() + odds.random_like(Distribution::Uniform(0.0, 1.0))).argmax(1);
            before.push(odds.gather(1, action.clone()));
            gains.push(actor.value.forward(seen.clone()).neg() + (moment as f32) * 0.1);
            states.push(state);
            actions.push(action);
            state = activation::tanh(seen);
        }
        for epoch in 0..3 {
            for part in 0..2 {
                let of = |all: &[Tensor<2>]| {
                    Tensor::<2>::from_inner(Tensor::cat(vec![all[part].clone(), all[3 - part].clone()], 0))
                };
                let (states, before, gains) = (of(&states), of(&before), of(&gains));
                let action = Tensor::from_inner(Tensor::cat(vec![actions[part].clone(), actions[3 - part].clone()], 0));
                let seen = player.body.forward(states);
                let odds = activation::log_softmax(player.policy.forward(seen.clone()), 1);
                let ratio = (odds.clone().gather(1, action) - before).exp();
                let gained = (ratio.clone() * gains.clone()).min_pair(ratio.clamp(0.8, 1.2) * gains.clone()).mean();
                let wrong = (player.value.forward(seen) - gains).powf_scalar(2.0).mean();
                let entropy = (odds.clone().exp() * odds).sum_dim(1).mean();
                let loss = wrong * 0.5 - gained + entropy * 0.01;
                let gradients = GradientsParams::from_grads(loss.backward(), &player);
                player = optimizer.step(1e-3 / (1 + epoch) as f64, player, gradients);
            }
        }
    }
    weights(&player.body)
}

/// Messages along the edges of graphs of any size, summed where they arrive.
pub fn graphs(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 6), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let nodes = 96 + chance(round, 0) % 96;
        let edges = 3 * nodes + chance(round, 1) % nodes;
        let from = numbers((0..edges).map(|at| (chance(round, 2 + at) % nodes) as i64), device);
        let to = numbers((0..edges).map(|at| (chance(round, 5000 + at) % nodes) as i64), device);
        let mut x = input(round, nodes, device);
        for layer in &net.layers {
            let messages = activation::relu(layer.forward(x.clone().select(0, from.clone())));
            let sums: Tensor<2> = Tensor::zeros([nodes, WIDTH], device);
            let arrived = sums.select_assign(0, to.clone(), messages, IndexingUpdateOp::Add);
            x = net.norm.forward(x + arrived / 4.0);
        }
        let gradients = GradientsParams::from_grads(x.powf_scalar(2.0).mean().backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

#[derive(Module, Debug)]
struct Mixture {
    router: Linear,
    experts: Vec<Net>,
}

/// A mixture of experts: each row goes to the one chosen by a router, so the number of rows for each is read from the device.
pub fn mixture(device: &Device) -> Vec<Vec<u8>> {
    let experts = (0..4).map(|_| Net::new(device, 3)).collect();
    let mut model = Mixture { router: linear(WIDTH, 4, device), experts };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let odds = activation::softmax(model.router.forward(x.clone()) * 8.0, 1);
        let best = odds.clone().argmax(1);
        let mut y = Tensor::zeros([ROWS, WIDTH], device);
        for (at, expert) in model.experts.iter().enumerate() {
            let rows = best.clone().equal_elem(at as i64).nonzero().swap_remove(0);
            if rows.dims()[0] == 0 {
                continue;
            }
            let share = odds.clone().select(0, rows.clone()).slice([0..rows.dims()[0], at..at + 1]);
            let part = expert.forward(x.clone().select(0, rows.clone())) * share;
            y = y.select_assign(0, rows, part, IndexingUpdateOp::Add);
        }
        let gradients = GradientsParams::from_grads((y - x).powf_scalar(2.0).mean().backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    model.experts.iter().flat_map(weights).collect()
}

#[derive(Module, Debug)]
struct Painter {
    down: Vec<Conv2d>,
    up: Vec<ConvTranspose2d>,
    dropout: Dropout,
}

impl Painter {
    fn new(device: &Device) -> Self {
        let down = |channels: [usize; 2]| {
            let config = Conv2dConfig::new(channels, [4, 4]).with_stride([2, 2]);
            config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device)
        };
        let up = |channels: [usize; 2]| {
            ConvTranspose2dConfig::new(channels, [4, 4]).with_stride([2, 2]).with_padding([1, 1]).init(device)
        };
        Self {
            down: vec![down([1, 12]), down([12, 24]), down([24, 48])],
            up: vec![up([48, 24]), up([48, 12]), up([24, 1])],
            dropout: DropoutConfig::new(0.3).init(),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<4> {
        let mut seen = vec![];
        for down in &self.down {
            x = activation::leaky_relu(down.forward(x), 0.2);
            seen.push(x.clone());
        }
        seen.pop();
        for up in &self.up {
            x = up.forward(x);
            if let Some(skipped) = seen.pop() {
                x = self.dropout.forward(activation::relu(Tensor::cat(vec![x, skipped], 1)));
            }
        }
        activation::tanh(x)
    }
}

#[derive(Module, Debug)]
struct Judge {
    layers: Vec<Conv2d>,
}

impl Judge {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.layers.iter().fold(x, |x, layer| activation::leaky_relu(layer.forward(x), 0.2))
    }
}

/// Image-to-image translation: the discriminator learns from what the generator has made, and then the generator from the discriminator, with one forward pass.
pub fn pictures(device: &Device) -> Vec<Vec<u8>> {
    let layer = |channels: [usize; 2]| Conv2dConfig::new(channels, [4, 4]).with_stride([2, 2]).init(device);
    let mut painter = Painter::new(device);
    let mut judge = Judge { layers: vec![layer([2, 12]), layer([12, 24]), layer([24, 1])] };
    let (mut painter_optimizer, mut judge_optimizer) = (AdamConfig::new().init(), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let x: Tensor<4> = input(round, 128, device).reshape([8, 1, 32, 32]);
        let wanted = x.clone().flip([3]);
        let made = painter.forward(x.clone());
        let judged = |made: Tensor<4>, judge: &Judge| judge.forward(Tensor::cat(vec![x.clone(), made], 1));
        let (real, fake) = (judged(wanted.clone(), &judge), judged(made.clone().detach(), &judge));
        let loss = (real - 1.0).powf_scalar(2.0).mean() + fake.powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &judge);
        judge = judge_optimizer.step(2e-4, judge, gradients);
        let fooled = (judged(made.clone(), &judge) - 1.0).powf_scalar(2.0).mean();
        let loss = fooled + (made - wanted).abs().mean() * 10.0;
        let gradients = GradientsParams::from_grads(loss.backward(), &painter);
        painter = painter_optimizer.step(2e-4, painter, gradients);
    }
    painter.down.iter().chain(&judge.layers).map(|layer| bytes(layer.weight.val())).collect()
}

/// Triplets, of which only the hardest half is used for learning: which those are is decided by a forward pass without gradients.
pub fn hard_triplets(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 6), SgdConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let [anchor, same, other] = [0, 1, 2].map(|part| input(3 * round + part, ROWS, device));
        let far = |a: Tensor<2>, b: Tensor<2>| (a - b).powf_scalar(2.0).sum_dim(1);
        let seen = net.valid();
        let [a, b, c] = [&anchor, &same, &other].map(|x| seen.forward(x.clone().inner()));
        let hardness = far(a.clone(), b) - far(a, c);
        let order: Tensor<1, Int> = hardness.reshape([ROWS]).argsort(0).narrow(0, ROWS / 2, ROWS / 2);
        let order = Tensor::from_inner(order);
        let [a, b, c] = [anchor, same, other].map(|x| net.forward(x.select(0, order.clone())));
        let loss = activation::relu(far(a.clone(), b) - far(a, c) + 0.2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

#[derive(Module, Debug)]
struct Translator {
    read: Linear,
    write: Linear,
    look: Linear,
    say: Linear,
}

/// A recurrent translator with attention: sentences have any length, and its next input is, at random, its own word or the correct one.
pub fn translation(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Translator {
        read: linear(2 * WIDTH, WIDTH, device),
        write: linear(3 * WIDTH, WIDTH, device),
        look: linear(WIDTH, WIDTH, device),
        say: linear(WIDTH, WIDTH, device),
    };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let (rows, length) = (64, 5 + chance(round, 0) % 6);
        let mut state: Tensor<2> = Tensor::zeros([rows, WIDTH], device);
        let mut memory = vec![];
        for at in 0..length {
            let word = input(16 * round + at, rows, device);
            state = activation::tanh(model.read.forward(Tensor::cat(vec![word, state], 1)));
            memory.push(state.clone());
        }
        let memory: Tensor<3> = Tensor::stack(memory, 1);
        let mut word = state.zeros_like();
        let mut loss: Tensor<1> = Tensor::zeros([1], device);
        for at in 0..length {
            let asked: Tensor<3> = model.look.forward(state.clone()).unsqueeze_dim(1);
            let share = activation::softmax(asked.matmul(memory.clone().swap_dims(1, 2)) / 8.0, 2);
            let seen: Tensor<2> = share.matmul(memory.clone()).squeeze_dim(1);
            state = activation::tanh(model.write.forward(Tensor::cat(vec![word, state, seen], 1)));
            let said = model.say.forward(state.clone());
            let wanted = input(16 * round + length - at, rows, device);
            loss = loss + (said.clone() - wanted.clone()).powf_scalar(2.0).mean();
            word = if chance(round, 100 + at).is_multiple_of(3) { said.detach() } else { wanted };
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    [&model.read, &model.write, &model.look, &model.say].map(|layer| bytes(layer.weight.val())).to_vec()
}
