//! Simulated annealing over compute orders.
//!
//! The energy of an order is its cost plus `weight` times the bytes above the budget, summed over positions. The
//! weight follows the walk: it grows while the walk is mostly over the budget and shrinks while it is mostly within,
//! so that the walk stays near the border, where the cheap orders lie.
//!
//! Moves:
//! - *evict*: a value that is idle over a position (one over the budget, while there are any) is computed again just
//!   before its next use. Ingredients that are gone are kept longer where memory allows, else computed too, and their
//!   own later repeats are often dropped, since the new one serves their users;
//! - *keep*: a repeat is removed, and with it every repeat that only it used;
//! - *swap*: keep one, evict another, now and then two of either;
//! - *shift*: a repeat moves to another position between its ingredients and its first use.
//!
//! A move is applied to the [`State`] and taken back when it is refused.

use super::state::{END, Instance, START, State};
use crate::graph::{OpId, ValueId};

/// A small deterministic source of random numbers (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

/// Most computations that one move may insert.
const LONGEST_CHAIN: usize = 80;

/// Parts of the walk that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Without {
    pub swap: bool,
    pub shift: bool,
    pub merge: bool,
    pub ladder: bool,
}

/// What a byte over the budget costs a walk, kept such that the walk stays near the border.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    pub weight: f64,
    within: u32,
    tried: u32,
}

impl Pressure {
    fn observe(&mut self, is_within: bool) {
        self.tried += 1;
        self.within += u32::from(is_within);
        if self.tried == 512 {
            if self.within * 10 < self.tried * 3 {
                self.weight *= 1.15;
            } else if self.within * 10 > self.tried * 6 {
                self.weight /= 1.15;
            }
            (self.tried, self.within) = (0, 0);
        }
    }
}

pub(crate) struct Walk<'p, 'g> {
    pub state: State<'p, 'g>,
    pub random: Random,
    pub pressure: Pressure,
    /// Values that are worth evicting.
    evictable: Vec<ValueId>,
    pub best: Option<(f64, Vec<OpId>)>,
    /// Parts left out, for ablations.
    pub without: Without,
    /// What the order may cost, were it within the budget, for the move under way to be accepted.
    most_cost: f64,
}

impl<'p, 'g> Walk<'p, 'g> {
    pub fn new(state: State<'p, 'g>, seed: u64) -> Self {
        let problem = state.problem;
        let graph = problem.graph;
        let evictable: Vec<ValueId> = (0..graph.values().len())
            .filter(|&v| {
                problem.bytes(v) > 0
                    && graph.producer(v).is_some_and(|op| graph.ops()[op].recomputable)
                    && (!graph.consumers(v).is_empty() || graph.is_result(v))
            })
            .collect();
        let costs: f64 = graph.ops().iter().map(|op| op.cost).sum();
        let bytes: f64 = (0..graph.values().len()).map(|v| problem.bytes(v) as f64).sum();
        let weight = 20.0 * costs / (bytes.max(1.0) * graph.ops().len() as f64);
        let mut walk = Self {
            state,
            random: Random::new(seed),
            pressure: Pressure { weight, within: 0, tried: 0 },
            evictable,
            best: None,
            without: Without::default(),
            most_cost: 0.0,
        };
        walk.note_best();
        walk
    }

    pub fn is_stuck(&self) -> bool {
        self.evictable.is_empty()
    }

    fn note_best(&mut self) {
        let cost = self.state.cost;
        if self.state.over() == 0 && self.best.as_ref().is_none_or(|(best, _)| cost < best - best.abs() * 1e-12) {
            self.best = Some((cost, self.state.ops()));
        }
    }

    /// Makes `moves` moves at `temperature`.
    pub fn run(&mut self, moves: usize, temperature: f64) {
        for _ in 0..moves {
            self.one(temperature);
            self.pressure.observe(self.state.over() == 0);
        }
    }

    /// The energy that the order has at a weight.
    pub fn energy(&self, weight: f64) -> f64 {
        self.state.cost + weight * self.state.over() as f64
    }

    fn one(&mut self, temperature: f64) {
        let (cost, over) = (self.state.cost, self.state.over());
        // The largest loss that is accepted, drawn in advance: what is sure to lose more is not even tried.
        let loss = -temperature * (1.0 - self.random.unit()).ln();
        self.most_cost = cost + loss + self.pressure.weight * over as f64;
        let mut kind = self.random.below(100);
        if self.without.shift && kind >= 85 {
            kind = self.random.below(85);
        }
        if self.without.swap && (50..85).contains(&kind) {
            kind = self.random.below(50);
        }
        let repeats = !self.state.repeats().is_empty();
        let done = if !repeats {
            self.evict()
        } else if over > 0 {
            match kind {
                0..50 => self.evict(),
                50..70 => self.keep(),
                70..85 => self.swap(),
                _ => self.shift(),
            }
        } else {
            match kind {
                0..25 => self.evict(),
                25..50 => self.keep(),
                50..85 => self.swap(),
                _ => self.shift(),
            }
        };
        if self.state.pending() == 0 {
            return;
        }
        let delta = self.state.cost - cost + self.pressure.weight * (self.state.over() - over) as f64;
        if done && delta <= loss {
            self.state.commit();
            self.note_best();
        } else {
            self.state.undo();
            self.state.cost = cost;
        }
    }

