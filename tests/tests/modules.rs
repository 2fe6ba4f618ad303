//! Burn's own modules, losses and optimizers beyond those of the example models: trained with plans they compute what
//! they do on plain Burn, and hold what the plan says.

use std::time::Duration;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::conv::{
    Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Conv3d, Conv3dConfig, ConvTranspose1d, ConvTranspose1dConfig,
    ConvTranspose2d, ConvTranspose2dConfig, ConvTranspose3d, ConvTranspose3dConfig, DeformConv2d, DeformConv2dConfig,
};
use burn::nn::interpolate::{Interpolate2dConfig, InterpolateMode};
use burn::nn::loss::{CTCLossConfig, CrossEntropyLossConfig, HuberLossConfig, Reduction, SmoothL1LossConfig};
use burn::nn::norm::*;
use burn::nn::pool::{AdaptiveAvgPool2dConfig, AdaptiveAvgPool3dConfig, AvgPool2dConfig, MaxPool1dConfig};
use burn::nn::transformer::*;
use burn::nn::*;
use burn::optim::momentum::MomentumConfig;
use burn::optim::*;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData, activation};
use burn_remat::{AdvancedConfig, RematConfig, RematExt, RematReport};
use burn_remat_examples::device::under_test;
use burn_remat_examples::training::{Run, is_about, train_with};

const STEPS: usize = 12;
/// Steps before the run waits for the planner.
const SEEN: usize = 7;

/// A model with its data.
trait Task: Module {
    /// Whether GPUs compute different bits in every run, with remat or without, depending on the order in which they happen to add.
    const VARIES_ON_GPUS: bool = false;
    /// Whether every group of devices gives different gradients from plain Flex: see `exceptions.rs`.
    const DIFFERS_IN_A_GROUP: bool = false;

    fn new(device: &Device) -> Self;
    /// Loss of a step.
    fn loss(&self, step: usize) -> Tensor<1>;
    fn optimizer() -> ModuleOptimizer;

    fn run(device: &Device, mut after_step: impl FnMut(usize)) -> Run {
        let device = device.clone().autodiff();
        device.seed(11);
        train_with(Self::optimizer(), Self::new(&device), STEPS, &mut |step, _| after_step(step), Self::loss).unwrap()
    }
}

fn device_of<M: Module>(model: &M) -> Device {
    model.devices().remove(0)
}

fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// Whole numbers below `below`, different ones in each step.
fn tokens<const D: usize>(shape: [usize; D], below: usize, step: usize, device: &Device) -> Tensor<D, Int> {
    let values = (0..shape.iter().product()).map(|at: usize| ((at * 7919 + step * 104_729) % below) as i32);
    Tensor::from_data(TensorData::new(values.collect(), shape), device)
}

/// Speech: convolutions over time, recurrence in both directions, CTC.
#[derive(Module, Debug)]
struct Speech {
    first: Conv1d,
    second: Conv1d,
    norm: BatchNorm,
    slope: PRelu,
    gru: BiGru,
    lstm: BiLstm,
    last: Linear,
}

impl Task for Speech {
    // The norm of the gradients.
    const VARIES_ON_GPUS: bool = true;
    // The CTC loss.
    const DIFFERS_IN_A_GROUP: bool = true;

    fn new(device: &Device) -> Self {
        Self {
            first: Conv1dConfig::new(8, 24, 5).with_padding(PaddingConfig1d::Same).init(device),
            second: Conv1dConfig::new(24, 24, 3).with_dilation(2).with_groups(4).init(device),
            norm: BatchNormConfig::new(24).init(device),
            slope: PReluConfig::new().init(device),
            gru: BiGruConfig::new(24, 16, true).init(device),
            lstm: BiLstmConfig::new(32, 16, true).init(device),
            last: LinearConfig::new(32, 6).init(device),
        }
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let device = device_of(self);
        let x = self.second.forward(self.slope.forward(self.first.forward(normal([8, 8, 40], &device))));
        let x = MaxPool1dConfig::new(2).with_stride(2).init().forward(activation::silu(self.norm.forward(x)));
        let x = self.lstm.forward(self.gru.forward(x.swap_dims(1, 2), None).0, None).0;
        let x = activation::log_softmax(self.last.forward(x), 2).swap_dims(0, 1);
        let [time, batch, _] = x.dims();
        let targets = tokens([batch, 4], 5, step, &device) + 1;
        let lengths = |length: usize| Tensor::<1, Int>::full([batch], length as i64, &device);
        let loss = CTCLossConfig::new().with_zero_infinity(true).init();
        loss.forward_with_reduction(x, targets, lengths(time), lengths(4), Reduction::Mean)
    }

