//! How long whole runs take, including all planning, in turns with plain Burn and with Burn's own group of one device.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat::{RematConfig, RematExt, RematReport};
use burn_remat_examples::clock::processor_time;
use burn_remat_examples::device::under_test;
use burn_remat_tests::alone;

use crate::{FURTHER, IN_A_HURRY, PROGRAMS, Program, ROUNDS_OF_A_PROGRAM, is_asked_for, named_minimum, run};

/// Rounds of each run.
const LONG: usize = 200;
/// Runs of each kind; medians are printed.
const TURNS: usize = 3;
/// Budgets, in percent of the peak; more if a program needs more.
const SHARES: [u64; 2] = [80, 60];

/// One run.
struct Run {
    wall: f64,
    processor: f64,
    report: Option<RematReport>,
}

impl Run {
    fn of(program: Program, device: Device) -> Self {
        let (begun, processor) = (Instant::now(), processor_time());
        run(program, &device);
        device.sync().unwrap();
        let seconds = |time: Duration| time.as_secs_f64();
        let (wall, processor) = (seconds(begun.elapsed()), seconds(processor_time() - processor));
        Self { wall, processor, report: device.remat_report().ok() }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Wall and processor time divided by plain Burn's in the same turn; then the time of recomputation divided by that of the program's operations, and
/// how many steps followed a plan of their own or a similar one, out of all.
fn cell(runs: &[Run], plain: &[Run]) -> String {
    let ratio = |of: fn(&Run) -> f64| median(runs.iter().zip(plain).map(|(run, plain)| of(run) / of(plain)));
    let mut text = format!("{:.2}x, {:.2}x", ratio(|run| run.wall), ratio(|run| run.processor));
    let reports: Vec<_> = runs.iter().filter_map(|run| run.report.as_ref()).collect();
    if let Some(last) = reports.last().filter(|last| last.budget_bytes.is_some()) {
        let again = median(reports.iter().map(|report| report.recompute_ns as f64 / report.compute_ns as f64));
        let planned = last.plan.as_ref().map_or(0, |plan| plan.steps_followed);
        text += &format!(" ({:.1}%; {planned}, {} of {})", 100.0 * again, last.steps_guided, last.steps);
    }
    text
}

#[test]
#[ignore = "slow, and its times are meaningful only on idle cores"]
fn how_long_whole_runs_take() {
    let _alone = alone();
    ROUNDS_OF_A_PROGRAM.set(LONG);
    IN_A_HURRY.set(true);
    println!("| program | plain Burn | group of one | unlimited | 80% or more | 60% or more | budgets |");
    for (name, program) in PROGRAMS.into_iter().chain(FURTHER).filter(is_asked_for) {
        let unlimited = || under_test().remat("unlimited").unwrap();
        let peak = Run::of(program, unlimited()).report.unwrap().peak_bytes;
        // So much above the minimum, no plan of a dry run is taken up: planning is part of the time.
        let least = named_minimum(program, None).map_or(0, |least| least + least / 7);
        let budgets = SHARES.map(|share| (peak * share / 100).max(least));
        let mut runs: Vec<Vec<Run>> = (0..SHARES.len() + 3).map(|_| Vec::new()).collect();
        for _ in 0..TURNS {
            let within = |budget| under_test().remat(RematConfig::new(budget).without_cache()).unwrap();
            let group = Device::group_options(&[under_test()]).init().unwrap();
            let devices = [under_test(), group, unlimited()].into_iter().chain(budgets.map(within));
            runs.iter_mut().zip(devices).for_each(|(runs, device)| runs.push(Run::of(program, device)));
        }
        let (plain, others) = runs.split_first().unwrap();
        let cells: Vec<_> = others.iter().map(|runs| cell(runs, plain)).collect();
        let shares = budgets.map(|budget| format!("{}%", 100 * budget / peak)).join(", ");
        println!("| {name} | {:.2} s | {} | {shares} |", median(plain.iter().map(|run| run.wall)), cells.join(" | "));
    }
}
