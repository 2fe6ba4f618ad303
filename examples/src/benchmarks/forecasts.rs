//! What is forecast before training, and what training then does: needs, minimum and largest batch.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{Forecaster, RematConfig, RematReport};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::tasks::Workload;

/// Forecasts the example programs, finds the largest batch within a budget, and trains with it.
pub(super) fn forecasts(settings: &Settings) -> Outcome<Table> {
    let quick = (&["unet"][..], 8, "4 MiB", Duration::from_millis(20));
    let all = ["mnist", "text-classification", "custom-training-loop", "text-generation", "image-segmentation", "wgan"];
    let names: Vec<&str> = all.into_iter().chain(["modern-lstm", "resnet", "unet"]).collect();
    let full = (&names[..], 32, "32 MiB", Duration::from_millis(500));
    let (names, batch, budget, plan_time) = if settings.is_quick() { quick } else { full };
    let config = RematConfig::new(budget).without_cache();
    let config = if settings.is_quick() { config.with_time_limit(plan_time) } else { config };
    let forecaster = Forecaster::new(config).with_plan_time(plan_time);
    let mut rows = Vec::new();
    for name in names {
        let workload = Workload::by_name(name)?;
        let device = Device::flex();
        let forecast = forecaster.forecast_batch(&device, batch, |device, batch| workload.look(device, batch))?;
        let mut row = vec![
            Cell::text(workload.name),
            Cell::bytes(Some(forecast.needs_bytes)),
            Cell::bytes(Some(forecast.minimum_bytes)),
        ];
        match &forecast.largest_batch {
            Some(found) => {
                row.push(Cell::count(found.store_all_batch));
                row.push(Cell::count(found.batch));
                row.push(Cell::ratio(found.batch as f64 / found.store_all_batch.max(1) as f64));
                row.push(Cell::percent(Some(found.predicted_overhead)));
                let report = workload.report_with_plan(&found.device(&device)?, found.batch)?;
                row.extend(trained(&report));
            }
            None => row.extend(std::iter::repeat_with(Cell::none).take(7)),
        }
        rows.push(row);
    }
    let columns = [
        "program",
        "needs",
        "minimum",
        "largest batch without rematerialization",
        "with it",
        "ratio",
        "overhead predicted",
        "measured",
        "most held",
        "steps over budget",
    ];
    Ok(Table {
        title: "Forecasts and the largest batch",
        about: format!(
            "What `forecast` says about a batch of {batch} (what it needs, and the smallest budget for which a plan is known) and about the largest \
             batch within {budget}, if recomputation may double the time of a step. Then twelve steps are trained with that batch; \"measured\" and \
             \"most held\" are figures of the last ones, which follow a plan made with measured times."
        ),
        columns: columns.map(str::to_owned).into(),
        rows,
    })
}

fn trained(report: &RematReport) -> [Cell; 3] {
    let measured = report.plan.as_ref().and_then(|plan| plan.measured_overhead);
    [Cell::percent(measured), Cell::bytes(Some(report.peak_bytes)), Cell::count(report.steps_over_budget)]
}
