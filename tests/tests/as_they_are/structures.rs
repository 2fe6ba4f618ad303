//! Models whose rounds have a special structure: resolutions, lengths, iterations and queues.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Initializer, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig,
    LayerNorm, LayerNormConfig, Linear, PaddingConfig2d,
};
use burn::optim::*;
use burn::tensor::module::{adaptive_avg_pool2d, interpolate, max_pool2d};
use burn::tensor::ops::{InterpolateMode, InterpolateOptions, MaxPoolOptions};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, activation};

use crate::{Net, ROWS, WIDTH, begin_round, bytes, chance, input, linear, numbers, rounds, weights};

fn pixels(round: usize, [count, channels, side]: [usize; 3], device: &Device) -> Tensor<4> {
    let rows = (count * channels * side * side).div_ceil(WIDTH);
    let flat: Tensor<1> = input(round, rows, device).reshape([rows * WIDTH]);
    flat.narrow(0, 0, count * channels * side * side).reshape([count, channels, side, side])
}

fn cross_entropy(logits: Tensor<2>, labels: Vec<i64>, device: &Device) -> Tensor<1> {
    let rows = labels.len();
    activation::log_softmax(logits, 1).gather(1, numbers(labels.into_iter(), device).reshape([rows, 1])).mean().neg()
}

fn conv(channels: [usize; 2], device: &Device) -> Conv2d {
    Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same).init(device)
}

#[derive(Module, Debug)]
struct Block {
    attention: [Linear; 2],
    wide: [Linear; 2],
    norms: [LayerNorm; 2],
}

#[derive(Module, Debug)]
struct Decoder {
    tokens: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    dropout: Dropout,
}

impl Decoder {
    fn new(device: &Device) -> Self {
        let norm = || LayerNormConfig::new(WIDTH).init(device);
        let block = |_| Block {
            attention: [linear(WIDTH, 3 * WIDTH, device), linear(WIDTH, WIDTH, device)],
            wide: [linear(WIDTH, 2 * WIDTH, device), linear(2 * WIDTH, WIDTH, device)],
            norms: [norm(), norm()],
        };
        Self {
            tokens: EmbeddingConfig::new(96, WIDTH).init(device),
            places: EmbeddingConfig::new(32, WIDTH).init(device),
            blocks: (0..2).map(block).collect(),
            norm: norm(),
            dropout: DropoutConfig::new(0.1).init(),
        }
    }

    fn attend(&self, block: &Block, x: Tensor<3>) -> Tensor<3> {
        let [rows, length, _] = x.dims();
        let parts = block.attention[0].forward(x.clone()).chunk(3, 2);
        let heads = |at: usize| parts[at].clone().reshape([rows, length, 4, WIDTH / 4]).swap_dims(1, 2);
        let scores = heads(0).matmul(heads(1).transpose()) / 4.0;
        let later: Tensor<2, Bool> = Tensor::tril_mask([length, length], 0, &x.device());
        let scores = scores
            .mask_fill(later.reshape([1, 1, length, length]).expand([rows, 4, length, length]), f32::NEG_INFINITY);
        let seen = self.dropout.forward(activation::softmax(scores, 3)).matmul(heads(2));
        self.dropout.forward(block.attention[1].forward(seen.swap_dims(1, 2).reshape([rows, length, WIDTH])))
    }

    fn loss(&self, round: usize, rows: usize, device: &Device) -> Tensor<1> {
        let ids = |from: usize| numbers((0..rows * 32).map(|at| (chance(round, at + from) % 96) as i64), device);
        let places: Tensor<2, Int> = Tensor::arange(0..32, device).unsqueeze();
        let mut x = self.tokens.forward(ids(0).reshape([rows, 32])) + self.places.forward(places);
        x = self.dropout.forward(x);
        for block in &self.blocks {
            x = x.clone() + self.attend(block, block.norms[0].forward(x));
            let wide = activation::gelu(block.wide[0].forward(block.norms[1].forward(x.clone())));
            x = x + self.dropout.forward(block.wide[1].forward(wide));
        }
        let x: Tensor<2> = self.norm.forward(x).reshape([rows * 32, WIDTH]);
        let logits = x.matmul(self.tokens.weight.val().transpose());
        activation::log_softmax(logits, 1).gather(1, ids(1).reshape([rows * 32, 1])).mean().neg()
    }
}

