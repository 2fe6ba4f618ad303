//! Runs of operations that become one op each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;

use burn_remat_core::{CheckpointPolicy, Place, Position, Rule, Trace};

use super::large::Large;

/// An op that holds more than one part in this many of the store-all peak may set the floor. So operations merge into such an op only if it holds no more
/// than they do one by one.
const ROOMY: u64 = 4;
/// How many ops of a graph planners handle well within seconds.
const MOST_OPS: usize = 1200;
/// The most that a merged op may touch, as one part in this many of the store-all peak.
const COARSEST: u64 = 16;

/// A run of operations that becomes one op.
#[derive(Clone, Default)]
pub(super) struct Unit {
    pub range: Range<usize>,
    /// Large storages that it reads and does not make.
    pub inputs: BTreeSet<Place>,
    /// Large storages that it makes.
    pub created: BTreeSet<Place>,
    /// Whether it may run again.
    pub recordable: bool,
    pub rule: Option<Rule>,
}

impl Unit {
    pub fn is_rider(&self) -> bool {
        self.created.is_empty()
    }

    fn has(&self, places: &BTreeSet<Place>) -> bool {
        places.iter().all(|place| self.inputs.contains(place) || self.created.contains(place))
    }

    /// Appends the next unit.
    fn absorb(&mut self, next: Unit) {
        self.inputs.extend(next.inputs.difference(&self.created).copied().collect::<Vec<_>>());
        if self.is_rider() {
            (self.recordable, self.rule) = (next.recordable, next.rule);
        } else if !next.is_rider() {
            self.recordable &= next.recordable;
        }
        self.created.extend(next.created);
        self.range.end = next.range.end;
    }
}

/// Cuts a step into units. Most of these hold little compared with the store-all peak of `peak` bytes.
pub(super) fn units(trace: &Trace, large: &Large, updates: &[Range<usize>], peak: u64) -> Vec<Unit> {
    coarsen(trace, merge(trace, large, updates, peak / ROOMY), peak / COARSEST)
}

fn merge(trace: &Trace, large: &Large, updates: &[Range<usize>], roomy: u64) -> Vec<Unit> {
    let mut read_last = vec![0_usize; trace.storages.len()];
    for &(position, place) in &trace.reads {
        read_last[place as usize] = read_last[place as usize].max(position as usize + 1);
    }
    // Whether everything that `unit` makes is gone, for the program and for any reader, by the end of `next`.
    let passes_on = |unit: &Unit, next: &Unit| {
        unit.created.iter().all(|&place| {
            let died = trace.storages[place as usize].died;
            died.is_some_and(|died| (died as usize) < next.range.end) && read_last[place as usize] == 0
        })
    };
    let mut units: Vec<Unit> = Vec::new();
    let mut at = 0;
    let mut phases = updates.iter();
    let mut phase = phases.next();
    // Units before this index are closed: an update phase came between.
    let mut floor = 0;
    while at < trace.ops.len() {
        if let Some(range) = phase.filter(|range| range.start == at) {
            units.push(Unit { range: range.clone(), ..Unit::default() });
            at = range.end;
            floor = units.len();
            phase = phases.next();
            continue;
        }
        let mut next = unit_of(trace, large, at);
        while let Some(top) = units[floor..].last() {
            let joins = if next.is_rider() {
                top.has(&next.inputs)
            } else if top.is_rider() {
                next.has(&top.inputs)
            } else {
                let alike = top.rule == next.rule && top.recordable && next.recordable;
                alike && top.has(&next.inputs) && passes_on(top, &next) && {
                    let mut both = top.clone();
                    both.absorb(next.clone());
                    let together = footprint(trace, large, &both);
                    together <= roomy || together <= footprint(trace, large, top).max(footprint(trace, large, &next))
                }
            };
            if !joins {
                break;
            }
            let Some(mut top) = units.pop() else { break };
            top.absorb(next);
            next = top;
        }
        units.push(next);
        at += 1;
    }
    units
}

