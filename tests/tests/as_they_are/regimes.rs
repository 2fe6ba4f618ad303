//! Training that is more than one update after another: what is trained, on what, and how much of it changes along the way.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::Linear;
use burn::optim::*;
use burn::tensor::{Device, Distribution, Tensor, activation};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, input, labels, linear, rounds, weights};

/// Moves each parameter along its gradient.
struct Along {
    gradients: GradientsParams,
    by: Tensor<1>,
}

impl Along {
    fn moved(gradients: GradientsParams, by: Tensor<1>, net: &Net) -> Net {
        net.clone().map(&mut Along { gradients, by })
    }
}

impl ModuleMapper for Along {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return param };
        let by = self.by.clone().reshape([1; D]);
        param.map(|value| Tensor::from_inner(value.inner() + gradient * by).require_grad())
    }
}

fn mean_square(net: &Net, x: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    (net.forward(x) - wanted).powf_scalar(2.0).mean()
}

/// Sharpness-aware: the gradient used is that of weights moved uphill, from a second forward and backward pass on the same batch.
pub fn sharpness(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), SgdConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let uphill = net.gradients(x.clone());
        let squares = net.layers.iter().map(|layer| uphill.get::<2>(layer.weight.id).unwrap().powf_scalar(2.0).sum());
        let norm = squares.reduce(|a, b| a + b).unwrap().sqrt() + 1e-12;
        let gradients = Along::moved(uphill, norm.recip() * 0.05, &net).gradients(x);
        net = optimizer.step(1e-2, net, gradients);
    }
    weights(&net)
}

/// First-order meta-learning: two updates on each of three tasks from the same start; the gradients at the points reached move the start.
pub fn meta(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 6), AdamConfig::new().init());
    for round in 0..rounds() / 2 {
        begin_round(device);
        let mut sum = GradientsAccumulator::new();
        for task in 0..3 {
            let (x, tried) = (input(3 * round + task, ROWS / 2, device), input(3 * round + task + 7, ROWS, device));
            let mut fast = net.clone();
            for _ in 0..2 {
                let gradients = fast.gradients(x.clone());
                fast = Along::moved(gradients, Tensor::full([1], -0.02, &device.clone().inner()), &fast);
            }
            sum.accumulate(&net, fast.gradients(tried));
        }
        net = optimizer.step(1e-3, net, sum.grads());
    }
    weights(&net)
}

/// Inputs are first perturbed against the model, by gradients of the input; then the model learns from them.
pub fn attacked(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 6), AdamConfig::new().init());
    for round in 0..rounds() / 2 {
        begin_round(device);
        let x = input(round, ROWS, device);
        let mut bad = x.clone().inner();
        for _ in 0..3 {
            let tried: Tensor<2> = Tensor::from_inner(bad.clone()).require_grad();
            let gradients = mean_square(&net, tried.clone(), x.clone()).backward();
            let change = tried.grad(&gradients).unwrap().sign() * 0.01;
            bad = (bad + change).clamp(-0.6, 0.6);
        }
        let loss = mean_square(&net, Tensor::from_inner(bad), x);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

/// Two networks that learn from the data and from each other: both forward passes come first, then both backward passes.
pub fn mutual(device: &Device) -> Vec<Vec<u8>> {
    let (mut left, mut right) = (Net::new(device, 5), Net::new(device, 7));
    let (mut left_optimizer, mut right_optimizer) = (AdamConfig::new().init(), AdamWConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let (one, other) = (left.forward(x.clone()), right.forward(x.clone()));
        let apart = |a: Tensor<2>, b: Tensor<2>| (a - b.detach()).powf_scalar(2.0).mean();
        let left_loss = apart(one.clone(), x.clone().flip([1])) + apart(one.clone(), other.clone()) * 0.3;
        let right_loss = apart(other.clone(), x.flip([1])) + apart(other, one) * 0.3;
        let left_gradients = GradientsParams::from_grads(left_loss.backward(), &left);
        let right_gradients = GradientsParams::from_grads(right_loss.backward(), &right);
        left = left_optimizer.step(1e-3, left, left_gradients);
        right = right_optimizer.step(1e-3, right, right_gradients);
    }
    weights(&left).into_iter().chain(weights(&right)).collect()
}

#[derive(Module, Debug)]
struct Pupil {
    net: Net,
    hint: Linear,
    head: Linear,
}

/// A frozen teacher runs in each round: the student learns from its answers, and from the intermediate results of its layers.
pub fn distillation(device: &Device) -> Vec<Vec<u8>> {
    let teacher =
        Pupil { net: Net::new(device, 10), hint: linear(WIDTH, WIDTH, device), head: linear(WIDTH, 16, device) };
    let teacher = teacher.valid();
    let mut pupil =
        Pupil { net: Net::new(device, 5), hint: linear(WIDTH, WIDTH, device), head: linear(WIDTH, 16, device) };
    let mut optimizer = AdamWConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let mut hints = vec![];
        let mut seen = x.clone().inner();
        for (at, layer) in teacher.net.layers.iter().enumerate() {
            seen = teacher.net.layer(layer, seen);
            if at % 2 == 1 {
                hints.push(Tensor::from_inner(seen.clone()));
            }
        }
        let answer: Tensor<2> = Tensor::from_inner(activation::softmax(teacher.head.forward(seen) / 4.0, 1));
        let mut seen = x;
        let mut loss: Tensor<1> = Tensor::zeros([1], device);
        for (layer, hint) in pupil.net.layers.iter().zip(hints) {
            seen = pupil.net.layer(layer, seen);
            loss = loss + (pupil.hint.forward(seen.clone()) - hint).powf_scalar(2.0).mean() * 0.1;
        }
        let logits = pupil.head.forward(seen);
        let labels = labels(round, ROWS, 16, device).reshape([ROWS, 1]);
        let hard = activation::log_softmax(logits.clone(), 1).gather(1, labels).mean();
        let soft = (activation::log_softmax(logits / 4.0, 1) * answer).sum_dim(1).mean();
        loss = loss - hard * 0.3 - soft * 4.0;
        let gradients = GradientsParams::from_grads(loss.backward(), &pupil);
        pupil = optimizer.step(1e-3, pupil, gradients);
    }
    weights(&pupil.net)
}

