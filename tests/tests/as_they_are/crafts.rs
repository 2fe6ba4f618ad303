//! Training methods with loops of their own: models that write, grow, match, look things up, guess twice and dream, each as its papers describe it.

use std::collections::VecDeque;
use std::iter::repeat_n;

use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::{Initializer, Module, Param};
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::gru::{Gru, GruConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::*;
use burn::nn::{BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, PaddingConfig2d};
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Distribution, IndexingUpdateOp, Int, Tensor, activation};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, chance, filled, input, labels, linear, numbers, rounds, weights};

/// One update by a loss.
fn learn<M: Module>(optimizer: &mut ModuleOptimizer, rate: f64, model: M, loss: Tensor<1>) -> M {
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    optimizer.step(rate, model, gradients)
}

const WORDS: usize = 24;
const ASKED: usize = 4;
const SAID: usize = 16;
const GROUP: usize = 4;

#[derive(Module, Debug)]
struct Speaker {
    words: Embedding,
    body: TransformerEncoder,
    head: Linear,
}

impl Speaker {
    fn new(device: &Device) -> Self {
        let body = TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 4, 2).with_norm_first(true).with_dropout(0.0);
        let words = EmbeddingConfig::new(WORDS, WIDTH).init(device);
        Self { words, body: body.init(device), head: linear(WIDTH, WORDS, device) }
    }

    fn ready(&self, text: Tensor<2, Int>) -> TransformerEncoderInput {
        let ([rows, length], device) = (text.dims(), text.device());
        TransformerEncoderInput::new(self.words.forward(text))
            .mask_attn(generate_autoregressive_mask(rows, length, &device))
    }

    /// The probability of each answer word.
    fn odds(&self, text: Tensor<2, Int>) -> Tensor<2> {
        let seen = self.body.forward(self.ready(text.clone())).narrow(1, ASKED - 1, SAID - ASKED);
        let odds = activation::log_softmax(self.head.forward(seen), 2);
        odds.gather(2, text.narrow(1, ASKED, SAID - ASKED).unsqueeze_dim(2)).squeeze_dim(2)
    }

    /// Answers to questions, word by word, each based on the words before.
    fn answer(&self, mut text: Tensor<2, Int>) -> Tensor<2, Int> {
        let mut cache = self.body.new_autoregressive_cache();
        for length in ASKED..SAID {
            let seen = self.body.forward_autoregressive_inference(self.ready(text.clone()), &mut cache);
            let last: Tensor<2> = seen.narrow(1, length - 1, 1).squeeze_dim(1);
            let word = activation::softmax(self.head.forward(last), 1).categorical(1);
            text = Tensor::cat(vec![text, word], 1);
        }
        text
    }
}

/// Answers that are better than the others to the same question become more likely; if all are about as good, nothing is learned.
pub(super) fn rewarded(device: &Device) -> Vec<Vec<u8>> {
    let plain = device.clone().inner();
    let mut speaker = Speaker::new(device);
    let reference = speaker.valid();
    let (mut optimizer, mut log) = (AdamWConfig::new().init(), vec![]);
    for round in 0..rounds() {
        begin_round(device);
        let asked = |at: usize| (chance(round, 8 * (at / ASKED / GROUP) + at % ASKED) % WORDS) as i64;
        let asked = numbers((0..6 * GROUP * ASKED).map(asked), &plain).reshape([6 * GROUP, ASKED]);
        let text = speaker.valid().answer(asked);
        let said: Vec<i64> = text.to_data().iter::<i64>().collect();
        let good = |text: &[i64]| text[ASKED..].iter().filter(|&word| word % 4 == text[0] % 4).count() as f32;
        let rewards: Vec<f32> = said.chunks(SAID).map(good).collect();
        let (mut rows, mut gains) = (vec![], vec![]);
        for (at, group) in rewards.chunks(GROUP).enumerate() {
            let mean = group.iter().sum::<f32>() / GROUP as f32;
            let spread = (group.iter().map(|reward| (reward - mean).powi(2)).sum::<f32>() / GROUP as f32).sqrt();
            if spread > 1.0 {
                rows.extend((0..GROUP).map(|row| (GROUP * at + row) as i64));
                gains.extend(group.iter().map(|reward| (reward - mean) / spread));
            }
        }
        log.push(rewards.iter().sum::<f32>().to_le_bytes().to_vec());
        if rows.is_empty() {
            continue;
        }
        let text = text.select(0, numbers(rows.into_iter(), &plain));
        let [before, usual] =
            [speaker.valid().odds(text.clone()), reference.odds(text.clone())].map(Tensor::from_inner);
        let gains: Tensor<2> = Tensor::<1>::from_floats(gains.as_slice(), device).unsqueeze_dim(1);
        for _ in 0..2 {
            let odds = speaker.odds(Tensor::from_inner(text.clone()));
            let ratio: Tensor<2> = (odds.clone() - before.clone()).exp();
            let gained = (ratio.clone() * gains.clone()).min_pair(ratio.clamp(0.8, 1.2) * gains.clone());
            let away: Tensor<2> = usual.clone() - odds;
            let loss = (away.clone().exp() - away - 1.0).mean() * 0.04 - gained.mean();
            speaker = learn(&mut optimizer, 1e-3, speaker, loss);
        }
    }
    log.into_iter().chain([bytes(speaker.head.weight.val()), bytes(speaker.words.weight.val())]).collect()
}