/// The unit of one operation.
fn unit_of(trace: &Trace, large: &Large, at: usize) -> Unit {
    let op = &trace.ops[at];
    let is_large = |place: &&Place| large.is[**place as usize];
    let made_here = |place: &Place| trace.storages[*place as usize].made_by == Some(at as Position);
    Unit {
        range: at..at + 1,
        inputs: op.reads.iter().filter(is_large).copied().collect(),
        created: op.writes.iter().filter(is_large).copied().filter(made_here).collect(),
        recordable: op.recordable && op.rule.is_none_or(|rule| rule.policy != CheckpointPolicy::MustSave),
        rule: op.rule,
    }
}

/// Merges neighbours of one kind, always the two that together touch least, until the graph is small enough or they touch more than `limit` bytes.
/// O(units log units).
fn coarsen(trace: &Trace, units: Vec<Unit>, limit: u64) -> Vec<Unit> {
    if units.len() <= MOST_OPS {
        return units;
    }
    let touched = |unit: &Unit| -> u64 {
        unit.inputs.iter().chain(&unit.created).map(|&place| trace.storages[place as usize].bytes).sum()
    };
    let is_update = |unit: &Unit| unit.inputs.is_empty() && unit.created.is_empty();
    // What the two touch together, and where the second begins and ends.
    let pair = |first: &Unit, second: &Unit| {
        let alike = first.recordable == second.recordable && first.rule == second.rule;
        let bytes = touched(first) + touched(second);
        let joins = alike && !is_update(first) && !is_update(second) && bytes <= limit;
        joins.then_some(Reverse((bytes, second.range.start, second.range.end)))
    };
    let mut pairs: BinaryHeap<_> = units.windows(2).filter_map(|two| pair(&two[0], &two[1])).collect();
    // By start position.
    let mut left: BTreeMap<usize, Unit> = units.into_iter().map(|unit| (unit.range.start, unit)).collect();
    while left.len() > MOST_OPS
        && let Some(next) = pairs.pop()
    {
        let start = next.0.1;
        // A unit that has merged since then touches more, or begins elsewhere.
        let Some((&before, first)) = left.range(..start).next_back() else { continue };
        let Some(second) = left.get(&start).filter(|second| pair(first, second) == Some(next)) else { continue };
        let mut merged = first.clone();
        merged.absorb(second.clone());
        pairs.extend(left.range(..before).next_back().and_then(|(_, unit)| pair(unit, &merged)));
        pairs.extend(left.range(start + 1..).next().and_then(|(_, unit)| pair(&merged, unit)));
        left.remove(&start);
        left.insert(before, merged);
    }
    left.into_values().collect()
}

/// The most bytes of large storages that a unit holds while it runs. It holds its inputs all the time.
fn footprint(trace: &Trace, large: &Large, unit: &Unit) -> u64 {
    let bytes = |place: Place| trace.storages[place as usize].bytes;
    let mut held: u64 = unit.inputs.iter().map(|&place| bytes(place)).sum();
    let mut most = held;
    for at in unit.range.clone() {
        let op = &trace.ops[at];
        let fresh = |place: &&Place| {
            large.is[**place as usize] && trace.storages[**place as usize].made_by == Some(at as Position)
        };
        let mut taken: Vec<Place> = Vec::new();
        for &place in op.writes.iter().filter(fresh) {
            match trace.storages[place as usize].reuses.filter(|base| unit.created.contains(base)) {
                Some(base) => taken.push(base),
                None => held += bytes(place),
            }
        }
        most = most.max(held);
        let dies = |place: &&Place| {
            unit.created.contains(place)
                && !taken.contains(place)
                && trace.storages[**place as usize].died == Some(at as Position)
        };
        held = held.saturating_sub(op.reads.iter().filter(dies).map(|&place| bytes(place)).sum());
    }
    most
}

#[cfg(test)]
mod tests {
    use super::super::super::examples::chain_of;
    use super::*;

    #[test]
    fn many_tiny_operations_merge_no_further_than_planners_need() {
        let trace = chain_of(1400);
        let store_all = trace.store_all();
        let large = Large::of(&trace, &store_all, &[]);
        let units = units(&trace, &large, &[], *store_all.iter().max().unwrap());
        // All are alike here, so many merge at once.
        assert!(units.len() <= MOST_OPS && units.len() > MOST_OPS / 8 * 5, "{} ops", units.len());
        let covered: Vec<usize> = units.iter().flat_map(|unit| unit.range.clone()).collect();
        assert_eq!(covered, (0..trace.ops.len()).collect::<Vec<_>>());
    }
}
