//! Samples per second in the same memory, without and with rematerialization.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{LargestBatch, RematConfig, RematExt, largest_batch};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::tasks::Workload;

/// The most time that recomputation may add to a step, as a share of it.
const MOST_OVERHEAD: f64 = 1.0;

/// Trains with batch sizes from half of the largest without rematerialization up to the largest with it, and with twice that.
pub(super) fn throughput(settings: &Settings) -> Outcome<Table> {
    let full = (&["unet", "resnet", "text-generation", "text-classification"][..], "32 MiB");
    let (names, budget) = if settings.is_quick() { (&["unet"][..], "4 MiB") } else { full };
    let config = RematConfig::new(budget).without_cache();
    let config = if settings.is_quick() { config.with_time_limit(Duration::from_millis(100)) } else { config };
    let device = Device::flex();
    let mut rows = Vec::new();
    for name in names {
        let workload = Workload::by_name(name)?;
        let look = |device: &Device, batch| workload.look(device, batch);
        let found = largest_batch(&device, config.clone(), MOST_OVERHEAD, look)?;
        for batch in batches(found.store_all_batch, found.batch) {
            rows.push(row(workload, &device, &config, &found, batch)?);
        }
    }
    Ok(Table {
        title: "A larger batch in the same memory",
        about: format!(
            "Samples per second in {budget}, medians of five steps. The batches are half of the largest without rematerialization, four in geometric \
             progression from the largest without it to the largest with it (if recomputation may double the time of a step), and twice the largest. \
             `-`: does not fit."
        ),
        columns: ["program, batch", "plain Burn", "remat", "tensors"].map(str::to_owned).into(),
        rows,
    })
}

fn row(
    workload: Workload,
    device: &Device,
    config: &RematConfig,
    found: &LargestBatch,
    batch: usize,
) -> Outcome<Vec<Cell>> {
    let rate =
        |device: &Device| -> Outcome<Cell> { Ok(Cell::rate(batch as f64 / workload.seconds_per_step(device, batch)?)) };
    let mut row = vec![Cell::text(format!("{}, {batch}", workload.name)), Cell::none(), Cell::none(), Cell::none()];
    if batch <= found.store_all_batch {
        row[1] = rate(device)?;
    }
    if batch <= found.batch {
        let device = if batch == found.batch { found.device(device)? } else { device.remat(config.clone())? };
        row[2] = rate(&device)?;
        row[3] = Cell::bytes(Some(device.remat_report()?.peak_bytes));
    }
    Ok(row)
}

/// Half of the largest batch without rematerialization, a geometric series from there to the largest with it, and twice that.
fn batches(most_plain: usize, most: usize) -> Vec<usize> {
    const STEPS: i32 = 3;
    let ratio = most as f64 / most_plain.max(1) as f64;
    let between = (0..=STEPS).map(|step| most_plain as f64 * ratio.powf(f64::from(step) / f64::from(STEPS)));
    let mut batches: Vec<usize> = between.map(|batch| batch.round() as usize).collect();
    batches.extend([most_plain.div_ceil(2), most.saturating_mul(2)]);
    batches.retain(|&batch| batch > 0);
    batches.sort_unstable();
    batches.dedup();
    batches
}