    fn optimizer() -> ModuleOptimizer {
        AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0))).init()
    }
}

/// Volumes: three dimensions down and up, normalized by groups and by instance.
#[derive(Module, Debug)]
struct Volumes {
    down: Conv3d,
    groups: GroupNorm,
    up: ConvTranspose3d,
    instances: InstanceNorm,
    last: Conv3d,
}

impl Task for Volumes {
    fn new(device: &Device) -> Self {
        Self {
            down: Conv3dConfig::new([2, 8], [3, 3, 3]).with_stride([2, 2, 2]).init(device),
            groups: GroupNormConfig::new(4, 8).init(device),
            up: ConvTranspose3dConfig::new([8, 6], [2, 2, 2]).with_stride([2, 2, 2]).init(device),
            instances: InstanceNormConfig::new(6).init(device),
            last: Conv3dConfig::new([6, 2], [1, 1, 1]).init(device),
        }
    }

    fn loss(&self, _: usize) -> Tensor<1> {
        let device = device_of(self);
        let x = normal([3, 2, 9, 9, 9], &device);
        let inner = activation::mish(self.groups.forward(self.down.forward(x.clone())));
        let outer = activation::hard_swish(self.instances.forward(self.up.forward(inner.clone())));
        let y = self.last.forward(outer);
        let pool = AdaptiveAvgPool3dConfig::new([2, 2, 2]).init();
        let target = x.slice([0..3, 0..2, 0..8, 0..8, 0..8]);
        let loss = HuberLossConfig::new(0.7).init().forward(y, target, Reduction::Mean);
        loss + pool.forward(inner).powi_scalar(2).mean() * 0.01
    }

    fn optimizer() -> ModuleOptimizer {
        SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(true))).init()
    }
}

/// Images: enlarged by shuffling, by interpolation and by transposed convolution; one is deformed.
#[derive(Module, Debug)]
struct Larger {
    first: Conv2d,
    offsets: Conv2d,
    deformed: DeformConv2d,
    shuffled: Conv2d,
    up: ConvTranspose2d,
    last: Conv2d,
    shuffle: PixelShuffle,
}

impl Task for Larger {
    fn new(device: &Device) -> Self {
        let same = |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same);
        Self {
            first: same([3, 8]).init(device),
            offsets: same([8, 18]).init(device),
            deformed: DeformConv2dConfig::new([8, 8], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device),
            shuffled: same([8, 16]).with_groups(2).init(device),
            up: ConvTranspose2dConfig::new([8, 4], [2, 2]).with_stride([2, 2]).init(device),
            last: same([8, 3]).init(device),
            shuffle: PixelShuffleConfig::new(2).init(),
        }
    }

    fn loss(&self, _: usize) -> Tensor<1> {
        let device = device_of(self);
        let small = normal([4, 3, 8, 8], &device);
        let x = activation::softplus(self.first.forward(small.clone()), 1.0);
        let norm = LocalResponseNormConfig::new(3).init();
        let offsets = self.offsets.forward(x.clone()) * 0.1;
        let x = norm.forward(self.deformed.forward(x, offsets, None));
        let shuffled = self.shuffle.forward(self.shuffled.forward(x.clone()));
        let y = self.last.forward(Tensor::cat(vec![self.up.forward(x), shuffled], 1));
        let wide = |mode| Interpolate2dConfig::new().with_output_size(Some([16, 16])).with_mode(mode).init();
        let target = wide(InterpolateMode::Linear).forward(small);
        let pooled = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init().forward(y.clone());
        let coarse = AdaptiveAvgPool2dConfig::new([3, 3]).init().forward(pooled.clone());
        let again = wide(InterpolateMode::Nearest).forward(pooled);
        SmoothL1LossConfig::new().init().forward_with_reduction(y, target, Reduction::Mean)
            + again.abs().mean() * 0.1
            + coarse.powi_scalar(2).sum() * 0.01
    }

    fn optimizer() -> ModuleOptimizer {
        RmsPropConfig::new().with_momentum(0.5).init()
    }
}

/// Translation: an encoder and a decoder with masks, rotary positions, gated linear units.
#[derive(Module, Debug)]
struct Translation {
    words: Embedding,
    positions: PositionalEncoding,
    rotary: RotaryEncoding,
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
    gate: SwiGlu,
    wide: Linear,
    norm: RmsNorm,
    last: Linear,
}