    /// Evicts a random idle value. `false`: nothing to evict was found, or the chain to recompute got too long.
    fn evict(&mut self) -> bool {
        let position = self.crowded_position();
        for _ in 0..24 {
            let value = self.evictable[self.random.below(self.evictable.len())];
            let Some(target) = self.state.span(value, position).and_then(|span| span.next) else { continue };
            if target == position {
                continue;
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

    fn anywhere(&mut self) -> Instance {
        loop {
            let number = self.random.below(self.state.numbers());
            if let Some(instance) = self.state.numbered(number) {
                return instance;
            }
        }
    }

    /// A random position, over the budget while there is such a one.
    fn crowded_position(&mut self) -> Instance {
        let anywhere = self.anywhere();
        if self.state.over() > 0 { self.state.first_over(anywhere).unwrap_or(anywhere) } else { anywhere }
    }

    /// Inserts `op` before `target`, and what it needs.
    fn provide(&mut self, op: OpId, target: Instance, inserted: &mut Vec<(OpId, Instance)>) -> bool {
        let problem = self.state.problem;
        let hopeless =
            self.state.cost + problem.graph.ops()[op].cost > self.most_cost && !self.repeats_behind(op, target);
        if inserted.len() >= LONGEST_CHAIN
            || hopeless && inserted.iter().all(|&(op, _)| !self.repeats_behind(op, target))
        {
            return false;
        }
        for &value in &problem.graph.ops()[op].inputs {
            let Some(span) = self.state.span(value, target) else { return false };
            if span.last.is_some() || problem.bytes(value) == 0 {
                continue;
            }
            let Some(producer) = problem.graph.producer(value) else { continue };
            if !problem.graph.ops()[producer].recomputable {
                continue;
            }
            let fits = self.state.most_between(span.before, target) + problem.bytes(value) <= problem.budget;
            if self.random.chance(if fits { 0.9 } else { 0.15 }) {
                continue;
            }
            if !self.provide(producer, target, inserted) {
                return false;
            }
        }
        inserted.push((op, self.state.insert(op, target)));
        true
    }

    /// Whether `op` runs again behind `target`: a repeat that a new one might replace.
    fn repeats_behind(&self, op: OpId, target: Instance) -> bool {
        self.state.instances(op).last().is_some_and(|&last| self.state.label(last) > self.state.label(target))
    }

    /// Often drops the next repeat of the same op, whose users the new instance can serve.
    fn merge_next(&mut self, op: OpId, instance: Instance) {
        let instances = self.state.instances(op);
        // An earlier merge may have removed it with all that it served.
        let Some(at) = instances.iter().position(|&i| i == instance) else { return };
        if let Some(&next) = instances.get(at + 1)
            && !self.without.merge
            && self.random.chance(0.6)
        {
            self.discard(next);
        }
    }

    /// Keeps a value and evicts another; now and then two for one, or one for two, as it takes to fill what is left.
    fn swap(&mut self) -> bool {
        if !self.keep() || self.random.chance(0.15) && !self.keep() {
            return false;
        }
        self.evict() && (!self.random.chance(0.15) || self.evict())
    }

    fn keep(&mut self) -> bool {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return false;
        }
        let instance = repeats[self.random.below(repeats.len())];
        self.discard(instance);
        true
    }

    /// Removes a repeat and every repeat that only it used.
    fn discard(&mut self, instance: Instance) {
        let graph = self.state.problem.graph;
        let mut stack = vec![instance];
        while let Some(instance) = stack.pop() {
            let (op, label) = (self.state.op(instance), self.state.label(instance));
            let mut feeders: Vec<Instance> = Vec::new();
            for &value in &graph.ops()[op].inputs {
                let Some(producer) = graph.producer(value) else { continue };
                let feeder = self.state.instances(producer).iter().rev().find(|&&i| self.state.label(i) < label);
                feeders.extend(feeder);
            }
            self.state.remove(instance);
            for feeder in feeders {
                if !self.state.is_first(feeder) && !self.state.is_used(feeder) && !stack.contains(&feeder) {
                    stack.push(feeder);
                }
            }
        }
    }

    fn shift(&mut self) -> bool {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return false;
        }
        let instance = repeats[self.random.below(repeats.len())];
        let graph = self.state.problem.graph;
        let op = self.state.op(instance);
        let label = |i: Instance| self.state.label(i);
        // It may go behind what it reads and its last repeat, and before its first use.
        let mut low = START;
        for &value in &graph.ops()[op].inputs {
            let Some(span) = self.state.span(value, instance) else { return false };
            low = if label(span.start) > label(low) { span.start } else { low };
        }
        let earlier = self.state.instances(op).iter().rev().find(|&&i| label(i) < label(instance));
        low = earlier.copied().filter(|&i| label(i) > label(low)).unwrap_or(low);
        let mut high = END;
        for &value in &graph.ops()[op].outputs {
            if let Some(next) = self.state.span_behind(value, instance).and_then(|span| span.next) {
                high = if label(next) < label(high) { next } else { high };
            }
        }
        let (low, high) = (label(low), label(high));
        let short = self.random.chance(0.5);
        for _ in 0..6 {
            // Half go a short way: most gains lie near.
            let steps = self.random.below(7) as i32 - 3;
            let target = if short { self.state.near(instance, steps) } else { self.anywhere() };
            let at = self.state.label(target);
            if target != instance && at > low && at <= high && target != self.state.near(instance, 1) {
                self.state.remove(instance);
                self.state.insert(op, target);
                return true;
            }
        }
        false
    }

    /// Removes repeats, dearest first, where that takes the order no further over the budget, until `is_late`.
    pub fn polish(&mut self, is_late: impl Fn() -> bool) {
        let ops = self.state.problem.graph.ops();
        let mut repeats: Vec<(OpId, Instance)> =
            self.state.repeats().iter().map(|&instance| (self.state.op(instance), instance)).collect();
        repeats.sort_by(|a, b| ops[b.0].cost.total_cmp(&ops[a.0].cost).then(a.cmp(b)));
        for (op, instance) in repeats {
            // It may have gone with one that it served.
            if !self.state.instances(op).contains(&instance) {
                continue;
            }
            if is_late() {
                break;
            }
            let (cost, over) = (self.state.cost, self.state.over());
            self.discard(instance);
            if self.state.over() <= over {
                self.state.commit();
            } else {
                self.state.undo();
                self.state.cost = cost;
            }
        }
        self.note_best();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, GraphBuilder, Op};
    use crate::planners::search::state::Problem;
    use crate::sequence::plan_of;
    use crate::simulate::simulate;

    fn random_graph(random: &mut Random) -> Graph {
        let mut builder = GraphBuilder::new("random");
        let mut values = vec![builder.value(random.below(9) as u64, "input")];
        for _ in 0..4 + random.below(20) {
            let mut inputs = Vec::new();
            for _ in 0..random.below(4) {
                inputs.push(values[random.below(values.len())]);
            }
            let outputs: Vec<_> =
                (0..1 + random.below(2)).map(|_| builder.value(random.below(30) as u64, "")).collect();
            let mut op = Op::new("", random.below(10) as f64, inputs, outputs.clone());
            op.scratch_bytes = random.below(5) as u64;
            op.recomputable = random.below(8) > 0;
            builder.op(op);
            values.extend(outputs);
        }
        let results = (0..1 + random.below(3)).map(|_| values[random.below(values.len())]).collect();
        builder.results(results);
        builder.build().unwrap()
    }

    #[test]
    fn the_memory_profile_equals_one_computed_from_scratch() {
        let mut random = Random::new(1);
        for seed in 0..60 {
            let graph = random_graph(&mut random);
            let order: Vec<OpId> = (0..graph.ops().len()).collect();
            let peak = simulate(&graph, &plan_of(&graph, &order)).peak_bytes;
            let problem = Problem::new(&graph, peak * 3 / 4);
            let mut walk = Walk::new(State::new(&problem, &order), seed);
            if walk.is_stuck() {
                continue;
            }
            for _ in 0..200 {
                walk.run(1, 3.0);
                let fresh = State::new(&problem, &walk.state.ops());
                assert_eq!(fresh.memory(), walk.state.memory());
                assert_eq!(fresh.over(), walk.state.over());
                assert!((fresh.cost - walk.state.cost).abs() < 1e-9);
                let simulated = simulate(&graph, &plan_of(&graph, &walk.state.ops()));
                let highest = *fresh.memory().iter().max().unwrap() as u64;
                let start = graph.inputs().map(|v| graph.bytes(v)).sum();
                assert_eq!(simulated.peak_bytes, highest.max(start));
            }
        }
    }
}
