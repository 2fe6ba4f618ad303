//! Further kinds of training: several gradients at once, several models at once, decisions on the host, and results that are assembled in a loop.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool1d, AdaptiveAvgPool1dConfig, MaxPool1d, MaxPool1dConfig};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, Linear,
};
use burn::optim::*;
use burn::tensor::{Device, Int, Tensor, activation};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, chance, filled, input, labels, linear, numbers, rounds, weights};

#[derive(Module, Debug)]
struct Tasks {
    trunk: Net,
    heads: Vec<Linear>,
}

/// Sums the gradients of tasks, each without its component against another one.
struct Reconciled<'a> {
    tasks: &'a [GradientsParams],
    order: [usize; 3],
    sum: GradientsParams,
}

impl ModuleVisitor for Reconciled<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let all: Vec<Option<Tensor<D>>> = self.tasks.iter().map(|task| task.get::<D>(param.id)).collect();
        let mut sum: Option<Tensor<D>> = None;
        for (at, own) in all.iter().enumerate() {
            let Some(mut own) = own.clone() else { continue };
            for other in self.order.into_iter().filter(|&other| other != at).filter_map(|other| all[other].clone()) {
                let against = (own.clone() * other.clone()).sum().clamp_max(0.0);
                let share = against / (other.clone().powf_scalar(2.0).sum() + 1e-12);
                own = own - other * share.reshape([1; D]);
            }
            sum = Some(match sum {
                Some(sum) => sum + own,
                None => own,
            });
        }
        if let Some(sum) = sum {
            self.sum.register(param.id, sum);
        }
    }
}

/// Three tasks with a forward and a backward pass each; if the gradients of two conflict, they are reconciled, in random order.
pub fn reconciled(device: &Device) -> Vec<Vec<u8>> {
    let heads = (0..3).map(|_| linear(WIDTH, 8, device)).collect();
    let mut model = Tasks { trunk: Net::new(device, 6), heads };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let mut tasks = vec![];
        for task in 0..3 {
            let x = input(3 * round + task, ROWS / 2, device);
            let out = model.heads[task].forward(model.trunk.forward(x.clone()));
            let wanted = x.narrow(1, 8 * task, 8);
            let loss = match task {
                0 => (out - wanted).powf_scalar(2.0).mean(),
                1 => (out - wanted.neg()).abs().mean(),
                _ => (activation::softplus(out.clone(), 1.0) - out * wanted).mean(),
            };
            tasks.push(GradientsParams::from_grads(loss.backward(), &model));
        }
        let order = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]][chance(round, 0) % 4];
        let mut reconciled = Reconciled { tasks: &tasks, order, sum: GradientsParams::new() };
        model.visit(&mut reconciled);
        let sum = reconciled.sum;
        model = optimizer.step(1e-3, model, sum);
    }
    weights(&model.trunk).into_iter().chain(model.heads.iter().map(|head| bytes(head.weight.val()))).collect()
}

#[derive(Module, Debug)]
struct Attentive {
    attention: Vec<MultiHeadAttention>,
    norm: LayerNorm,
    dropout: Dropout,
    head: Linear,
}

impl Attentive {
    fn new(device: &Device) -> Self {
        let attention = |_| MultiHeadAttentionConfig::new(WIDTH, 4).init(device);
        Self {
            attention: (0..2).map(attention).collect(),
            norm: LayerNormConfig::new(WIDTH).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            head: linear(WIDTH, 10, device),
        }
    }

    fn loss(&self, x: Tensor<3>, labels: Tensor<1, Int>) -> Tensor<1> {
        let mut x = x;
        for attention in &self.attention {
            let seen = attention.forward(MhaInput::self_attn(self.norm.forward(x.clone()))).context;
            x = x + self.dropout.forward(activation::gelu(seen));
        }
        let seen: Tensor<2> = x.mean_dim(1).squeeze_dim(1);
        CrossEntropyLossConfig::new().init(&seen.device()).forward(self.head.forward(seen), labels)
    }
}

/// A member of a population.
struct Member {
    model: Attentive,
    optimizer: ModuleOptimizer,
    rate: f64,
}