/// Two views of the same rows: each must predict what an average of the weights makes of the other.
pub fn two_views(device: &Device) -> Vec<Vec<u8>> {
    let mut online =
        Pupil { net: Net::new(device, 5), hint: linear(WIDTH, WIDTH, device), head: linear(WIDTH, WIDTH, device) };
    let mut target = online.net.valid();
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let view = |strength: f64| {
            let noise = x.random_like(Distribution::Normal(0.0, strength));
            let hidden = x.random_like(Distribution::Uniform(0.0, 1.0)).lower_elem(0.1);
            (x.clone() + noise).mask_fill(hidden, 0.0)
        };
        let views = [view(0.1), view(0.2)];
        let unit = |x: Tensor<2>| x.clone() / (x.powf_scalar(2.0).sum_dim(1).sqrt() + 1e-6);
        let foretold = views.clone().map(|x| {
            let seen = activation::relu(online.hint.forward(online.net.forward(x)));
            unit(online.head.forward(seen))
        });
        let wanted = views.map(|x| Tensor::from_inner(unit(target.forward(x.inner()))));
        let [a, b] = foretold;
        let [c, d] = wanted;
        let loss = (a * d).sum_dim(1).mean().neg() - (b * c).sum_dim(1).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &online);
        online = optimizer.step(1e-3, online, gradients);
        for (old, new) in target.layers.iter_mut().zip(&online.net.layers) {
            let new = new.weight.val().inner();
            old.weight = old.weight.clone().map(|old| old * 0.99 + new * 0.01);
        }
    }
    weights(&online.net).into_iter().chain(weights(&target)).collect()
}

/// Four folds of the data: each has a new model with a new optimizer, evaluated on data that it has not seen.
pub fn folds(device: &Device) -> Vec<Vec<u8>> {
    let mut log = Vec::new();
    for fold in 0..4 {
        let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
        for part in (0..rounds() / 4 + 1).filter(|part| part % 4 != fold) {
            begin_round(device);
            let gradients = net.gradients(input(part, ROWS, device));
            net = optimizer.step(1e-3, net, gradients);
        }
        let tried = net.valid();
        log.push(bytes(tried.loss(input(fold, ROWS, device).inner())));
        log.extend(weights(&net));
    }
    log
}

