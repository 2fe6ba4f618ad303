//! Training keeps to what a forecast has promised.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{
    AdvancedConfig, Budget, Forecast, ForecastProgress, Forecaster, RematConfig, RematError, RematExt, remat_forecast,
};
use burn_remat_examples::device::under_test;
use burn_remat_examples::training::{Job, ModelKind};
use burn_remat_tests::alone;

const BATCH: usize = 4;
/// For each budget: less than the default, but enough to check the promises.
const PLAN_TIME: Duration = Duration::from_millis(300);

fn train(device: &Device, batch: usize, steps: usize) -> u64 {
    let job = Job::standard(ModelKind::Unet, batch, steps, 1).unwrap();
    job.run(device, |_, _| {}).unwrap().digest
}

/// Checks that training with a batch on a device of the forecast holds no more than `budget` and gives the results of plain Burn.
fn keeps(device: &Device, budget: u64, batch: usize) {
    assert_eq!(train(device, batch, 6), train(&under_test(), batch, 6), "within {budget} bytes");
    let report = device.remat_report().unwrap();
    assert_eq!((report.steps_over_budget, report.failure.as_ref()), (0, None), "{report}");
    assert!(report.peak_bytes <= budget && report.steps >= 5, "{report}");
    assert_eq!(report.plan.as_ref().map(|plan| plan.steps_left), Some(0), "{report}");
}

#[test]
fn what_a_forecast_names_is_kept() {
    let _alone = alone();
    let plain = under_test().remat(RematConfig::default().advanced(AdvancedConfig::without_planning)).unwrap();
    train(&plain, BATCH, 4);
    let store_all = plain.remat_report().unwrap().peak_bytes;

    let seen = Rc::new(RefCell::new(Vec::new()));
    let tell = seen.clone();
    let forecaster = Forecaster::new(RematConfig::new("60%").with_time_limit(PLAN_TIME).without_cache())
        .with_plan_time(PLAN_TIME)
        .with_progress(move |progress| tell.borrow_mut().push(progress));
    let forecast = forecaster.forecast_batch(&under_test(), BATCH, |device, batch| train(device, batch, 4)).unwrap();
    println!("{forecast}");
    assert!(forecast.needs_bytes.abs_diff(store_all) <= store_all / 50, "{forecast}, measured {store_all}");
    is_in_order(&forecast);
    tells_how_far_it_is(&seen.borrow(), &forecast);
    says_it_in_words_and_as_json(&forecast);

    let budget = forecast.budget_bytes.unwrap();
    let largest = forecast.largest_batch.clone().unwrap();
    assert!(forecast.minimum_bytes < budget && largest.batch > largest.store_all_batch, "{forecast}");
    keeps(&forecast.device(&under_test(), forecast.minimum_bytes).unwrap(), forecast.minimum_bytes, BATCH);
    keeps(&forecast.device(&under_test(), budget).unwrap(), budget, BATCH);
    keeps(&largest.device(&under_test()).unwrap(), budget, largest.batch);

    let below = forecast.device(&under_test(), forecast.minimum_bytes - 1).unwrap_err();
    assert_eq!(below, RematError::BelowMinimum { budget: forecast.minimum_bytes - 1, minimum: forecast.minimum_bytes });
}

/// Checks that budgets ascend from the minimum to what is needed, peaks fit, and the time added never rises.
fn is_in_order(forecast: &Forecast) {
    let points = &forecast.points;
    assert!((8..=10).contains(&points.len()), "{forecast}");
    assert!(points.is_sorted_by(|a, b| a.budget_bytes < b.budget_bytes), "{forecast}");
    assert!(points.is_sorted_by(|a, b| a.predicted_overhead >= b.predicted_overhead), "{forecast}");
    assert!(points.iter().all(|point| point.predicted_peak_bytes <= point.budget_bytes), "{forecast}");
    let (first, last) = (&points[0], &points[points.len() - 1]);
    assert_eq!((first.budget_bytes, last.budget_bytes), (forecast.minimum_bytes, forecast.needs_bytes), "{forecast}");
    assert!(first.predicted_overhead > 0.0 && last.predicted_overhead < 0.005, "{forecast}");
    assert_eq!(forecast.budget_bytes, Some((forecast.needs_bytes as f64 * 0.6) as u64));
    assert!(points.iter().any(|point| Some(point.budget_bytes) == forecast.budget_bytes), "{forecast}");
}

