//! Trainings under budgets: what they hold, what they recompute, and whether they compute the same.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{Budget, RematConfig, RematExt};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::comparison::{Comparison, Measured, Protocol};
use crate::training::{Job, ModelKind};

/// The columns of [`outcome`].
pub(super) const OUTCOME: [&str; 5] = ["overhead planned", "at least", "measured", "steps over budget", "identical"];

/// Trains models on plain Burn, without a limit and under budgets.
pub(super) fn budgets(settings: &Settings) -> Outcome<Table> {
    let quick = (
        &[ModelKind::Cnn][..],
        &[0.7][..],
        8,
        Protocol { steps: 9, warmup: 6, time_limit: Duration::from_millis(100) },
    );
    let models = &[ModelKind::Unet, ModelKind::Resnet, ModelKind::Transformer, ModelKind::Cnn];
    let full = (
        &models[..],
        &[0.7, 0.5, 0.35][..],
        32,
        Protocol { steps: 18, warmup: 10, time_limit: Duration::from_secs(6) },
    );
    let (models, shares, batch_size, protocol) = if settings.is_quick() { quick } else { full };
    let mut rows = Vec::new();
    for &model in models {
        let job = Job::standard(model, batch_size, protocol.steps, 1)?;
        let measure = |device: &Device, name| protocol.measure(device, name, |device, seen| job.run(device, seen));
        let remat = |budget| {
            Device::flex().remat(RematConfig::new(budget).with_time_limit(protocol.time_limit).without_cache())
        };
        for &share in shares {
            let plain = measure(&Device::flex(), "plain Burn")?;
            let store_all = measure(&remat(Budget::Unlimited)?, "store-all")?;
            let budget = Comparison::resolved(Budget::Share(share), &store_all);
            let budgeted = measure(&remat(budget)?, "under the budget")?;
            let comparison = Comparison { plain, store_all, budgeted, plain_is_other: false, warmup: protocol.warmup };
            rows.push(row(model, share, &comparison));
        }
    }
    let columns =
        ["model, budget", "held without a budget", "held under it", "heap, plain Burn", "heap under the budget"];
    Ok(Table {
        title: "Training under a budget",
        about: format!(
            "Batch size {batch_size}, {} steps, {:.1} s of planning. Overhead is the time of repeated operations over that of the others, by the engine's \
             clock; \"at least\" is what any plan of that step costs, proved. The heap is that of the process, which includes the workspace of kernels. \
             Steps over budget are those before there is a plan. \"Identical\" compares losses, gradients and parameters with plain Burn's, bit for bit.",
            protocol.steps,
            protocol.time_limit.as_secs_f64()
        ),
        columns: columns.into_iter().chain(OUTCOME).map(str::to_owned).collect(),
        rows,
    })
}

fn row(model: ModelKind, share: f64, comparison: &Comparison) -> Vec<Cell> {
    let Comparison { plain, store_all, budgeted, .. } = comparison;
    let mut row = vec![
        Cell::text(format!("{}, {:.0}%", model.name(), 100.0 * share)),
        Cell::bytes(store_all.peak_bytes()),
        Cell::bytes(budgeted.peak_bytes()),
        Cell::bytes(Some(plain.heap.peak_bytes)),
        Cell::bytes(Some(budgeted.heap.peak_bytes)),
    ];
    row.extend(outcome(budgeted, comparison.is_identical()));
    row
}

/// What a budget costs and whether it was kept: the columns [`OUTCOME`] of a row.
pub(super) fn outcome(budgeted: &Measured, is_identical: bool) -> [Cell; 5] {
    let plan = budgeted.plan();
    [
        Cell::percent(plan.map(|plan| plan.predicted_overhead)),
        Cell::percent(plan.and_then(|plan| plan.lower_bound)),
        Cell::percent(plan.and_then(|plan| plan.measured_overhead)),
        budgeted.report.as_ref().map_or_else(Cell::none, |report| Cell::count(report.steps_over_budget)),
        Cell::text(if is_identical { "yes" } else { "no" }),
    ]
}
