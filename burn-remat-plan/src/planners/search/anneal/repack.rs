//! The work between and after the moves: unneeded repeats are removed, and one expensive repeat replaces many cheap ones.

use super::super::state::{END, Instance, START};
use super::Walk;
use crate::graph::{OpId, ValueId};

/// After this many repeats in a row that do not fit, an exchange stops looking for more.
const MOST_MISSES: usize = 100;

/// A computation that is not the first of its op.
struct Repeat {
    op: OpId,
    instance: Instance,
    /// The last use of its results before it: without the repeat, they would be kept from there on.
    before: Instance,
}

impl Walk<'_, '_> {
    /// Removes repeats, the most expensive first, and then switches to cheaper ways, wherever that takes the order no further over
    /// the budget, until `is_late`.
    pub fn polish(&mut self, is_late: impl Fn() -> bool) {
        let described = |&instance: &Instance| (self.state.way(instance).cost, self.state.op(instance), instance);
        let mut repeats: Vec<(f64, OpId, Instance)> = self.state.repeats().iter().map(described).collect();
        repeats.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for (_, op, instance) in repeats {
            // It may have been removed together with one that it served.
            if is_late() {
                break;
            }
            if self.state.instances(op).contains(&instance) {
                self.try_out(|walk| walk.discard(instance));
            }
        }
        for op in self.choosers.clone() {
            for instance in self.state.instances(op).to_vec() {
                for way in self.state.problem.ways_of(op) {
                    if !is_late() && self.state.problem.way(way).cost < self.state.way(instance).cost {
                        self.try_out(|walk| walk.state.switch(instance, way));
                    }
                }
            }
        }
        self.note_best();
    }

    /// Tries for each value whether it pays to evict it and to fill the freed memory: the repeats whose results save the most per byte are
    /// dropped, as far as these fit. Stops once `is_over` holds for the number of values tried, or at `is_late`; returns that number.
    pub fn repack(&mut self, is_over: impl Fn(u64) -> bool, is_late: impl Fn() -> bool) -> u64 {
        if self.without.repack || self.state.over() > 0 || self.evictable.is_empty() {
            return 0;
        }
        self.most_cost = f64::INFINITY;
        let first = self.random.below(self.evictable.len());
        let mut dense = self.densest_repeats();
        let mut tried = 0;
        for at in 0..self.evictable.len() {
            if is_over(tried) {
                break;
            }
            let value = self.evictable[(first + at) % self.evictable.len()];
            tried += 1;
            if self.exchange(value, &dense, &is_late) {
                self.note_best();
                dense = self.densest_repeats();
            }
        }
        tried
    }

    /// The repeats, those that save the most per byte of their results first.
    fn densest_repeats(&self) -> Vec<Repeat> {
        let density = |instance: Instance| {
            let bytes = self.state.problem.output_bytes(self.state.op(instance)).max(1);
            self.state.way(instance).cost / bytes as f64
        };
        let mut repeats: Vec<Instance> = self.state.repeats().to_vec();
        repeats.sort_by(|&a, &b| density(b).total_cmp(&density(a)).then(a.cmp(&b)));
        let described = |instance: Instance| {
            let op = self.state.op(instance);
            let outputs = self.state.problem.graph.ops()[op].outputs.iter();
            let befores = outputs.filter_map(|&value| Some(self.state.span(value, instance)?.before));
            let before = befores.min_by_key(|&before| self.state.label(before)).unwrap_or(START);
            Repeat { op, instance, before }
        };
        repeats.into_iter().map(described).collect()
    }

    /// Evicts a value where memory is fullest and drops, in this order, the repeats whose results then fit. Returns whether that is cheaper; else nothing changes.
    fn exchange(&mut self, value: ValueId, dense: &[Repeat], is_late: &impl Fn() -> bool) -> bool {
        let cost = self.state.cost;
        let Some((op, (from, target))) = self.state.problem.graph.producer(value).zip(self.fullest_gap(value)) else {
            return false;
        };
        let (from, until) = (self.state.label(from), self.state.label(target));
        let mut inserted = Vec::new();
        if self.provide(op, target, &mut inserted) {
            let mut misses = 0;
            for &Repeat { op, instance, before } in dense {
                let takes_gap = self.state.label(instance) > from && self.state.label(before) < until;
                // It may have been removed together with one that it served.
                if !takes_gap || !self.state.instances(op).contains(&instance) {
                    continue;
                }
                let (pending, before) = (self.state.pending(), self.state.cost);
                self.discard(instance);
                if self.state.over() == 0 {
                    misses = 0;
                    continue;
                }
                self.state.undo_to(pending);
                self.state.cost = before;
                misses += 1;
                if misses == MOST_MISSES || misses % 16 == 0 && is_late() {
                    break;
                }
            }
        }
        if self.state.over() == 0 && self.state.cost < cost - cost.abs() * 1e-12 {
            self.state.commit();
            return true;
        }
        self.state.undo();
        self.state.cost = cost;
        false
    }

    /// The uses of a value between which the most memory is held.
    fn fullest_gap(&self, value: ValueId) -> Option<(Instance, Instance)> {
        let producer = self.state.problem.graph.producer(value)?;
        let mut fullest: Option<(i64, (Instance, Instance))> = None;
        for &instance in self.state.instances(producer) {
            let mut from = instance;
            while let Some(next) = self.state.span_behind(value, from).and_then(|span| span.next) {
                let held = self.state.most_between(from, next);
                if next != self.state.near(from, 1) && fullest.is_none_or(|(most, _)| held > most) {
                    fullest = Some((held, (from, next)));
                }
                if next == END {
                    break;
                }
                from = next;
            }
        }
        fullest.map(|(_, gap)| gap)
    }

    /// Makes a change that adds no cost, and undoes it if it takes the order further over the budget.
    fn try_out(&mut self, change: impl FnOnce(&mut Self)) {
        let (cost, over) = (self.state.cost, self.state.over());
        change(self);
        if self.state.over() <= over {
            self.state.commit();
        } else {
            self.state.undo();
            self.state.cost = cost;
        }
    }
}
