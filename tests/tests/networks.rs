//! Random networks, trained with plans under random budgets: the results are plain Burn's, and the bytes are the plan's.
//!
//! Larger than the rule: `run`, because it is one training loop with what is asserted along it.

use std::time::Duration;

use burn::tensor::{Device, Distribution, Tensor, activation};
use burn_remat::{CheckpointPolicy, Compression, RematConfig, RematExt, RematReport, checkpoint_with};
use burn_remat_examples::device::under_test;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const STEPS: usize = 10;
/// Steps before the run waits for the planner.
const SEEN: usize = 5;

/// One layer: what it does to one or two of the earlier values.
#[derive(Clone, Debug)]
enum Layer {
    Weight(usize),
    Tanh,
    Relu,
    Gelu,
    Square,
    Dropout(f64),
    Add(usize),
    Mul(usize),
    /// Half of the columns, moved to the other side.
    Roll,
    /// Half of the rows, scaled, and their mean, transposed.
    Rows,
    /// A few values of the first row, scaled: a small part of a buffer that is processed further.
    Corner,
    /// The second half of each of two sequences, scaled: a part with gaps, over which sums go in another order.
    Tokens,
    /// A few values from the host, in a buffer that an allocator makes larger.
    Upload,
    Transposed,
    Normalize,
    Softmax,
    /// The host reads its mean.
    Read,
    /// The layers inside have a policy.
    Stage(CheckpointPolicy, Vec<Layer>),
}

/// What is trained, and on what.
#[derive(Debug)]
struct Network {
    layers: Vec<Layer>,
    rows: usize,
    width: usize,
    weights: usize,
    /// Rows of the last step, which differs from the others.
    last_rows: usize,
    momentum: bool,
}

impl Network {
    fn random(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let width = 8 * rng.random_range(2..9);
        let count = rng.random_range(6..28);
        let mut weights = 1;
        let others = (1..count).map(|at| Self::layer(&mut rng, at, &mut weights, true));
        let layers = std::iter::once(Layer::Weight(0)).chain(others).collect();
        let rows = 16 * rng.random_range(2..16);
        let last_rows = if rng.random_bool(0.3) { rows / 2 } else { rows };
        Self { layers, rows, width, weights, last_rows, momentum: rng.random_bool(0.5) }
    }

    fn layer(rng: &mut ChaCha8Rng, at: usize, weights: &mut usize, nest: bool) -> Layer {
        match rng.random_range(0..if nest { 21 } else { 17 }) {
            0..=3 => {
                *weights += 1;
                Layer::Weight(*weights - 1)
            }
            4 => Layer::Tanh,
            5 => Layer::Relu,
            6 => Layer::Gelu,
            7 => Layer::Square,
            8 => Layer::Dropout(rng.random_range(0.1..0.6)),
            9 => Layer::Add(rng.random_range(0..=at)),
            10 => Layer::Mul(rng.random_range(0..=at)),
            11 => Layer::Roll,
            12 => Layer::Normalize,
            13 => Layer::Softmax,
            14 => Layer::Rows,
            15 => Layer::Corner,
            16 => Layer::Tokens,
            17 => Layer::Transposed,
            18 => Layer::Read,
            19 => Layer::Upload,
            _ => {
                let policy = [
                    CheckpointPolicy::MustSave,
                    CheckpointPolicy::PreferSave,
                    CheckpointPolicy::PreferRecompute,
                    CheckpointPolicy::MustRecompute,
                ][rng.random_range(0..4)];
                let count = rng.random_range(1..5);
                Layer::Stage(policy, (0..count).map(|_| Self::layer(rng, 0, weights, false)).collect())
            }
        }
    }

    /// Runs a layer on the last of `values`.
    fn run(&self, layer: &Layer, values: &[Tensor<2>], weights: &[Tensor<2>], read: &mut Vec<f32>) -> Tensor<2> {
        let x = values[values.len() - 1].clone();
        let other = |at: usize| values[at.min(values.len() - 1)].clone();
        match layer {
            Layer::Weight(at) => x.matmul(weights[*at].clone()),
            Layer::Tanh => x.tanh(),
            Layer::Relu => activation::relu(x),
            Layer::Gelu => activation::gelu(x),
            Layer::Square => x.powf_scalar(2.0),
            Layer::Dropout(rate) => {
                let mask = x.random_like(Distribution::Bernoulli(1.0 - rate));
                x * mask / (1.0 - rate)
            }
            Layer::Add(at) => x + other(*at),
            Layer::Mul(at) => x * other(*at).tanh(),
            Layer::Roll => {
                let half = self.width / 2;
                let [rows, width] = x.dims();
                let (left, right) = (x.clone().slice([0..rows, 0..half]), x.slice([0..rows, half..width]));
                Tensor::cat(vec![right, left], 1)
            }
            Layer::Rows => {
                let (rows, half) = (x.dims()[0], x.dims()[0] / 2);
                let first = x.clone().narrow(0, 0, half).mul_scalar(1.1);
                let mean = first.clone().swap_dims(0, 1).sin().mean() + 0.5;
                Tensor::cat(vec![first, x.narrow(0, half, rows - half)], 0) * mean.unsqueeze::<2>()
            }
            Layer::Corner => {
                let corner = x.clone().slice([0..1, 1..4]).mul_scalar(0.7).exp().add_scalar(0.1);
                x * corner.log().mean_dim(1)
            }
            Layer::Tokens => {
                let [rows, width] = x.dims();
                let later = x.clone().reshape([2, rows / 2, width]).narrow(1, rows / 4, rows / 4).mul_scalar(1.3);
                x + (later.sum_dims(&[0, 1]) / rows as f64).tanh().reshape([1, width])
            }
            Layer::Upload => {
                let few = Tensor::<2>::from_data([[0.3, -0.2, 0.1]], &x.device());
                x + few.tanh().mul_scalar(0.5).mean_dim(1)
            }
            Layer::Transposed => x.clone().transpose().tanh().transpose() + x,
            Layer::Normalize => {
                let mean = x.clone().mean_dim(1);
                let centred = x - mean;
                let variance = centred.clone().powf_scalar(2.0).mean_dim(1);
                centred / (variance + 1e-3).sqrt()
            }
            Layer::Softmax => activation::softmax(x, 1),
            Layer::Read => {
                read.push(x.clone().mean().into_scalar::<f32>());
                x
            }
            Layer::Stage(policy, layers) => {
                let inside = |x: Tensor<2>| {
                    let mut values = vec![x];
                    for layer in layers {
                        let next = self.run(layer, &values, weights, &mut Vec::new());
                        values.push(next);
                    }
                    values.pop().unwrap()
                };
                checkpoint_with(*policy, inside, x)
            }
        }
    }

