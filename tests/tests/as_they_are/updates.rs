//! Further kinds of training: what happens to a gradient, to a loss that has been read, and to weights other than the trained ones.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::gru::{Gru, GruConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, Lstm, LstmConfig, PaddingConfig2d};
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::tensor::{Device, Distribution, IndexingUpdateOp, Int, Tensor, activation, s};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, chance, input, labels, linear, numbers, rounds, weights};

/// The weights of a model, by parameter.
struct Collected(GradientsParams);

impl Collected {
    fn of(module: &impl Module) -> Self {
        let mut collected = Self(GradientsParams::new());
        module.visit(&mut collected);
        collected
    }
}

impl ModuleVisitor for Collected {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.register(param.id, param.val().inner());
    }
}

/// Slow weights follow the fast ones, which continue from there.
impl ModuleMapper for Collected {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(slow) = self.0.remove::<D>(param.id) else { return param };
        let id = param.id;
        param.map(|fast| {
            let slow = slow.clone() + (fast.inner() - slow) * 0.5;
            self.0.register(id, slow.clone());
            Tensor::from_inner(slow).require_grad()
        })
    }
}

#[derive(Module, Debug)]
struct Residual {
    convs: [Conv2d; 2],
    norms: [BatchNorm; 2],
}

#[derive(Module, Debug)]
struct Pictures {
    first: Conv2d,
    blocks: Vec<Residual>,
    head: Linear,
}

impl Pictures {
    fn new(device: &Device) -> Self {
        let conv = |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same).init(device);
        let block = |_| Residual {
            convs: [conv([12, 12]), conv([12, 12])],
            norms: [12, 12].map(|channels| BatchNormConfig::new(channels).init(device)),
        };
        Self { first: conv([3, 12]), blocks: (0..5).map(block).collect(), head: linear(12, 10, device) }
    }

    /// The later a block, the more often it is skipped.
    fn forward(&self, x: Tensor<4>, round: usize) -> Tensor<2> {
        let mut x = activation::relu(self.first.forward(x));
        for (at, block) in self.blocks.iter().enumerate() {
            if chance(round, 100 + at) % 12 < at {
                continue;
            }
            let inside = activation::relu(block.norms[0].forward(block.convs[0].forward(x.clone())));
            x = activation::relu(block.norms[1].forward(block.convs[1].forward(inside)) + x);
        }
        self.head.forward(x.mean_dims(&[2, 3]).flatten(1, 3))
    }
}

/// Slow weights that wait for five rounds and then move halfway to the fast ones; blocks of a residual network are skipped at random.
pub fn slow_and_fast(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Pictures::new(device);
    let mut slow = Collected::of(&model);
    let momentum = MomentumConfig::new().with_momentum(0.9).with_nesterov(true);
    let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
    for round in 0..rounds() {
        begin_round(device);
        let x: Tensor<4> = input(round, 72, device).reshape([6, 3, 16, 16]);
        let x = if chance(round, 0).is_multiple_of(2) { x.flip([3]) } else { x };
        let labels = labels(round, 6, 10, device).reshape([6, 1]);
        let loss = activation::log_softmax(model.forward(x, round), 1).gather(1, labels).mean().neg();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(2e-2, model, gradients);
        if round % 5 == 4 {
            model = model.map(&mut slow);
        }
    }
    let running = model.blocks.iter().map(|block| bytes(block.norms[1].running_mean.value()));
    let convs = model.blocks.iter().map(|block| bytes(block.convs[0].weight.val()));
    convs.chain(running.collect::<Vec<_>>()).collect()
}

/// Reads the norm of each gradient, and adds noise to it.
struct Noisy {
    gradients: GradientsParams,
    by: f64,
    log: Vec<f32>,
}

impl ModuleVisitor for Noisy {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        self.log.push(gradient.clone().powf_scalar(2.0).sum().sqrt().into_scalar());
        let noise = gradient.random_like(Distribution::Normal(0.0, self.by));
        self.gradients.register(param.id, gradient + noise);
    }
}