/// A decoder whose embedding is also its output layer, with dropout; gradients of three batches of different sizes are accumulated and clipped.
pub fn decoder(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Decoder::new(device);
    let clipping = GradientClippingConfig::Norm(1.0).init();
    let mut optimizer = AdamWConfig::new().init().with_grad_clipping(clipping);
    for round in 0..rounds() / 2 {
        begin_round(device);
        let mut sum = GradientsAccumulator::new();
        for (part, rows) in [6, 4, 3].into_iter().enumerate() {
            let loss = model.loss(3 * round + part, rows, device) * (rows as f32 / 13.0);
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        model = optimizer.step(1e-3, model, sum.grads());
    }
    vec![bytes(model.tokens.weight.val()), bytes(model.blocks[0].attention[0].weight.val())]
}

#[derive(Module, Debug)]
struct Classifier {
    convs: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
    head: Linear,
}

/// Images grow while a network learns from them, and a batch then has fewer of them.
pub fn growing(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Classifier {
        convs: [[3, 12], [12, 12], [12, 24], [24, 24]].map(|channels| conv(channels, device)).to_vec(),
        norms: [12, 12, 24, 24].map(|channels| BatchNormConfig::new(channels).init(device)).to_vec(),
        head: linear(24, 10, device),
    };
    let mut optimizer = SgdConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let (side, count) = [(12, 12), (16, 8), (22, 6), (24, 5)][round / 10];
        let mut x = pixels(round, [count, 3, side], device);
        if round % 2 == 1 {
            x = x.flip([3]);
        }
        for (at, (conv, norm)) in model.convs.iter().zip(&model.norms).enumerate() {
            x = activation::relu(norm.forward(conv.forward(x)));
            if at == 1 {
                x = max_pool2d(x, MaxPoolOptions::new([2, 2]).with_stride([2, 2]));
            }
        }
        let x: Tensor<2> = adaptive_avg_pool2d(x, [1, 1]).reshape([count, 24]);
        let labels = (0..count).map(|at| (chance(round, at) % 10) as i64).collect();
        let loss = cross_entropy(model.head.forward(x), labels, device);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
    }
    let running = model.norms.iter().map(|norm| bytes(norm.running_mean.value()));
    model.convs.iter().map(|conv| bytes(conv.weight.val())).chain(running).collect()
}

#[derive(Module, Debug)]
struct Segmenter {
    down: Vec<Conv2d>,
    up: Vec<Conv2d>,
    norms: Vec<GroupNorm>,
    heads: Vec<Conv2d>,
}

impl Segmenter {
    fn losses(&self, x: Tensor<4>, wanted: Tensor<4>) -> Tensor<1> {
        let mut skips = vec![];
        let mut x = x;
        for (at, (conv, norm)) in self.down.iter().zip(&self.norms).enumerate() {
            if at > 0 {
                x = max_pool2d(x, MaxPoolOptions::new([2, 2]).with_stride([2, 2]));
            }
            x = activation::silu(norm.forward(conv.forward(x)));
            skips.push(x.clone());
        }
        skips.pop();
        let sized = |x: Tensor<4>, side| {
            interpolate(x, InterpolateOptions::new(InterpolateMode::Bilinear).with_output_size([side, side]))
        };
        let mut loss: Tensor<1> = Tensor::zeros([1], &x.device());
        for (conv, head) in self.up.iter().zip(&self.heads) {
            let skip = skips.pop().unwrap();
            let side = skip.dims()[2];
            x = activation::silu(conv.forward(Tensor::cat(vec![sized(x, side), skip], 1)));
            let scores = activation::sigmoid(head.forward(x.clone()));
            loss = loss + (scores - sized(wanted.clone(), side)).powf_scalar(2.0).mean();
        }
        loss
    }
}

