//! Programs as people write them: without marks, and not adapted to the engine.

mod crafts;
mod fields;
mod loops;
mod models;
mod regimes;
mod structures;
mod tasks;
mod times;
mod updates;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::*;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use burn_remat::{Forecaster, RecordedProgram, RematConfig, RematError, RematExt, RematReport, minimum_budget_with};
use burn_remat_examples::device::under_test;
use burn_remat_tests::{Folder, alone};

/// For the table of times: if this was set at build time, steps take tens of milliseconds instead of two or three.
const LARGE: bool = option_env!("BURN_REMAT_TEST_LARGE").is_some();
const WIDTH: usize = if LARGE { 256 } else { 64 };
const ROWS: usize = if LARGE { 1024 } else { 256 };
/// Rounds of a program, except for the table of times.
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
        self.layers.iter().fold(x, |x, layer| self.layer(layer, x))
    }

    fn layer(&self, layer: &Linear, x: Tensor<2>) -> Tensor<2> {
        activation::gelu(layer.forward(self.norm.forward(x.clone()))) + x
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

/// Input of any shape, made from as many rows as needed.
fn filled<const D: usize>(round: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let rows = count.div_ceil(WIDTH);
    input(round, rows, device).reshape([rows * WIDTH]).narrow(0, 0, count).reshape(shape)
}

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).init(device)
}

