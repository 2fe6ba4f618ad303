//! `chain-dp` on graphs whose stages can do with less than their whole saved set.

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::{ChainDp, StoreAll};
use burn_remat_plan::{Request, solve};

/// Overhead in percent at a share of the store-all peak, in percent too.
fn overhead(name: &str, batch: u64, depth: usize, share: u64) -> f64 {
    let graph = by_name(name, &Options { batch, depth, ..Options::default() }).unwrap();
    let budget = StoreAll::peak(&graph) / 100 * share;
    let outcome = solve(&ChainDp, &graph, &Request::new(budget)).unwrap().outcome;
    assert!(outcome.peak_bytes <= budget);
    100.0 * (outcome.makespan / StoreAll::makespan(&graph) - 1.0)
}

/// The comments give the overhead that `search` finds, and that of whole saved sets alone.
#[test]
fn dropping_what_is_cheap_inside_a_stage_costs_little() {
    let cases = [
        ("vgg16", 256, 8, 49, 0.25),     // 0.19, 8.37
        ("resnet50", 256, 8, 50, 2.1),   // 1.15, 11.42
        ("resnet50", 256, 8, 60, 0.5),   // 0.22, 6.94
        ("unet416x608", 32, 8, 77, 1.7), // 1.29, 6.31
        ("unet416x608", 32, 8, 89, 0.1), // 0.08, 0.92
        ("vit", 16, 12, 60, 7.6),        // 7.58, 14.98
    ];
    for (name, batch, depth, share, most) in cases {
        let found = overhead(name, batch, depth, share);
        assert!(found <= most, "{name} at {share}%: {found}%");
    }
}