/// Every pixel gets a class, from resolutions of 27, 13 and 6 pixels that are combined, and there is a loss at each of them.
pub fn segmenter(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Segmenter {
        down: [[2, 8], [8, 16], [16, 32]].map(|channels| conv(channels, device)).to_vec(),
        up: [[48, 16], [24, 8]].map(|channels| conv(channels, device)).to_vec(),
        norms: [8, 16, 32].map(|channels| GroupNormConfig::new(4, channels).init(device)).to_vec(),
        heads: [16, 8].map(|channels| Conv2dConfig::new([channels, 1], [1, 1]).init(device)).to_vec(),
    };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = pixels(round, [4, 2, 27], device);
        let wanted = pixels(round, [4, 1, 27], device).greater_elem(0.1).float();
        let gradients = GradientsParams::from_grads(model.losses(x, wanted).backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    model.down.iter().chain(&model.up).map(|conv| bytes(conv.weight.val())).collect()
}

/// One field integrated over as many time steps as the batch needs: the same layers again and again, five to eleven times.
pub fn ode(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 2), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let moments = 5 + chance(round / 2, 0) % 7;
        let x = input(round, ROWS, device);
        let mut y = x.clone();
        for moment in 0..moments {
            let slope = activation::tanh(net.layers[0].forward(y.clone()) + moment as f32 / moments as f32);
            y = y + net.layers[1].forward(slope) / moments as f32;
        }
        let loss = (y - x.flip([1])).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

/// A fixed point of a network: found without gradients, iterating until it moves little, then three more iterations with gradients.
pub fn equilibrium(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 3), AdamConfig::new().init());
    let step = |net: &Net, x: &Tensor<2>, y: Tensor<2>| activation::tanh(net.forward(y) * 0.3 + x.clone());
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let (fixed, still) = (net.valid(), x.clone().inner());
        let mut y = still.zeros_like();
        for _ in 0..12 {
            let next = step(&fixed, &still, y.clone());
            let moved: f32 = (next.clone() - y).abs().mean().into_scalar();
            y = next;
            if moved < 0.02 {
                break;
            }
        }
        let mut y: Tensor<2> = Tensor::from_inner(y);
        for _ in 0..3 {
            y = step(&net, &x, y);
        }
        let gradients = GradientsParams::from_grads((y - x).powf_scalar(2.0).mean().backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

/// One forward pass for all rows; which of them lie too close is found on the host, from distances that are read before the loss is computed.
pub fn mined(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 6), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let seen = net.forward(input(round, ROWS, device));
        let still = seen.clone().detach();
        let squares = still.clone().powf_scalar(2.0).sum_dim(1);
        let distances = squares.clone() + squares.transpose() - still.clone().matmul(still.transpose()) * 2.0;
        let distances: Vec<f32> = distances.into_data().try_into_vec().unwrap();
        let near = |row: usize| {
            let others = (0..ROWS).filter(|at| at % 8 != row % 8);
            others.min_by(|&a, &b| distances[row * ROWS + a].total_cmp(&distances[row * ROWS + b])).unwrap() as i64
        };
        let anchors: Vec<usize> = (0..ROWS).filter(|row| !chance(round, *row).is_multiple_of(3)).collect();
        let of = |rows: Vec<i64>| seen.clone().select(0, numbers(rows.into_iter(), device));
        let a = of(anchors.iter().map(|&row| row as i64).collect());
        let same = of(anchors.iter().map(|&row| ((row + 8) % ROWS) as i64).collect());
        let other = of(anchors.iter().map(|&row| near(row)).collect());
        let far = |a: Tensor<2>, b: Tensor<2>| (a - b).powf_scalar(2.0).sum_dim(1);
        let loss = activation::relu(far(a.clone(), same) - far(a, other) + 0.5).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
    }
    weights(&net)
}

