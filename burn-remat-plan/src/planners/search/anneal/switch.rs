//! The move *switch*: a computation switches to another way of its op.

use super::super::problem::WayId;
use super::super::state::Instance;
use super::Walk;

impl Walk<'_, '_> {
    /// Moves that change the way of a computation.
    pub(super) fn rechoose(&mut self) -> bool {
        match self.random.below(10) {
            0..6 => self.switch(),
            6 => self.switch() && self.switch(),
            7 | 8 => self.switch() && self.evict(),
            _ => self.keep() && self.switch(),
        }
    }

    /// Switches a random computation to another way; over the budget, often one at a position that is over it.
    fn switch(&mut self) -> bool {
        let crowded = (self.state.over() > 0 && self.random.chance(0.5)).then(|| self.crowded_position());
        let choosers = &self.choosers;
        let crowded = crowded.filter(|&instance| choosers.binary_search(&self.state.op(instance)).is_ok());
        let instance = crowded.unwrap_or_else(|| {
            let instances = self.state.instances(choosers[self.random.below(choosers.len())]);
            instances[self.random.below(instances.len())]
        });
        let (ways, now) = (self.state.problem.ways_of(self.state.op(instance)), self.state.way_id(instance));
        let other = ways.start + self.random.below(ways.len() - 1);
        self.switch_to(instance, if other < now { other } else { other + 1 })
    }

    /// Switches `instance` to another way, inserts what that needs and removes what it makes useless.
    pub(super) fn switch_to(&mut self, instance: Instance, way: WayId) -> bool {
        let (old, new) = (self.state.way(instance), self.state.problem.way(way));
        let mut inserted = Vec::new();
        let mut gained = new.inputs.iter().filter(|&&value| !old.reads(value));
        if !gained.all(|&value| self.obtain(value, instance, &mut inserted)) {
            return false;
        }
        let lost = old.inputs.iter().filter(|&&value| !new.reads(value));
        let feeders: Vec<Instance> = lost.filter_map(|&value| self.feeder(value, instance)).collect();
        self.state.switch(instance, way);
        let mut useless = Vec::new();
        self.stack_useless(&feeders, &mut useless);
        for feeder in useless {
            // One may have been removed together with another that it served.
            if self.is_there(feeder) {
                self.discard(feeder);
            }
        }
        for (op, instance) in inserted {
            self.merge_next(op, instance);
        }
        true
    }
}
