//! Programs as people write them: no marks, nothing tuned to the engine.

use std::collections::VecDeque;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::*;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData, activation};
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::under_test;

const WIDTH: usize = 64;
const ROWS: usize = 256;
const ROUNDS: usize = 40;

#[derive(Module, Debug)]
struct Net {
    norm: LayerNorm,
    layers: Vec<Linear>,
}

impl Net {
    fn new(device: &Device, layers: usize) -> Self {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        Self { norm: LayerNormConfig::new(WIDTH).init(device), layers: (0..layers).map(layer).collect() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().fold(x, |x, layer| activation::gelu(layer.forward(self.norm.forward(x.clone()))) + x)
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        (self.forward(x.clone()) - x.flip([0])).powf_scalar(2.0).mean()
    }

    fn gradients(&self, x: Tensor<2>) -> GradientsParams {
        GradientsParams::from_grads(self.loss(x).backward(), self)
    }
}

fn input(round: usize, rows: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * WIDTH).map(|at| ((at * 31 + round * 17) % 113) as f32 / 113.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, [rows, WIDTH]), device)
}

/// A step of a real program takes longer than these: planning keeps up with it.
fn take_time(device: &Device) {
    if device.remat_report().is_ok() {
        device.remat_wait_for_plan(Duration::from_secs(5)).unwrap();
    }
}

/// What a program computes, as bits; the device on which it trains is given.
type Program = fn(&Device) -> Vec<Vec<u8>>;

fn bytes(tensor: Tensor<2>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

fn weights(net: &Net) -> Vec<Vec<u8>> {
    net.layers.iter().map(|layer| bytes(layer.weight.val())).collect()
}

/// Trains by what `gradients` gives for a model in a round.
fn trained(device: &Device, mut net: Net, gradients: impl Fn(&Net, usize) -> GradientsParams) -> Net {
    let mut optimizer = AdamConfig::new().init();
    for round in 0..ROUNDS {
        take_time(device);
        let gradients = gradients(&net, round);
        net = optimizer.step(1e-3, net, gradients);
    }
    net
}

fn plain_loop(device: &Device) -> Vec<Vec<u8>> {
    weights(&trained(device, Net::new(device, 8), |net, round| net.gradients(input(round, ROWS, device))))
}

fn accumulation(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        let mut sum = GradientsAccumulator::new();
        for part in 0..4 {
            sum.accumulate(net, net.gradients(input(4 * round + part, ROWS, device)));
        }
        sum.grads()
    });
    weights(&net)
}

fn accumulation_with_average(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    let mut average: Vec<Tensor<2>> = net.layers.iter().map(|layer| layer.weight.val().detach()).collect();
    for round in 0..ROUNDS {
        take_time(device);
        let mut sum = GradientsAccumulator::new();
        for part in 0..8 {
            sum.accumulate(&net, net.gradients(input(8 * round + part, ROWS, device)));
        }
        net = optimizer.step(1e-3, net, sum.grads());
        let new = |(old, layer): (Tensor<2>, &Linear)| old * 0.9 + layer.weight.val().detach() * 0.1;
        average = average.into_iter().zip(&net.layers).map(new).collect();
    }
    average.into_iter().map(bytes).chain(weights(&net)).collect()
}

fn copy_before(device: &Device) -> Vec<Vec<u8>> {
    let first = Net::new(device, 8);
    let net = trained(device, first.clone(), |net, round| net.gradients(input(round, ROWS, device)));
    weights(&first).into_iter().chain(weights(&net)).collect()
}

fn copy_after_first(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    let mut best = None;
    for round in 0..ROUNDS {
        take_time(device);
        let gradients = net.gradients(input(round, ROWS, device));
        net = optimizer.step(1e-3, net, gradients);
        best.get_or_insert_with(|| net.clone());
    }
    weights(&best.unwrap()).into_iter().chain(weights(&net)).collect()
}

fn replay(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamWConfig::new().init());
    let mut target = net.clone();
    let mut memory: VecDeque<(Tensor<2>, Tensor<2>)> = VecDeque::new();
    for round in 0..ROUNDS {
        take_time(device);
        let mut state = input(round, 1, device).inner();
        for _ in 0..4 {
            let next = activation::tanh(net.valid().forward(state.clone()));
            memory.push_back((state, next.clone()));
            state = next;
            if memory.len() > 64 {
                memory.pop_front();
            }
        }
        if memory.len() < 16 {
            continue;
        }
        let pick = |at: usize| &memory[(at * 7 + round) % memory.len()];
        let states: Tensor<2> = Tensor::cat((0..ROWS).map(|at| pick(at).0.clone()).collect(), 0);
        let nexts: Tensor<2> = Tensor::cat((0..ROWS).map(|at| pick(at).1.clone()).collect(), 0);
        let wanted = target.forward(Tensor::from_inner(nexts)).detach();
        let loss = (net.forward(Tensor::from_inner(states)) - wanted * 0.9).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(1e-3, net, gradients);
        if round % 6 == 5 {
            target = net.clone();
        }
    }
    weights(&net)
}