#[derive(Module, Debug)]
struct Mixer {
    across: Vec<Linear>,
    within: Vec<Linear>,
    norm: LayerNorm,
}

/// Layers that mix patches and then channels; each is skipped for some of the rows, at random.
pub fn mixer(device: &Device) -> Vec<Vec<u8>> {
    let layers = |width: usize| (0..4).map(|_| linear(width, width, device)).collect();
    let mut model = Mixer { across: layers(32), within: layers(WIDTH), norm: LayerNormConfig::new(WIDTH).init(device) };
    let mut optimizer = LambConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let wanted: Tensor<3> = input(round, ROWS, device).reshape([8, 32, WIDTH]);
        let mut x = wanted.clone();
        let kept = |x: Tensor<3>, at: usize| {
            let keep = 1.0 - 0.1 * at as f64;
            let mask = Tensor::random([8, 1, 1], Distribution::Bernoulli(keep), device);
            x * mask / keep
        };
        for (at, (across, within)) in model.across.iter().zip(&model.within).enumerate() {
            let mixed = across.forward(model.norm.forward(x.clone()).swap_dims(1, 2));
            x = x + kept(activation::gelu(mixed).swap_dims(1, 2), at);
            let mixed = activation::gelu(within.forward(model.norm.forward(x.clone())));
            x = x + kept(mixed, at);
        }
        let loss = (x - wanted.flip([1])).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    model.across.iter().chain(&model.within).map(|layer| bytes(layer.weight.val())).collect()
}

#[derive(Module, Debug)]
struct Coupling {
    scale: Linear,
    shift: Linear,
    hidden: Linear,
}

/// An invertible flow, trained on its likelihood; occasionally samples are drawn through its inverse.
pub fn flow(device: &Device) -> Vec<Vec<u8>> {
    const HALF: usize = WIDTH / 2;
    let coupling = |_| Coupling {
        hidden: linear(HALF, WIDTH, device),
        scale: linear(WIDTH, HALF, device),
        shift: linear(WIDTH, HALF, device),
    };
    let mut model: Vec<Coupling> = (0..6).map(coupling).collect();
    let (mut optimizer, mut log) = (AdamConfig::new().init(), vec![]);
    let parts = |coupling: &Coupling, x: Tensor<2>| {
        let hidden = activation::relu(coupling.hidden.forward(x));
        (activation::tanh(coupling.scale.forward(hidden.clone())), coupling.shift.forward(hidden))
    };
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS, device);
        let [mut a, mut b] = [x.clone().narrow(1, 0, HALF), x.narrow(1, HALF, HALF)];
        let mut volume: Tensor<2> = Tensor::zeros([ROWS, 1], device);
        for coupling in &model {
            let (scale, shift) = parts(coupling, a.clone());
            volume = volume + scale.clone().sum_dim(1);
            (a, b) = (b * scale.exp() + shift, a);
        }
        let far = a.powf_scalar(2.0).sum_dim(1) + b.powf_scalar(2.0).sum_dim(1);
        let loss = (far * 0.5 - volume).mean() / WIDTH as f32;
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        if round % 8 == 7 {
            let draw = || Tensor::<2>::random([ROWS, HALF], Distribution::Normal(0.0, 1.0), &device.clone().inner());
            let (mut a, mut b) = (draw(), draw());
            for coupling in model.valid().iter().rev() {
                let (scale, shift) = parts(coupling, b.clone());
                (a, b) = (b, (a - shift) / scale.exp());
            }
            log.push(bytes(a + b));
        }
    }
    model.iter().map(|coupling| bytes(coupling.hidden.weight.val())).chain(log).collect()
}

#[derive(Module, Debug)]
struct Packed {
    tokens: Embedding,
    cell: Linear,
    head: Linear,
}

