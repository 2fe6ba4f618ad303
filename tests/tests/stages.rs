//! Stages in the engine: they cover what they should on every path, keep to their device and thread, change no result,
//! and appear in graph, report and picture.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use burn_remat::{Budget, RematConfig, RematExt, RematReport, remat};
use burn_remat_examples::device::under_test;

fn ones(device: &Device) -> Tensor<2> {
    Tensor::ones([4, 4], device)
}

fn device() -> Device {
    under_test().remat(Budget::Unlimited).unwrap()
}

/// Operations by stage.
fn stages(device: &Device) -> Vec<(String, u64)> {
    let report = device.remat_report().unwrap();
    report.stages.into_iter().map(|stage| (stage.stage, stage.operations)).collect()
}

fn expect(device: &Device, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> = expected.iter().map(|(name, count)| (name.to_string(), *count)).collect();
    assert_eq!(stages(device), expected);
}

#[test]
fn stages_nest_and_end_with_their_guards() {
    let device = device();
    let x = ones(&device);
    let before = device.remat_report().unwrap().operations;
    let y = {
        let _outer = device.remat_stage("outer");
        let x = x.clone() + 1.0;
        let x = {
            let _inner = device.remat_stage("inner");
            x.exp().log()
        };
        x * 2.0
    };
    let z = y - x;
    assert_eq!(z.sum().into_scalar::<f32>(), 48.0);
    expect(&device, &[("outer", 2), ("outer/inner", 2)]);
    // Marks are not operations.
    assert_eq!(device.remat_report().unwrap().operations - before, 6);
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    let device = device();
    let x = ones(&device);
    let first = device.remat_stage("first");
    let second = device.remat_stage("second");
    drop(first);
    let x = x + 1.0;
    drop(second);
    let _ = x + 1.0;
    expect(&device, &[("first/second", 1)]);
}

#[remat]
fn fails(x: Tensor<2>, how: &str) -> Result<Tensor<2>, String> {
    let x = x + 1.0;
    match how {
        "return" => return Ok(x),
        "error" => Err("wanted")?,
        "panic" => panic!("wanted"),
        _ => {}
    }
    Ok(x + 1.0)
}

#[test]
fn every_path_out_leaves_the_stage() {
    let device = device();
    let x = ones(&device);
    assert!(fails(x.clone(), "return").is_ok());
    assert!(fails(x.clone(), "error").is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| fails(x.clone(), "panic"))).is_err());
    assert!(fails(x.clone(), "").is_ok());
    let _ = x.exp().log();
    expect(&device, &[("fails", 5)]);
}

#[test]
fn two_devices_do_not_mix() {
    let (one, other) = (device(), device());
    let (x, y) = (ones(&one), ones(&other));
    {
        let _stage = one.remat_stage("one");
        let _ = x.clone() + 1.0;
        let _ = y.clone() + 1.0;
    }
    #[remat]
    fn both(x: Tensor<2>, y: Tensor<2>) {
        let _ = x + 1.0;
        let _ = y + 1.0;
    }
    both(x, y);
    expect(&one, &[("one", 1), ("both", 1)]);
    expect(&other, &[("both", 1)]);
}

#[test]
fn threads_have_stages_of_their_own() {
    let device = device();
    let x = ones(&device);
    let _stage = device.remat_stage("here");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = x.clone() + 1.0;
            let _stage = device.remat_stage("there");
            let _ = x.clone() + 1.0;
        });
    });
    let _ = x.clone() + 1.0;
    expect(&device, &[("here", 1), ("there", 1)]);
}

#[test]
fn elsewhere_a_stage_does_nothing() {
    let _remat = device();
    let plain = under_test();
    let _stage = plain.remat_stage("nowhere");
    let x = fails(ones(&plain), "").unwrap();
    assert_eq!(x.into_data(), TensorData::from([[3.0_f32; 4]; 4]));
}

// ---- a planned step

const LAYERS: usize = 8;
const STEPS: usize = 12;

#[remat(stage = "block")]
fn block(weight: &Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    let y = x.clone().matmul(weight.clone());
    y.tanh() * 0.5 + x
}

fn plain_block(weight: &Tensor<2>, x: Tensor<2>) -> Tensor<2> {
    let y = x.clone().matmul(weight.clone());
    y.tanh() * 0.5 + x
}

fn numbers(device: &Device, rows: usize, seed: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * 32).map(|at| ((at * 7 + seed * 13) % 101) as f32 / 500.0 - 0.1).collect();
    Tensor::from_data(TensorData::new(values, [rows, 32]), device)
}