const LAYERS: usize = 12;
const SIDE: usize = 12;

/// Half of the cells change according to their surroundings; those without a living cell nearby die.
fn changed([around, within, change]: &[Conv2d; 3], x: Tensor<4>) -> Tensor<4> {
    let pooling = || MaxPoolOptions::new([3, 3]).with_stride([1, 1]).with_padding([1, 1]);
    let alive = |x: &Tensor<4>| max_pool2d(x.clone().narrow(1, 3, 1), pooling()).greater_elem(0.1);
    let (before, shape) = (alive(&x), x.dims());
    let change = change.forward(activation::relu(within.forward(around.forward(x.clone()))));
    let awake = Tensor::random([shape[0], 1, SIDE, SIDE], Distribution::Bernoulli(0.5), &x.device());
    let x = x + change * awake;
    let dead = before.bool_and(alive(&x)).bool_not();
    x.mask_fill(dead.expand(shape), 0.0)
}

/// Cells that grow from a seed into an image, over any number of steps; what has grown goes back to a pool, and some of it is damaged later.
pub(super) fn automaton(device: &Device) -> Vec<Vec<u8>> {
    let plain = device.clone().inner();
    let one = |channels| Conv2dConfig::new(channels, [1, 1]).init(device);
    let around = Conv2dConfig::new([LAYERS, 3 * LAYERS], [3, 3]).with_groups(LAYERS);
    let around = around.with_padding(PaddingConfig2d::Same).init(device);
    let mut cells = [around, one([3 * LAYERS, 32]), one([32, LAYERS])];
    let seed: Tensor<4> = Tensor::zeros([1, LAYERS, SIDE, SIDE], &plain).slice_fill([0..1, 3..12, 6..7, 6..7], 1.0);
    let mut pool = seed.clone().repeat_dim(0, 32);
    let target: Tensor<4> = filled(1, [1, 4, SIDE, SIDE], device).abs();
    let mut optimizer = AdamConfig::new().init().with_grad_clipping(GradientClippingConfig::Norm(0.1).init());
    let mut log = vec![];
    let far = |x: Tensor<4>, target: Tensor<4>| (x.narrow(1, 0, 4) - target).powf_scalar(2.0).mean_dims(&[1, 2, 3]);
    for round in 0..rounds() {
        begin_round(device);
        let drawn = numbers((0..4).map(|at| (8 * at + chance(round, at) % 8) as i64), &plain);
        let before = pool.clone().select(0, drawn.clone());
        let order: Tensor<1, Int> = far(before.clone(), target.clone().inner()).reshape([4]).argsort_descending(0);
        let (drawn, before) = (drawn.select(0, order.clone()), before.select(0, order));
        let mut x = Tensor::cat(vec![seed.clone(), before.clone().narrow(0, 1, 3)], 0);
        if round % 3 == 2 {
            let [top, left] = [10, 11].map(|at| chance(round, at) % 7);
            x = x.slice_fill([3..4, 0..LAYERS, top..top + 5, left..left + 5], 0.0);
        }
        let mut grown: Tensor<4> = Tensor::from_inner(x);
        for _ in 0..6 + chance(round, 9) % 5 {
            grown = changed(&cells, grown);
        }
        let loss = far(grown.clone(), target.clone()).mean();
        log.push(bytes(loss.clone()));
        cells = learn(&mut optimizer, 2e-3, cells, loss);
        pool = pool.select_assign(0, drawn, grown.inner() - before, IndexingUpdateOp::Add);
    }
    log.into_iter().chain([bytes(cells[1].weight.val()), bytes(pool)]).collect()
}