#[derive(Module, Debug)]
struct Forecaster {
    lstm: Lstm,
    head: Linear,
}

/// A forecast of what comes next; gradients get noise that fades, and the norm of each is recorded in each round.
pub fn noise_and_norms(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Forecaster { lstm: LstmConfig::new(16, 32, true).init(device), head: linear(32, 16, device) };
    let (mut optimizer, mut log) = (AdamConfig::new().init(), vec![]);
    for round in 0..rounds() {
        begin_round(device);
        let x: Tensor<3> = input(round, 100, device).reshape([40, 10, 16]);
        let (states, _) = model.lstm.forward(x.clone(), None);
        let foretold = model.head.forward(states.narrow(1, 0, 9));
        let loss = (foretold - x.narrow(1, 1, 9)).abs().mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        let mut noisy = Noisy { gradients, by: 0.01 / (1.0 + round as f64).sqrt(), log: vec![] };
        model.visit(&mut noisy);
        log.extend(noisy.log.iter().map(|norm| norm.to_le_bytes().to_vec()));
        model = optimizer.step(1e-3, model, noisy.gradients);
    }
    log.into_iter().chain([bytes(model.head.weight.val())]).collect()
}

/// Weights moved against their gradients.
struct Moved<'a> {
    gradients: &'a GradientsParams,
    by: f32,
}

impl ModuleMapper for Moved<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = self.gradients.get::<D>(param.id) else { return param };
        param.map(|value| Tensor::from_inner(value.inner() - gradient * self.by).require_grad())
    }
}

/// Several step lengths are tried along each gradient, without gradients, until the loss has decreased enough.
pub fn line_search(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut length, mut log) = (Net::new(device, 7), 4.0, vec![]);
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let loss = net.loss(x.clone());
        let before: f32 = loss.clone().into_scalar();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        let squares =
            net.layers.iter().map(|layer| gradients.get::<2>(layer.weight.id).unwrap().powf_scalar(2.0).sum());
        let square: f32 = squares.reduce(|a, b| a + b).unwrap().into_scalar();
        for _ in 0..5 {
            let moved = net.clone().map(&mut Moved { gradients: &gradients, by: length });
            let after: f32 = moved.valid().loss(x.clone().inner()).into_scalar();
            if after <= before - 0.3 * length * square {
                net = moved;
                length *= 1.5;
                break;
            }
            length *= 0.5;
        }
        log.push(length.to_le_bytes().to_vec());
    }
    log.into_iter().chain(weights(&net)).collect()
}

const LISTS: usize = 32;
const LENGTH: usize = 12;

/// How well scores sort lists in the desired order, and how far the score of the desired first item is above the best of the rest.
fn listwise(scores: Tensor<2>, wanted: Tensor<2>) -> Tensor<1> {
    let (_, order) = wanted.sort_descending_with_indices(1);
    let sorted = scores.clone().gather(1, order.clone());
    let most = sorted.clone().detach().max_dim(1);
    let rest = (sorted.clone() - most.clone()).exp().flip([1]).cumsum(1).flip([1]);
    let likely = (rest.log() + most - sorted).mean();
    let top = order.narrow(1, 0, 3);
    let taken: Tensor<2> = scores.zeros_like().detach();
    let taken = taken.scatter(1, top.clone(), top.ones_like().float(), IndexingUpdateOp::Add);
    let others = scores.clone().mask_fill(taken.greater_elem(0.5), -1e4).topk(2, 1).mean_dim(1);
    let least = scores.gather(1, top).min_dim(1);
    likely + activation::relu(others - least + 0.5).mean() * 0.3
}