impl Task for Translation {
    // The sum that an embedding's backward pass adds to its table.
    const VARIES_ON_GPUS: bool = true;

    fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(20, 16).init(device),
            positions: PositionalEncodingConfig::new(16).with_max_sequence_size(16).init(device),
            rotary: RotaryEncodingConfig::new(16, 16).init(device),
            encoder: TransformerEncoderConfig::new(16, 32, 2, 2).with_norm_first(true).init(device),
            decoder: TransformerDecoderConfig::new(16, 32, 4, 2).init(device),
            gate: SwiGluConfig::new(16, 16).init(device),
            wide: LinearConfig::new(16, 32).init(device),
            norm: RmsNormConfig::new(16).init(device),
            last: LinearConfig::new(16, 20).with_bias(false).init(device),
        }
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let device = device_of(self);
        let (source, target) = (tokens([6, 12], 20, step, &device), tokens([6, 10], 20, step + 1, &device));
        let padding = source.clone().equal_elem(0);
        let memory = self.positions.forward(self.words.forward(source));
        let memory = self.encoder.forward(TransformerEncoderInput::new(memory).mask_pad(padding.clone()));
        let known = self.rotary.forward(self.words.forward(target.clone()));
        let input = TransformerDecoderInput::new(known, memory)
            .memory_mask_pad(padding)
            .target_mask_attn(generate_autoregressive_mask(6, 10, &device));
        let x = self.decoder.forward(input);
        let x = self.norm.forward(self.gate.forward(x.clone()) + activation::glu(self.wide.forward(x), 2));
        let logits = self.last.forward(x).reshape([60, 20]);
        let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).with_pad_tokens(Some(vec![0])).init(&device);
        loss.forward(logits, target.reshape([60]))
    }

    fn optimizer() -> ModuleOptimizer {
        LambConfig::new().init()
    }
}

/// Operations that sort, gather, scatter, mask and accumulate.
#[derive(Module, Debug)]
struct Indices {
    keys: Linear,
    values: Linear,
    up: ConvTranspose1d,
    table: Embedding,
}

impl Task for Indices {
    // The sum that is added to selected rows.
    const VARIES_ON_GPUS: bool = true;

    fn new(device: &Device) -> Self {
        Self {
            keys: LinearConfig::new(24, 24).init(device),
            values: LinearConfig::new(24, 24).init(device),
            up: ConvTranspose1dConfig::new([24, 12], 2).with_stride(2).init(device),
            table: EmbeddingConfig::new(30, 24).init(device),
        }
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let device = device_of(self);
        let x = self.table.forward(tokens([16, 24], 30, step, &device)).mean_dim(1).reshape([16, 24]);
        let (keys, values) = (self.keys.forward(x.clone()), self.values.forward(x));
        let (sorted, order) = keys.clone().sort_with_indices(1);
        let gathered = values.clone().gather(1, order);
        let top = gathered.clone().topk(8, 1);
        let best = keys.clone().argmax(1).reshape([16]);
        let rows = values.clone().select(0, best.clone().remainder_scalar(16));
        let spread =
            values.clone().select_assign(0, best.remainder_scalar(16), rows, burn::tensor::IndexingUpdateOp::Add);
        let hidden = spread.clone().mask_fill(keys.clone().greater_elem(0.5), 0.25);
        let chosen = keys.clone().mask_where(values.lower_elem(0.0), hidden.cumsum(1)).triu(0);
        let [wide, narrow] = [chosen.clone().flip([1]).repeat_dim(0, 2), chosen.narrow(1, 4, 8)];
        let up = self.up.forward(sorted.reshape([4, 24, 4])).abs().sqrt().clamp(0.1, 2.0);
        wide.chunk(2, 0).remove(1).powi_scalar(2).mean()
            + narrow.max_dim(1).mean()
            + top.exp().sum_dim(1).log().mean()
            + gathered.var(1).mean()
            + up.mean()
            + spread.slice_assign([0..4, 0..4], keys.slice([4..8, 4..8]).transpose()).tanh().mean()
    }

    fn optimizer() -> ModuleOptimizer {
        AdaGradConfig::new().init()
    }
}

/// Wide layers under optimizers that work with whole matrices; noise, and dropout of several kinds.
#[derive(Module, Debug)]
struct Noisy<const OPTIMIZER: usize> {
    layers: Vec<Linear>,
    noise: GaussianNoise,
    dropout: Dropout,
}

