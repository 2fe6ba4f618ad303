//! The moves *keep* and *swap*: a value stays, so its repeats go, and with them those that only they used; alone, or in exchange for another value.

use super::super::state::{END, Instance};
use super::Walk;
use crate::graph::{OpId, ValueId};

/// How often the repeats that may run later because a value stays are postponed.
const POSTPONE: f64 = 0.5;

impl Walk<'_, '_> {
    /// Keeps a value and evicts another; now and then two for one, or one for two, to make use of the memory that is left.
    pub(super) fn swap(&mut self) -> bool {
        if !self.keep() || self.random.chance(0.15) && !self.keep() {
            return false;
        }
        self.evict() && (!self.random.chance(0.15) || self.evict())
    }

    pub(super) fn keep(&mut self) -> bool {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return false;
        }
        let instance = repeats[self.random.below(repeats.len())];
        let (op, until) = (self.state.op(instance), self.state.label(instance));
        self.discard(instance);
        if !self.without.postpone && self.random.chance(POSTPONE) {
            self.postpone_readers(op, until);
        }
        true
    }

    /// Postpones the repeats before `until` that read the last results of `op` to their first uses.
    fn postpone_readers(&mut self, op: OpId, until: u64) {
        let problem = self.state.problem;
        let label = |instance: Instance| self.state.label(instance);
        let Some(since) = self.last_before(op, until).map(label) else { return };
        let mut early = Vec::new();
        for &value in &problem.graph.ops()[op].outputs {
            let readers = self.state.readers_between(value, since, until).iter().copied();
            early.extend(readers.filter(|&reader| !self.state.is_first(reader)));
        }
        early.sort_unstable();
        early.dedup();
        for instance in early {
            let target = self.first_use(instance);
            if target != END && target != self.state.near(instance, 1) {
                self.move_to(instance, target);
            }
        }
    }

    /// Removes a repeat and every repeat that only it used.
    pub(super) fn discard(&mut self, instance: Instance) {
        let mut stack = vec![instance];
        while let Some(instance) = stack.pop() {
            let feeders: Vec<Instance> =
                self.state.way(instance).inputs.iter().filter_map(|&value| self.feeder(value, instance)).collect();
            self.state.remove(instance);
            self.stack_useless(&feeders, &mut stack);
        }
    }

    /// The instance that computes `value` for the instance `reader`.
    pub(super) fn feeder(&self, value: ValueId, reader: Instance) -> Option<Instance> {
        let producer = self.state.problem.graph.producer(value)?;
        self.last_before(producer, self.state.label(reader))
    }

    pub(super) fn stack_useless(&self, feeders: &[Instance], stack: &mut Vec<Instance>) {
        for &feeder in feeders {
            if !self.state.is_first(feeder) && !self.state.is_used(feeder) && !stack.contains(&feeder) {
                stack.push(feeder);
            }
        }
    }
}