/// Three models in turns, at different rates. Occasionally all are evaluated, and the worst continues from the best one's weights at another rate.
pub fn population(device: &Device) -> Vec<Vec<u8>> {
    let member = |rate| Member { model: Attentive::new(device), optimizer: AdamWConfig::new().init(), rate };
    let mut members = [1e-4, 1e-3, 5e-3].map(member);
    let mut log = vec![];
    let batch = |round: usize, device: &Device| {
        let x: Tensor<3> = input(round, 8 * 24, device).reshape([8, 24, WIDTH]);
        (x, labels(round, 8, 10, device))
    };
    for round in 0..rounds() {
        begin_round(device);
        let member = &mut members[round % 3];
        let (x, labels) = batch(round, device);
        let gradients = GradientsParams::from_grads(member.model.loss(x, labels).backward(), &member.model);
        member.model = member.optimizer.step(member.rate, member.model.clone(), gradients);
        if round % 9 != 8 {
            continue;
        }
        let tried = |member: &Member| -> f32 {
            let (x, labels) = batch(1000, &device.clone().inner());
            member.model.valid().loss(x, labels).into_scalar()
        };
        let losses: Vec<f32> = members.iter().map(tried).collect();
        let mut order = [0, 1, 2];
        order.sort_by(|&a, &b| losses[a].total_cmp(&losses[b]));
        let (model, rate) = (members[order[0]].model.clone(), members[order[0]].rate);
        let rate = if chance(round, 0).is_multiple_of(2) { rate * 1.25 } else { rate * 0.8 };
        members[order[2]] = Member { model, optimizer: AdamWConfig::new().init(), rate };
        log.extend(losses.iter().map(|loss| loss.to_le_bytes().to_vec()));
    }
    let heads = members.iter().map(|member| bytes(member.model.head.weight.val()));
    heads.chain(members.iter().map(|member| bytes(member.model.attention[0].query.weight.val()))).chain(log).collect()
}

const WORDS: usize = 40;

#[derive(Module, Debug)]
struct Captioner {
    eyes: Vec<Conv2d>,
    start: Linear,
    words: Embedding,
    gates: Linear,
    new: Linear,
    say: Linear,
}

impl Captioner {
    fn new(device: &Device) -> Self {
        let eye = |channels| Conv2dConfig::new(channels, [3, 3]).with_stride([2, 2]).init(device);
        Self {
            eyes: vec![eye([1, 8]), eye([8, 16])],
            start: linear(16 * 3 * 3, WIDTH, device),
            words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
            gates: linear(2 * WIDTH, 2 * WIDTH, device),
            new: linear(2 * WIDTH, WIDTH, device),
            say: linear(WIDTH, WORDS, device),
        }
    }

    fn see(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.eyes.iter().fold(x, |x, eye| activation::relu(eye.forward(x)));
        activation::tanh(self.start.forward(x.flatten(1, 3)))
    }

    /// A gated recurrent unit.
    fn next(&self, word: Tensor<1, Int>, state: Tensor<2>) -> Tensor<2> {
        let word: Tensor<2> = self.words.forward(word.unsqueeze_dim(1)).squeeze_dim(1);
        let gates = activation::sigmoid(self.gates.forward(Tensor::cat(vec![word.clone(), state.clone()], 1)));
        let [reset, update] = [0, 1].map(|at| gates.clone().narrow(1, at * WIDTH, WIDTH));
        let new = activation::tanh(self.new.forward(Tensor::cat(vec![word, reset * state.clone()], 1)));
        new.clone() + update * (state - new)
    }
}