impl<const OPTIMIZER: usize> Task for Noisy<OPTIMIZER> {
    fn new(device: &Device) -> Self {
        let layer = || LinearConfig::new(32, 32).with_bias(false).init(device);
        let layers = (0..5).map(|_| layer()).collect();
        Self { layers, noise: GaussianNoiseConfig::new(0.1).init(), dropout: DropoutConfig::new(0.3).init() }
    }

    fn loss(&self, _: usize) -> Tensor<1> {
        let x = normal([64, 32], &device_of(self));
        let step = |x: Tensor<2>, layer: &Linear| {
            let y = activation::celu(self.noise.forward(layer.forward(x.clone())), 1.0);
            self.dropout.forward(y) + activation::hard_sigmoid(x, 0.2, 0.5)
        };
        self.layers.iter().fold(x, step).var(1).mean()
    }

    fn optimizer() -> ModuleOptimizer {
        match OPTIMIZER {
            0 => MuonConfig::new().init(),
            1 => AdafactorConfig::new().init(),
            2 => LionConfig::new().init(),
            _ => AdanConfig::new().with_weight_decay(0.01).init(),
        }
    }
}

fn under<T: Task>(config: RematConfig) -> (Run, RematReport) {
    let device = under_test().remat(config.without_cache().with_time_limit(Duration::from_millis(300))).unwrap();
    let run = T::run(&device, |step| {
        if step + 1 == SEEN {
            assert!(device.remat_wait_for_plan(Duration::from_secs(120)).unwrap());
        } else if step == SEEN {
            device.remat_reset_report().unwrap();
        }
    });
    (run, device.remat_report().unwrap())
}

/// Below this share of their peak these have no plan: the parameters, averages and gradients of Adan alone take more.
const LEAST: [(&str, u64); 2] = [("speech", 55), ("noisy, adan", 95)];

fn check<T: Task>(name: &str) {
    let plain = match T::DIFFERS_IN_A_GROUP {
        false => under_test(),
        true => Device::group_options(&[under_test()]).init().unwrap(),
    };
    let plain = T::run(&plain, |_| {});
    let (stored, without) = under::<T>(RematConfig::default().advanced(AdvancedConfig::without_planning));
    assert_eq!(without.steps as usize, STEPS - SEEN - 1, "{name}: {without}");
    let varies = T::VARIES_ON_GPUS && under_test() != Device::flex();
    let is_alike = |run: &Run| match varies {
        false => run.is_identical(&plain),
        true => run.losses.iter().zip(&plain.losses).all(|(&a, &b)| is_about(a.into(), b.into())),
    };
    assert!(is_alike(&stored), "{name} without a budget: {:?}, {:?}", stored.losses, plain.losses);
    for share in [80, 60, 40] {
        let budget = without.peak_bytes * share / 100;
        let (run, report) = under::<T>(RematConfig::new(budget));
        println!("{name} at {share}%:\n{report}");
        assert!(is_alike(&run), "{name} at {share}%: {:?}, {:?}\n{report}", run.losses, plain.losses);
        assert!(!varies || !report.nondeterministic.is_empty(), "{name} at {share}%: {report}");
        assert_eq!(report.failure, None, "{name} at {share}%: {report}");
        assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{name} at {share}%: {report}");
        match &report.plan {
            Some(plan) => {
                assert_eq!(plan.steps_left, 0, "{name} at {share}%: {report}");
                // If the plan does not fit, its bytes are not promised.
                let fits = plan.predicted_peak_bytes <= budget;
                assert!(!fits || plan.deviation_bytes == 0, "{name} at {share}%: {report}");
                assert!(plan.steps_followed >= 3, "{name} at {share}%: {report}");
            }
            None => {
                assert!(
                    share < LEAST.iter().find(|(of, _)| *of == name).map_or(0, |(_, least)| *least),
                    "{name} at {share}%: {report}"
                );
                assert!(report.planning_problem.is_some_and(|why| why.contains("set at least")), "{name} at {share}%");
            }
        }
    }
}

#[test]
fn modules_train_by_plans_as_on_plain_burn() {
    let _ = env_logger::try_init();
    // One test, because all runs share the backend's generator of random numbers.
    check::<Speech>("speech");
    check::<Volumes>("volumes");
    check::<Larger>("larger");
    check::<Translation>("translation");
    check::<Indices>("indices");
    check::<Noisy<0>>("noisy, muon");
    check::<Noisy<1>>("noisy, adafactor");
    check::<Noisy<2>>("noisy, lion");
    check::<Noisy<3>>("noisy, adan");
}