#[derive(Module, Debug)]
struct Reader {
    tokens: Embedding,
    net: Net,
}

/// A batch that is put together on the device, item by item, each of its own length.
fn padding(device: &Device) -> Vec<Vec<u8>> {
    const LONGEST: usize = 16;
    let mut reader = Reader { tokens: EmbeddingConfig::new(50, WIDTH).init(device), net: Net::new(device, 6) };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..ROUNDS {
        take_time(device);
        let mut ids: Tensor<2, Int> = Tensor::zeros([32, LONGEST], device);
        let mut mask: Tensor<2, Bool> = Tensor::full([32, LONGEST], true, device);
        for item in 0..32 {
            let length = 1 + (item * 5 + round * 3) % LONGEST;
            let text: Vec<i64> = (0..length).map(|at| ((at + item + round) % 50) as i64).collect();
            let text: Tensor<1, Int> = Tensor::from_data(TensorData::new(text, [length]), device);
            ids = ids.slice_assign([item..item + 1, 0..length], text.unsqueeze());
            mask = mask
                .slice_assign([item..item + 1, 0..length], Tensor::<2, Int>::zeros([1, length], device).equal_elem(1));
        }
        let x = reader.tokens.forward(ids).reshape([32 * LONGEST, WIDTH]);
        let mask: Tensor<2, Bool> = mask.reshape([32 * LONGEST, 1]);
        let y = reader.net.forward(x).mask_fill(mask.expand([32 * LONGEST, WIDTH]), 0.0);
        let gradients = GradientsParams::from_grads(y.powf_scalar(2.0).mean().backward(), &reader);
        reader = optimizer.step(1e-3, reader, gradients);
    }
    weights(&reader.net)
}

/// The loss of every third round has another term.
fn third(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        let mut loss = net.loss(input(round, ROWS, device));
        if round % 3 == 2 {
            loss = loss + net.forward(input(round, ROWS, device)).abs().mean() * 0.1;
        }
        GradientsParams::from_grads(loss.backward(), net)
    });
    weights(&net)
}

/// Batches of four lengths in any order.
fn lengths(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        net.gradients(input(round, 96 + 64 * ((round * 7 + round / 3) % 4), device))
    });
    weights(&net)
}

/// Batches of as good as any length: none comes twice in forty rounds.
fn any_length(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        net.gradients(input(round, 64 + 2 * (round * 37 % 97), device))
    });
    weights(&net)
}

const PROGRAMS: [(&str, Program); 10] = [
    ("plain loop", plain_loop),
    ("accumulation", accumulation),
    ("accumulation with an average", accumulation_with_average),
    ("a copy before", copy_before),
    ("a copy after the first update", copy_after_first),
    ("replay", replay),
    ("padding item by item", padding),
    ("every third round", third),
    ("lengths", lengths),
    ("any length", any_length),
];

fn run(program: Program, device: &Device) -> Vec<Vec<u8>> {
    let device = device.clone().autodiff();
    device.seed(3);
    program(&device)
}

/// Steps that may go by before plans are there: each kind of step is seen three times, and where gradients are added up more is there from the second part
/// and from the second step on, which is planned with once it was seen.
const BEFORE_PLANS: u64 = 4;

#[test]
fn programs_train_as_they_are() {
    let _ = env_logger::try_init();
    for (name, program) in PROGRAMS {
        let plain = run(program, &under_test());
        let unlimited = under_test().remat("unlimited").unwrap();
        assert_eq!(run(program, &unlimited), plain, "{name}");
        let peak = unlimited.remat_report().unwrap().peak_bytes;
        for share in [80, 60] {
            let config = RematConfig::new(peak * share / 100).without_cache().with_time_limit(Duration::from_secs(1));
            let device = under_test().remat(config).unwrap();
            assert_eq!(run(program, &device), plain, "{name} at {share}%");
            let report = device.remat_report().unwrap();
            println!("{name} at {share}%\n{report}");
            assert!(report.steps_over_budget <= BEFORE_PLANS, "{name} at {share}%: {report}");
            // Lengths come in four kinds, each of which is seen before it is planned. A copy of the model that is kept from the start hides
            // all updates: after some passes these are taken for steps.
            let planned = report.plan.map_or(0, |plan| plan.steps_followed) + report.steps_guided;
            assert!(10 * planned >= 6 * ROUNDS as u64, "{name} at {share}%: {planned} steps went by what is known");
        }
    }
}