/// A learning rate is searched for with a copy, rate by rate until the loss explodes, and then the training begins.
pub fn rate_finder(device: &Device) -> Vec<Vec<u8>> {
    let net = Net::new(device, 8);
    let (mut tried, mut optimizer, mut rate) = (net.clone(), SgdConfig::new().init(), 1e-3);
    let (mut best, mut losses) = (f32::MAX, vec![]);
    for round in 0..12 {
        begin_round(device);
        let loss = tried.loss(input(round, ROWS, device));
        let value: f32 = loss.clone().into_scalar();
        losses.push(value);
        best = best.min(value);
        if value > 4.0 * best {
            break;
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &tried);
        tried = optimizer.step(rate, tried, gradients);
        rate *= 1.5;
    }
    let (mut net, mut optimizer) = (net, AdamWConfig::new().init());
    for round in 0..rounds() - 12 {
        begin_round(device);
        let gradients = net.gradients(input(round, ROWS, device));
        net = optimizer.step(rate / 100.0, net, gradients);
    }
    losses.into_iter().map(|loss| loss.to_le_bytes().to_vec()).chain(weights(&net)).collect()
}

/// The lower layers are frozen halfway through, and released for the last rounds.
pub fn freezing(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        if round == 14 {
            let freeze = |(at, layer): (usize, Linear)| if at < 4 { layer.no_grad() } else { layer };
            net.layers = net.layers.into_iter().enumerate().map(freeze).collect();
        }
        if round == 28 {
            let free = |layer: Linear| Linear {
                weight: layer.weight.set_require_grad(true),
                bias: layer.bias.map(|bias| bias.set_require_grad(true)),
            };
            net.layers = net.layers.into_iter().map(free).collect();
        }
        let gradients = net.gradients(input(round, ROWS, device));
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

/// Batches double in size every ten rounds.
pub fn doubling(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let gradients = net.gradients(input(round, 64 << (round / 10), device));
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

/// After every fourth round the model is evaluated. The best so far is kept, and restored after two evaluations that were worse.
pub fn best_kept(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), SgdConfig::new().init());
    let (mut best, mut least, mut worse, mut rate) = (net.clone(), f32::MAX, 0, 0.5);
    for round in 0..rounds() {
        begin_round(device);
        let gradients = net.gradients(input(round, ROWS, device));
        net = optimizer.step(rate, net, gradients);
        if round % 4 != 3 {
            continue;
        }
        let loss: f32 = net.valid().loss(input(100 + round % 8, ROWS, device).inner()).into_scalar();
        if loss < least {
            (best, least, worse) = (net.clone(), loss, 0);
        } else {
            worse += 1;
        }
        if worse == 2 {
            (net, worse, rate) = (best.clone(), 0, rate * 0.5);
            optimizer = SgdConfig::new().init();
        }
    }
    weights(&best).into_iter().chain(weights(&net)).collect()
}

#[derive(Module, Debug)]
struct Head {
    net: Net,
    out: Linear,
}

/// Two tasks alternate, and occasionally both come together: one trunk, and an optimizer for each part.
pub fn tasks_in_turns(device: &Device) -> Vec<Vec<u8>> {
    let mut trunk = Net::new(device, 6);
    let mut heads = [2, 4].map(|layers| Head { net: Net::new(device, layers), out: linear(WIDTH, 8, device) });
    let mut trunk_optimizer = AdamConfig::new().init();
    let mut optimizers = [AdamConfig::new().init(), AdamConfig::new().init()];
    for round in 0..rounds() {
        begin_round(device);
        let tasks: &[usize] = match round % 5 {
            4 => &[0, 1],
            at => &[[0], [1]][at % 2],
        };
        let seen = trunk.forward(input(round, ROWS, device));
        let mut loss: Tensor<1> = Tensor::zeros([1], device);
        for &task in tasks {
            let out = heads[task].out.forward(heads[task].net.forward(seen.clone()));
            let wanted = labels(round, ROWS, 8, device).reshape([ROWS, 1]);
            loss = loss - activation::log_softmax(out, 1).gather(1, wanted).mean();
        }
        let mut gradients = loss.backward();
        let of_trunk = GradientsParams::from_module(&mut gradients, &trunk);
        trunk = trunk_optimizer.step(1e-3, trunk, of_trunk);
        for &task in tasks {
            let of_head = GradientsParams::from_module(&mut gradients, &heads[task]);
            heads[task] = optimizers[task].step(2e-3, heads[task].clone(), of_head);
        }
    }
    weights(&trunk).into_iter().chain(heads.iter().map(|head| bytes(head.out.weight.val()))).collect()
}
