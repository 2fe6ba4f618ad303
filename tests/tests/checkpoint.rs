//! Policies: what a stage says about its results is obeyed, with and without a plan, and changes no result.
//!
//! Larger than the rule: `policies_are_honoured_and_change_no_result`, because each policy is compared with the others.

use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, activation};
use burn_remat::{
    CheckpointPolicy, RematConfig, RematExt, RematReport, checkpoint, checkpoint_sequential, checkpoint_with, remat,
};
use burn_remat_examples::device::under_test;
use burn_remat_tests::alone;

const WIDTH: usize = 96;
const DEPTH: usize = 8;

#[derive(Module, Debug)]
struct Block {
    inner: Linear,
    outer: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            inner: LinearConfig::new(WIDTH, WIDTH).init(device),
            outer: LinearConfig::new(WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = activation::gelu(self.inner.forward(x.clone()));
        x + activation::sigmoid(self.outer.forward(y))
    }
}

#[derive(Module, Debug)]
struct Tower {
    blocks: Vec<Block>,
}

/// How the blocks are called.
#[derive(Clone, Copy, Debug)]
enum Call {
    Plainly,
    With(CheckpointPolicy),
    Segments(usize),
}

impl Tower {
    fn forward(&self, x: Tensor<2>, call: Call) -> Tensor<2> {
        match call {
            Call::Plainly => self.blocks.iter().fold(x, |x, block| block.forward(x)),
            Call::With(policy) => {
                self.blocks.iter().fold(x, |x, block| checkpoint_with(policy, |x| block.forward(x), x))
            }
            Call::Segments(segments) => {
                let blocks: Vec<_> = self.blocks.iter().map(|block| |x| block.forward(x)).collect();
                checkpoint_sequential(&blocks, segments, x)
            }
        }
    }
}

/// Trains for a few steps; returns the losses, and the report on the last steps.
fn train(config: impl Into<RematConfig>, call: Call) -> (Vec<f32>, RematReport) {
    let device = under_test().remat(config.into().without_cache()).unwrap();
    (steps(&device, call), device.remat_report().unwrap())
}

fn steps(device: &Device, call: Call) -> Vec<f32> {
    let training = &device.clone().autodiff();
    training.seed(1);
    let mut tower = Tower { blocks: (0..DEPTH).map(|_| Block::new(training)).collect() };
    let mut optimizer = SgdConfig::new().init();
    (0..12)
        .map(|step| {
            device.remat_mark_step();
            if step == 5 {
                // A plan found by then is in force from the next step on, and the peak is counted from the one after.
                let _ = device.remat_wait_for_plan(Duration::from_secs(120));
            } else if step == 7 {
                let _ = device.remat_reset_report();
            }
            let x = Tensor::full([256, WIDTH], 0.01 * step as f32, training);
            let loss = tower.forward(x, call).powf_scalar(2.0).mean();
            let value = loss.clone().into_scalar::<f32>();
            let gradients = GradientsParams::from_grads(loss.backward(), &tower);
            tower = optimizer.step(0.1, tower.clone(), gradients);
            value
        })
        .collect()
}