/// Trains a chain of blocks, with stages in the steps below `staged`. Returns every loss, and waits for the planner once.
fn train(device: &Device, staged: usize) -> Vec<u32> {
    let device = &device.clone().autodiff();
    let mut weights: Vec<Tensor<2>> = (0..LAYERS).map(|layer| numbers(device, 32, layer)).collect();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let tracked: Vec<Tensor<2>> = weights.into_iter().map(Tensor::require_grad).collect();
        let mut x = numbers(device, 256, 99);
        let staged = step < staged;
        let outer = staged.then(|| device.remat_stage("model"));
        for weight in &tracked {
            x = if staged { block(weight, x) } else { plain_block(weight, x) };
        }
        drop(outer);
        let loss = x.powf_scalar(2.0).mean();
        let gradients = loss.backward();
        weights = tracked
            .into_iter()
            .map(|weight| {
                let gradient = weight.grad(&gradients).unwrap();
                Tensor::from_inner(weight.inner() - gradient * 0.1)
            })
            .collect();
        losses.push(loss.into_scalar::<f32>().to_bits());
        if step == 6 {
            let _ = device.remat_wait_for_plan(Duration::from_secs(300));
        }
    }
    losses
}

/// A planned run with stages in the steps below `staged`, and its losses.
fn planned(staged: usize) -> (RematReport, Vec<u32>) {
    let stored = device();
    train(&stored, 0);
    let budget = stored.remat_report().unwrap().peak_bytes * 6 / 10;
    let config = RematConfig::new(budget).without_cache().with_time_limit(Duration::from_secs(1));
    let device = under_test().remat(config).unwrap();
    let losses = train(&device, staged);
    (device.remat_report().unwrap(), losses)
}

#[test]
fn stages_change_no_result_and_reach_graph_report_and_picture() {
    let (report, losses) = planned(STEPS);
    assert_eq!(losses, train(&under_test(), 0));
    let plan = report.plan.as_ref().unwrap_or_else(|| panic!("no plan: {report}"));
    assert!(plan.steps_followed >= 2 && plan.steps_left == 0, "{report}");

    let named: Vec<&str> = plan.graph().ops().iter().filter_map(|op| op.stage.as_deref()).collect();
    for passage in 1..=LAYERS {
        let name = format!("model/block#{passage}");
        let phases = |forward: bool| {
            let ops = plan.graph().ops().iter().filter(|op| op.stage.as_deref() == Some(&name));
            ops.filter(|op| (op.phase == Some(burn_remat_plan::Phase::Forward)) == forward).count()
        };
        assert!(phases(true) > 0 && phases(false) > 0, "{name}: {named:?}");
    }
    // Passes are planned, and the update lies between two of them.
    assert!(plan.graph().ops().iter().all(|op| op.phase != Some(burn_remat_plan::Phase::Update)));

    let stage = plan.stages.iter().find(|stage| stage.stage == "model/block").unwrap();
    assert_eq!(stage.passages, LAYERS);
    assert!(stage.store_all_ns > 0.0 && stage.recomputed_ns > 0.0 && stage.recomputed_bytes > 0, "{report}");
    let done = report.stages.iter().find(|stage| stage.stage == "model/block").unwrap();
    assert!(done.compute_ns > 0 && done.recompute_ns > 0 && done.recomputed_bytes > 0, "{report}");
    assert!(report.to_string().contains("model/block"));
    assert!(serde_json::to_string(&report).unwrap().contains("\"stage\":\"model/block\""));

    let picture = plan.memory_picture((960, 540)).unwrap();
    assert!(picture.contains("block"), "{picture}");
}

#[test]
fn a_plan_matches_whatever_the_stages_are_called() {
    let (report, _) = planned(STEPS - 3);
    let plan = report.plan.as_ref().unwrap_or_else(|| panic!("no plan: {report}"));
    assert!(plan.steps_followed >= 4 && plan.steps_left == 0, "{report}");
    assert!(plan.stages.iter().any(|stage| stage.stage == "model/block"), "{report}");
}

#[remat]
fn nothing(x: &Tensor<2>) -> &Tensor<2> {
    x
}

#[test]
#[ignore = "prints the cost of a stage"]
fn what_a_stage_costs() {
    let time = |what: &str, times: u32, device: &Device, run: fn(&Tensor<2>)| {
        let x = ones(device);
        let _ = device.sync();
        let start = Instant::now();
        for _ in 0..times {
            run(std::hint::black_box(&x));
        }
        let _ = device.sync();
        println!("{what}: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(times));
    };
    let stage = |x: &Tensor<2>| {
        std::hint::black_box(nothing(x));
    };
    let operation = |x: &Tensor<2>| drop(x.clone() + 1.0);
    time("plain device, no remat device in the process", 10_000_000, &under_test(), stage);
    let remat = device();
    time("plain device, with a remat device in the process", 1_000_000, &under_test(), stage);
    time("remat device", 100_000, &remat, stage);
    time("for comparison: a small operation and its drop on the plain device", 100_000, &under_test(), operation);
    time("for comparison: a small operation and its drop on the remat device", 100_000, &remat, operation);
}