/// Texts sorted by length: the shorter ones drop out of the batch one by one, and each is judged by its last state.
pub fn packed(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Packed {
        tokens: EmbeddingConfig::new(50, WIDTH).init(device),
        cell: linear(2 * WIDTH, WIDTH, device),
        head: linear(WIDTH, 4, device),
    };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let mut lengths: Vec<usize> = (0..128).map(|at| 3 + chance(round % 7, at) % 10).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let mut state: Tensor<2> = Tensor::zeros([128, WIDTH], device);
        let mut ended = vec![];
        for at in 0..lengths[0] {
            let going = lengths.iter().filter(|&&length| length > at).count();
            let [rows, _] = state.dims();
            if going < rows {
                ended.push(state.clone().narrow(0, going, rows - going));
                state = state.narrow(0, 0, going);
            }
            let ids = numbers((0..going).map(|row| (chance(round + at, row) % 50) as i64), device);
            let word: Tensor<2> = model.tokens.forward(ids.unsqueeze_dim(1)).squeeze_dim(1);
            state = activation::tanh(model.cell.forward(Tensor::cat(vec![word, state], 1)));
        }
        ended.push(state);
        ended.reverse();
        let labels = (0..128).map(|row| (chance(round, row) % 4) as i64).collect();
        let loss = cross_entropy(model.head.forward(Tensor::cat(ended, 0)), labels, device);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    vec![bytes(model.cell.weight.val()), bytes(model.tokens.weight.val())]
}

/// A queue of what a slow copy has made of earlier batches; each row must be distinguished from those in it.
pub fn queue(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 6), SgdConfig::new().init());
    let mut slow = net.valid();
    let plain = device.clone().inner();
    let mut queue: Tensor<2> = Tensor::random([512, WIDTH], Distribution::Normal(0.0, 0.1), &plain);
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, ROWS / 2, device);
        let keys = slow.forward(x.clone().inner().flip([1]));
        let seen = net.forward(x);
        let same = (seen.clone() * Tensor::from_inner(keys.clone())).sum_dim(1);
        let others = seen.matmul(Tensor::from_inner(queue.clone().transpose()));
        let logits = Tensor::cat(vec![same, others], 1) / 0.7;
        let loss = cross_entropy(logits, vec![0; ROWS / 2], device);
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
        for (old, new) in slow.layers.iter_mut().zip(&net.layers) {
            let new = new.weight.val().inner();
            old.weight = old.weight.clone().map(|old| old * 0.9 + new * 0.1);
        }
        queue = Tensor::cat(vec![queue.narrow(0, ROWS / 2, 512 - ROWS / 2), keys], 0);
    }
    weights(&net).into_iter().chain([bytes(queue)]).collect()
}

#[derive(Module, Debug)]
struct Masked {
    encoder: Net,
    decoder: Net,
    hidden: Param<Tensor<2>>,
}

/// Most patches are hidden, different ones in each round: an encoder sees the rest, and a decoder must fill in what is missing.
pub fn masked(device: &Device) -> Vec<Vec<u8>> {
    let mut model = Masked {
        encoder: Net::new(device, 6),
        decoder: Net::new(device, 3),
        hidden: Initializer::Normal { mean: 0.0, std: 0.02 }.init([1, WIDTH], device),
    };
    let mut optimizer = AdamWConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let x = input(round, 2 * ROWS, device);
        let mut order: Vec<usize> = (0..2 * ROWS).collect();
        order.sort_by_key(|&at| chance(round, at));
        let (shown, missing) = order.split_at(ROWS / 2);
        let of = |rows: &[usize]| numbers(rows.iter().map(|&row| row as i64), device);
        let seen = model.encoder.forward(x.clone().select(0, of(shown)));
        let all = Tensor::cat(vec![seen, model.hidden.val().expand([missing.len(), WIDTH])], 0);
        let mut places = vec![0; 2 * ROWS];
        order.iter().enumerate().for_each(|(at, &row)| places[row] = at);
        let made = model.decoder.forward(all.select(0, of(&places)));
        let loss = (made.select(0, of(missing)) - x.select(0, of(missing))).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    weights(&model.encoder).into_iter().chain([bytes(model.hidden.val())]).collect()
}
