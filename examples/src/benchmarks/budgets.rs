//! Training under ten budgets, from the smallest to an ample one: what is held, what is recomputed, and whether the results are the same.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{RematConfig, RematExt, minimum_budget_with};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::comparison::{Measured, Protocol};
use crate::training::{Job, ModelKind};

/// Trains models under a geometric series of budgets, the smallest first.
pub(super) fn budgets(settings: &Settings) -> Outcome<Table> {
    let quick =
        (&[ModelKind::Cnn][..], 2_usize, 8, Protocol { steps: 9, warmup: 6, time_limit: Duration::from_millis(100) });
    let models = &[ModelKind::Unet, ModelKind::Resnet, ModelKind::Transformer, ModelKind::Cnn, ModelKind::Lstm];
    let full = (&models[..], 10, 16, Protocol { steps: 18, warmup: 12, time_limit: Duration::from_secs(4) });
    let (models, budgets, batch_size, protocol) = if settings.is_quick() { quick } else { full };
    let mut rows = Vec::new();
    for &model in models {
        let job = Job::standard(model, batch_size, protocol.steps, 1)?;
        let config = RematConfig::default().with_time_limit(protocol.time_limit).without_cache();
        let needs = minimum_budget_with(&Device::flex(), config, |dry| job.run(dry, |_, _| {}))?;
        let measure = |device: &Device, name| protocol.measure(device, name, |device, seen| job.run(device, seen));
        let plain = measure(&Device::flex(), "plain Burn")?;
        let (least, most) = (needs.minimum_bytes as f64, needs.store_all_bytes as f64);
        rows.push(vec![
            Cell::text(format!("{}, plain Burn", model.name())),
            Cell::none(),
            Cell::bytes(Some(needs.store_all_bytes)),
            Cell::bytes(Some(plain.heap.peak_bytes)),
        ]);
        for at in 0..budgets {
            let budget = (least * (most / least).powf(at as f64 / (budgets - 1) as f64)).ceil();
            let config = RematConfig::new(budget as u64).with_time_limit(protocol.time_limit).without_cache();
            let within = measure(&Device::flex().remat(config)?, "within a budget")?;
            let name = format!("{}, {:.0}%", model.name(), 100.0 * budget / most);
            rows.push(row(name, budget as u64, &within, within.run.is_identical(&plain.run)));
        }
    }
    let columns = [
        "model, budget",
        "in bytes",
        "tensors",
        "heap",
        "overhead planned",
        "at least",
        "measured",
        "steps over budget",
        "identical",
    ];
    for row in &mut rows {
        row.resize(columns.len(), Cell::none());
    }
    Ok(Table {
        title: "Training under a budget",
        about: format!(
            "Budgets in geometric progression, from the one that `minimum_budget` names to what the step takes without one. Batch size {batch_size}, \
             {} steps, {:.1} s of planning. Tensors and heap are the most held at once. The heap is that of the process: it includes the workspace of \
             kernels, the engine and its plans. Overhead is the time of recomputation relative to that of all other operations, by the engine's \
             clock; \"at least\" is a proved lower bound for any plan of that step. Steps over budget occur before there is a plan. \"Identical\" \
             compares losses, gradients and parameters with plain Burn's, bit for bit.",
            protocol.steps,
            protocol.time_limit.as_secs_f64()
        ),
        columns: columns.map(str::to_owned).into(),
        rows,
    })
}

/// What was held, what that costs, and whether the budget was kept.
fn row(name: String, budget: u64, within: &Measured, is_identical: bool) -> Vec<Cell> {
    let plan = within.plan();
    vec![
        Cell::text(name),
        Cell::bytes(Some(budget)),
        Cell::bytes(within.peak_bytes()),
        Cell::bytes(Some(within.heap.peak_bytes)),
        Cell::percent(plan.map(|plan| plan.predicted_overhead)),
        Cell::percent(plan.and_then(|plan| plan.lower_bound)),
        Cell::percent(plan.and_then(|plan| plan.measured_overhead)),
        within.report.as_ref().map_or_else(Cell::none, |report| Cell::count(report.steps_over_budget)),
        Cell::text(if is_identical { "yes" } else { "no" }),
    ]
}