const QUERIES: usize = 12;

#[derive(Module, Debug)]
struct Finder {
    queries: Param<Tensor<2>>,
    layers: Vec<TransformerDecoder>,
    found: Linear,
}

/// Which answer belongs to which object: for each object in turn, the cheapest remaining answer in its image.
fn matched(costs: &[f32], owners: &[usize]) -> Vec<i64> {
    let mut answers: Vec<usize> = vec![];
    for (at, owner) in owners.iter().enumerate() {
        let left = (owner * QUERIES..(owner + 1) * QUERIES).filter(|row| !answers.contains(row));
        let cost = |row: usize| costs[row * owners.len() + at];
        answers.push(left.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap());
    }
    answers.into_iter().map(|row| row as i64).collect()
}

/// Positions of a few objects in each image: which answer belongs to which of them is decided on the host, after every layer.
pub(super) fn finder(device: &Device) -> Vec<Vec<u8>> {
    let layer = |_| TransformerDecoderConfig::new(WIDTH, 2 * WIDTH, 4, 1).init(device);
    let mut model = Finder {
        queries: Initializer::Normal { mean: 0.0, std: 1.0 }.init([QUERIES, WIDTH], device),
        layers: (0..3).map(layer).collect(),
        found: linear(WIDTH, 5, device),
    };
    let mut optimizer = AdamWConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let owners: Vec<usize> = (0..4).flat_map(|at| repeat_n(at, 1 + chance(round, at) % 5)).collect();
        let places: Tensor<2> = filled(round, [owners.len(), 4], device) + 0.5;
        let seen: Tensor<3> = filled(round, [4, 40, WIDTH], device);
        let mut asked: Tensor<3> = model.queries.val().expand([4, QUERIES, WIDTH]);
        let mut loss: Tensor<1> = Tensor::zeros([1], device);
        for layer in &model.layers {
            asked = layer.forward(TransformerDecoderInput::new(asked, seen.clone()));
            let found = model.found.forward(asked.clone().reshape([4 * QUERIES, WIDTH]));
            let (boxes, there) = (activation::sigmoid(found.clone().narrow(1, 0, 4)), found.narrow(1, 4, 1));
            let apart = boxes.clone().detach().unsqueeze_dim::<3>(1) - places.clone().unsqueeze_dim::<3>(0);
            let costs = apart.abs().sum_dim(2).squeeze_dim::<2>(2) - there.clone().detach();
            let costs: Vec<f32> = costs.into_data().try_into_vec().unwrap();
            let answers = numbers(matched(&costs, &owners).into_iter(), device);
            loss =
                loss + activation::softplus(there.clone(), 1.0).mean() - there.select(0, answers.clone()).mean() * 0.3;
            loss = loss + (boxes.select(0, answers) - places.clone()).abs().mean() * 5.0;
        }
        model = learn(&mut optimizer, 1e-3, model, loss);
    }
    vec![bytes(model.queries.val()), bytes(model.found.weight.val())]
}

const ENTRIES: usize = 48;

/// Rows are composed of entries of a codebook, which follow the values nearest to them by moving averages; unused entries are moved elsewhere.
pub(super) fn codebook(device: &Device) -> Vec<Vec<u8>> {
    let mut coder = [4, 4].map(|layers| Net::new(device, layers));
    let (mut optimizer, mut log, plain) = (AdamConfig::new().init(), vec![], device.clone().inner());
    let mut book: Tensor<2> = Tensor::random([ENTRIES, WIDTH], Distribution::Normal(0.0, 0.3), &plain);
    let (mut counts, mut sums) = (Tensor::<2>::ones([ENTRIES, 1], &plain), book.clone());
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let code = coder[0].forward(x.clone());
        let still = code.clone().inner();
        let products = still.clone().matmul(book.clone().transpose()) * 2.0;
        let apart = book.clone().powf_scalar(2.0).sum_dim(1).transpose() - products;
        let nearest: Tensor<1, Int> = apart.argmin(1).reshape([ROWS]);
        let entries: Tensor<2> = Tensor::from_inner(book.clone().select(0, nearest.clone()));
        let commitment = (code.clone() - entries.clone()).powf_scalar(2.0).mean();
        let through = code.clone() + (entries - code).detach();
        let loss = (coder[1].forward(through) - x).powf_scalar(2.0).mean() + commitment * 0.25;
        coder = learn(&mut optimizer, 2e-3, coder, loss);
        let hot: Tensor<2> = nearest.one_hot(ENTRIES).float();
        counts = counts * 0.9 + hot.clone().sum_dim(0).transpose() * 0.1;
        sums = sums * 0.9 + hot.transpose().matmul(still.clone()) * 0.1;
        if round % 4 == 3 {
            let used: Vec<f32> = counts.to_data().try_into_vec().unwrap();
            for (at, _) in used.iter().enumerate().filter(|(_, used)| **used < 0.5) {
                let row = still.clone().narrow(0, chance(round, at) % ROWS, 1);
                sums = sums.slice_assign([at..at + 1, 0..WIDTH], row);
                counts = counts.slice_fill([at..at + 1, 0..1], 1.0);
                log.push(vec![at as u8]);
            }
        }
        book = sums.clone() / (counts.clone() + 1e-5);
    }
    log.into_iter().chain([bytes(book)]).chain(coder.iter().flat_map(weights)).collect()
}

