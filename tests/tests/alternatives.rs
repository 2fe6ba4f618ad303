//! Compression of tensors: it is used wherever it can be, and changes no result unless that is asked for.

use std::time::Duration;

use burn::module::Module;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d_with_indices};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};
use burn_remat::planner::{
    Alternative, Graph, GraphBuilder, Op, Outcome, PlanError, Planner, Request, Status, StopReason, planner,
};
use burn_remat::{
    AdvancedConfig, Compression, CompressionCost, CompressionReport, PlanReport, RematConfig, RematExt, RematReport,
};
use burn_remat_examples::device::{is_flex, under_test};
use burn_remat_examples::training::{Job, ModelKind};
use burn_remat_tests::Folder;

const WIDTH: usize = 256;
const DEPTH: usize = 12;
/// Tensors that a program keeps.
const KEPT: usize = 24;

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

/// Gradients of a deep tower with dropout after each layer, over a few steps. Its masks are half of what the backward pass needs.
fn tower(device: &Device) -> Vec<f32> {
    let training = &device.clone().autodiff();
    training.seed(3);
    let tower = Tower { layers: (0..DEPTH).map(|_| LinearConfig::new(WIDTH, WIDTH).init(training)).collect() };
    let dropout = DropoutConfig::new(0.3).init();
    (0..3)
        .flat_map(|_| {
            device.remat_mark_step();
            let x = Tensor::<2>::random([1024, WIDTH], Distribution::Default, training);
            let y = tower.layers.iter().fold(x, |x, layer| dropout.forward(layer.forward(x).tanh()));
            let gradients = y.mean().backward();
            let first = tower.layers[0].weight.grad(&gradients).unwrap();
            let last = tower.layers[DEPTH - 1].weight.grad(&gradients).unwrap();
            (first.narrow(0, 0, 2) + last.narrow(0, 0, 2)).into_data().try_to_vec::<f32>().unwrap()
        })
        .collect()
}

fn under(budget: u64, alternatives: &str, program: impl Fn(&Device) -> Vec<f32>) -> (Vec<f32>, RematReport) {
    let alternatives: Compression = alternatives.parse().unwrap();
    let config =
        RematConfig::new(budget).advanced(|advanced| advanced.with_compression(alternatives).without_planning());
    let device = under_test().remat(config).unwrap();
    (program(&device), device.remat_report().unwrap())
}

/// Indices of max poolings of matrix products: computing one again takes ten times as long as packing and unpacking it.
fn pools(device: &Device) -> Vec<f32> {
    let options = MaxPoolOptions::new([3, 3]).with_stride([1, 1]);
    let kept: Vec<Tensor<4, Int>> =
        products(device).map(|x| max_pool2d_with_indices(x.reshape([1, 16, 128, 128]), options.clone()).1).collect();
    numbers(kept.into_iter().map(|indices| indices.float()))
}

/// Results of comparisons of matrix products.
fn comparisons(device: &Device) -> Vec<f32> {
    let kept: Vec<Tensor<2, Bool>> = products(device).map(|x| x.greater_elem(0.4)).collect();
    numbers(kept.into_iter().map(|mask| mask.float()))
}

/// Tensors that take long to compute, 1 MiB each.
fn products(device: &Device) -> impl Iterator<Item = Tensor<2>> {
    device.seed(4);
    let x = Tensor::<2>::random([512, 512], Distribution::Default, device);
    (0..KEPT).map(move |at| (x.clone().matmul(x.clone()) + at as f32).sin())
}

/// Random numbers.
fn randoms(device: &Device) -> Vec<f32> {
    device.seed(6);
    let kept: Vec<Tensor<2>> =
        (0..KEPT).map(|_| Tensor::random([512, 256], Distribution::Normal(0.0, 1.0), device)).collect();
    numbers(kept.into_iter())
}

/// All values of the tensors, which are read one after the other.
fn numbers<const D: usize>(tensors: impl Iterator<Item = Tensor<D>>) -> Vec<f32> {
    tensors.flat_map(|tensor| tensor.into_data().try_to_vec::<f32>().unwrap()).collect()
}

