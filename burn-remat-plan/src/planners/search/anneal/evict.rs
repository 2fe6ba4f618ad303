//! The move *evict*: a value is evicted in the middle of its life and computed again before its next use, with all that this takes.

use super::super::problem::WayId;
use super::super::state::{END, Instance};
use super::{Walk, is_evictable};
use crate::graph::{OpId, ValueId};

/// Most computations that one move may insert.
const LONGEST_CHAIN: usize = 80;

/// Values that are tried to find one that can be evicted at a position.
const DRAWS: usize = 48;

/// How many of these are drawn from all values, before the others are drawn from those used nearby.
const FAR_DRAWS: usize = 24;

impl Walk<'_, '_> {
    /// Evicts a random idle value. `false`: nothing to evict was found, or the chain to recompute got too long.
    pub(super) fn evict(&mut self) -> bool {
        if self.evictable.is_empty() {
            return false;
        }
        let position = self.crowded_position();
        for draw in 0..DRAWS {
            let value = if draw < FAR_DRAWS {
                self.evictable[self.random.below(self.evictable.len())]
            } else {
                let Some(value) = self.value_around(position) else { continue };
                value
            };
            let Some(target) = self.state.span(value, position).and_then(|span| span.next) else { continue };
            if target == position {
                continue;
            }
            if let Some(way) = self.way_without(value, target)
                && self.random.chance(0.5)
            {
                return self.switch_to(target, way);
            }
            let op = self.state.problem.graph.producer(value).expect("evictable values have a producer");
            let mut inserted = Vec::new();
            let done = self.provide(op, target, &mut inserted);
            if done {
                for (op, instance) in inserted {
                    self.merge_next(op, instance);
                }
            }
            return done;
        }
        false
    }

    /// A random value that a computation near `position` reads or makes. In a large graph, few other values are resident there.
    fn value_around(&mut self, position: Instance) -> Option<ValueId> {
        let number = self.random.below(usize::MAX);
        let instance = self.state.around(position, number);
        let graph = self.state.problem.graph;
        let (inputs, outputs) = (&self.state.way(instance).inputs, &graph.ops()[self.state.op(instance)].outputs);
        let at = self.random.below((inputs.len() + outputs.len()).max(1));
        let value = *inputs.get(at).or_else(|| outputs.get(at - inputs.len()))?;
        is_evictable(self.state.problem, value).then_some(value)
    }

    /// A random way of the op of `target` that does not read `value`.
    fn way_without(&mut self, value: ValueId, target: Instance) -> Option<WayId> {
        if self.choosers.is_empty() || target == END {
            return None;
        }
        let problem = self.state.problem;
        let ways = problem.ways_of(self.state.op(target)).filter(|&way| !problem.way(way).reads(value));
        let ways: Vec<WayId> = ways.collect();
        (!ways.is_empty()).then(|| ways[self.random.below(ways.len())])
    }

    /// The way for a new instance of `op` before `target`: mostly the cheapest, counting what its missing inputs cost by
    /// themselves and a penalty for scratch that exceeds the budget.
    fn choose_way(&mut self, op: OpId, target: Instance) -> WayId {
        let problem = self.state.problem;
        let ways = problem.ways_of(op);
        if ways.len() == 1 {
            return ways.start;
        }
        if self.random.chance(0.25) {
            return ways.start + self.random.below(ways.len());
        }
        let room = self.state.room(op, target);
        let price = |way: WayId| {
            let way = problem.way(way);
            let missing = way.inputs.iter().filter(|&&value| {
                problem.bytes(value) > 0 && self.state.span(value, target).is_some_and(|span| span.last.is_none())
            });
            let costs =
                missing.filter_map(|&value| problem.graph.producer(value)).map(|op| problem.graph.ops()[op].cost);
            way.cost + costs.sum::<f64>() + self.pressure.weight * (way.scratch - room).max(0) as f64
        };
        let prices: Vec<(f64, WayId)> = ways.clone().map(|way| (price(way), way)).collect();
        prices.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(ways.start, |(_, way)| way)
    }

    /// Inserts `op`, and what it needs, before `target`.
    pub(super) fn provide(&mut self, op: OpId, target: Instance, inserted: &mut Vec<(OpId, Instance)>) -> bool {
        let way = self.choose_way(op, target);
        let node = self.state.problem.way(way);
        let hopeless = self.state.cost + node.cost > self.most_cost && !self.repeats_behind(op, target);
        if inserted.len() >= LONGEST_CHAIN
            || self.state.numbers() >= self.most_computations
            || hopeless && inserted.iter().all(|&(op, _)| !self.repeats_behind(op, target))
            || !node.inputs.iter().all(|&value| self.obtain(value, target, inserted))
        {
            return false;
        }
        inserted.push((op, self.state.insert(way, target)));
        true
    }

    /// Makes sure that `value` can be read just before `target`: it is resident, is kept longer, or is computed again.
    pub(super) fn obtain(&mut self, value: ValueId, target: Instance, inserted: &mut Vec<(OpId, Instance)>) -> bool {
        let problem = self.state.problem;
        let Some(span) = self.state.span(value, target) else { return false };
        if span.last.is_some() || problem.bytes(value) == 0 {
            return true;
        }
        let Some(producer) = problem.graph.producer(value) else { return true };
        if !problem.graph.ops()[producer].recomputable {
            return true;
        }
        let fits = self.state.most_between(span.before, target) + problem.bytes(value) <= problem.budget;
        self.random.chance(if fits { 0.9 } else { 0.15 }) || self.provide(producer, target, inserted)
    }

    /// Whether `op` runs again after `target`: a repeat that a new one might replace.
    fn repeats_behind(&self, op: OpId, target: Instance) -> bool {
        self.state.instances(op).last().is_some_and(|&last| self.state.label(last) > self.state.label(target))
    }

    /// Often drops the next repeat of the same op, whose users the new instance can serve.
    pub(super) fn merge_next(&mut self, op: OpId, instance: Instance) {
        let instances = self.state.instances(op);
        // An earlier merge may have removed it together with the repeat that it served.
        let Some(at) = instances.iter().position(|&i| i == instance) else { return };
        if let Some(&next) = instances.get(at + 1)
            && !self.without.merge
            && self.random.chance(0.6)
        {
            self.discard(next);
        }
    }
}
