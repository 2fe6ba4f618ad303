//! A remat device on top of Burn's kernel fusion: a GPU, or a software driver for one, in a separate build (`bash test.sh --fusion`).

#![cfg(feature = "fusion")]

use std::time::Duration;

use burn::tensor::{Device, Tensor};
use burn_remat::{AdvancedConfig, PlanReport, RematConfig, RematExt};
use burn_remat_examples::device::under_test;
use burn_remat_examples::training::{Job, ModelKind};

/// Steps until a plan is in force.
const WARMUP: usize = 6;

fn config(budget: u64) -> RematConfig {
    RematConfig::new(budget).without_cache().with_time_limit(Duration::from_secs(2))
}

#[test]
fn a_budget_holds_and_losses_are_those_of_fusion_without_one() {
    let _ = env_logger::try_init();
    let job = Job::standard(ModelKind::Transformer, 4, WARMUP + 6, 0).unwrap();
    let unlimited = under_test().remat(RematConfig::new("unlimited").advanced(AdvancedConfig::with_fusion)).unwrap();
    let store_all = job.run(&unlimited, |_, _| {}).unwrap();
    let budget = unlimited.remat_report().unwrap().peak_bytes * 6 / 10;
    let device = under_test().remat(config(budget).advanced(AdvancedConfig::with_fusion)).unwrap();
    let run = job
        .run(&device, |step, _| {
            if step + 1 == WARMUP {
                assert!(device.remat_wait_for_plan(Duration::from_secs(300)).unwrap());
            }
        })
        .unwrap();
    let report = device.remat_report().unwrap();
    assert!(report.fused && report.device.starts_with("fusion<"), "{report}");
    assert!(report.peak_bytes <= budget && report.recomputed_operations > 0, "{report}");
    let plan = report.plan.as_ref().unwrap();
    assert!(plan.steps_followed >= 2, "{report}");
    assert_eq!(plan.steps_left, 0, "{report}");
    // Operations that run again may be fused differently from first runs.
    assert!(store_all.loss_difference(&run) < 1e-3, "{}: {report}", store_all.loss_difference(&run));
}

/// The plan of steps that make several tensors, each by a chain of elementwise operations, and read them again at the end.
fn plan_of_chains(device: &Device) -> PlanReport {
    const TENSORS: usize = 8;
    let base = Tensor::<2>::ones([1024, 1024], device) * 0.5;
    let step = || {
        device.remat_mark_step();
        let chain = |at: usize| ((base.clone() * (at as f32)).tanh() + 1.0).sqrt().exp() * 0.25;
        let made: Vec<Tensor<2>> = (1..=TENSORS).map(chain).collect();
        let sums = made.into_iter().rev().map(|tensor| (tensor * base.clone()).sum().into_scalar::<f32>());
        assert!(sums.sum::<f32>().is_finite());
    };
    for _ in 0..WARMUP {
        step();
    }
    assert!(device.remat_wait_for_plan(Duration::from_secs(300)).unwrap());
    step();
    device.remat_mark_step();
    device.remat_report().unwrap().plan.unwrap()
}

#[test]
fn a_chain_that_is_joined_costs_less_than_its_operations() {
    let budget = 7 * 1024 * 1024 * 4;
    let cost = |config: RematConfig| {
        let plan = plan_of_chains(&under_test().remat(config).unwrap());
        plan.graph().ops().iter().map(|op| op.cost).sum::<f64>()
    };
    let (fused, single) = (cost(config(budget).advanced(AdvancedConfig::with_fusion)), cost(config(budget)));
    // Six operations that read and write one tensor each, compared with one that reads and writes them all at once.
    assert!(fused < 0.6 * single, "{fused} ns with fusion, {single} ns without");
}