/// Losses of a few steps of gradient descent on branches of convolution, ReLU and max pooling. All that the backward pass needs of the two
/// large results of a branch is signs and a shape. With `keeps` the program reads these results in one step, and keeps them for a while.
fn branches(device: &Device, keeps: bool) -> Vec<f32> {
    const CHANNELS: usize = 8;
    let training = &device.clone().autodiff();
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|at| ((at * 7919 + seed * 104_729) % 1013) as f32 / 506.0 - 1.0).collect()
    };
    let tensor = |shape: [usize; 4], seed: usize| {
        Tensor::<4>::from_data(TensorData::new(numbers(shape.iter().product(), seed), shape), training)
    };
    let mut weights: Vec<Tensor<4>> = (0..8).map(|branch| tensor([CHANNELS, CHANNELS, 3, 3], branch)).collect();
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let mut losses = Vec::new();
    for step in 0..12 {
        device.remat_mark_step();
        if step == 6 {
            // An error means that this is plain Burn.
            let _ = device.remat_wait_for_plan(Duration::from_secs(120));
        }
        let x = tensor([4, CHANNELS, 48, 48], 99);
        weights = weights.into_iter().map(Tensor::require_grad).collect();
        let mut kept = Vec::new();
        let branch = |weight: &Tensor<4>| {
            let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
            let large = relu(conv2d(x.clone(), weight.clone(), None, options));
            kept.extend((keeps && step == 10).then(|| large.clone().detach()));
            pool.forward(large)
        };
        let loss = weights.iter().map(branch).reduce(|all, one| all + one).unwrap().powf_scalar(2.0).mean();
        let gradients = loss.backward();
        let next = |weight: Tensor<4>| {
            let gradient = weight.grad(&gradients).unwrap();
            Tensor::from_inner(weight.inner() - gradient * 0.01)
        };
        weights = weights.into_iter().map(next).collect();
        losses.push(loss.into_scalar::<f32>());
    }
    losses
}

/// Less than the second by which a planner may be late.
const LONG_ENOUGH: Duration = Duration::from_millis(600);

/// Plans as if convolutions were expensive and everything else cheap, so that the choice of forms does not depend on what else runs on this machine.
struct AtFixedCosts;

impl Planner for AtFixedCosts {
    fn name(&self) -> &'static str {
        "at-fixed-costs"
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let mut fixed = GraphBuilder::new(graph.name());
        fixed.constant_bytes(graph.constant_bytes()).results(graph.results().to_vec());
        for value in graph.values() {
            fixed.value(value.bytes, value.name.clone());
        }
        let cost = |name: &str| if name.contains("onv") { 1e6 } else { 1e3 };
        for op in graph.ops() {
            // Reading signs or a shape in place of a tensor takes no longer.
            let costs = op.alternatives.iter().map(|other| Alternative { cost: cost(&op.name), ..other.clone() });
            fixed.op(Op { cost: cost(&op.name), alternatives: costs.collect(), ..op.clone() });
        }
        let none = || PlanError::no_plan(request.budget);
        let fixed = fixed.build().map_err(|_| none())?;
        // A plan made in a moment, without other forms, may be the cheaper one at the real costs on this machine, and stay in force.
        let request = Request { time_limit: request.time_limit.max(LONG_ENOUGH), ..request.clone() };
        let plan = planner("auto").ok_or_else(none)?.solve(&fixed, &request)?.plan.ok_or_else(none)?;
        Ok(Outcome::of_plan(self.name(), graph, plan, Status::Feasible, StopReason::Heuristic))
    }
}