    /// Trains; returns everything that the program sees.
    fn train(&self, device: &Device, mut after_step: impl FnMut(usize)) -> Vec<f32> {
        let training = &device.clone().autodiff();
        training.seed(7);
        let scale = 1.0 / (self.width as f64).sqrt();
        let mut weights: Vec<Tensor<2>> = (0..self.weights)
            .map(|_| {
                Tensor::random([self.width, self.width], Distribution::Normal(0.0, scale), training).require_grad()
            })
            .collect();
        let mut velocity: Vec<Tensor<2>> = Vec::new();
        let mut seen = Vec::new();
        for step in 0..STEPS {
            let rows = if step + 1 == STEPS { self.last_rows } else { self.rows };
            let mut values = vec![Tensor::random([rows, self.width], Distribution::Default, training)];
            for layer in &self.layers {
                let next = self.run(layer, &values, &weights, &mut seen);
                values.push(next);
            }
            let output = values.pop().unwrap();
            drop(values);
            let loss = output.tanh().mean();
            seen.push(loss.clone().into_scalar::<f32>());
            let gradients = loss.backward();
            weights = weights
                .into_iter()
                .enumerate()
                .map(|(at, weight)| {
                    let Some(gradient) = weight.grad(&gradients) else { return weight };
                    let plain = weight.inner();
                    let gradient = match velocity.get(at) {
                        Some(before) if self.momentum => before.clone() * 0.9 + gradient,
                        _ => gradient,
                    };
                    if self.momentum {
                        velocity.resize(velocity.len().max(at + 1), gradient.zeros_like());
                        velocity[at] = gradient.clone();
                    }
                    Tensor::from_inner(plain - gradient * 0.05).require_grad()
                })
                .collect();
            after_step(step);
        }
        for weight in weights {
            // Summed on a GPU they could differ because of the order of additions.
            seen.extend(weight.into_data().try_to_vec::<f32>().unwrap());
        }
        seen
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn under(network: &Network, budget: u64, alternatives: Compression) -> (Vec<f32>, RematReport) {
    let config = RematConfig::new(budget).without_cache().with_time_limit(Duration::from_millis(400));
    let device = under_test().remat(config.advanced(|advanced| advanced.with_compression(alternatives))).unwrap();
    let seen = network.train(&device, |step| {
        if step + 1 == SEEN {
            assert!(device.remat_wait_for_plan(Duration::from_secs(120)).unwrap());
        } else if step == SEEN {
            device.remat_reset_report().unwrap();
        }
    });
    (seen, device.remat_report().unwrap())
}

/// Share of what a network holds without a budget, in percent, at which every network gets a plan.
const AMPLE: u64 = 85;

/// Trains the networks of these seeds. Returns how many of the smaller budgets, which may be too small for anything, were kept.
fn train_all(seeds: std::ops::Range<u64>) -> usize {
    let mut kept = 0;
    for seed in seeds {
        let network = Network::random(seed);
        let plain = network.train(&under_test(), |_| {});
        let unlimited = under_test().remat("unlimited").unwrap();
        let stored = network.train(&unlimited, |_| {});
        let peak = unlimited.remat_report().unwrap().peak_bytes;
        assert_eq!(bits(&stored), bits(&plain), "{seed}: {network:?}");
        for share in [AMPLE, 60 - seed % 20] {
            let budget = peak * share / 100;
            let alternatives = if seed % 2 == 0 { Compression::EXACT } else { Compression::ALL };
            let (seen, report) = under(&network, budget, alternatives);
            let about = || format!("seed {seed} at {share}%: {report}\n{network:?}");
            assert_eq!(bits(&seen), bits(&plain), "{}", about());
            assert_eq!(report.failure, None, "{}", about());
            assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{}", about());
            let is_kept = report.steps_over_budget == 0 && report.peak_bytes <= budget;
            if share == AMPLE {
                assert!(is_kept && report.plan.as_ref().is_some_and(|plan| plan.steps_followed >= 3), "{}", about());
            } else {
                kept += usize::from(is_kept);
            }
            if let Some(plan) = &report.plan {
                assert_eq!(plan.deviation_bytes, 0, "{}", about());
                assert!(plan.steps_left <= 1 + u64::from(network.last_rows != network.rows), "{}", about());
            }
        }
    }
    kept
}

#[test]
fn random_networks_follow_their_plans() {
    let _ = env_logger::try_init();
    // One test, because all runs share the backend's generator of random numbers.
    let kept = train_all(0..12);
    assert!(kept >= 6, "{kept} of 12");
}

#[test]
#[ignore = "60 networks: a few minutes"]
fn many_random_networks_follow_their_plans() {
    let kept = train_all(100..160);
    assert!(kept >= 30, "{kept} of 60");
}