/// Noise is removed; in half of the rounds a first guess, made without gradients, is used as well.
pub(super) fn second_try(device: &Device) -> Vec<Vec<u8>> {
    let mut model = (linear(2 * WIDTH + 1, WIDTH, device), Net::new(device, 7));
    let cleaned = |(join, net): &(Linear, Net), parts: Vec<Tensor<2>>| net.forward(join.forward(Tensor::cat(parts, 1)));
    let mut optimizer = AdamWConfig::new().init();
    let mut rates = CosineAnnealingLrSchedulerConfig::new(2e-3, rounds()).init().unwrap();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let level: Tensor<2> = Tensor::random([ROWS, 1], Distribution::Uniform(0.05, 1.5), device);
        let noise = x.random_like(Distribution::Normal(0.0, 0.5));
        let noisy = x.clone() * level.clone().cos() + noise * level.clone().sin();
        let mut guess = x.zeros_like();
        if chance(round, 1).is_multiple_of(2) {
            let parts = [&noisy, &guess, &level].map(|x| x.clone().inner()).to_vec();
            guess = Tensor::from_inner(cleaned(&model.valid(), parts));
        }
        let loss = (cleaned(&model, vec![noisy, guess, level]) - x).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(rates.step(), model, gradients);
    }
    weights(&model.1)
}

const NEAR: usize = 8;

#[derive(Module, Debug)]
struct Cloud {
    layers: Vec<Linear>,
    norms: Vec<BatchNorm>,
    head: Linear,
}

impl Cloud {
    /// Each layer connects every point to those that are nearest in the previous layer's features.
    fn forward(&self, mut x: Tensor<3>) -> Tensor<2> {
        let ([count, points, _], device) = (x.dims(), x.device());
        let firsts = (Tensor::<1, Int>::arange(0..count as i64, &device) * points as i64).reshape([count, 1, 1]);
        for (layer, norm) in self.layers.iter().zip(&self.norms) {
            let [from, to] = layer.weight.dims();
            let squares = x.clone().powf_scalar(2.0).sum_dim(2);
            let alike = x.clone().matmul(x.clone().transpose()) * 2.0 - squares.clone() - squares.transpose();
            let (_, nearest) = alike.detach().topk_with_indices(NEAR, 2);
            let flat: Tensor<2> = x.reshape([count * points, from / 2]);
            let others = flat.clone().select(0, (nearest + firsts.clone()).reshape([count * points * NEAR]));
            let own = flat.unsqueeze_dim::<3>(1).repeat_dim(1, NEAR).reshape([count * points * NEAR, from / 2]);
            let seen = norm.forward(layer.forward(Tensor::cat(vec![own.clone(), others - own], 1)));
            x = activation::leaky_relu(seen, 0.2).reshape([count, points, NEAR, to]).max_dim(2).squeeze_dim(2);
        }
        self.head.forward(x.max_dim(1).squeeze_dim(1))
    }
}

