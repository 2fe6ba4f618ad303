//! `chain-dp` on a chain as long as the report's longest (339 stages) with 500 memory slots.
//!
//! `cargo bench -p burn-remat-plan --bench chain_dp`; the target is one second. Memory is that of the table, printed
//! first; `/usr/bin/time -v` on the same command shows the whole process.

use std::hint::black_box;
use std::time::Duration;

use burn_remat_plan::chain::{Chain, ChainStage};
use burn_remat_plan::planners::{ChainDp, Revolve};
use burn_remat_plan::{Planner, Request};
use criterion::{Criterion, criterion_group, criterion_main};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const STAGES: usize = 339;

/// Stages like those of a deep residual network: three resolutions, sizes and costs that vary by a half.
fn long_chain() -> Chain {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let stages = (0..STAGES).map(|i| {
        let base = 16_000_000_u64 >> (3 * i / STAGES);
        let activation_bytes = base + rng.random_range(0..base / 2);
        ChainStage {
            forward_cost: rng.random_range(800.0..1200.0),
            backward_cost: rng.random_range(1600.0..2400.0),
            activation_bytes,
            saved_bytes: activation_bytes * rng.random_range(2..5),
            gradient_bytes: activation_bytes,
            forward_scratch_bytes: rng.random_range(0..base),
            backward_scratch_bytes: rng.random_range(0..base),
        }
    });
    Chain::new("339 stages", 4_000_000, 4_000_000, stages.collect()).expect("sizes and costs are in range")
}

fn solve(criterion: &mut Criterion) {
    let chain = long_chain();
    let peak = chain.store_all_peak();
    let mut group = criterion.benchmark_group("339 stages, 500 slots");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    println!("table: {} MiB", (STAGES * (STAGES + 1) / 2 * 501 * size_of::<f64>()) >> 20);
    for percent in [10, 50, 90] {
        for threads in [1, 2] {
            let request = Request { threads, ..Request::new(peak / 100 * percent) };
            group.bench_function(format!("chain-dp, {percent}% of the peak, {threads} threads"), |bencher| {
                bencher.iter(|| ChainDp.solve_chain(black_box(&chain), &request).expect("feasible"));
            });
        }
    }
    let request = Request { threads: 2, ..Request::new(peak / 2) };
    group.bench_function("revolve, 50% of the peak, 2 threads", |bencher| {
        bencher.iter(|| Revolve.solve_chain(black_box(&chain), &request).expect("feasible"));
    });
    group.finish();
}

criterion_group!(benches, solve);
criterion_main!(benches);
