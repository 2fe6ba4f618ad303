//! How long `feng-huang` takes. `cargo bench -p burn-remat-plan --bench feng_huang`

use burn_remat_plan::generate::{Options, Pass, RandomGraphOptions, by_name, random_graph};
use burn_remat_plan::planners::FengHuang;
use burn_remat_plan::{Graph, Planner, Request};
use criterion::{Criterion, criterion_group, criterion_main};

fn forward(name: &str, depth: usize) -> Graph {
    by_name(name, &Options { pass: Pass::Forward, depth, ..Options::default() }).expect("a known name")
}

fn solve(c: &mut Criterion) {
    let random = RandomGraphOptions { skip: 0.1, ..RandomGraphOptions::plain(2000, 2000) };
    let cases = [
        ("resnet50", forward("resnet50", 1)),
        ("densenet161", forward("densenet161", 1)),
        ("dense-64", forward("dense", 64)),
        ("chain-of-5000", forward("linear", 5000)),
        ("random-2000", random_graph(1, &random)),
    ];
    let mut group = c.benchmark_group("feng-huang");
    group.sample_size(10);
    for (name, graph) in &cases {
        group.bench_function(*name, |b| b.iter(|| FengHuang.solve(graph, &Request::new(u64::MAX))));
    }
    group.finish();
}

criterion_group!(benches, solve);
criterion_main!(benches);
