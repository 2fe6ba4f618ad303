//! What kernels allocate on the process's heap in addition to tensors: measured, named, and counted against the budget if that
//! is requested.

use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::data::Images;
use burn_remat_examples::device::is_flex;
use burn_remat_examples::heap::Heap;
use burn_remat_examples::training::{Job, ModelKind, Source};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

#[test]
fn workspaces_are_measured_and_the_heap_stays_within_a_budget_that_counts_them() {
    const WARMUP: usize = 6;
    if !is_flex("workspaces", "only Flex's kernels allocate theirs on the heap") {
        return;
    }
    let source = Source::Images(Images::digits().unwrap());
    let job = Job { model: ModelKind::Unet, batch_size: 16, steps: WARMUP + 8, seed: 0, source };
    let measured =
        Device::flex().remat(RematConfig::default().advanced(|advanced| advanced.with_memory_probe(Heap))).unwrap();
    let plain = job.run(&measured, |_, _| {}).unwrap();
    let report = measured.remat_report().unwrap();
    let workspace = report.scratch_bytes.unwrap();
    assert!(workspace > report.peak_bytes / 20, "{report}");
    assert!(report.scratch_op.as_ref().is_some_and(|op| op.contains("Conv")), "{report}");

    let budget = report.peak_bytes * 9 / 10;
    let config = RematConfig::new(budget)
        .advanced(|advanced| advanced.with_memory_probe(Heap).with_workspace_in_budget())
        .without_cache();
    let device = Device::flex().remat(config.with_time_limit(Duration::from_secs(1))).unwrap();
    // A planner at work uses the same heap: returns whether there was none, and how long the current plan took.
    let planning = || {
        let report = device.remat_report().unwrap();
        (report.planning_seconds.is_none(), report.plan.map(|plan| plan.plan_seconds))
    };
    let (mut before, mut most) = (None, Vec::new());
    let run = job
        .run(&device, |step, _| match step + 1 {
            WARMUP => assert!(device.remat_wait_for_plan(Duration::from_secs(300)).unwrap()),
            // By now the plan has been followed, and made again if more was held than it predicted.
            step if step >= WARMUP + 2 => {
                let now = Some(planning()).filter(|(idle, _)| *idle);
                if now.is_some() && now == before {
                    most.push(Heap::most());
                }
                before = now;
                if step == WARMUP + 2 {
                    assert!(device.remat_wait_for_plan(Duration::from_secs(300)).unwrap());
                    device.remat_reset_report().unwrap();
                    before = Some(planning());
                }
                Heap::start();
            }
            _ => {}
        })
        .unwrap();
    assert!(most.len() >= 2, "a planner was at work in all but {} of six steps", most.len());
    let peak = most.into_iter().max().unwrap_or_default();
    let report = device.remat_report().unwrap();
    assert!(run.is_identical(&plain));
    let plan = report.plan.as_ref().unwrap_or_else(|| panic!("{report}"));
    assert!(plan.steps_followed >= 3 && plan.predicted_peak_bytes <= budget, "{report}");
    // All tensors are gone by now: what is left is what the devices keep for themselves, mainly plans.
    let heap = (peak - HEAP.current_usage()) as u64;
    assert!(heap <= budget + budget / 20, "{heap} bytes of heap: {report}");
}
