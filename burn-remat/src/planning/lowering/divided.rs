//! A step divided into units: what reads what, which storages are values, how much units hold and how long they take.

use std::collections::BTreeSet;
use std::ops::Range;

use burn_remat_core::{Place, Position, Trace, TracedStorage};
use burn_remat_plan::ValueId;

use super::large::Large;
use super::phases::phase_at;
use super::units::Unit;

/// See the [module](self).
pub(super) struct Divided<'a> {
    pub trace: &'a Trace,
    pub updates: &'a [Range<usize>],
    pub large: &'a Large,
    pub units: &'a [Unit],
    /// The unit of each operation.
    pub unit_of: Vec<usize>,
    /// The last unit that reads each storage.
    pub last_use: Vec<Option<usize>>,
    /// The value of each storage that has one, in the order of storages.
    pub values: Vec<Option<ValueId>>,
}

impl<'a> Divided<'a> {
    pub fn new(trace: &'a Trace, updates: &'a [Range<usize>], large: &'a Large, units: &'a [Unit]) -> Self {
        let mut unit_of = vec![0; trace.ops.len()];
        let mut last_use: Vec<Option<usize>> = vec![None; trace.storages.len()];
        for (index, unit) in units.iter().enumerate() {
            unit_of[unit.range.clone()].fill(index);
            unit.inputs.iter().for_each(|&place| last_use[place as usize] = Some(index));
        }
        // A large storage is a value unless it lives and dies inside one unit.
        let is_value = |(place, storage): (usize, &TracedStorage)| {
            large.is[place]
                && match (storage.made_by, storage.died) {
                    (Some(made), Some(died)) => {
                        last_use[place].is_some() || unit_of[made as usize] != unit_of[died as usize]
                    }
                    _ => true,
                }
        };
        let mut next = 0..;
        let values = trace.storages.iter().enumerate().map(|at| is_value(at).then(|| next.next()).flatten()).collect();
        Self { trace, updates, large, units, unit_of, last_use, values }
    }

    pub fn bytes(&self, place: Place) -> u64 {
        self.trace.storages[place as usize].bytes
    }

    pub fn value(&self, place: Place) -> Option<ValueId> {
        self.values[place as usize]
    }