/// Documents are held on the device and sampled there with random numbers. The loss is read; if it is NaN or far too large, the round is skipped.
pub fn skipped_when_bad(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 5), AdamConfig::new().init());
    let mut head = linear(WIDTH, 1, device);
    let mut head_optimizer = AdamConfig::new().init();
    let documents = input(0, 900, device);
    let grades = documents.clone().slice(s![.., 3]).reshape([900]) * 4.0;
    let (mut usual, mut log): (f32, _) = (10.0, vec![]);
    for round in 0..rounds() {
        begin_round(device);
        let drawn: Tensor<1, Int> = Tensor::random([LISTS * LENGTH], Distribution::Uniform(0.0, 900.0), device);
        let drawn = drawn.remainder_scalar(900);
        let mut x = documents.clone().select(0, drawn.clone());
        match round % 11 {
            6 => x = x * f32::INFINITY,
            9 => x = x * 50.0,
            _ => {}
        }
        let wanted = grades.clone().select(0, drawn).reshape([LISTS, LENGTH]);
        let scores = head.forward(net.forward(x)).reshape([LISTS, LENGTH]);
        let loss = listwise(scores, wanted);
        let value: f32 = loss.clone().into_scalar();
        log.push(value.to_le_bytes().to_vec());
        if !value.is_finite() || value > 3.0 * usual {
            continue;
        }
        usual = 0.8 * usual + 0.2 * value;
        let mut gradients = loss.backward();
        let (of_net, of_head) =
            (GradientsParams::from_module(&mut gradients, &net), GradientsParams::from_module(&mut gradients, &head));
        net = optimizer.step(1e-3, net, of_net);
        head = head_optimizer.step(5e-3, head, of_head);
    }
    log.into_iter().chain(weights(&net)).chain([bytes(head.weight.val())]).collect()
}

#[derive(Module, Debug)]
struct Listener {
    gru: Gru,
    head: Linear,
}

impl Listener {
    /// The probability of each symbol at each time step; the first symbol is a gap.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        activation::log_softmax(self.head.forward(activation::tanh(self.gru.forward(x, None))), 2)
    }
}

/// The negative log-likelihood of a text, over all ways to align its symbols with the time steps: sums over a lattice, step by step.
fn unlikely(odds: Tensor<3>, texts: &[Vec<i64>]) -> Tensor<1> {
    let ([rows, moments, _], device) = (odds.dims(), odds.device());
    let places = 2 * texts[0].len() + 1;
    let sign = |text: &[i64], at: usize| if at % 2 == 1 { text[at / 2] } else { 0 };
    let signs = texts.iter().flat_map(|text| (0..places).map(move |at| sign(text, at)));
    let signs: Tensor<2, Int> = numbers(signs, &device).reshape([rows, places]);
    // A symbol may be followed by the next one without a gap, if the two differ.
    let jumps = |text: &[i64], at: usize| at >= 3 && at % 2 == 1 && sign(text, at) != sign(text, at - 2);
    let barred = texts.iter().flat_map(|text| (0..places).map(move |at| i64::from(!jumps(text, at))));
    let barred = numbers(barred, &device).reshape([rows, places]).equal_elem(1);
    let at = |moment: usize| -> Tensor<2> {
        let odds: Tensor<2> = odds.clone().narrow(1, moment, 1).squeeze_dim(1);
        odds.gather(1, signs.clone())
    };
    let none = |count: usize| -> Tensor<2> { Tensor::full([rows, count], -1e4, &device) };
    let mut ways = Tensor::cat(vec![at(0).narrow(1, 0, 2), none(places - 2)], 1);
    for moment in 1..moments {
        let one = Tensor::cat(vec![none(1), ways.clone().narrow(1, 0, places - 1)], 1);
        let two = Tensor::cat(vec![none(2), ways.clone().narrow(1, 0, places - 2)], 1).mask_fill(barred.clone(), -1e4);
        let most = ways.clone().max_pair(one.clone()).max_pair(two.clone()).detach();
        let sum = [ways, one, two].map(|ways| (ways - most.clone()).exp()).into_iter().reduce(|a, b| a + b).unwrap();
        ways = sum.log() + most + at(moment);
    }
    let ends = ways.narrow(1, places - 2, 2);
    let most = ends.clone().detach().max_dim(1);
    ((ends - most.clone()).exp().sum_dim(1).log() + most).mean().neg()
}