/// Sentences about images. What was generated is read, word by word, and the host decides for each row whether it continues from that or from the right word.
pub fn captions(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Captioner::new(device);
    let mut optimizer = AdamConfig::new().init();
    let cross_entropy = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(device);
    let rows = 48;
    for round in 0..rounds() {
        begin_round(device);
        let mut state = model.see(filled(round, [rows, 1, 16, 16], device));
        let mut words = vec![0; rows];
        let mut losses = vec![];
        for at in 0..8 {
            state = model.next(numbers(words.iter().copied(), device), state);
            let said = model.say.forward(state.clone());
            let right: Vec<i64> = (0..rows).map(|row| (chance(round % 5, 64 * at + row) % WORDS) as i64).collect();
            let own: Vec<i64> = said.clone().detach().argmax(1).into_data().iter::<i64>().collect();
            losses.push(cross_entropy.forward(said, numbers(right.iter().copied(), device)));
            let trusted = |row: usize| chance(round, 5000 + 64 * at + row) % 100 < round;
            words = (0..rows).map(|row| if trusted(row) { own[row] } else { right[row] }).collect();
        }
        let loss = Tensor::cat(losses, 0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(2e-3, model, gradients);
    }
    vec![bytes(model.words.weight.val()), bytes(model.gates.weight.val()), bytes(model.eyes[0].weight.val())]
}

#[derive(Module, Debug)]
struct Ear {
    convs: Vec<Conv1d>,
    norms: Vec<GroupNorm>,
    halve: MaxPool1d,
    all: AdaptiveAvgPool1d,
    out: Linear,
}

impl Ear {
    fn new(device: &Device) -> Self {
        let conv = |[from, to]: [usize; 2]| Conv1dConfig::new(from, to, 7).with_dilation(2).init(device);
        Self {
            convs: [[1, 12], [12, 24], [24, 24]].map(conv).to_vec(),
            norms: [12, 24, 24].map(|channels| GroupNormConfig::new(4, channels).init(device)).to_vec(),
            halve: MaxPool1dConfig::new(2).with_stride(2).init(),
            all: AdaptiveAvgPool1dConfig::new(1).init(),
            out: linear(24, 16, device),
        }
    }

    fn hear(&self, x: Tensor<3>) -> Tensor<2> {
        let mut x = x;
        for (conv, norm) in self.convs.iter().zip(&self.norms) {
            x = self.halve.forward(activation::relu(norm.forward(conv.forward(x))));
        }
        let x = self.out.forward(self.all.forward(x).squeeze_dim(2));
        x.clone() / (x.powf_scalar(2.0).sum_dim(1).sqrt() + 1e-6)
    }
}

/// Pairs of windows of sound, each of its own length: those of one speaker must be near each other, the others at least a given distance apart.
pub fn sounds(device: &Device) -> Vec<Vec<u8>> {
    let mut ear = Ear::new(device);
    let mut optimizer = RmsPropConfig::new().init();
    let rows = 12;
    for round in 0..rounds() {
        begin_round(device);
        let window = |side: usize| {
            let length = 240 + 40 * (chance(round, side) % 5);
            filled(2 * round + side, [rows, 1, length], device)
        };
        let [left, right] = [0, 1].map(|side| ear.hear(window(side)));
        let same: Vec<i64> = (0..rows).map(|row| (chance(round, 10 + row) % 2) as i64).collect();
        let same: Tensor<2> = numbers(same.into_iter(), device).float().reshape([rows, 1]);
        let far = ((left - right).powf_scalar(2.0).sum_dim(1) + 1e-9).sqrt();
        let apart = activation::relu(far.clone().neg() + 1.0).powf_scalar(2.0);
        let loss = (same.clone() * far.powf_scalar(2.0) + (same.neg() + 1.0) * apart).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &ear);
        ear = optimizer.step(1e-3, ear, gradients);
    }
    ear.convs.iter().map(|conv| bytes(conv.weight.val())).chain([bytes(ear.out.weight.val())]).collect()
}

const CHUNK: usize = 32;

#[derive(Module, Debug)]
struct Chunked {
    ask: Linear,
    keys: Linear,
    values: Linear,
    wide: Linear,
    norm: LayerNorm,
}

impl Chunked {
    fn new(device: &Device) -> Self {
        let layer = || linear(WIDTH, WIDTH, device);
        let norm = LayerNormConfig::new(WIDTH).init(device);
        Self { ask: layer(), keys: layer(), values: layer(), wide: layer(), norm }
    }

    /// Attention chunk by chunk, using the largest score so far, the result accumulated relative to it, and the sum of the weights.
    fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let [rows, length, _] = x.dims();
        let seen = self.norm.forward(x.clone());
        let asked = self.ask.forward(seen.clone()) / 8.0;
        let device = x.device();
        let mut most: Tensor<3> = Tensor::full([rows, length, 1], -1e9, &device);
        let mut sum: Tensor<3> = Tensor::zeros([rows, length, 1], &device);
        let mut found: Tensor<3> = Tensor::zeros([rows, length, WIDTH], &device);
        for chunk in seen.split(CHUNK, 1) {
            let scores = asked.clone().matmul(self.keys.forward(chunk.clone()).transpose());
            let more = most.clone().max_pair(scores.clone().detach().max_dim(2));
            let (fade, shares) = ((most - more.clone()).exp(), (scores - more.clone()).exp());
            sum = sum * fade.clone() + shares.clone().sum_dim(2);
            found = found * fade + shares.matmul(self.values.forward(chunk));
            most = more;
        }
        let x = x + found / sum;
        x.clone() + activation::gelu(self.wide.forward(self.norm.forward(x)))
    }
}

