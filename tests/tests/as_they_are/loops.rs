//! One model, trained in loops of many kinds.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::mpsc;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear};
use burn::optim::*;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData, activation};
use burn_remat::RematExt;

use crate::{Net, ROWS, WIDTH, begin_round, bytes, input, linear, rounds, trained, weights};

pub fn plain(device: &Device) -> Vec<Vec<u8>> {
    weights(&trained(device, Net::new(device, 8), |net, round| net.gradients(input(round, ROWS, device))))
}

pub fn accumulation(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        let mut sum = GradientsAccumulator::new();
        for part in 0..4 {
            sum.accumulate(net, net.gradients(input(4 * round + part, ROWS, device)));
        }
        sum.grads()
    });
    weights(&net)
}

pub fn accumulation_with_average(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    let mut average: Vec<Tensor<2>> = net.layers.iter().map(|layer| layer.weight.val().detach()).collect();
    for round in 0..rounds() {
        begin_round(device);
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

pub fn copy_before(device: &Device) -> Vec<Vec<u8>> {
    let first = Net::new(device, 8);
    let net = trained(device, first.clone(), |net, round| net.gradients(input(round, ROWS, device)));
    weights(&first).into_iter().chain(weights(&net)).collect()
}

pub fn copy_after_first(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    let mut best = None;
    for round in 0..rounds() {
        begin_round(device);
        let gradients = net.gradients(input(round, ROWS, device));
        net = optimizer.step(1e-3, net, gradients);
        best.get_or_insert_with(|| net.clone());
    }
    weights(&best.unwrap()).into_iter().chain(weights(&net)).collect()
}

pub fn replay(device: &Device) -> Vec<Vec<u8>> {
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamWConfig::new().init());
    let mut target = net.clone();
    let mut memory: VecDeque<(Tensor<2>, Tensor<2>)> = VecDeque::new();
    for round in 0..rounds() {
        begin_round(device);
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

/// A batch that is assembled on the device, item by item, each of its own length.
pub fn padding(device: &Device) -> Vec<Vec<u8>> {
    const LONGEST: usize = 16;
    let mut reader = Reader { tokens: EmbeddingConfig::new(50, WIDTH).init(device), net: Net::new(device, 6) };
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
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

/// In every third round the loss has an additional term.
pub fn third(device: &Device) -> Vec<Vec<u8>> {
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
pub fn lengths(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        net.gradients(input(round, 96 + 64 * ((round * 7 + round / 3) % 4), device))
    });
    weights(&net)
}

/// As in a `Learner`, another thread computes metrics from the outputs of a round while the next one runs. No length comes twice.
pub fn metrics(device: &Device) -> Vec<Vec<u8>> {
    let head = linear(WIDTH, 2 * WIDTH, device);
    let (sender, outputs) = mpsc::sync_channel::<Tensor<2>>(0);
    let observer = std::thread::spawn(move || {
        // It is one round behind.
        let (mut before, mut hits) = (None, Vec::new());
        for output in outputs {
            hits.extend(before.replace(output).map(|output: Tensor<2>| bytes(output.argmax(1).float())));
        }
        hits
    });
    let net = trained(device, Net::new(device, 8), |net, round| {
        if device.remat_report().is_ok() {
            device.remat_mark_step();
        }
        let output = head.forward(net.forward(input(round, ROWS - round * 37 % 97, device)));
        let loss = (output.clone() - 0.1).powf_scalar(2.0).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), net);
        sender.send(output).unwrap();
        gradients
    });
    drop(sender);
    let mut results = weights(&net);
    results.extend(observer.join().unwrap());
    results
}

/// Batches of almost any length: none comes twice in forty rounds.
pub fn any_length(device: &Device) -> Vec<Vec<u8>> {
    let net = trained(device, Net::new(device, 8), |net, round| {
        net.gradients(input(round, 64 + 2 * (round * 37 % 97), device))
    });
    weights(&net)
}

/// After every fifth round the model is evaluated on other data, and its weights are read.
pub fn validation(device: &Device) -> Vec<Vec<u8>> {
    let mut log = Vec::new();
    let (mut net, mut optimizer) = (Net::new(device, 8), AdamConfig::new().init());
    for round in 0..rounds() {
        begin_round(device);
        let gradients = net.gradients(input(round, ROWS, device));
        net = optimizer.step(1e-3, net, gradients);
        if round % 5 == 4 {
            let tried = net.valid();
            for part in 0..3 {
                let x = input(100 + part, 2 * ROWS, device).inner();
                log.push(bytes(tried.forward(x).powf_scalar(2.0).mean()));
            }
            log.extend(weights(&net));
        }
    }
    log.into_iter().chain(weights(&net)).collect()
}

/// The means of the activations are read as they come: in some rounds those of all layers, in some none.
pub fn activations_are_read(device: &Device) -> Vec<Vec<u8>> {
    let log = RefCell::new(Vec::new());
    let net = trained(device, Net::new(device, 8), |net, round| {
        let mut x = input(round, ROWS, device);
        for (at, layer) in net.layers.iter().enumerate() {
            x = net.layer(layer, x);
            if round % 4 == 0 || (round + at) % 7 == 0 {
                log.borrow_mut().push(bytes(x.clone().mean()));
            }
        }
        GradientsParams::from_grads(x.powf_scalar(2.0).mean().backward(), net)
    });
    log.into_inner().into_iter().chain(weights(&net)).collect()
}
