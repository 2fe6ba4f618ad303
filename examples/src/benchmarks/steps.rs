//! The cost of a remat device: time of a step, and time of an operation.

use std::time::Duration;

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;
use crate::overhead::{self, OperationCost, PLAN_TIME, SHARES, StepCost, StepProtocol, usual_batch_size};
use crate::training::ModelKind;

/// Time of a step compared with plain Burn, with an ample budget and with shares of what the step takes.
pub(super) fn steps(settings: &Settings) -> Outcome<Table> {
    let (models, shares): (&[ModelKind], &[u64]) =
        if settings.is_quick() { (&[ModelKind::Mlp], &[100]) } else { (&ModelKind::ALL, &SHARES) };
    let mut rows = Vec::new();
    for &model in models {
        let usual = StepProtocol { batch_size: usual_batch_size(model), rounds: 40, shares, plan_time: PLAN_TIME };
        let quick = StepProtocol { batch_size: 8, rounds: 3, shares, plan_time: Duration::from_millis(100) };
        rows.push(step_row(&overhead::per_step(model, if settings.is_quick() { quick } else { usual })?));
    }
    let ample = ["model", "batch size", "operations", "plain Burn", "group of one", "ample budget"];
    let budgets = shares.iter().map(|share| format!("{share}%"));
    Ok(Table {
        title: "What a remat device costs",
        about: "Time of a step relative to plain Burn's (median and quartiles). Plain Burn, Burn's own group of one device and the remat devices train \
                side by side in one process and take turns step by step; each ratio compares two steps of the same round. Budgets are shares of what the \
                step takes without one. \"Identical\" compares the losses of all devices, bit for bit."
            .to_owned(),
        columns: ample.map(str::to_owned).into_iter().chain(budgets).chain(["identical".to_owned()]).collect(),
        rows,
    })
}

fn step_row(cost: &StepCost) -> Vec<Cell> {
    let [plain, others @ ..] = &cost.devices[..] else { return Vec::new() };
    let mut row = vec![
        Cell::text(cost.model.name()),
        Cell::count(cost.batch_size),
        Cell::count(cost.operations),
        Cell::spread(plain.times.wall_ms, "ms"),
    ];
    row.extend(others.iter().map(|device| Cell::ratio_spread(device.times.wall_ratio)));
    row.push(Cell::text(if cost.losses_identical { "yes" } else { "no" }));
    row
}

/// Time that the device adds to an operation, without a group around it.
pub(super) fn operations(settings: &Settings) -> Outcome<Table> {
    let (chains, rounds): (&[_], _) = if settings.is_quick() { (&[(16, 4)], 8) } else { (&[(16, 4), (64, 32)], 320) };
    let mut rows = Vec::new();
    for &(width, height) in chains {
        let cost = overhead::per_operation(width, height, rounds)?;
        let OperationCost { shape: [height, width], operations, added_ns, engine_ns, .. } = cost;
        rows.push(vec![
            Cell::text(format!("[{height}, {width}]")),
            Cell::count(operations as u64),
            Cell::spread(added_ns, "ns"),
            Cell::spread(engine_ns, "ns"),
        ]);
    }
    Ok(Table {
        title: "What an operation costs",
        about: "Time that `Autodiff<Remat<Flex>>` adds to each operation of `Autodiff<Flex>` (median and quartiles), on a chain of 24 layers with \
                forward, backward and update. The remainder is spent in Burn's router and interpreter."
            .to_owned(),
        columns: ["tensors", "operations", "added", "of that the engine"].map(str::to_owned).into(),
        rows,
    })
}
