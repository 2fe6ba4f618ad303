//! What must stay beyond its last reader: what cannot be computed again, and what the program could still ask for.

use std::collections::BTreeSet;

use burn_remat_core::{Place, Position};
use burn_remat_plan::ValueId;

use super::divided::Divided;
use super::phases::phase_at;

impl Divided<'_> {
    /// Values that cannot be computed again and that the program holds beyond the last unit that reads them, by the unit in which it drops them; and
    /// values that the host reads, by the unit after which it reads them.
    pub fn touches(&self) -> Vec<BTreeSet<ValueId>> {
        let &Self { trace, large, ref values, units, ref unit_of, ref last_use, .. } = self;
        let mut touches = vec![BTreeSet::new(); units.len()];
        for (place, storage) in trace.storages.iter().enumerate() {
            let (Some(value), Some(died)) = (values[place], storage.died) else { continue };
            let unit = unit_of[died as usize];
            let outlasts = last_use[place].is_none_or(|last| last < unit);
            // A value that an update has cut is a root from then on.
            let is_root = self.is_root(storage) || (died as usize) >= large.until[place];
            if is_root && outlasts && phase_at(self.updates, died as usize).is_none() {
                touches[unit].insert(value);
            }
        }
        for (unit, place) in self.unread() {
            touches[unit].extend(values[place as usize]);
        }
        for &(position, place) in &trace.reads {
            let unit = unit_of[position as usize];
            if units[unit].range.end < trace.ops.len() {
                touches[unit].extend(values[place as usize]);
            }
        }
        touches
    }

    /// What must stay while the program holds a storage that nothing reads any more, as pairs of a unit and a storage to be held until that unit.
    ///
    /// When the last unit that reads a root has run, the engine can release the root only if everything alive that depends on it is resident. This
    /// becomes a root in its place, for what depends on it in turn. If a plan may have given it up, because nothing reads it any more, then the root
    /// stays until the program drops it, and what depends on both is considered at that point. What is still read stays itself.
    fn unread(&self) -> BTreeSet<(usize, Place)> {
        let &Self { trace, large, ref values, ref unit_of, ref last_use, .. } = self;
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); trace.storages.len()];
        for (at, op) in trace.ops.iter().enumerate().filter(|(_, op)| op.recordable) {
            op.reads.iter().for_each(|&place| readers[place as usize].push(at));
        }
        let until = |place: usize| large.until[place];
        let ends = |place: usize| trace.storages[place].died.map(|died| (died as usize, unit_of[died as usize]));
        let mut held = BTreeSet::new();
        let mut seen = vec![0; trace.storages.len()];
        let mut walk = 0;
        // What depends on a root, by way of what has gone with it, and is alive when the unit `gone` has run.
        let mut survivors = |root: usize, gone: usize| {
            walk += 1;
            let (mut stack, mut found) = (vec![root], Vec::new());
            while let Some(place) = stack.pop() {
                for &at in &readers[place] {
                    for made in trace.ops[at].writes.iter().map(|&made| made as usize) {
                        let made_at = trace.storages[made].made_by == Some(at as Position);
                        if !made_at || std::mem::replace(&mut seen[made], walk) == walk {
                            continue;
                        }
                        match ends(made) {
                            Some((_, unit)) if unit <= gone => stack.push(made),
                            Some((died, unit)) if died < until(made).min(until(root)) && values[made].is_some() => {
                                found.push((made, unit));
                            }
                            _ => {}
                        }
                    }
                }
            }
            found
        };
        let mut is_root: Vec<bool> = trace.storages.iter().map(|storage| self.is_root(storage)).collect();
        let mut roots: Vec<usize> = (0..is_root.len()).filter(|&place| is_root[place]).collect();
        while let Some(root) = roots.pop() {
            let (Some(_), Some((_, end))) = (values[root], ends(root)) else { continue };
            let mut gone = last_use[root].map_or(end, |last| last.max(end));
            let found = loop {
                let found = survivors(root, gone);
                let unread = found.iter().filter(|(made, _)| last_use[*made].is_none_or(|last| last <= gone));
                let units: Vec<usize> = unread.map(|(_, unit)| *unit).collect();
                let Some(&last) = units.iter().max() else { break found };
                held.extend(units.into_iter().map(|unit| (unit, root as Place)));
                gone = last;
            };
            for (made, unit) in found {
                held.extend(last_use[made].filter(|&last| last < unit).map(|_| (unit, made as Place)));
                if !std::mem::replace(&mut is_root[made], true) {
                    roots.push(made);
                }
            }
        }
        held
    }
}