/// Classifies point clouds, of which each round has more or fewer; they are rotated at random, and sometimes evaluated without rotation.
pub(super) fn cloud(device: &Device) -> Vec<Vec<u8>> {
    let layers = [[6, 16], [32, 24], [48, 32]].map(|[from, to]| linear(from, to, device)).to_vec();
    let norms = [16, 24, 32].map(|width| BatchNormConfig::new(width).init(device)).to_vec();
    let mut model = Cloud { layers, norms, head: linear(32, 8, device) };
    let (mut optimizer, mut log) = (SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init(), vec![]);
    let cross_entropy = CrossEntropyLossConfig::new().with_smoothing(Some(0.2)).init(device);
    for round in 0..rounds() {
        begin_round(device);
        let x: Tensor<3> = filled(round, [8, 48 + 16 * (chance(round, 0) % 3), 3], device);
        let turn = Tensor::random([8, 3, 3], Distribution::Normal(0.0, 0.5), device);
        let loss = cross_entropy.forward(model.forward(x.matmul(turn)), labels(round, 8, 8, device));
        model = learn(&mut optimizer, 1e-2, model, loss);
        if round % 6 == 5 {
            log.push(bytes(model.valid().forward(filled(round, [16, 64, 3], &device.clone().inner()))));
        }
    }
    let means = model.norms.iter().map(|norm| bytes(norm.running_mean.value()));
    means.chain(model.layers.iter().map(|layer| bytes(layer.weight.val()))).chain(log).collect()
}

/// A stack of stages, each with a loss and an optimizer of its own, trained on the output of the one below; no gradient goes from one to another.
pub(super) fn stages(device: &Device) -> Vec<Vec<u8>> {
    let mut stages = [3, 3, 3, 3].map(|layers| (Net::new(device, layers), linear(WIDTH, 10, device)));
    let mut optimizers = [0, 1, 2, 3].map(|_| AdamConfig::new().init());
    let (cross_entropy, mut log) = (CrossEntropyLossConfig::new().init(device), vec![]);
    for round in 0..rounds() {
        begin_round(device);
        let mut x = input(round, ROWS, device);
        for (stage, optimizer) in stages.iter_mut().zip(&mut optimizers) {
            let seen = stage.0.forward(x);
            let loss = cross_entropy.forward(stage.1.forward(seen.clone()), labels(round, ROWS, 10, device));
            log.push(bytes(loss.clone()));
            *stage = learn(optimizer, 1e-3, stage.clone(), loss);
            x = seen.detach();
        }
    }
    log.into_iter().chain(stages.iter().flat_map(|stage| weights(&stage.0))).collect()
}

/// Three of eight clients train a copy each, as long as their data lasts, and stay near the server's weights; those become the average of the copies.
pub(super) fn clients(device: &Device) -> Vec<Vec<u8>> {
    let mut server = Net::new(device, 7);
    for round in 0..rounds() {
        begin_round(device);
        let mut copies = vec![];
        for at in 0..3 {
            let (client, mut net, mut optimizer) = (chance(round, at) % 8, server.clone(), SgdConfig::new().init());
            for batch in 0..1 + client % 3 {
                let pairs = net.layers.iter().zip(&server.layers);
                let strayed = pairs.map(|(own, old)| own.weight.val() - old.weight.val().detach());
                let strayed = strayed.map(|way| way.powf_scalar(2.0).sum()).reduce(|a, b| a + b).unwrap();
                let loss = net.loss(input(10 * client + batch, ROWS / 4 * (1 + client % 2), device)) + strayed * 0.01;
                net = learn(&mut optimizer, 2e-2, net, loss);
            }
            copies.push(net);
        }
        for (at, layer) in server.layers.iter_mut().enumerate() {
            let sum = copies.iter().map(|copy| copy.layers[at].weight.val().inner()).reduce(|a, b| a + b).unwrap();
            layer.weight = layer.weight.clone().map(|_| Tensor::from_inner(sum / 3.0).require_grad());
        }
    }
    weights(&server)
}

/// A critic learns three times per round, with a penalty on its slope between data and generated samples, by finite differences; then the generator learns.
pub(super) fn steepness(device: &Device) -> Vec<Vec<u8>> {
    let (mut maker, mut critic) = (Net::new(device, 5), Net::new(device, 4));
    let [mut makers, mut critics] = [0, 1].map(|_| AdamConfig::new().with_beta_1(0.0).init());
    let noise = || Tensor::random([ROWS / 2, WIDTH], Distribution::Normal(0.0, 1.0), device);
    let judged = |critic: &Net, x: Tensor<2>| critic.forward(x).mean_dim(1);
    for round in 0..rounds() {
        begin_round(device);
        for part in 0..3 {
            let data = input(3 * round + part, ROWS / 2, device);
            let made: Tensor<2> = Tensor::from_inner(maker.valid().forward(noise().inner()));
            let share = Tensor::random([ROWS / 2, 1], Distribution::Uniform(0.0, 1.0), device);
            let between = made.clone() + (data.clone() - made.clone()) * share;
            let way = noise();
            let way = way.clone() / way.powf_scalar(2.0).sum_dim(1).sqrt();
            let rise = (judged(&critic, between.clone() + way * 0.01) - judged(&critic, between)) * 100.0;
            let penalty = (rise.abs() - 1.0).powf_scalar(2.0).mean();
            let loss = judged(&critic, made).mean() - judged(&critic, data).mean() + penalty;
            critic = learn(&mut critics, 1e-3, critic, loss);
        }
        let loss = judged(&critic, maker.forward(noise())).mean().neg();
        maker = learn(&mut makers, 1e-3, maker, loss);
    }
    weights(&maker).into_iter().chain(weights(&critic)).collect()
}