#[test]
fn policies_are_honoured_and_change_no_result() {
    let _alone = alone();
    // One test, because all runs share the backend's generator of random numbers.
    let plain = steps(&under_test(), Call::Plainly);
    assert!(plain.windows(2).any(|pair| pair[0] != pair[1]));
    let (losses, stored) = train("unlimited", Call::Plainly);
    assert_eq!(losses, plain);
    assert_eq!(stored.recomputed_operations, 0);

    // Without a budget, as in PyTorch: only what the calls return is kept.
    let (losses, kept) = train("unlimited", Call::With(CheckpointPolicy::MustRecompute));
    assert_eq!(losses, plain);
    assert!(kept.peak_bytes * 2 < stored.peak_bytes, "{kept}\n{stored}");
    assert!(kept.recomputed_operations > 0);
    let (losses, thirds) = train("unlimited", Call::Segments(3));
    assert_eq!(losses, plain);
    assert!(thirds.peak_bytes < stored.peak_bytes && thirds.peak_bytes > kept.peak_bytes, "{thirds}");

    // With a budget in which most of it could be kept.
    let budget = stored.peak_bytes * 85 / 100;
    let (losses, free) = train(budget, Call::Plainly);
    assert_eq!(losses, plain);
    let (losses, forced) = train(budget, Call::With(CheckpointPolicy::MustRecompute));
    assert_eq!(losses, plain);
    let (free_plan, forced_plan) = (free.plan.as_ref().unwrap(), forced.plan.as_ref().unwrap());
    assert!(forced_plan.steps_followed > 3 && forced_plan.deviation_bytes == 0, "{forced}");
    assert!(forced.peak_bytes * 2 < stored.peak_bytes, "{forced}\n{stored}");
    assert!(forced_plan.predicted_overhead > free_plan.predicted_overhead, "{forced}\n{free}");
    assert!(forced_plan.recomputed.iter().any(|(name, runs, _)| name.ends_with("again") && *runs == 1), "{forced}");

    let budget = stored.peak_bytes * 70 / 100;
    for planner in ["auto", "chen-sqrt", "search"] {
        for call in [Call::Segments(4), Call::With(CheckpointPolicy::PreferRecompute)] {
            let (losses, report) = train(RematConfig::new(budget).with_planner(planner), call);
            assert_eq!(losses, plain, "{planner} {call:?}");
            assert!(report.peak_bytes <= budget, "{planner} {call:?}: {report}");
        }
    }

    // What must be saved is computed once.
    let saved = |blocks: usize| {
        let device = under_test().remat(RematConfig::new(budget).without_cache()).unwrap();
        let training = &device.clone().autodiff();
        training.seed(1);
        let tower = Tower { blocks: (0..DEPTH).map(|_| Block::new(training)).collect() };
        let mut sums = Vec::new();
        for step in 0..9 {
            device.remat_mark_step();
            if step == 5 {
                device.remat_wait_for_plan(Duration::from_secs(120)).unwrap();
            }
            let mut x = Tensor::<2>::full([256, WIDTH], 0.01, training);
            for (at, block) in tower.blocks.iter().enumerate() {
                let _stage = (at < blocks).then(|| device.remat_stage_with("saved", CheckpointPolicy::MustSave));
                x = block.forward(x);
            }
            let gradients = x.mean().backward();
            let gradient = tower.blocks[0].inner.weight.grad(&gradients).unwrap();
            sums.push(gradient.sum().into_scalar::<f32>());
        }
        (sums, device.remat_report().unwrap())
    };
    let (sums, none) = saved(0);
    let (same, some) = saved(3);
    assert_eq!(sums, same);
    assert!(none.recomputed_operations > 0 && some.recomputed_operations > 0, "{none}\n{some}");
    assert_eq!(some.stages[0].recomputed_operations, 0, "{some}");
}

#[remat(policy = "must-recompute")]
fn twice(x: Tensor<2>) -> Tensor<2> {
    x.sin().exp().tanh().sin()
}

#[test]
fn checkpoints_work_wherever_they_stand() {
    let _alone = alone();
    let device = under_test().remat("unlimited").unwrap().autodiff();
    let x = Tensor::<2>::ones([64, 64], &device).require_grad();
    let plain = Tensor::<2>::ones([64, 64], &under_test().autodiff()).require_grad();
    let whole = |x: &Tensor<2>| {
        // One inside the other, with several inputs and outputs, one of which is read inside.
        let (y, z) = checkpoint(
            |(x, factor): (Tensor<2>, f32)| {
                let y = checkpoint(|x: Tensor<2>| x.exp().log().exp(), x) * factor;
                (y.clone(), twice(y))
            },
            (x.clone(), 0.5),
        );
        (y + z).sum()
    };
    let expected = plain.grad(&whole(&plain).backward()).unwrap().into_data();
    let found = x.grad(&whole(&x).backward()).unwrap().into_data();
    assert_eq!(expected, found);
    let report = device.remat_report().unwrap();
    assert!(report.recomputed_operations > 3, "{report}");
    let names: Vec<&str> = report.stages.iter().map(|stage| stage.stage.as_str()).collect();
    assert_eq!(names, ["checkpoint", "checkpoint/checkpoint", "checkpoint/twice"]);
    drop(x);
}