/// If a plan knows who will still read a tensor, signs or a shape may be all that is left of it.
fn stubs() {
    let plain = [false, true].map(|keeps| branches(&Device::flex(), keeps));
    let stored = Device::flex().remat(RematConfig::default().advanced(AdvancedConfig::without_planning)).unwrap();
    branches(&stored, false);
    let budget = stored.remat_report().unwrap().peak_bytes * 35 / 100;
    // The second run follows the plan of the first.
    let folder = Folder::fresh();
    let run = |keeps| {
        let config = RematConfig::new(budget).with_planner(AtFixedCosts).with_cache(&folder.0);
        // Beside two other programs, 6 s have been too few to find the use of signs, because the search gets only the time that the others leave.
        let config = config.with_time_limit(Duration::from_secs(20));
        let device = Device::flex().remat(config).unwrap();
        assert_eq!(branches(&device, keeps), plain[usize::from(keeps)]);
        device.remat_report().unwrap()
    };
    let report = run(false);
    assert!(["sign-bits", "shape-only"].iter().all(|name| used(&report, name).tensors > 0), "{report}");
    let plan = report.plan.as_ref().unwrap_or_else(|| panic!("no plan: {report}"));
    assert_eq!((plan.steps_left, plan.deviation_bytes), (0, 0), "{report}");
    assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{report}");
    compared(plan);
    // A step that leaves its plan when only a substitute is left of what it reads.
    let report = run(true);
    let plan = report.plan.map(|plan| (plan.from_cache, plan.steps_left));
    assert_eq!((report.failure.as_deref(), plan), (None, Some((true, 1))));
}

/// The same step with none of the alternatives, with each alone, and with all.
fn compared(plan: &PlanReport) {
    let rows: Vec<CompressionCost> = plan.compare_compression(Duration::from_secs(4)).collect();
    let allowed: Vec<&str> = rows.iter().map(|row| row.allowed.as_str()).collect();
    assert_eq!(allowed, ["none", "small-indices", "sign-bits", "shape-only", "small-indices,sign-bits,shape-only"]);
    // On a busy machine it may take longer than that to find a plan.
    let is_bounded = |row: &CompressionCost| row.predicted_overhead.is_none_or(|found| row.lower_bound <= Some(found));
    assert!(rows.iter().all(is_bounded), "{rows:#?}");
    // Signs and shapes save nearly everything that would otherwise be recomputed.
    let (none, all) = (rows[0].predicted_overhead, rows[4].predicted_overhead);
    assert!(all.is_some_and(|all| none.is_none_or(|none| all < none)), "{rows:#?}");
}

fn find<'a>(report: &'a RematReport, name: &str) -> Option<&'a CompressionReport> {
    report.compression.iter().find(|form| form.name == name)
}

fn used<'a>(report: &'a RematReport, name: &str) -> &'a CompressionReport {
    find(report, name).unwrap_or_else(|| panic!("`{name}` is not used: {report}"))
}

#[test]
fn alternatives_are_used_and_change_no_bit_unless_they_say_so() {
    let _ = env_logger::try_init();
    // One test, because all runs share the backend's generator of random numbers.
    offloaded();
    if !is_flex("alternatives", "all but `offload` are only for host memory") {
        return planned(&[ModelKind::Transformer], &["offload"]);
    }
    online();
    rounded();
    stubs();
    planned(&[ModelKind::Cnn, ModelKind::Unet, ModelKind::Transformer], &["all"]);
}

#[test]
#[ignore = "all models, a few minutes"]
fn plans_of_all_models_use_alternatives() {
    if is_flex("alternatives", "most of them are only for host memory") {
        // The LSTM has thousands of tiny operations: no graph is fine enough for a plan.
        let models = ModelKind::ALL.into_iter().filter(|model| !matches!(model, ModelKind::Lstm));
        planned(&models.collect::<Vec<_>>(), &["exact", "offload", "all"]);
    }
}

/// A budget that `tower` cannot keep without compression: masks take 12 MiB, parameters and gradients 6 MiB; everything else that the
/// backward pass needs can be computed again.
const TOWER_BUDGET: u64 = 18 << 20;

/// The form that all kinds of devices have, under the online policy.
fn offloaded() {
    let plain = tower(&under_test());
    let (kept, none) = under(TOWER_BUDGET, "none", tower);
    assert!(kept == plain && none.peak_bytes > TOWER_BUDGET && none.compression.is_empty(), "{none}");
    let (moved, some) = under(TOWER_BUDGET, "offload", tower);
    let offloaded = used(&some, "offload");
    assert!(moved == plain && some.peak_bytes <= TOWER_BUDGET, "{some}");
    assert!(offloaded.from_bytes > 12 << 20 && offloaded.to_bytes == 0, "{some}");
}

