//! The storages about which a plan decides: those that are large enough, and not there throughout.

use std::ops::Range;

use burn_remat_core::{Position, Trace, TracedStorage};

use super::phases::phase_at;

/// One part in this many of the store-all peak goes to storages about which no plan decides.
const SMALL_SHARE: u64 = 100;

/// The storages about which a plan decides.
pub(super) struct Large {
    /// Candidates that are large enough.
    pub is: Vec<bool>,
    /// Candidates that are not.
    pub small: Vec<bool>,
    /// For each storage, the first operation of the update phase after which it can no longer be computed again or given up.
    pub until: Vec<usize>,
}

impl Large {
    pub fn of(trace: &Trace, store_all: &[u64], updates: &[Range<usize>]) -> Self {
        let count = trace.storages.len();
        let end = trace.ops.len();
        // The last update ends all of them, whatever it reads: nothing comes after it.
        let (last, before) = updates.split_last().map_or((None, updates), |(last, before)| (Some(last), before));
        let cuts: Vec<Vec<bool>> = before.iter().map(|phase| cut_by(trace, phase)).collect();
        let until_of = |place: usize, appeared: usize| {
            let mut cutting = before.iter().zip(&cuts).filter(|(phase, cut)| phase.start > appeared && cut[place]);
            let phase = cutting.next().map(|(phase, _)| phase).or(last.filter(|last| last.end > appeared));
            phase.map_or(end, |phase| phase.start)
        };
        let mut last_read = vec![None; count];
        for (at, op) in trace.ops.iter().enumerate() {
            op.reads.iter().for_each(|&place| last_read[place as usize] = Some(at));
        }
        let mut until = vec![end; count];
        let mut small = vec![false; count];
        let mut candidates = Vec::new();
        for (at, storage) in trace.storages.iter().enumerate() {
            let start = until_of(at, storage.appeared as usize);
            until[at] = start;
            let before_update = (storage.appeared as usize) < start;
            // What was there before the step and stays, or is only dropped, is a constant.
            let leaves = storage.died.is_some_and(|died| (died as usize) < start);
            let passes = storage.made_by.is_some() || (leaves && last_read[at].is_some());
            match phase_at(updates, storage.appeared as usize) {
                // What an optimizer makes in the middle of a step stays for later readers.
                Some(phase) => small[at] = before_update && last_read[at].is_some_and(|last| last >= phase.end),
                None if before_update && passes => candidates.push(at),
                None => {}
            }
        }
        candidates.sort_by_key(|&at| (trace.storages[at].bytes, at));
        let mut left = store_all.iter().max().copied().unwrap_or(0) / SMALL_SHARE;
        let mut large = Self { is: vec![false; count], small, until };
        for at in candidates {
            match left.checked_sub(trace.storages[at].bytes) {
                Some(rest) => {
                    left = rest;
                    large.small[at] = true;
                }
                None => {
                    left = 0;
                    large.is[at] = true;
                }
            }
        }
        large
    }
}

/// The storages that an update phase takes out of a plan's reach: those that it reads, those that depend on what it replaces, and those that the program
/// drops in the meantime.
fn cut_by(trace: &Trace, phase: &Range<usize>) -> Vec<bool> {
    let mut read = vec![false; trace.storages.len()];
    trace.ops[phase.clone()].iter().flat_map(|op| &op.reads).for_each(|&place| read[place as usize] = true);
    let dies = |storage: &TracedStorage| storage.died.is_some_and(|died| phase.contains(&(died as usize)));
    let replaced = |(storage, read): (&TracedStorage, &bool)| {
        let is_root = storage.made_by.is_none_or(|made| !trace.ops[made as usize].recordable);
        *read && is_root && dies(storage)
    };
    let mut rests: Vec<bool> = trace.storages.iter().zip(&read).map(replaced).collect();
    for (at, op) in trace.ops[..phase.start].iter().enumerate().filter(|(_, op)| op.recordable) {
        if op.reads.iter().any(|&place| rests[place as usize]) {
            let made =
                op.writes.iter().filter(|&&place| trace.storages[place as usize].made_by == Some(at as Position));
            made.for_each(|&place| rests[place as usize] = true);
        }
    }
    (0..rests.len()).map(|place| rests[place] || read[place] || dies(&trace.storages[place])).collect()
}
