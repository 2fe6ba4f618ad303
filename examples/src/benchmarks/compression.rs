//! Forms in which tensors may be kept: what a plan of one measured step costs with each of them.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{Compression, CompressionCost, RematConfig, RematExt};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::comparison::{Measured, Protocol};
use crate::training::{Job, ModelKind};

/// Names of the forms that are also planned with alone. The others change nothing in these models.
const ALONE: [&str; 5] = ["none", "mask-bits", "sign-bits", "shape-only", "offload"];

/// Plans one measured step of each model without compression, with each form alone, and with several.
pub(super) fn compression(settings: &Settings) -> Outcome<Table> {
    let quick = (&[(ModelKind::Transformer, 4)][..], &[0.7][..], Duration::from_millis(100));
    let models = [(ModelKind::Transformer, 16), (ModelKind::Cnn, 128), (ModelKind::Resnet, 32), (ModelKind::Unet, 32)];
    let full = (&models[..], &[0.53, 0.35][..], Duration::from_secs(5));
    let (models, shares, time_limit) = if settings.is_quick() { quick } else { full };
    let protocol = Protocol { steps: 12, warmup: 8, time_limit };
    let others = ["exact", "all", "at least", "measured"];
    let columns: Vec<_> = ["model, budget"].into_iter().chain(ALONE).chain(others).map(str::to_owned).collect();
    let mut rows = Vec::new();
    for &(model, batch_size) in models {
        let job = Job::standard(model, batch_size, protocol.steps, 1)?;
        let measure = |config: RematConfig, name| -> Outcome<Measured> {
            let config = config.with_time_limit(time_limit).without_cache();
            let config = config.advanced(|advanced| advanced.with_compression(Compression::ALL));
            Ok(protocol.measure(&Device::flex().remat(config)?, name, |device, seen| job.run(device, seen))?)
        };
        let peak = measure(RematConfig::default(), "store-all")?.peak_bytes().unwrap_or(0) as f64;
        let mut smallest = Vec::new();
        for share in shares {
            let within = measure(RematConfig::new((peak * share) as u64), "within a budget")?;
            let plan = within.plan();
            let costs: Vec<_> = plan.map_or_else(Vec::new, |plan| plan.compare_compression(time_limit).collect());
            let mut row = vec![Cell::text(format!("{}, {:.0}%", model.name(), 100.0 * share))];
            row.extend(by_form(&costs, |cost| cost.predicted_overhead));
            row.push(Cell::percent(costs.last().and_then(|all| all.lower_bound)));
            row.push(Cell::percent(plan.and_then(|plan| plan.measured_overhead)));
            rows.push(row);
            if !costs.is_empty() {
                smallest = by_form(&costs, |cost| Some(cost.floor_bytes as f64 / peak)).collect();
            }
        }
        let mut row = vec![Cell::text(format!("{}, smallest budget", model.name()))];
        row.extend(smallest);
        row.resize(columns.len(), Cell::none());
        rows.push(row);
    }
    Ok(Table {
        title: "Compression",
        about: format!(
            "Time that a plan adds to one measured step of each model, at budgets that are shares of its peak. Planned in {:.1} s: without \
             compression, with each way of compression alone, with those that keep tensors on the device (`exact`), and with all. \"At least\" and \
             \"measured\" refer to the last of these. \"Smallest budget\" is the smallest for which a plan is known, as a share of the peak. `-`: no \
             plan, or the model has no use for that compression. Batch sizes: transformer 16, cnn 128, resnet and unet 32.",
            time_limit.as_secs_f64()
        ),
        columns,
        rows,
    })
}

/// A figure for each form alone, for the exact ones together, and for all together.
fn by_form(costs: &[CompressionCost], figure: impl Fn(&CompressionCost) -> Option<f64>) -> impl Iterator<Item = Cell> {
    // The costs come with more and more forms: none, each alone, the exact ones, all.
    let alone = ALONE.map(|name| costs.iter().find(|cost| cost.allowed == name));
    let exact = costs.iter().rfind(|cost| !cost.allowed.contains("offload"));
    let all: Vec<_> = alone.into_iter().chain([exact, costs.last()]).map(|cost| cost.and_then(&figure)).collect();
    all.into_iter().map(Cell::percent)
}
