//! Simulated annealing over compute orders.
//!
//! The energy of an order is its cost plus `weight` times the bytes above the budget, summed over positions; each position that is over
//! counts some bytes more, or a walk would settle a little above the budget for long. The
//! weight follows the walk: it grows while the walk is mostly over the budget and shrinks while it is mostly within,
//! so that the walk stays near the border, where the cheap orders lie. One that has long been over goes on from its best order.
//!
//! Moves:
//! - *evict*: a value that is idle over a position (one over the budget, while there are any) is computed again just
//!   before its next use. It is drawn of all values, then of those that are used nearby: in a large graph hardly any is there. Ingredients that are gone are kept longer where memory allows, else computed too, and their
//!   own later repeats are often dropped, since the new one serves their users;
//! - *keep*: a repeat is removed, and with it every repeat that only it used. Repeats that read the value which stays, and
//!   ran early only because it went, are often postponed to their first use: each would be worse without the other;
//! - *swap*: keep one, evict another, now and then two of either;
//! - *shift*: a repeat moves to another position between its ingredients and its first use.
//!
//! Where ops have several [ways](super::problem) to run, three moves in ten concern these:
//! - *switch*: a computation, first or later, goes another way of its op. Inputs that only the new way reads are kept
//!   longer or computed again, as those of a repeat are; repeats that only the old way used go. Alone, twice at once, or
//!   with a value evicted or kept, to make use of the memory or to pay for it.
//!
//! A repeat that is inserted goes the way that looks cheapest there, or any; an *evict* may, in place of a repeat, switch
//! the next use of the value to a way that does without it.
//!
//! A move is applied to the [`State`] and taken back when it is refused.
//!
//! *Repacking* is no move but a pass over all values, at low temperature: one is evicted, and what that frees is filled with the results of
//! repeats, those first that save most for each byte. Many cheap repeats against one dear repeat of the same bytes is an exchange that
//! moves hardly find, since all orders on the way are dearer or do not fit.

use super::problem::{Problem, WayId};
use super::settings::Without;
use super::state::{END, Instance, START, State};
use crate::choice::Choice;
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

/// Share of the moves that change the way of a computation, where there is a choice.
const SWITCHES: f64 = 0.3;
/// How often what keeping a value allows to run later is postponed.
const POSTPONE: f64 = 0.5;
/// Most computations that one move may insert.
const LONGEST_CHAIN: usize = 80;

/// Values that are looked at to find one that can be evicted at a position.
const DRAWS: usize = 48;
/// How many of these are drawn of all values before others of those used nearby.
const FAR_DRAWS: usize = 24;

/// Moves over the budget in a row after which a walk goes on from its best order.
const MOST_STRAYED: usize = 20_000;

/// Repeats in a row that do not fit after which an exchange looks for no more.
const MOST_MISSES: usize = 100;

/// What a byte over the budget costs a walk, kept such that the walk stays near the border.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    pub weight: f64,
    /// At this one byte over the budget outweighs everything.
    most: f64,
    within: u32,
    tried: u32,
}

