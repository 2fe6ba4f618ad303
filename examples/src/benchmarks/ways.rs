//! Models head to head: plain Burn, its own checkpointing, checkpointing by hand, and remat with the memory of these and with less.

use std::time::Duration;

use clap::ValueEnum;

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::contenders::{Contender, Scale};
use crate::head_to_head::{Contest, Row};

/// Trains models in all ways side by side.
pub(super) fn ways(settings: &Settings) -> Outcome<Table> {
    let quick = (&[Contender::Unet][..], Scale::Quick, 2, Duration::from_millis(100));
    let full = (Contender::value_variants(), Scale::Moderate, 10, Duration::from_secs(10));
    let (models, scale, rounds, time_limit) = if settings.is_quick() { quick } else { full };
    let mut rows = Vec::new();
    for &model in models {
        let contest = Contest { model, scale, rounds, time_limit, activations: None, say: &|_| {} };
        rows.extend(contest.run()?.rows.iter().map(|found| row(model, found)));
    }
    let columns =
        ["model, way", "tensors", "heap", "a step", "wall time", "processor time", "bits", "steps over budget"];
    Ok(Table {
        title: "Head to head",
        about: format!(
            "Each model is trained in several ways, which take turns step by step, for {rounds} rounds, with {:.1} s of planning: plain Burn, Burn's \
             balanced checkpointing, checkpointing written by hand at every block, and remat in the memory of these two and in half of the smallest, \
             or with the smallest budget that `minimum_budget` names if half is below that. In all ways, tensors are counted by an engine. The heap \
             is what the process allocates, including the engine and its plans. Times are relative to plain Burn's (median and quartiles).",
            time_limit.as_secs_f64()
        ),
        columns: columns.map(str::to_owned).into(),
        rows,
    })
}

fn row(model: Contender, found: &Row) -> Vec<Cell> {
    vec![
        Cell::text(format!("{}, {}", model.name(), found.name)),
        Cell::bytes(Some(found.tensors)),
        Cell::bytes(Some(found.heap)),
        Cell::spread(found.times.wall_ms, "ms"),
        Cell::ratio_spread(found.times.wall_ratio),
        Cell::ratio_spread(found.times.processor_ratio),
        Cell::text(found.bits()),
        found.report.as_ref().map_or_else(Cell::none, |report| Cell::count(report.steps_over_budget)),
    ]
}
