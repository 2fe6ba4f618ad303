//! Burn's `Learner` on a remat device.

use burn::module::Module;
use burn::optim::AdamConfig;
use burn::tensor::Device;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{Learner, LearnerSummary, SupervisedTraining};
use burn_remat::{MemoryMetric, PlanReport, RecomputingMetric, RematConfig, RematExt};
use burn_remat_examples::data::Passages;
use burn_remat_examples::device::under_test;
use burn_remat_examples::learner::loader;
use burn_remat_examples::models::TextClassifier;
use burn_remat_examples::tasks::SEED;
use burn_remat_examples::training::{adds_by_chance, is_about};

/// The results of training, to the last bit.
#[derive(Debug, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    logits: Vec<f32>,
}

impl Trained {
    fn is_about(&self, other: &Self) -> bool {
        let count = self.losses.len() == other.losses.len();
        count && self.losses.iter().zip(&other.losses).all(|(&a, &b)| is_about(a, b))
    }
}

/// The values of a metric, one for each epoch.
type Epochs = Vec<f64>;

/// Trains two epochs on part of the data. On a remat device, also returns the most memory held, in MiB, and the percentage of recomputation.
fn train(device: &Device) -> (Trained, Option<[Epochs; 2]>) {
    let folder = std::env::temp_dir().join(format!("burn-remat-learner-{}", std::process::id()));
    let passages = Passages::documents();
    device.seed(SEED);
    let model = TextClassifier::new(passages.classes(), &device.clone().autodiff());
    let (mut train, mut valid) = passages.split();
    train.truncate(64);
    valid.truncate(8);
    let mut training = SupervisedTraining::new(&folder, loader(train, 8), loader(valid.clone(), 8))
        .metrics((AccuracyMetric::new(), LossMetric::new()));
    let metrics = MemoryMetric::new(device).and_then(|memory| Ok((memory, RecomputingMetric::new(device)?))).ok();
    let is_remat = metrics.is_some();
    if let Some((memory, recomputing)) = metrics {
        training = training.metric_train_numeric(memory).metric_train_numeric(recomputing);
    }
    let result = training
        .with_application_logger(None)
        .renderer(Box::new(CliMetricsRenderer::new()))
        .num_epochs(2)
        .launch(Learner::new(model, AdamConfig::new().init(), 1e-3));
    let of = |name: &str| -> Epochs {
        let summary = LearnerSummary::new(&folder, &[name]).unwrap();
        summary.metrics.train[0].entries.iter().map(|epoch| epoch.value).collect()
    };
    let (losses, shown) = (of("Loss"), is_remat.then(|| [of("Memory"), of("Recomputing")]));
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(result.error.is_none(), "{:?}", result.error);
    let plain = under_test();
    let (passages, _) = Passages::tensors(&valid, &plain);
    let logits = result.model.to_device(&plain).forward(passages).into_data();
    (Trained { losses, logits: logits.iter::<f32>().collect() }, shown)
}

#[test]
fn the_learner_gets_the_same_under_a_budget() {
    let (plain, _) = train(&under_test());
    let (again, _) = train(&under_test());
    for budget in ["unlimited", "20 MiB"] {
        let config = RematConfig::new(budget).without_cache();
        let device = match budget {
            "unlimited" => under_test().remat(config).unwrap(),
            // The run itself would be over before a background plan is made.
            _ => under_test().remat_rehearsed(config, |dry| drop(train(dry))).unwrap(),
        };
        let (trained, shown) = train(&device);
        let report = device.remat_report().unwrap();
        println!("{report}");
        if adds_by_chance(&report) {
            // Two runs of plain Burn occasionally differ as well.
            assert!(trained.is_about(&plain) && again.is_about(&plain), "{budget}: {trained:?}, {plain:?}");
        } else {
            assert_eq!(again, plain, "plain Burn itself must be deterministic");
            assert_eq!(trained, plain, "{budget}");
        }
        assert_eq!((report.failure.as_deref(), report.steps_over_budget), (None, 0), "{budget}: {report}");
        let [memory, recomputing] = shown.unwrap();
        let peak = report.peak_bytes as f64 / f64::from(1 << 20);
        assert!(memory.iter().all(|&memory| peak / 2.0 < memory && memory <= peak), "{budget}: {memory:?}, {report}");
        let is_limited = report.budget_bytes.is_some();
        assert!(recomputing.iter().all(|&percent| (percent > 0.0) == is_limited), "{budget}: {recomputing:?}");
        // Loaders and metrics hold a batch and some results for a while: less than one activation.
        let close = |plan: &PlanReport| plan.deviation_bytes <= plan.predicted_peak_bytes / 100;
        assert_eq!(report.plan.is_some(), is_limited, "{budget}: {report}");
        assert!(report.plan.as_ref().is_none_or(|plan| close(plan) && plan.steps_followed > 0), "{budget}: {report}");
    }
}