/// The other kinds under the online policy, each in a program that cannot do without it.
fn online() {
    let plain = tower(&Device::flex());
    let (packed, some) = under(TOWER_BUDGET, "mask-bits", tower);
    let bits = used(&some, "mask-bits");
    assert!(packed == plain && some.peak_bytes <= TOWER_BUDGET && bits.to_bytes * 31 < bits.from_bytes, "{some}");

    let plain = pools(&Device::flex());
    // Indices take 23 MiB.
    let budget = 18 << 20;
    let (kept, none) = under(budget, "mask-bits", pools);
    let (packed, some) = under(budget, "small-indices", pools);
    assert!(kept == plain && packed == plain);
    let small = used(&some, "small-indices");
    // Two bytes instead of four, and one more for each tensor.
    assert_eq!(small.from_bytes, 2 * (small.to_bytes - small.tensors), "{some}");
    assert!(none.compression.is_empty() && some.peak_bytes <= budget, "{none}{some}");

    let plain = comparisons(&Device::flex());
    // Comparisons take 6 MiB.
    let budget = 6 << 20;
    let (kept, _) = under(budget, "none", comparisons);
    let (packed, some) = under(budget, "bool-bits", comparisons);
    assert!(kept == plain && packed == plain);
    let bits = used(&some, "bool-bits");
    assert!(some.peak_bytes <= budget && bits.to_bytes * 7 < bits.from_bytes, "{some}");
}

/// 16 bits instead of 32: what comes back is off by at most one part in 256, and gradients by little more.
fn rounded() {
    let plain = randoms(&Device::flex());
    // Random numbers take 12 MiB; while one is being packed, both of its forms exist.
    let (budget, most) = (8 << 20, 9 << 20);
    let (rounded, report) = under(budget, "bf16", randoms);
    let form = used(&report, "bf16");
    assert!(form.to_bytes <= form.from_bytes / 2 + form.tensors && report.peak_bytes < most, "{report}");
    let error = |(exact, rounded): (&f32, &f32)| (exact - rounded).abs() / exact.abs();
    let largest = plain.iter().zip(&rounded).map(error).fold(0.0, f32::max);
    assert!(largest > 0.0 && largest <= 1.0 / 256.0, "{report}");
    assert!(form.largest_error.is_some_and(|error| (error - f64::from(largest)).abs() < 1e-6), "{report}");

    let plain = tower(&Device::flex());
    let (rounded, report) = under(14 << 20, "mask-bits,bf16", tower);
    let scale = plain.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let error = plain.iter().zip(&rounded).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= scale / 50.0, "{error} of {scale}: {report}");
}

/// Budgets for which there are plans: below what masks and indices take, except for models whose parameters or largest operations take more than half.
fn budget_of(model: ModelKind) -> &'static str {
    match model {
        ModelKind::Mlp => "95%",
        ModelKind::Cnn => "70%",
        _ => "50%",
    }
}

/// Plans of models are followed, and change no bit of the results.
fn planned(models: &[ModelKind], alternatives: &[&str]) {
    let _ = env_logger::try_init();
    for &model in models {
        let job = Job::standard(model, 8, 10, 5).unwrap();
        let plain = job.run(&under_test(), |_, _| {}).unwrap();
        for &alternatives in alternatives {
            let config = RematConfig::new(budget_of(model)).without_cache().with_time_limit(Duration::from_secs(2));
            let device = under_test()
                .remat(config.advanced(|advanced| advanced.with_compression(alternatives.parse().unwrap())))
                .unwrap();
            let run = job
                .run(&device, |step, _| {
                    if step == 5 {
                        device.remat_wait_for_plan(Duration::from_secs(120)).unwrap();
                    }
                })
                .unwrap();
            let report = device.remat_report().unwrap();
            assert!(run.is_as(&plain, &report), "{model:?}, {alternatives}: {report}");
            assert_eq!((report.tensors, report.recipes), (0, 0), "{model:?}, {alternatives}: {report}");
            let plan = report.plan.as_ref().unwrap_or_else(|| panic!("{model:?}, {alternatives}: no plan: {report}"));
            assert!(plan.steps_followed >= 3, "{model:?}, {alternatives}: {report}");
            assert_eq!((plan.steps_left, plan.deviation_bytes), (0, 0), "{model:?}, {alternatives}: {report}");
            assert!(Some(plan.predicted_peak_bytes) <= report.budget_bytes, "{model:?}, {alternatives}: {report}");
        }
    }
}