/// Transcribes a recording without knowing when symbols occur; every eighth round the transcription is recorded.
pub fn lattice(device: &Device) -> Vec<Vec<u8>> {
    let gru = GruConfig::new(24, 40, true).init(device);
    let mut model = Listener { gru, head: linear(40, 12, device) };
    let (mut optimizer, mut log) = (AdamConfig::new().init(), vec![]);
    let recording = |round: usize, moments: usize, device: &Device| -> Tensor<3> {
        input(round, 6 * moments, device).reshape([16, moments, 24])
    };
    for round in 0..rounds() {
        begin_round(device);
        let moments = [14, 18][chance(round, 0) % 2];
        let length = 3 + chance(round, 1) % 2;
        let sign = |row: usize, at: usize| 1 + (chance(round % 6, 16 * row + at) % 11) as i64;
        let texts: Vec<Vec<i64>> = (0..16).map(|row| (0..length).map(|at| sign(row, at)).collect()).collect();
        let loss = unlikely(model.forward(recording(round, moments, device)), &texts);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
        if round % 8 == 7 {
            let odds = model.valid().forward(recording(round, 16, &device.clone().inner()));
            let mut heard: Vec<u8> = odds.argmax(2).into_data().iter::<i64>().map(|sign| sign as u8).collect();
            heard.dedup();
            heard.retain(|&sign| sign > 0);
            log.push(heard);
        }
    }
    log.into_iter().chain([bytes(model.head.weight.val())]).collect()
}

/// Weights that follow others.
struct Following(GradientsParams);

impl ModuleMapper for Following {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(new) = self.0.remove::<D>(param.id) else { return param };
        param.map(|old| old * 0.95 + new * 0.05)
    }
}

#[derive(Module, Debug)]
struct Critic {
    net: Net,
    mixed: Linear,
    value: Linear,
}

impl Critic {
    fn new(device: &Device) -> Self {
        let mixed = linear(WIDTH + 4, WIDTH, device);
        Self { net: Net::new(device, 2), mixed, value: linear(WIDTH, 1, device) }
    }

    fn forward(&self, state: Tensor<2>, action: Tensor<2>) -> Tensor<2> {
        let mixed = activation::relu(self.mixed.forward(Tensor::cat(vec![state, action], 1)));
        self.value.forward(self.net.forward(mixed))
    }
}

#[derive(Module, Debug)]
struct Actor {
    net: Net,
    moves: Linear,
}

impl Actor {
    /// A random action, and its probability.
    fn act(&self, state: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let parts = self.moves.forward(self.net.forward(state)).chunk(2, 1);
        let (mean, spread) = (parts[0].clone(), parts[1].clone().clamp(-4.0, 1.0));
        let noise = mean.random_like(Distribution::Normal(0.0, 1.0));
        let action = activation::tanh(mean + spread.clone().exp() * noise.clone());
        let squashed = (action.clone().powf_scalar(2.0).neg() + 1.0 + 1e-6).log();
        (action, (noise.powf_scalar(2.0) * -0.5 - spread - squashed).sum_dim(1))
    }
}

/// Past experience, in a ring buffer on the device: states, actions and resulting states.
struct Ring {
    states: Tensor<2>,
    moves: Tensor<2>,
    nexts: Tensor<2>,
}

impl Ring {
    fn new(device: &Device) -> Self {
        let zeros = |width| Tensor::zeros([512, width], device);
        Self { states: zeros(WIDTH), moves: zeros(4), nexts: zeros(WIDTH) }
    }

