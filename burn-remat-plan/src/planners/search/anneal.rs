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
//! - *swap*: keep one, evict another;
//! - *shift*: a repeat moves to another position between its ingredients and its first use.
//!
//! A move is applied to the [`State`] and taken back when it is refused.

use super::state::{Instance, State};
use crate::graph::{OpId, ValueId};

/// A small deterministic source of random numbers (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
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
}

pub(crate) struct Walk<'p, 'g> {
    pub state: State<'p, 'g>,
    pub random: Random,
    pub weight: f64,
    /// Values that are worth evicting.
    evictable: Vec<ValueId>,
    pub best: Option<(f64, Vec<OpId>)>,
    /// Parts left out, for ablations.
    pub without: Without,
    within: u32,
    tried: u32,
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
            weight,
            evictable,
            best: None,
            without: Without::default(),
            within: 0,
            tried: 0,
        };
        walk.note_best();
        walk
    }

    pub fn is_stuck(&self) -> bool {
        self.evictable.is_empty()
    }

    fn note_best(&mut self) {
        let cost = self.state.cost;
        if self.state.over == 0 && self.best.as_ref().is_none_or(|(best, _)| cost < best - best.abs() * 1e-12) {
            self.best = Some((cost, self.state.ops()));
        }
    }

    /// Makes `moves` moves at `temperature`.
    pub fn run(&mut self, moves: usize, temperature: f64) {
        for _ in 0..moves {
            self.one(temperature);
            self.tried += 1;
            self.within += u32::from(self.state.over == 0);
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

    fn one(&mut self, temperature: f64) {
        let (cost, over) = (self.state.cost, self.state.over);
        let mut kind = self.random.below(100);
        if self.without.shift && kind >= 85 {
            kind = self.random.below(85);
        }
        if self.without.swap && (50..85).contains(&kind) {
            kind = self.random.below(50);
        }
        let repeats = !self.state.repeats().is_empty();
        let done = if !repeats {
            self.evict(temperature)
        } else if over > 0 {
            match kind {
                0..50 => self.evict(temperature),
                50..70 => self.keep(),
                70..85 => self.keep() && self.evict(temperature),
                _ => self.shift(),
            }
        } else {
            match kind {
                0..25 => self.evict(temperature),
                25..50 => self.keep(),
                50..85 => self.keep() && self.evict(temperature),
                _ => self.shift(),
            }
        };
        if self.state.pending() == 0 {
            return;
        }
        let delta = self.state.cost - cost + self.weight * (self.state.over - over) as f64;
        if done && (delta <= 0.0 || self.random.chance((-delta / temperature).exp())) {
            self.state.commit();
            self.note_best();
        } else {
            self.state.undo();
            self.state.cost = cost;
        }
    }

    /// Evicts a random idle value. `false`: nothing to evict was found, or the chain to recompute got too long.
    fn evict(&mut self, _temperature: f64) -> bool {
        let position = self.crowded_position();
        for _ in 0..24 {
            let value = self.evictable[self.random.below(self.evictable.len())];
            let Some(span) = self.state.span(value, position) else { continue };
            let Some(next) = span.next else { continue };
            if next == position || next as isize - span.before < 2 {
                continue;
            }
            let target = (next < self.state.len()).then(|| self.state.at(next));
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

    fn crowded_position(&mut self) -> usize {
        let length = self.state.len();
        if self.state.over > 0 {
            let budget = self.state.problem.budget;
            // From a random start on, the first position over the budget.
            let start = self.random.below(length);
            let memory = self.state.memory();
            let found = memory[start..].iter().position(|&m| m > budget).map(|at| start + at);
            return found.or_else(|| memory[..start].iter().position(|&m| m > budget)).unwrap_or(start);
        }
        self.random.below(length)
    }

    fn place(&self, target: Option<Instance>) -> usize {
        target.map_or(self.state.len(), |instance| self.state.position(instance))
    }

    /// Inserts `op` before `target` (`None`: the end), and what it needs.
    fn provide(&mut self, op: OpId, target: Option<Instance>, inserted: &mut Vec<(OpId, Instance)>) -> bool {
        if inserted.len() >= LONGEST_CHAIN {
            return false;
        }
        let problem = self.state.problem;
        for &value in &problem.graph.ops()[op].inputs {
            let position = self.place(target);
            let Some(span) = self.state.span(value, position) else { return false };
            if span.last.is_some() || problem.bytes(value) == 0 {
                continue;
            }
            let Some(producer) = problem.graph.producer(value) else { continue };
            if !problem.graph.ops()[producer].recomputable {
                continue;
            }
            let gap = &self.state.memory()[(span.before + 1) as usize..position];
            let fits = gap.iter().all(|&m| m + problem.bytes(value) <= problem.budget);
            if self.random.chance(if fits { 0.9 } else { 0.15 }) {
                continue;
            }
            if !self.provide(producer, target, inserted) {
                return false;
            }
        }
        let position = self.place(target);
        inserted.push((op, self.state.insert(op, position)));
        true
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
            let (op, position) = (self.state.op(instance), self.state.position(instance));
            let mut feeders: Vec<Instance> = Vec::new();
            for &value in &graph.ops()[op].inputs {
                let Some(producer) = graph.producer(value) else { continue };
                let feeder = self.state.instances(producer).iter().rev().find(|&&i| self.state.position(i) < position);
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
        let (op, position) = (self.state.op(instance), self.state.position(instance));
        let mut low = 0;
        for &value in &graph.ops()[op].inputs {
            let Some(span) = self.state.span(value, position) else { return false };
            low = low.max((span.start + 1) as usize);
        }
        let earlier = self.state.instances(op).iter().rev().find(|&&i| self.state.position(i) < position);
        low = low.max(earlier.map_or(0, |&i| self.state.position(i) + 1));
        let mut high = self.state.len();
        for &value in &graph.ops()[op].outputs {
            if let Some(next) = self.state.span(value, position + 1).and_then(|span| span.next) {
                high = high.min(next);
            }
        }
        // Positions between which the instance may go, counted without it.
        if low + 1 >= high {
            return false;
        }
        let mut to = low + self.random.below(high - low);
        if self.random.chance(0.5) {
            // A short way: most gains lie near.
            to = (position + self.random.below(7)).saturating_sub(3).clamp(low, high - 1);
        }
        if to == position {
            return false;
        }
        self.state.remove(instance);
        self.state.insert(op, to);
        true
    }

    /// Removes repeats, dearest first, where that takes the order no further over the budget.
    pub fn polish(&mut self) {
        let ops = self.state.problem.graph.ops();
        let mut repeats: Vec<(OpId, Instance)> =
            self.state.repeats().iter().map(|&instance| (self.state.op(instance), instance)).collect();
        repeats.sort_by(|a, b| ops[b.0].cost.total_cmp(&ops[a.0].cost).then(a.cmp(b)));
        for (op, instance) in repeats {
            // It may have gone with one that it served.
            if !self.state.instances(op).contains(&instance) {
                continue;
            }
            let (cost, over) = (self.state.cost, self.state.over);
            self.discard(instance);
            if self.state.over <= over {
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
                assert_eq!(fresh.over, walk.state.over);
                assert!((fresh.cost - walk.state.cost).abs() < 1e-9);
                let simulated = simulate(&graph, &plan_of(&graph, &walk.state.ops()));
                let highest = *fresh.memory().iter().max().unwrap() as u64;
                let start = graph.inputs().map(|v| graph.bytes(v)).sum();
                assert_eq!(simulated.peak_bytes, highest.max(start));
            }
        }
    }
}