/// Attention over as many chunks as a text has, assembled in a loop with a softmax that continues from chunk to chunk.
pub fn chunks(device: &Device) -> Vec<Vec<u8>> {
    let mut layers: Vec<Chunked> = (0..2).map(|_| Chunked::new(device)).collect();
    let mut optimizer = AdamWConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let length = CHUNK * (1 + chance(round, 0) % 4);
        let wanted: Tensor<3> = input(round, 2 * length, device).reshape([2, length, WIDTH]);
        let made = layers.iter().fold(wanted.clone(), |x, layer| layer.attend(x));
        let loss = (made - wanted.roll(&[1], &[1])).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &layers);
        layers = optimizer.step(1e-3, layers, gradients);
    }
    layers.iter().flat_map(|layer| [bytes(layer.ask.weight.val()), bytes(layer.values.weight.val())]).collect()
}

const USERS: usize = 120;
const ITEMS: usize = 160;

#[derive(Module, Debug)]
struct Recommender {
    users: Embedding,
    items: Embedding,
    tastes: Embedding,
    tower: Vec<Linear>,
    last: Linear,
    dropout: Dropout,
}

impl Recommender {
    fn scores(&self, users: Tensor<1, Int>, items: Tensor<1, Int>) -> Tensor<2> {
        let of = |table: &Embedding, ids: &Tensor<1, Int>| -> Tensor<2> {
            table.forward(ids.clone().unsqueeze_dim(1)).squeeze_dim(1)
        };
        let (user, item) = (of(&self.users, &users), of(&self.items, &items));
        let product = user.clone() * item.clone();
        let deep = Tensor::cat(vec![of(&self.tastes, &users), item], 1);
        let deep = self.tower.iter().fold(deep, |x, layer| self.dropout.forward(activation::relu(layer.forward(x))));
        self.last.forward(Tensor::cat(vec![product, deep], 1))
    }
}

/// Who likes what: matrix factors beside a tower of layers, against three negatives drawn by the host; occasionally also the best items for a user.
pub fn recommendations(device: &Device) -> Vec<Vec<u8>> {
    let table = |count| EmbeddingConfig::new(count, 32).init(device);
    let mut model = Recommender {
        users: table(USERS),
        items: table(ITEMS),
        tastes: table(USERS),
        tower: vec![linear(64, 64, device), linear(64, 32, device)],
        last: linear(64, 1, device),
        dropout: DropoutConfig::new(0.1).init(),
    };
    let (mut optimizer, mut log) = (AdaGradConfig::new().init(), vec![]);
    for round in 0..rounds() {
        begin_round(device);
        let users: Vec<usize> = (0..ROWS).map(|row| chance(round, row) % USERS).collect();
        let liked = |user: usize, at: usize| (user * 7 + at * 13) % ITEMS;
        let good: Vec<usize> = users.iter().enumerate().map(|(row, &user)| liked(user, row % 9)).collect();
        let is_liked = |user: usize, item: usize| (0..9).any(|at| liked(user, at) == item);
        let ids = |ids: &[usize]| numbers(ids.iter().map(|&id| id as i64), device);
        let better = model.scores(ids(&users), ids(&good));
        let mut loss: Tensor<1> = Tensor::zeros([1], device);
        for draw in 0..3 {
            let mut bad = vec![];
            for (row, &user) in users.iter().enumerate() {
                let mut drawn = (0..).map(|again| chance(round, 10_000 * (draw + 1) + 16 * row + again) % ITEMS);
                bad.push(drawn.find(|&item| !is_liked(user, item)).unwrap());
            }
            let worse = model.scores(ids(&users), ids(&bad));
            loss = loss - activation::log_sigmoid(better.clone() - worse).mean();
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
        if round % 10 == 9 {
            let plain = device.clone().inner();
            let user = numbers((0..ITEMS).map(|_| (round % USERS) as i64), &plain);
            let scores = model.valid().scores(user, Tensor::arange(0..ITEMS as i64, &plain));
            let (_, best) = scores.topk_with_indices(5, 0);
            log.push(best.into_data().as_bytes().to_vec());
        }
    }
    log.into_iter().chain([bytes(model.users.weight.val()), bytes(model.tower[0].weight.val())]).collect()
}