fn tells_how_far_it_is(seen: &[ForecastProgress], forecast: &Forecast) {
    assert_eq!(seen[..2], [ForecastProgress::Measuring, ForecastProgress::DryRun]);
    let planned: Vec<u64> = seen
        .iter()
        .filter_map(|progress| match progress {
            ForecastProgress::Planning { budget, .. } => Some(*budget),
            _ => None,
        })
        .collect();
    assert_eq!(planned, forecast.points.iter().map(|point| point.budget_bytes).collect::<Vec<_>>());
    let largest = forecast.largest_batch.as_ref().map(|largest| ForecastProgress::TryingBatch { batch: largest.batch });
    assert!(seen.iter().any(|progress| Some(*progress) == largest), "{seen:?}");
}

fn says_it_in_words_and_as_json(forecast: &Forecast) {
    let sentence = forecast.summary();
    for part in ["needs ", " · fits ", " at +", " · minimum ", ", set by ", " · largest batch at ", "(now 4)"] {
        assert!(sentence.contains(part), "{sentence} lacks `{part}`");
    }
    // The sentence, an empty line, a heading, and a line for each budget.
    assert_eq!(forecast.to_string().lines().count(), 3 + forecast.points.len(), "{forecast}");
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(forecast).unwrap()).unwrap();
    assert_eq!(json["minimum_bytes"], forecast.minimum_bytes);
    assert_eq!(json["points"].as_array().unwrap().len(), forecast.points.len());
    assert_eq!(json["points"][0]["budget_bytes"], forecast.minimum_bytes);
    let picture = forecast.overhead_picture((960, 540)).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("your budget"), "{picture}");
    // A circle for each budget, and one around the budget asked about.
    assert_eq!(picture.matches("<circle").count(), forecast.points.len() + 1);
}

/// The transformer's plan for the minimum recomputes gradients after the last operation of a pass: the minimum must include what that takes.
#[test]
fn the_minimum_of_a_transformer_is_kept_from_the_first_step_on() {
    let _alone = alone();
    let job = |batch, steps| Job::standard(ModelKind::Transformer, batch, steps, 1).unwrap();
    let config = RematConfig::new(Budget::Unlimited).with_time_limit(PLAN_TIME).without_cache();
    let forecaster = Forecaster::new(config).with_plan_time(PLAN_TIME / 4);
    let forecast =
        forecaster.forecast_batch(&under_test(), 8, |device, batch| job(batch, 4).run(device, |_, _| {})).unwrap();
    for budget in [forecast.minimum_bytes, forecast.needs_bytes / 2] {
        let device = forecast.device(&under_test(), budget).unwrap();
        job(8, 4).run(&device, |_, _| {}).unwrap();
        let report = device.remat_report().unwrap();
        assert_eq!((report.steps_over_budget, report.failure.as_ref()), (0, None), "{forecast}\n{report}");
        assert!(report.peak_bytes <= budget && report.recomputed_operations > 0, "{forecast}\n{report}");
    }
}

#[test]
fn without_a_batch_times_are_said_to_be_estimated_and_nothing_is_executed() {
    let forecast = remat_forecast(&under_test(), |device| {
        assert!(Job::standard(ModelKind::Mlp, 8, 4, 1).unwrap().run(device, |_, _| {}).unwrap().losses == [0.0; 4]);
    })
    .unwrap();
    let (text, sentence) = (forecast.to_string(), forecast.summary());
    assert!(!forecast.is_measured && text.contains("estimated"), "{text}");
    assert!(!sentence.contains("fits") && !sentence.contains("largest batch"), "{sentence}");
    assert_eq!(forecast.budget_bytes, None);
    let nothing = remat_forecast(&under_test(), |_| {});
    assert_eq!(nothing.unwrap_err(), RematError::NoSteps);
}
