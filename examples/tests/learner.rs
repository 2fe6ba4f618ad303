//! Burn's `Learner`: on one remat device, and on two served ones at once.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::AdamConfig;
use burn::tensor::Device;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{Learner, LearnerSummary, SupervisedTraining};
use burn_remat::{PlanReport, RematConfig, RematExt};
use burn_remat_examples::data::Passages;
use burn_remat_examples::device::{name_under_test, under_test};
use burn_remat_examples::learner::loader;
use burn_remat_examples::models::TextClassifier;
use burn_remat_examples::tasks::SEED;

/// What a training gave, to the last bit.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    logits: Vec<f32>,
}

/// Trains two epochs on a part of the data.
fn train(device: &Device) -> Trained {
    let folder = std::env::temp_dir().join(format!("burn-remat-learner-{}", std::process::id()));
    let passages = Passages::documents();
    device.seed(SEED);
    let model = TextClassifier::new(passages.classes(), &device.clone().autodiff());
    let (mut train, mut valid) = passages.split();
    train.truncate(64);
    valid.truncate(8);
    let result = SupervisedTraining::new(&folder, loader(train, 8), loader(valid.clone(), 8))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_application_logger(None)
        .renderer(Box::new(CliMetricsRenderer::new()))
        .num_epochs(2)
        .launch(Learner::new(model, AdamConfig::new().init(), 1e-3));
    let summary = LearnerSummary::new(&folder, &["Loss"]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(result.error.is_none(), "{:?}", result.error);
    let plain = under_test();
    let (passages, _) = Passages::tensors(&valid, &plain);
    let logits = result.model.to_device(&plain).forward(passages).into_data();
    Trained {
        losses: summary.unwrap().metrics.train[0].entries.iter().map(|epoch| epoch.value).collect(),
        logits: logits.iter::<f32>().collect(),
    }
}

#[test]
fn the_learner_gets_the_same_under_a_budget() {
    let plain = train(&under_test());
    assert_eq!(train(&under_test()), plain, "plain Burn itself is to be deterministic");
    for budget in ["unlimited", "20 MiB"] {
        let device = under_test().remat(RematConfig::new(budget).without_cache()).unwrap();
        assert_eq!(train(&device), plain, "{budget}");
        let report = device.remat_report().unwrap();
        println!("{report}");
        assert_eq!((report.failure.as_deref(), report.steps_over_budget), (None, 0), "{budget}: {report}");
        // Loaders and metrics hold a batch and some results for a time of their own: less than one activation.
        let close = |plan: &PlanReport| plan.deviation_bytes <= plan.predicted_peak_bytes / 100;
        assert!(report.plan.as_ref().is_none_or(close), "{budget}: {report}");
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

// ---- several machines

/// A running `serve`, stopped when it goes.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(budget: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_serve"))
            .args(["--websocket", "127.0.0.1:0", "--allow-any", "--budget", budget, "--device", &name_under_test()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving on ").unwrap().to_owned();
        Self { child, stdout, address }
    }

    /// Asks it to end as an operator would, and gives the report that it prints.
    fn report(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut report = String::new();
        self.stdout.read_to_string(&mut report).unwrap();
        assert!(self.child.wait().unwrap().success(), "{report}");
        report
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Losses of the epochs that `several-machines` printed for `split`.
fn losses<'a>(text: &'a str, split: &str) -> Vec<&'a str> {
    let prefix = format!("{split} loss of epoch ");
    text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split(": ").nth(1)).collect()
}

/// Starts `several-machines` on two servers; it is killed where it takes longer than `limit`.
fn on_servers(servers: &[Server; 2], strategy: &str, limit: Duration) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_several-machines"))
        .args(["--server", &servers[0].address, "--server", &servers[1].address])
        .args(["--epochs", "3", "--batch-size", "8", "--quick", "--strategy", strategy])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > limit {
            child.kill().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.wait_with_output().unwrap()
}

/// Trains on two servers with a budget each; gives what the program printed and both reports.
fn trained(budget: &str, strategy: &str) -> (String, [String; 2]) {
    let servers = [Server::start(budget), Server::start(budget)];
    // On a software driver of a GPU the longest takes some minutes.
    let limit = if name_under_test() == "flex" { 300 } else { 1200 };
    let output = on_servers(&servers, strategy, Duration::from_secs(limit));
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let reports = servers.map(Server::report);
    println!("{budget}, {strategy}\n{text}\n{}\n{}", reports[0], reports[1]);
    (text, reports)
}

#[cfg(unix)]
#[test]
fn two_servers_train_one_model_within_their_budgets() {
    for strategy in ["main", "sharded"] {
        let (unlimited, _) = trained("unlimited", strategy);
        let (limited, reports) = trained("20 MiB", strategy);
        for split in ["train", "valid"] {
            let losses = losses(&limited, split);
            assert_eq!(losses.len(), 3, "{limited}");
            assert_eq!(losses, self::losses(&unlimited, split), "a budget changes no result");
        }
        let values: Vec<f64> = losses(&limited, "train").iter().map(|loss| loss.parse().unwrap()).collect();
        assert!(values[2] < values[0], "the loss does not fall: {values:?}");
        for report in reports {
            let evictions = report.lines().find_map(|line| line.strip_prefix("evictions")).unwrap();
            assert!(evictions.trim() != "0" && report.contains(", 0 over budget"), "{report}");
        }
    }
}

#[test]
fn data_parallel_training_over_two_servers_says_that_burn_cannot() {
    let servers = [Server::start("unlimited"), Server::start("unlimited")];
    let output = on_servers(&servers, "ddp", Duration::from_secs(60));
    let text = text(&output);
    assert!(!output.status.success() && text.contains("cross-peer all_reduce is not supported yet"), "{text}");
}