    /// The update phase, if the unit is one.
    pub fn phase_of(&self, unit: &Unit) -> Option<&'a Range<usize>> {
        self.updates.iter().find(|phase| phase.start == unit.range.start)
    }

    /// Whether no unit can make a storage again.
    pub fn is_root(&self, storage: &TracedStorage) -> bool {
        storage.made_by.is_none_or(|made| !self.units[self.unit_of[made as usize]].recordable)
    }

    /// Name of the costliest operation of a unit that makes something large.
    pub fn name(&self, unit: &Unit) -> String {
        let ops = &self.trace.ops;
        let makes = |at: usize| ops[at].writes.iter().any(|&place| self.large.is[place as usize]);
        let at = unit.range.clone().max_by_key(|&at| (makes(at), ops[at].cost_ns)).unwrap_or(unit.range.start);
        let name = self.trace.name(at as Position);
        match unit.range.len() {
            1 => format!("{name}.{at}"),
            count => format!("{name}.{at} and {} more", count - 1),
        }
    }

    /// Bytes that are held throughout in addition to the values, outside of updates.
    pub fn constant(&self) -> u64 {
        let beside = self.beside();
        let outside_updates = (0..beside.len()).filter(|&at| phase_at(self.updates, at).is_none());
        let most = outside_updates.map(|at| beside[at]).max().unwrap_or(self.trace.held_at_start);
        most.max(self.beside_at_start())
    }

    /// Bytes that were held before the step and belong to no value. A value that had been evicted by then existed, but was not held.
    fn beside_at_start(&self) -> u64 {
        self.trace.held_at_start.saturating_sub(self.outside())
    }

    /// Bytes of values that were there before the step.
    fn outside(&self) -> u64 {
        let &Self { trace, ref values, .. } = self;
        let inputs =
            trace.storages.iter().zip(values).filter(|(s, v)| v.is_some() && s.made_by.is_none() && !s.uploaded);
        inputs.map(|(storage, _)| storage.bytes).sum()
    }

    /// Bytes held during each operation in addition to the values.
    fn beside(&self) -> Vec<u64> {
        let &Self { trace, large, ref values, .. } = self;
        let end = trace.ops.len();
        let mut births = vec![0_u64; end + 1];
        let mut deaths = vec![0_u64; end + 1];
        let mut before = self.beside_at_start();
        let mut first_use = vec![None; trace.storages.len()];
        for (at, op) in trace.ops.iter().enumerate() {
            for &place in &op.reads {
                first_use[place as usize].get_or_insert(at);
            }
        }
        let mut taken = vec![false; trace.storages.len()];
        let in_place = |place: usize| {
            // Both in-place storages must be beyond planning's reach, so that neither is kept longer.
            let managed = |at: usize| large.is[at] || large.small[at];
            trace.storages[place].reuses.filter(|&base| !managed(place) && !managed(base as usize))
        };
        for place in 0..trace.storages.len() {
            if let Some(base) = in_place(place) {
                taken[base as usize] = true;
            }
        }
        for (place, storage) in trace.storages.iter().enumerate() {
            // A large storage that is not a value lives inside a unit.
            if values[place].is_some() || large.is[place] {
                continue;
            }
            let appears = storage.made_by.is_some() || storage.uploaded;
            if appears && in_place(place).is_none() {
                births[(storage.appeared as usize).min(end)] += storage.bytes;
            }
            let died = storage.died.map(|died| died as usize);
            let held_on = large.small[place] && (storage.made_by.is_some() || first_use[place].is_some());
            let gone = match died {
                Some(died) if held_on && died < large.until[place] => Some(large.until[place]),
                other => other,
            };
            if let (Some(gone), false) = (gone, taken[place]) {
                deaths[gone.min(end)] += storage.bytes;
            }
        }
        let mut during = Vec::with_capacity(end);
        for at in 0..end {
            before += births[at];
            during.push(before);
            before = before.saturating_sub(deaths[at]);
        }
        during
    }

    /// Time to compute a unit's values again, in ns: that of the operations on which they depend. Small storages are still there then, so operations that
    /// only they needed do not run.
    pub fn replay_cost(&self, unit: &Unit) -> u64 {
        let &Self { trace, large, ref values, .. } = self;
        let mut needed: BTreeSet<Place> =
            unit.created.iter().copied().filter(|&place| values[place as usize].is_some()).collect();
        let mut cost = 0;
        for at in unit.range.clone().rev() {
            let op = &trace.ops[at];
            let makes = |place: &Place| trace.storages[*place as usize].made_by == Some(at as Position);
            let is_view = !op.writes.iter().any(makes);
            let touches = |place: &Place| needed.contains(place) || unit.inputs.contains(place);
            if op
                .writes
                .iter()
                .any(|place| if is_view { touches(place) } else { needed.contains(place) && makes(place) })
            {
                cost += op.cost_ns;
                needed.extend(op.reads.iter().copied().filter(|&place| large.is[place as usize]));
            }
        }
        cost
    }

    /// The most bytes that a unit holds while it runs, in addition to its inputs and outputs.
    pub fn scratch(&self, unit: &Unit) -> u64 {
        let &Self { trace, large, ref values, .. } = self;
        let inside = |place: Place| large.is[place as usize] && values[place as usize].is_none();
        let mut held = 0_u64;
        let mut most = 0;
        for at in unit.range.clone() {
            let op = &trace.ops[at];
            for &place in &op.writes {
                let storage = &trace.storages[place as usize];
                let fresh = large.is[place as usize] && storage.made_by == Some(at as Position);
                // A result in place of something from outside the unit is counted in full, because the other may have to stay.
                if fresh && !storage.reuses.is_some_and(inside) {
                    held += storage.bytes;
                }
            }
            most = most.max(held + op.scratch);
            let mut gone: Vec<Place> =
                op.reads.iter().chain(&op.writes).copied().filter(|&place| inside(place)).collect();
            gone.sort_unstable();
            gone.dedup();
            for place in gone {
                let taken = op.writes.iter().any(|&out| trace.storages[out as usize].reuses == Some(place));
                if trace.storages[place as usize].died == Some(at as Position) && !taken {
                    held = held.saturating_sub(trace.storages[place as usize].bytes);
                }
            }
        }
        let outputs: u64 = unit
            .created
            .iter()
            .filter(|&&place| values[place as usize].is_some())
            .map(|&place| trace.storages[place as usize].bytes)
            .sum();
        most.saturating_sub(outputs)
    }
}