impl Pressure {
    fn observe(&mut self, is_within: bool) {
        self.tried += 1;
        self.within += u32::from(is_within);
        if self.tried == 512 {
            if self.within * 10 < self.tried * 3 {
                self.weight = (self.weight * 1.15).min(self.most);
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
    /// Ops with several ways.
    choosers: Vec<OpId>,
    pub best: Option<(f64, Vec<Choice>)>,
    /// Parts left out, for ablations.
    pub without: Without,
    /// Beyond so many computations the order does not grow.
    pub most_computations: usize,
    /// Moves since the walk was last within the budget.
    strayed: usize,
    /// What the order may cost, were it within the budget, for the move under way to be accepted.
    most_cost: f64,
}

/// A computation that is not the first of its op.
struct Repeat {
    op: OpId,
    instance: Instance,
    /// The last use before of what it computes: without it, that would be kept from there on.
    before: Instance,
}

/// Whether to evict a value may be worth while.
fn is_evictable(problem: &Problem<'_>, value: ValueId) -> bool {
    let graph = problem.graph;
    problem.bytes(value) > 0
        && graph.producer(value).is_some_and(|op| graph.ops()[op].recomputable)
        && (!problem.readers(value).is_empty() || graph.is_result(value))
}

impl<'p, 'g> Walk<'p, 'g> {
    pub fn new(state: State<'p, 'g>, seed: u64) -> Self {
        let problem = state.problem;
        let graph = problem.graph;
        let evictable: Vec<ValueId> = (0..graph.values().len()).filter(|&v| is_evictable(problem, v)).collect();
        let costs: f64 = graph.ops().iter().map(|op| op.cost).sum();
        let bytes: f64 = (0..graph.values().len()).map(|v| problem.bytes(v) as f64).sum();
        let weight = 20.0 * costs / (bytes.max(1.0) * graph.ops().len() as f64);
        let mut walk = Self {
            state,
            random: Random::new(seed),
            pressure: Pressure { weight, most: costs.max(weight), within: 0, tried: 0 },
            strayed: 0,
            evictable,
            choosers: problem.choosers(),
            best: None,
            without: Without::default(),
            most_computations: usize::MAX,
            most_cost: 0.0,
        };
        walk.note_best();
        walk
    }

    pub fn is_stuck(&self) -> bool {
        self.evictable.is_empty() && self.choosers.is_empty()
    }

    fn note_best(&mut self) {
        let cost = self.state.cost;
        if self.state.over() == 0 && self.best.as_ref().is_none_or(|(best, _)| cost < best - best.abs() * 1e-12) {
            self.best = Some((cost, self.state.choices()));
        }
    }

    /// Makes `moves` moves at `temperature`.
    pub fn run(&mut self, moves: usize, temperature: f64) {
        for _ in 0..moves {
            self.one(temperature);
            let is_within = self.state.over() == 0;
            self.pressure.observe(is_within);
            self.strayed = if is_within { 0 } else { self.strayed + 1 };
            if self.strayed == MOST_STRAYED
                && let Some((_, order)) = &self.best
            {
                self.state.load(order);
                self.strayed = 0;
            }
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
        let done = if !self.choosers.is_empty() && self.random.chance(SWITCHES) {
            self.rechoose()
        } else if !repeats {
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

    /// A random value that a computation near `position` reads or makes. Of a large graph most values are nowhere near residence there.
    fn value_around(&mut self, position: Instance) -> Option<ValueId> {
        let number = self.random.below(usize::MAX);
        let instance = self.state.around(position, number);
        let graph = self.state.problem.graph;
        let (inputs, outputs) = (&self.state.way(instance).inputs, &graph.ops()[self.state.op(instance)].outputs);
        let at = self.random.below((inputs.len() + outputs.len()).max(1));
        let value = *inputs.get(at).or_else(|| outputs.get(at - inputs.len()))?;
        is_evictable(self.state.problem, value).then_some(value)
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
    /// themselves and what its scratch is over the budget.
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

    /// Inserts `op` before `target`, and what it needs.
    fn provide(&mut self, op: OpId, target: Instance, inserted: &mut Vec<(OpId, Instance)>) -> bool {
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

    /// Makes sure that `value` can be read just before `target`: it is there, will be kept, or is computed again.
    fn obtain(&mut self, value: ValueId, target: Instance, inserted: &mut Vec<(OpId, Instance)>) -> bool {
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
        let (op, until) = (self.state.op(instance), self.state.label(instance));
        self.discard(instance);
        if !self.without.postpone && self.random.chance(POSTPONE) {
            self.postpone_readers(op, until);
        }
        true
    }

    /// Has the repeats before `until` that read what `op` has computed last wait until their first uses.
    fn postpone_readers(&mut self, op: OpId, until: u64) {
        let problem = self.state.problem;
        let label = |instance: Instance| self.state.label(instance);
        let Some(since) = self.last_before(op, until).map(label) else { return };
        let mut early = Vec::new();
        for &value in &problem.graph.ops()[op].outputs {
            for reader in problem.readers(value) {
                let repeats = &self.state.instances(reader.op as usize)[1..];
                early.extend(repeats.iter().copied().filter(|&instance| {
                    (since..until).contains(&label(instance)) && self.state.way(instance).reads(value)
                }));
            }
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

    /// The first use of what `instance` computes, before that is computed again; [`END`] where there is none, or at the end.
    fn first_use(&self, instance: Instance) -> Instance {
        let outputs = &self.state.problem.graph.ops()[self.state.op(instance)].outputs;
        let uses = outputs.iter().filter_map(|&value| self.state.span_behind(value, instance)?.next);
        uses.min_by_key(|&next| self.state.label(next)).unwrap_or(END)
    }

    /// Moves a repeat to just before `target`.
    fn move_to(&mut self, instance: Instance, target: Instance) {
        let way = self.state.way_id(instance);
        self.state.remove(instance);
        self.state.insert(way, target);
    }

    /// Removes a repeat and every repeat that only it used.
    fn discard(&mut self, instance: Instance) {
        let mut stack = vec![instance];
        while let Some(instance) = stack.pop() {
            let feeders: Vec<Instance> =
                self.state.way(instance).inputs.iter().filter_map(|&value| self.feeder(value, instance)).collect();
            self.state.remove(instance);
            self.stack_useless(&feeders, &mut stack);
        }
    }

    /// The instance that computes `value` for one that reads it.
    fn feeder(&self, value: ValueId, reader: Instance) -> Option<Instance> {
        let producer = self.state.problem.graph.producer(value)?;
        self.last_before(producer, self.state.label(reader))
    }

    /// The last instance of `op` before a label.
    fn last_before(&self, op: OpId, label: u64) -> Option<Instance> {
        self.state.instances(op).iter().rev().find(|&&instance| self.state.label(instance) < label).copied()
    }

    fn stack_useless(&self, feeders: &[Instance], stack: &mut Vec<Instance>) {
        for &feeder in feeders {
            if !self.state.is_first(feeder) && !self.state.is_used(feeder) && !stack.contains(&feeder) {
                stack.push(feeder);
            }
        }
    }

    /// Moves that change the way of a computation.
    fn rechoose(&mut self) -> bool {
        match self.random.below(10) {
            0..6 => self.switch(),
            6 => self.switch() && self.switch(),
            7 | 8 => self.switch() && self.evict(),
            _ => self.keep() && self.switch(),
        }
    }

    /// Has a random computation, while over the budget often one that is over it, go another way.
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

    /// Has `instance` go another way, with what that takes and what it makes useless.
    fn switch_to(&mut self, instance: Instance, way: WayId) -> bool {
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
            // One may have gone with another that it served.
            if self.is_there(feeder) {
                self.discard(feeder);
            }
        }
        for (op, instance) in inserted {
            self.merge_next(op, instance);
        }
        true
    }

    fn is_there(&self, instance: Instance) -> bool {
        self.state.numbered(instance as usize - 2).is_some()
    }

    fn shift(&mut self) -> bool {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return false;
        }
        let instance = repeats[self.random.below(repeats.len())];
        let op = self.state.op(instance);
        let label = |i: Instance| self.state.label(i);
        // It may go behind what it reads and its last repeat, and before its first use.
        let mut low = START;
        for &value in &self.state.way(instance).inputs {
            let Some(span) = self.state.span(value, instance) else { return false };
            low = if label(span.start) > label(low) { span.start } else { low };
        }
        let earlier = self.last_before(op, label(instance));
        low = earlier.filter(|&i| label(i) > label(low)).unwrap_or(low);
        let (low, high) = (label(low), label(self.first_use(instance)));
        let short = self.random.chance(0.5);
        for _ in 0..6 {
            // Half go a short way: most gains lie near.
            let steps = self.random.below(7) as i32 - 3;
            let target = if short { self.state.near(instance, steps) } else { self.anywhere() };
            let at = self.state.label(target);
            if target != instance && at > low && at <= high && target != self.state.near(instance, 1) {
                self.move_to(instance, target);
                return true;
            }
        }
        false
    }

    /// Removes repeats, dearest first, and then goes cheaper ways, where that takes the order no further over the budget,
    /// until `is_late`.
    pub fn polish(&mut self, is_late: impl Fn() -> bool) {
        let described = |&instance: &Instance| (self.state.way(instance).cost, self.state.op(instance), instance);
        let mut repeats: Vec<(f64, OpId, Instance)> = self.state.repeats().iter().map(described).collect();
        repeats.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for (_, op, instance) in repeats {
            // It may have gone with one that it served.
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

    /// Tries for each value whether it pays to evict it and to fill what that frees: the repeats that save most for each byte that keeping
    /// their results takes are dropped, as far as all fits. Until it `is_over` for so many, or `is_late`; returns how many values were tried.
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

    /// The repeats, those first that save most for each byte of what they compute.
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

    /// Evicts a value where memory is fullest and drops, in this order, the repeats that then fit. Whether that is cheaper; else nothing changes.
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
                // It may have gone with one that it served.
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

    /// The uses of a value between which most memory is held.
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

    /// Makes a change that costs nothing and takes it back where it takes the order further over the budget.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::graph::{Alternative, Graph, GraphBuilder, Op};
    use crate::planners::search::problem::Problem;
    use crate::sequence::plan_of_choices;
    use crate::simulate::simulate;

    fn random_graph(random: &mut Random, most_alternatives: usize) -> Graph {
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
            for _ in 0..random.below(most_alternatives + 1) {
                op.alternatives.push(Alternative {
                    name: String::new(),
                    cost: random.below(10) as f64,
                    inputs: (0..random.below(4)).map(|_| values[random.below(values.len())]).collect(),
                    scratch_bytes: random.below(9) as u64,
                });
            }
            builder.op(op);
            values.extend(outputs);
        }
        let results = (0..1 + random.below(3)).map(|_| values[random.below(values.len())]).collect();
        builder.results(results);
        builder.build().unwrap()
    }

    /// Walks over graphs and compares with a fresh state and the simulation; returns how many switched computations it saw.
    fn compare_with_fresh_states(most_alternatives: usize) -> usize {
        let mut random = Random::new(1);
        let mut switched = 0;
        for seed in 0..60 {
            let graph = random_graph(&mut random, most_alternatives);
            let order: Vec<Choice> = (0..graph.ops().len()).map(Choice::default_of).collect();
            let peak = simulate(&graph, &plan_of_choices(&graph, &order)).peak_bytes;
            let problem = Problem::new(&graph, peak * 3 / 4);
            let mut walk = Walk::new(State::new(&problem, &order), seed);
            if walk.is_stuck() {
                continue;
            }
            for step in 0..200 {
                walk.run(1, 3.0);
                if step % 50 == 49 {
                    let (over, cost) = (walk.state.over(), walk.state.cost);
                    walk.repack(|_| false, || false);
                    assert!(walk.state.over() == over && walk.state.cost <= cost);
                }
                let choices = walk.state.choices();
                let fresh = State::new(&problem, &choices);
                assert_eq!(fresh.memory(), walk.state.memory());
                assert_eq!(fresh.over(), walk.state.over());
                assert!((fresh.cost - walk.state.cost).abs() < 1e-9);
                let highest = *fresh.memory().iter().max().unwrap() as u64;
                let start = graph.inputs().map(|v| graph.bytes(v)).sum();
                let checked = check(&graph, &plan_of_choices(&graph, &choices), peak * 100).unwrap();
                assert_eq!(checked.peak_bytes(), highest.max(start));
                switched += choices.iter().filter(|choice| choice.implementation > 0).count();
            }
        }
        switched
    }

    #[test]
    fn the_memory_profile_equals_one_computed_from_scratch() {
        assert_eq!(compare_with_fresh_states(0), 0);
    }

    #[test]
    fn the_memory_profile_is_right_where_computations_switch_implementations() {
        assert!(compare_with_fresh_states(2) > 10_000);
    }

    #[test]
    fn one_dear_repeat_takes_the_place_of_many_cheap_ones() {
        // Seven bytes have to go in the middle: seven values of one byte and cost 1, or one of seven bytes and cost 6.
        let mut builder = GraphBuilder::new("either or");
        let values: Vec<ValueId> = (0..8).map(|at| builder.value(if at == 0 { 7 } else { 1 }, "")).collect();
        for (at, &value) in values.iter().enumerate() {
            builder.op(Op::new("make", if at == 0 { 6.0 } else { 1.0 }, vec![], vec![value]));
        }
        let middle = builder.value(8, "");
        builder.op(Op::new("middle", 1.0, vec![], vec![middle]));
        for &value in &values {
            let read = builder.value(0, "");
            builder.op(Op::new("read", 1.0, vec![value], vec![read]));
        }
        let graph = builder.build().unwrap();
        let problem = Problem::new(&graph, 15);
        let reads = (0..8).flat_map(|at| [at, at + 9].into_iter().skip(usize::from(at == 0)));
        let order: Vec<Choice> = (0..9).chain(reads).map(Choice::default_of).collect();
        let mut walk = Walk::new(State::new(&problem, &order), 0);
        assert_eq!((walk.state.over(), walk.state.cost), (0, 29.0));
        assert_eq!(walk.repack(|_| false, || false), 8);
        assert_eq!((walk.state.over(), walk.state.cost), (0, 28.0));
        assert_eq!(walk.best.map(|(cost, _)| cost), Some(28.0));
    }
}
