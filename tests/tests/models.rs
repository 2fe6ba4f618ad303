//! Every model gives the same results under a budget as on plain Burn, to the last bit, and stays within the budget.

use burn_remat::{RematConfig, RematExt, RematReport};
use burn_remat_examples::device::{name_under_test, under_test};
use burn_remat_examples::training::{Job, ModelKind, Run};

fn job(model: ModelKind, batch_size: usize, steps: usize) -> Job {
    Job::standard(model, batch_size, steps, 7).unwrap()
}

fn run(job: &Job, budget: &str) -> (Run, RematReport) {
    let device = under_test().remat(RematConfig::new(budget).without_cache()).unwrap();
    let run = job.run(&device, |_, _| {}).unwrap();
    (run, device.remat_report().unwrap())
}

/// Shares of the store-all peak, in percent, within which `model` can be trained from its first step on. Parameters, gradients and optimizer state are
/// everything the perceptron holds; the LSTM's and the CNN's largest operations take more than half.
fn shares(model: ModelKind) -> &'static [u64] {
    match model {
        ModelKind::Mlp => &[100],
        // On a GPU, results of sums by atomic additions are kept, and some memory is left free for what is not a tensor.
        ModelKind::Lstm if name_under_test() != "flex" => &[90, 80],
        ModelKind::Cnn | ModelKind::Lstm => &[90, 70],
        ModelKind::Resnet | ModelKind::Unet | ModelKind::Transformer => &[70, 45],
    }
}

/// Runs `model` at each share of its store-all peak, each of which must be kept.
fn check(model: ModelKind, batch_size: usize, steps: usize, shares: &[u64]) {
    let job = job(model, batch_size, steps);
    // There is one backend generator for the process, so runs of one model must not overlap.
    let plain = job.run(&under_test(), |_, _| {}).unwrap();
    let (store_all, stored) = run(&job, "unlimited");
    assert!(store_all.is_as(&plain, &stored), "{model:?} without a budget");
    assert_eq!((stored.recomputed_operations, stored.evictions), (0, 0));
    // Where the last one ends cannot be known.
    let seen = steps as u64 - 1..=steps as u64;
    for share in shares {
        let budget = stored.peak_bytes * share / 100;
        let (budgeted, report) = run(&job, &budget.to_string());
        assert!(budgeted.is_as(&plain, &report), "{model:?} at {share}%: {report}");
        assert!(seen.contains(&report.steps), "{model:?} at {share}%: {report}");
        assert!(report.peak_bytes <= budget, "{model:?} at {share}%: {report}");
        assert_eq!(report.steps_over_budget, 0, "{model:?} at {share}%: {report}");
    }
}

#[test]
fn models_train_identically_within_the_budget() {
    // One test, because all runs share the backend's generator of random numbers.
    for model in ModelKind::ALL {
        check(model, 8, 4, shares(model));
    }
}

#[test]
#[ignore = "the full acceptance run: 20 steps at up to eight budgets for six models, many minutes"]
fn models_train_identically_at_every_budget() {
    for model in ModelKind::ALL {
        let least = *shares(model).iter().min().expect("there are shares");
        let all = [100, 95, 90, 80, 70, 60, 50, 45];
        check(model, 32, 20, &all.into_iter().filter(|share| *share >= least).collect::<Vec<_>>());
    }
}