    fn put(&mut self, at: usize, state: Tensor<2>, action: Tensor<2>, next: Tensor<2>) {
        let rows = at..at + state.dims()[0];
        self.states.inplace(|all| all.slice_assign(s![rows.clone(), ..], state));
        self.moves.inplace(|all| all.slice_assign(s![rows.clone(), ..], action));
        self.nexts.inplace(|all| all.slice_assign(s![rows.clone(), ..], next));
    }

    fn drawn(&self, device: &Device) -> [Tensor<2>; 3] {
        let rows: Tensor<1, Int> = Tensor::random([ROWS / 2], Distribution::Uniform(0.0, 512.0), device);
        let rows = rows.remainder_scalar(512);
        [&self.states, &self.moves, &self.nexts].map(|all| Tensor::from_inner(all.clone().select(0, rows.clone())))
    }
}

/// An agent and two critics, each with a copy that follows it, and the weight of randomness: four optimizers in each round.
pub fn twin_critics(device: &Device) -> Vec<Vec<u8>> {
    let plain = device.clone().inner();
    let mut actor = Actor { net: Net::new(device, 3), moves: linear(WIDTH, 8, device) };
    let mut critics = [Critic::new(device), Critic::new(device)];
    let mut targets = [critics[0].valid(), critics[1].valid()];
    let mut warmth = linear(1, 1, device);
    let [mut actors, mut warmths] = [0, 1].map(|_| AdamConfig::new().init());
    let mut optimizers = [0, 1].map(|_| AdamWConfig::new().init());
    let mut ring = Ring::new(&plain);
    let mut state = input(0, 32, &plain);
    for round in 0..rounds() {
        begin_round(device);
        let (action, _) = actor.valid().act(state.clone());
        let next = activation::tanh(state.clone().roll(&[1], &[1]) + action.clone().repeat_dim(1, WIDTH / 4) * 0.3);
        ring.put(32 * (round % 16), state, action, next.clone());
        state = next;
        let [seen, done, then] = ring.drawn(&plain);
        let (after, odds) = actor.valid().act(then.clone().inner());
        let worth = warmth.valid().forward(Tensor::ones([1, 1], &plain)).exp();
        let [one, other] = [0, 1].map(|at| targets[at].forward(then.clone().inner(), after.clone()));
        let gain = then.inner().narrow(1, 0, 1).abs();
        let wanted: Tensor<2> = Tensor::from_inner(gain + (one.min_pair(other) - odds * worth.clone() * 0.1) * 0.9);
        let losses =
            [0, 1].map(|at| (critics[at].forward(seen.clone(), done.clone()) - wanted.clone()).powf_scalar(2.0).mean());
        for (at, loss) in losses.into_iter().enumerate() {
            let gradients = GradientsParams::from_grads(loss.backward(), &critics[at]);
            critics[at] = optimizers[at].step(1e-3, critics[at].clone(), gradients);
        }
        let (action, odds) = actor.act(seen.clone());
        let [one, other] = [0, 1].map(|at| critics[at].forward(seen.clone(), action.clone()));
        let loss = (odds.clone() * Tensor::from_inner(worth) * 0.1 - one.min_pair(other)).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &actor);
        actor = actors.step(1e-3, actor, gradients);
        let colder = warmth.forward(Tensor::ones([1, 1], device)) * (odds.detach() - 4.0).mean().reshape([1, 1]);
        let gradients = GradientsParams::from_grads(colder.neg().backward(), &warmth);
        warmth = warmths.step(1e-3, warmth, gradients);
        for (target, critic) in targets.iter_mut().zip(&critics) {
            *target = target.clone().map(&mut Following(Collected::of(critic).0));
        }
    }
    let values = critics.iter().chain(&targets).map(|critic| bytes(critic.value.weight.val()));
    weights(&actor.net).into_iter().chain(values).chain([bytes(warmth.weight.val()), bytes(state)]).collect()
}