fn numbers(values: impl Iterator<Item = i64>, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

fn chance(round: usize, at: usize) -> usize {
    ((round as u64 * 1009 + at as u64 + 7).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as usize
}

/// Labels of this many kinds, in any order.
fn labels(round: usize, count: usize, kinds: usize, device: &Device) -> Tensor<1, Int> {
    numbers((0..count).map(|at| (chance(round, at) % kinds) as i64), device)
}

thread_local! {
    /// How many rounds the current program has begun, and how many steps were over the budget when the first few rounds were over.
    static BEGUN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
    /// The number of rounds of a program.
    static ROUNDS_OF_A_PROGRAM: Cell<usize> = const { Cell::new(ROUNDS) };
    /// Most bytes that each round has held, if requested.
    static PEAKS: RefCell<Option<Vec<u64>>> = const { RefCell::new(None) };
    /// Whether rounds run at full speed, so that none waits for a plan.
    static IN_A_HURRY: Cell<bool> = const { Cell::new(false) };
}

fn rounds() -> usize {
    ROUNDS_OF_A_PROGRAM.get()
}

/// Begins a round. Rounds of a real program take longer than these, so that planning keeps up.
fn begin_round(device: &Device) {
    let (rounds, mut over_budget) = BEGUN.get();
    if !IN_A_HURRY.get() && device.remat_report().is_ok() {
        device.remat_wait_for_plan(Duration::from_secs(60)).unwrap();
        if rounds == BEFORE_PLANS {
            over_budget = device.remat_report().unwrap().steps_over_budget;
        }
    }
    BEGUN.set((rounds + 1, over_budget));
    note_peak(device);
}

/// Notes what was held since the last call.
fn note_peak(device: &Device) {
    PEAKS.with_borrow_mut(|peaks| {
        if let Some(peaks) = peaks {
            peaks.push(device.remat_report().unwrap().peak_bytes);
            device.remat_reset_report().unwrap();
        }
    });
}

/// What a program computes, as bits, when it trains on the given device.
type Program = fn(&Device) -> Vec<Vec<u8>>;

fn bytes<const D: usize>(tensor: Tensor<D>) -> Vec<u8> {
    tensor.into_data().as_bytes().to_vec()
}

fn weights(net: &Net) -> Vec<Vec<u8>> {
    net.layers.iter().map(|layer| bytes(layer.weight.val())).collect()
}

/// Trains with the gradients that `gradients` returns for a model in a round.
fn trained(device: &Device, mut net: Net, gradients: impl Fn(&Net, usize) -> GradientsParams) -> Net {
    let mut optimizer = AdamConfig::new().init();
    for round in 0..rounds() {
        begin_round(device);
        let gradients = gradients(&net, round);
        net = optimizer.step(1e-3, net, gradients);
    }
    net
}

const PROGRAMS: [(&str, Program); 36] = [
    ("plain loop", loops::plain),
    ("accumulation", loops::accumulation),
    ("accumulation with an average", loops::accumulation_with_average),
    ("a copy before", loops::copy_before),
    ("a copy after the first update", loops::copy_after_first),
    ("replay", loops::replay),
    ("padding item by item", loops::padding),
    ("every third round", loops::third),
    ("lengths", loops::lengths),
    ("any length", loops::any_length),
    ("validation and saving", loops::validation),
    ("activations are read", loops::activations_are_read),
    ("layers skipped at random", models::skipping),
    ("early exit", models::early_exit),
    ("truncated in time", models::truncated),
    ("two networks against each other", models::adversaries),
    ("made once, judged after the data", |device| models::made_once(device, [false, true])),
    ("made once, judged before the data", |device| models::made_once(device, [true, false])),
    ("two encoders", models::contrastive),
    ("adapters on a frozen base", models::adapters),
    ("variational autoencoder", fields::variational),
    ("diffusion with an average", fields::diffusion),
    ("a policy that learns from its plays", fields::policy),
    ("graphs of any size", fields::graphs),
    ("mixture of experts", fields::mixture),
    ("pictures from pictures", fields::pictures),
    ("the hardest triplets", fields::hard_triplets),
    ("translation", fields::translation),
    ("sharpness", regimes::sharpness),
    ("attacked", regimes::attacked),
    ("two that learn from each other", regimes::mutual),
    ("a rate is looked for first", regimes::rate_finder),
    ("frozen halfway", regimes::freezing),
    ("tasks in turns", regimes::tasks_in_turns),
    ("as many moments as it takes", structures::ode),
    ("masked patches", structures::masked),
];

/// Programs only for the table: they take longer, or few of their steps follow known plans.
const FURTHER: [(&str, Program); 38] = [
    ("metrics of another thread", loops::metrics),
    ("learning to learn", regimes::meta),
    ("a frozen teacher", regimes::distillation),
    ("two views and an average", regimes::two_views),
    ("folds", regimes::folds),
    ("batches double", regimes::doubling),
    ("the best is kept", regimes::best_kept),
    ("a decoder of unequal batches", structures::decoder),
    ("pictures grow", structures::growing),
    ("segmentation at odd sizes", structures::segmenter),
    ("an equilibrium", structures::equilibrium),
    ("mined on the host", structures::mined),
    ("mixer", structures::mixer),
    ("flow", structures::flow),
    ("packed texts", structures::packed),
    ("a queue of keys", structures::queue),
    ("gradients reconciled", tasks::reconciled),
    ("a population", tasks::population),
    ("captions", tasks::captions),
    ("pairs of sounds", tasks::sounds),
    ("attention by chunks", tasks::chunks),
    ("recommendations", tasks::recommendations),
    ("slow and fast weights", updates::slow_and_fast),
    ("noise and norms", updates::noise_and_norms),
    ("line search", updates::line_search),
    ("skipped when bad", updates::skipped_when_bad),
    ("a lattice", updates::lattice),
    ("twin critics", updates::twin_critics),
    ("answers and rewards", crafts::rewarded),
    ("cells that divide", crafts::automaton),
    ("objects are found", crafts::finder),
    ("a book of codes", crafts::codebook),
    ("a second try", crafts::second_try),
    ("clouds of points", crafts::cloud),
    ("stage upon stage", crafts::stages),
    ("clients and a server", crafts::clients),
    ("a steep critic", crafts::steepness),
    ("dreams", crafts::dreams),
];

/// Whether a program is selected by a part of its name; without a selection all are.
fn is_asked_for((name, _): &(&str, Program)) -> bool {
    name.contains(&std::env::var("BURN_REMAT_TEST_ONLY").unwrap_or_default())
}

fn run(program: Program, device: &Device) -> Vec<Vec<u8>> {
    let device = device.clone().autodiff();
    device.seed(3);
    BEGUN.set((0, 0));
    program(&device)
}

/// Rounds that may go by before there are plans: each kind of pass is seen a few times, and if gradients are accumulated or an optimizer's state
/// is created with the first update, more is held from the second round on.
const BEFORE_PLANS: usize = 5;

/// The results of a program under a budget.
struct Trained {
    report: RematReport,
    /// Steps over the budget after the first rounds.
    late: u64,
    planned: u64,
}

/// Trains under a budget, and compares the results with plain Burn's.
fn within(name: &str, program: Program, plain: &[Vec<u8>], budget: u64, share: &str) -> Trained {
    within_by(RematConfig::new(budget).without_cache(), name, program, plain, share)
}

fn within_by(config: RematConfig, name: &str, program: Program, plain: &[Vec<u8>], share: &str) -> Trained {
    let config = config.with_time_limit(Duration::from_millis(300));
    trained_on(&under_test().remat(config).unwrap(), name, program, plain, share)
}

fn trained_on(device: &Device, name: &str, program: Program, plain: &[Vec<u8>], share: &str) -> Trained {
    assert_eq!(run(program, device), plain, "{name} at {share}");
    let report = device.remat_report().unwrap();
    let (over, (_, before)) = (report.steps_over_budget, BEGUN.get());
    let planned = report.plan.as_ref().map_or(0, |plan| plan.steps_followed) + report.steps_guided;
    Trained { late: over.saturating_sub(before), planned, report }
}

/// The results of a program without a budget.
struct Unlimited {
    /// What it computes on plain Burn.
    plain: Vec<Vec<u8>>,
    /// Most bytes that it holds before the first round and in each.
    peaks: Vec<u64>,
}

impl Unlimited {
    /// The most bytes that it holds.
    fn peak(&self) -> u64 {
        self.peaks.iter().copied().max().unwrap()
    }

    /// How many rounds stay within a budget without eviction.
    fn within(&self, budget: u64) -> usize {
        self.peaks[1..].iter().filter(|&&peak| peak <= budget).count()
    }
}

fn unlimited(name: &str, program: Program) -> Unlimited {
    let plain = run(program, &under_test());
    let device = under_test().remat("unlimited").unwrap();
    PEAKS.set(Some(Vec::new()));
    let trained = run(program, &device);
    note_peak(&device);
    let peaks = PEAKS.take().unwrap();
    assert_eq!(trained, plain, "{name}");
    Unlimited { plain, peaks }
}

/// More than 60% is needed if nearly everything is parameters, optimizer state, and the tensors of one operation.
const MORE: [(&str, u64); 2] = [("mixture of experts", 70), ("pictures from pictures", 70)];

/// No two rounds of this program do the same, so no plan applies to any: it must compute what plain Burn does, and nothing more is required.
const NEVER_ALIKE: &str = "translation";

/// What is wrong with the results of a program of which this many rounds should follow known plans.
fn problems(name: &str, share: &str, trained: &Trained, rounds: usize) -> Vec<String> {
    let Trained { late, planned, report } = trained;
    let mut problems = Vec::new();
    if *late > 0 && name != NEVER_ALIKE {
        problems.push(format!("{name} at {share}: over the budget in {late} steps after the first rounds"));
    }
    if 10 * planned < 6 * rounds as u64 && name != NEVER_ALIKE {
        problems.push(format!("{name} at {share}: only {planned} steps followed a plan, for {rounds} rounds"));
    }
    if 3 * report.steps < rounds as u64 {
        problems.push(format!("{name} at {share}: only {} steps were counted in {rounds} rounds", report.steps));
    }
    if !problems.is_empty() {
        println!("{name} at {share}\n{report}");
    }
    problems
}

#[test]
fn programs_train_as_they_are() {
    let _alone = alone();
    let _ = env_logger::try_init();
    let mut wrong = Vec::new();
    for (name, program) in PROGRAMS.into_iter().filter(is_asked_for) {
        let unlimited = unlimited(name, program);
        let share = MORE.iter().find(|(of, _)| *of == name).map_or(60, |(_, share)| *share);
        let (label, budget) = (format!("{share}%"), unlimited.peak() * share / 100);
        let trained = within(name, program, &unlimited.plain, budget, &label);
        print_row(name, &label, budget, unlimited.peak(), &trained);
        wrong.extend(problems(name, &label, &trained, ROUNDS));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The smallest budget that a program is known to keep. Its plans are kept in a folder, or only in this process.
fn named_minimum(program: Program, folder: Option<&Path>) -> Result<u64, RematError> {
    let config = RematConfig::default();
    let config = folder.map_or(config.clone().without_cache(), |folder| config.with_cache(folder));
    minimum_budget_with(&under_test(), config, |device| drop(run(program, device))).map(|needs| needs.minimum_bytes)
}

/// The same, from a recording of what it did without a budget.
fn recorded_minimum(program: Program) -> u64 {
    let path = std::env::temp_dir().join(format!("burn-remat-as-they-are-{}.jsonl", std::process::id()));
    let device = under_test().remat("unlimited").unwrap();
    let recording = device.remat_record(&path).unwrap();
    run(program, &device);
    recording.finish().unwrap();
    let recorded = RecordedProgram::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    recorded.minimum_budget().unwrap().minimum_bytes
}

/// Programs whose passes begin alike and continue differently; some that hold something between their passes that their plans do not know of; some whose
/// first pass sets up what the others use; one whose passes are recognised as over only later; one whose largest steps come last; and two whose passes end
/// at another point once it is known what the previous pass does.
const NAMED: [&str; 10] = [
    "layers skipped at random",
    "early exit",
    "two networks against each other",
    "made once, judged before the data",
    "accumulation with an average",
    "a copy after the first update",
    "a queue of keys",
    "batches double",
    "sharpness",
    "attacked",
];

#[test]
fn a_named_minimum_is_kept() {
    let _alone = alone();
    let _ = env_logger::try_init();
    for (name, program) in PROGRAMS.into_iter().chain(FURTHER).filter(|(name, _)| NAMED.contains(name)) {
        let unlimited = unlimited(name, program);
        let peak = unlimited.peak();
        let named = named_minimum(program, None).unwrap();
        let trained = within(name, program, &unlimited.plain, named, "the minimum");
        print_row(name, "the minimum", named, peak, &trained);
        let Trained { late, report, .. } = trained;
        assert!(named < peak, "{name}: {named} of {peak}");
        assert_eq!(late, 0, "{name}: steps over a named minimum of {named} bytes after the first rounds\n{report}");
    }
}

/// Programs whose first step occurs only once and would need a plan of its own that holds far more than those of the others, and varying lengths.
const FIRST: [&str; 3] = ["variational autoencoder", "a second try", "cells that divide"];

/// The time limit for each budget of a forecast.
const PLAN_TIME: Duration = Duration::from_millis(200);

#[test]
fn what_comes_once_names_no_minimum() {
    let _alone = alone();
    for (name, program) in PROGRAMS.into_iter().chain(FURTHER).filter(|(name, _)| FIRST.contains(name)) {
        let unlimited = unlimited(name, program);
        let budget = unlimited.peak() / 2;
        let Trained { late, report, .. } = within(name, program, &unlimited.plain, budget, "half of the peak");
        assert_eq!(late, 0, "{name}\n{report}");
        let named = named_minimum(program, None).unwrap();
        assert!(named <= budget, "{name}: the minimum is given as {named} bytes, and {budget} are kept");
        let forecaster = Forecaster::new(RematConfig::new(budget).without_cache()).with_plan_time(PLAN_TIME);
        let forecast = forecaster.forecast(&under_test(), |device| drop(run(program, device))).unwrap();
        assert_eq!(forecast.points[0].budget_bytes, forecast.minimum_bytes, "{name}\n{forecast}");
        // The plan of the first step, which needs far more, is not followed.
        let device = forecast.device(&under_test(), forecast.minimum_bytes).unwrap();
        let Trained { report, .. } = trained_on(&device, name, program, &unlimited.plain, "a forecast's minimum");
        assert!(report.peak_bytes <= forecast.minimum_bytes * 11 / 10, "{name}\n{report}");
    }
}

#[test]
#[ignore = "slow: a table of ample and tight budgets"]
fn programs_train_within_all_budgets() {
    let _alone = alone();
    let _ = env_logger::try_init();
    let mut wrong = Vec::new();
    for (name, program) in PROGRAMS.into_iter().chain(FURTHER).filter(is_asked_for) {
        let unlimited = unlimited(name, program);
        let (plain, peak) = (&unlimited.plain, unlimited.peak());
        let folder = Folder::fresh();
        let minimum = named_minimum(program, Some(&folder.0));
        let budgets =
            [("80%", peak * 80 / 100), ("45%", peak * 45 / 100)].into_iter().map(|(share, of)| (share, Ok(of)));
        let minima = [("the minimum", minimum.clone()), ("a recording's minimum", Ok(recorded_minimum(program)))];
        for (share, budget) in budgets.chain(minima) {
            match budget {
                Ok(budget) => {
                    let trained = within(name, program, plain, budget, share);
                    print_row(name, share, budget, peak, &trained);
                    if share == "80%" && PROGRAMS.iter().any(|(known, _)| *known == name) {
                        // Rounds that stay within the budget without eviction need no plan.
                        wrong.extend(problems(name, share, &trained, ROUNDS - unlimited.within(budget).min(ROUNDS)));
                    }
                }
                Err(error) => println!("| {name} | {share} | {error}"),
            }
        }
        if let Ok(budget) = minimum {
            train_elsewhere(name, budget, &folder.0);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn print_row(name: &str, share: &str, budget: u64, peak: u64, Trained { report, late, planned }: &Trained) {
    println!(
        "| {name} | {share}, {:.1}% | {planned} | {late} of {} | {:.1}% | {:+} |",
        100.0 * budget as f64 / peak as f64,
        report.steps,
        100.0 * report.recomputed_operations as f64 / report.operations as f64,
        report.peak_bytes as i64 - budget as i64,
    );
}

/// Tells another process of this test which program to train, within which budget, and in which folder the plans are.
const ELSEWHERE: [&str; 3] = ["BURN_REMAT_TEST_PROGRAM", "BURN_REMAT_TEST_BUDGET", "BURN_REMAT_TEST_FOLDER"];

/// Trains a program in another process, with the plans that a dry run left in a folder.
fn train_elsewhere(name: &str, budget: u64, folder: &Path) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_other_process", "--include-ignored", "--nocapture"]);
    command.env(ELSEWHERE[0], name).env(ELSEWHERE[1], budget.to_string()).env(ELSEWHERE[2], folder);
    assert!(command.status().unwrap().success(), "{name}");
}

#[test]
#[ignore = "run in another process by programs_train_within_all_budgets"]
fn the_other_process() {
    let Ok(name) = std::env::var(ELSEWHERE[0]) else { return };
    let _ = env_logger::try_init();
    let [budget, folder] = [1, 2].map(|at| std::env::var(ELSEWHERE[at]).unwrap());
    let (_, program) = PROGRAMS.into_iter().chain(FURTHER).find(|(known, _)| *known == name).unwrap();
    let unlimited = unlimited(&name, program);
    let budget: u64 = budget.parse().unwrap();
    let share = "the minimum, in another process";
    let trained = within_by(RematConfig::new(budget).with_cache(folder), &name, program, &unlimited.plain, share);
    print_row(&name, share, budget, unlimited.peak(), &trained);
}