const SEEN: usize = 24;
const DEEP: usize = 48;

#[derive(Module, Debug)]
struct World {
    memory: Gru,
    show: Linear,
    gain: Linear,
}

impl World {
    fn next(&self, state: Tensor<2>, seen: Tensor<2>, action: Tensor<2>) -> Tensor<2> {
        self.memory.forward(Tensor::cat(vec![seen, action], 1).unsqueeze_dim(1), Some(state)).squeeze_dim(1)
    }
}

/// A model of a world learns from stored episodes; an agent learns in dreams that start anywhere in them, by gradients through the model.
pub(super) fn dreams(device: &Device) -> Vec<Vec<u8>> {
    let plain = device.clone().inner();
    let memory = GruConfig::new(SEEN + 4, DEEP, true).init(device);
    let mut world = World { memory, show: linear(DEEP, SEEN, device), gain: linear(DEEP, 1, device) };
    let (mut player, mut critic) = (linear(DEEP, 4, device), linear(DEEP, 1, device));
    let [mut worlds, mut players, mut critics] = [0, 1, 2].map(|_| AdamConfig::new().init());
    let mut memories: VecDeque<[Tensor<3>; 2]> = VecDeque::new();
    for round in 0..rounds() {
        begin_round(device);
        let (awake, playing) = (world.valid(), player.valid());
        let (mut place, mut state) = (filled::<2>(round, [16, SEEN], &plain), Tensor::zeros([16, DEEP], &plain));
        let (mut seen, mut moves) = (vec![], vec![]);
        for _ in 0..7 {
            let noise = Tensor::random([16, 4], Distribution::Normal(0.0, 0.2), &plain);
            let action = activation::tanh(playing.forward(state.clone()) + noise);
            seen.push(place.clone());
            moves.push(action.clone());
            state = awake.next(state, place.clone(), action.clone());
            place = activation::tanh(place.roll(&[1], &[1]) + action.repeat_dim(1, SEEN / 4) * 0.5);
        }
        memories.push_front([Tensor::stack(seen, 1), Tensor::stack(moves, 1)]);
        memories.truncate(8);
        let drawn = labels(round, 40, 16 * memories.len(), &plain);
        let of = |at: usize| Tensor::cat(memories.iter().map(|memory| memory[at].clone()).collect(), 0);
        let [seen, moves] = [0, 1].map(|at| Tensor::<3>::from_inner(of(at).select(0, drawn.clone())));
        let states = world.memory.forward(Tensor::cat(vec![seen.clone(), moves], 2), None);
        let states = states.narrow(1, 0, 6).reshape([240, DEEP]);
        let wanted = seen.narrow(1, 1, 6).reshape([240, SEEN]);
        let gained = world.gain.forward(states.clone()) - wanted.clone().narrow(1, 0, 1);
        let loss =
            (world.show.forward(states.clone()) - wanted).powf_scalar(2.0).mean() + gained.powf_scalar(2.0).mean();
        world = learn(&mut worlds, 2e-3, world, loss);
        let still = world.clone().no_grad();
        let (mut state, mut dream) = (states.detach(), vec![]);
        for _ in 0..5 {
            let action = activation::tanh(player.forward(state.clone()));
            state = still.next(state.clone(), still.show.forward(state), action);
            dream.push(state.clone());
        }
        let (mut worth, mut worths) = (critic.forward(state), vec![]);
        for state in dream.iter().rev() {
            worth = still.gain.forward(state.clone()) + worth * 0.9;
            worths.insert(0, worth.clone());
        }
        let (dream, worths) = (Tensor::cat(dream, 0).detach(), Tensor::cat(worths, 0));
        player = learn(&mut players, 1e-3, player, worths.clone().mean().neg());
        let loss = (critic.forward(dream) - worths.detach()).powf_scalar(2.0).mean();
        critic = learn(&mut critics, 1e-3, critic, loss);
    }
    vec![bytes(world.gain.weight.val()), bytes(player.weight.val()), bytes(critic.weight.val())]
}
