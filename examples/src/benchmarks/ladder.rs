//! Ten budgets from the smallest to an ample one: neither time nor memory should rise with the budget beyond what it allows.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{RematConfig, RematExt, minimum_budget_with};

use super::Settings;
use super::budgets::{OUTCOME, outcome};
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::comparison::Protocol;
use crate::training::{Job, ModelKind};

/// Trains models within budgets of equal ratio, the smallest first.
pub(super) fn ladder(settings: &Settings) -> Outcome<Table> {
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
        let plain = protocol.measure(&Device::flex(), "plain Burn", |device, seen| job.run(device, seen))?;
        let (least, most) = (needs.minimum_bytes as f64, needs.store_all_bytes as f64);
        for at in 0..budgets {
            let budget = least * (most / least).powf(at as f64 / (budgets - 1) as f64);
            let config = RematConfig::new(budget.ceil() as u64).with_time_limit(protocol.time_limit).without_cache();
            let device = Device::flex().remat(config)?;
            let run = protocol.measure(&device, "within a budget", |device, seen| job.run(device, seen))?;
            let mut row = vec![
                Cell::text(format!("{}, {:.0}%", model.name(), 100.0 * budget / most)),
                Cell::bytes(Some(budget.ceil() as u64)),
                Cell::bytes(run.peak_bytes()),
            ];
            row.extend(outcome(&run, run.run.is_identical(&plain.run)));
            rows.push(row);
        }
    }
    let columns = ["model, budget", "in bytes", "held under it"];
    Ok(Table {
        title: "More memory, less time",
        about: format!(
            "Budgets of equal ratio, from what `minimum_budget` names to what the step takes without one. Batch size {batch_size}, {} steps, {:.1} s of \
             planning. Overhead, \"at least\" and \"identical\" are those of the table above.",
            protocol.steps,
            protocol.time_limit.as_secs_f64()
        ),
        columns: columns.into_iter().chain(OUTCOME).map(str::to_owned).collect(),
        rows,
    })
}
