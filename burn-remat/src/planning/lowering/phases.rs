//! The phases of a step: forward, backward, and the updates of parameters.

use std::ops::Range;

use burn_remat_core::Trace;

/// How many operations may come between two parameter updates of the same update phase.
const UPDATE_GAP: usize = 64;

/// Update phases as ranges of positions. The last one extends to the end of the step.
pub(super) fn update_phases(trace: &Trace) -> Vec<Range<usize>> {
    let mut phases: Vec<Range<usize>> = Vec::new();
    for (at, _) in trace.ops.iter().enumerate().filter(|(_, op)| op.updates) {
        match phases.last_mut() {
            Some(phase) if at - phase.end < UPDATE_GAP => phase.end = at + 1,
            _ => phases.push(at..at + 1),
        }
    }
    // A lone update in the middle of a step is a running statistic, not an optimizer.
    let most = phases.iter().map(Range::len).max().unwrap_or(0);
    let last = phases.len().saturating_sub(1);
    let mut index = 0;
    phases.retain(|phase| {
        let keep = index == last || phase.len() * 4 >= most;
        index += 1;
        keep
    });
    if let Some(phase) = phases.last_mut() {
        phase.end = trace.ops.len();
    }
    phases
}

/// The update phase in which an operation runs.
pub(super) fn phase_at(updates: &[Range<usize>], position: usize) -> Option<&Range<usize>> {
    updates.iter().find(|phase| phase.contains(&position))
}

/// Where forward turns into backward: at the scalar that is made from nothing (the gradient of the loss) and is nearest to the peak.
pub(in crate::planning) fn turning_point(trace: &Trace, store_all: &[u64]) -> usize {
    let peak = store_all.iter().enumerate().rev().max_by_key(|(_, bytes)| **bytes).map_or(0, |(at, _)| at);
    let seed = |at: &usize| {
        let op = &trace.ops[*at];
        op.reads.is_empty() && op.writes.iter().all(|&place| trace.storages[place as usize].bytes <= 8)
    };
    (0..trace.ops.len()).filter(seed).min_by_key(|&at| at.abs_diff(peak)).unwrap_or(peak)
}
