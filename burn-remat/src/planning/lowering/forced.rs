//! Values that must be computed again, because the stage that makes them says so.
//!
//! Planners do not know such policies, so they are expressed in the graph: the backward pass reads a second value in place of such a value. An op of its
//! own makes it right before the first op that reads it, at the cost of running the first one again. So every planner honours the policy, and its costs,
//! memory and bounds include what the policy takes.
//!
//! A value is bound by the policy if the stage reads it itself (a stage does not read what it returns), if nothing else in the forward pass reads it, if
//! the backward pass does, and if it can be computed again.
//!
//! Complexity: O(uses x log).

use std::collections::BTreeMap;

use super::units::Unit;
use burn_remat_core::CheckpointPolicy;
use burn_remat_core::{Place, Trace};

/// A unit to be run again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Again {
    pub unit: usize,
    /// The unit right before which it runs.
    pub before: usize,
    /// The storages for which it runs.
    pub places: Vec<Place>,
}

/// Units to be run again, in the order in which that happens. `turn` is the first unit of the backward pass; `is_bound` tells
/// whether a storage is a value that nothing but operations of the step needs.
pub(super) fn forced(trace: &Trace, units: &[Unit], turn: usize, is_bound: impl Fn(Place) -> bool) -> Vec<Again> {
    let forced_scope = |unit: &Unit| match unit.rule {
        Some(rule) if rule.policy == CheckpointPolicy::MustRecompute => Some(rule.scope),
        _ => None,
    };
    let mut ends: BTreeMap<u32, usize> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        if let Some(scope) = forced_scope(unit) {
            ends.insert(scope, at);
        }
    }
    if ends.is_empty() {
        return Vec::new();
    }
    let mut readers: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        unit.inputs.iter().for_each(|&place| readers.entry(place).or_default().push(at));
    }
    let mut again: Vec<Again> = Vec::new();
    // From the last unit to the first, because a unit that runs again reads what earlier units must make again for it.
    for (at, unit) in units.iter().enumerate().rev().filter(|(_, unit)| unit.recordable) {
        let Some(&end) = forced_scope(unit).and_then(|scope| ends.get(&scope)) else { continue };
        let mut before = usize::MAX;
        let mut places = Vec::new();
        let inside = &trace.ops[unit.range.start..units[end].range.end];
        for &place in unit.created.iter().filter(|&&place| is_bound(place)) {
            let uses = readers.get(&place).map_or(&[][..], Vec::as_slice);
            let (stage, later) = uses.split_at(uses.partition_point(|&user| user <= end));
            let read_inside = !stage.is_empty() || inside.iter().any(|op| op.reads.contains(&place));
            if !read_inside || later.iter().any(|&user| user < turn) {
                continue;
            }
            // Units that run again later come earlier in this list.
            let replays = again.iter().filter(|later| units[later.unit].inputs.contains(&place));
            if let Some(first) = later.iter().copied().chain(replays.map(|later| later.before)).min() {
                before = before.min(first);
                places.push(place);
            }
        }
        if !places.is_empty() {
            again.push(Again { unit: at, before, places });
        }
    }
    again.sort_by_key(|again| (again.before, again.unit));
    again
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_remat_core::{Rule, TracedOp};

    /// One unit per operation: what it reads, and the scope that forbids keeping what it makes. What it makes has the operation's own number.
    fn step(ops: &[(&[u32], u32)]) -> (Trace, Vec<Unit>) {
        let mut trace = Trace::default();
        let mut units = Vec::new();
        for (at, (reads, scope)) in ops.iter().enumerate() {
            let rule = (*scope > 0).then_some(Rule { policy: CheckpointPolicy::MustRecompute, scope: *scope });
            trace.ops.push(TracedOp {
                signature: 0,
                kind: 0,
                nature: Default::default(),
                inputs: Default::default(),
                outputs: at as u32,
                reads: (*reads).into(),
                writes: [at as u32].into_iter().collect(),
                cost_ns: 1,
                scratch: 0,
                recordable: true,
                updates: false,
                visit: 0,
                rule,
                stub: None,
            });
            units.push(Unit {
                range: at..at + 1,
                inputs: reads.iter().copied().collect(),
                created: [at as u32].into(),
                recordable: true,
                rule,
            });
        }
        (trace, units)
    }

    #[test]
    fn what_a_stage_reads_itself_is_computed_again_before_its_backward_pass() {
        // Forward: 0 outside, 1 to 3 in scope 1 (3 is its result), 4 outside. Backward from 5 on.
        let ops: [(&[u32], u32); 8] =
            [(&[], 0), (&[0], 1), (&[1], 1), (&[2], 1), (&[3], 0), (&[4, 3], 0), (&[5, 2], 0), (&[6, 1], 0)];
        let (trace, mut units) = step(&ops);
        let again = |units: &[Unit]| forced(&trace, units, 5, |_| true);
        // 2 reads 1, so 1 is computed again for it and stays until its own backward operation.
        let both = [Again { unit: 1, before: 6, places: vec![1] }, Again { unit: 2, before: 6, places: vec![2] }];
        assert_eq!(again(&units), both);
        // What cannot run again is kept, and what depends on it is computed from there.
        units[1].recordable = false;
        assert_eq!(again(&units), both[1..]);
        // So is what something else needs.
        assert_eq!(forced(&trace, &units, 5, |place| place != 2), []);
    }

    #[test]
    fn results_and_what_the_forward_pass_reads_elsewhere_are_not_bound() {
        // 1 is read by 3, outside of the scope and before the backward pass.
        let ops: [(&[u32], u32); 6] = [(&[], 0), (&[0], 1), (&[1], 1), (&[2, 1], 0), (&[3, 2], 0), (&[4, 1], 0)];
        let (trace, units) = step(&ops);
        assert_eq!(forced(&trace, &units, 4, |_| true), []);
    }
}
