//! Room: the only place that provides bytes, and the policy for when nothing is known of the future.
//!
//! Whatever needs bytes asks here. While a plan is followed, the plan has made room for its own operations. Anything else that needs
//! bytes then (a read, an upload, another thread), and everything while the plan is one for other sizes or there is none, gets them
//! from what is evicted here. The buffer with the largest
//!
//! ```text
//!     bytes^2 x age / cost
//! ```
//!
//! is evicted first. Age is the number of operations since the last use, or until the next one if a plan knows it. Cost is the measured time of every
//! recipe that would have to run to bring the buffer back, evicted ancestors included. This belongs to the family of dynamic tensor
//! rematerialization (Kirisame et al.), which has bytes to the first power. The square was chosen by measurement: it favours few large buffers over
//! many small ones, and so takes fewer and cheaper recomputations on transformers at the same budget, and no more on
//! convolutional networks. Bytes alone, or bytes and age alone, evict gradients and are ruinous.
//!
//! Scores are computed for all candidates in one pass and used for a few evictions before they are computed again, so a
//! call costs O(buffers x chain) for every [`BATCH`] evictions, with chains cut off where `History` does.

use alloc::vec::Vec;

use super::Machine;
use crate::driver::{Event, World};
use crate::facts::{CheckpointPolicy, Failure, Kind, TensorFacts};
use crate::follow::Follow;
use crate::keys::{BufferKey, TensorKey};
use crate::reuse::{Reuse, Seen, Signature};

/// Evictions per scoring pass.
const BATCH: usize = 8;
/// The cost of a chain too long to visit whole is taken to be this many times what was visited, so that it is evicted only when nothing else is left.
const LONG: u64 = 1 << 20;
/// At most one part in this many of the budget is left free to compress into.
const MOST_RESERVED: u64 = 64;

impl<W: World> Machine<W> {
    /// Evicts until `need` more bytes fit in the budget, as far as there is something to evict.
    #[inline]
    pub(super) fn make_room(&mut self, need: u64) {
        let Some(budget) = self.room.tensor_budget() else { return };
        if self.ledger.live.saturating_add(need) > budget.saturating_sub(self.room.reserve) {
            self.find_room(need, budget);
        }
    }

    /// The same, if the budget alone leaves too little.
    fn find_room(&mut self, need: u64, budget: u64) {
        let planned = self.watch.follow.as_ref().filter(|follow| follow.carried.is_none());
        let planned = planned.map(Follow::most);
        let most = budget.max(planned.unwrap_or(0));
        if planned.is_some() && self.is_planned() {
            // The plan has made room, unless more is held outside it, or things are not as it assumes.
            let fits = self.ledger.live.saturating_add(need) <= most;
            if fits || self.ledger.live <= most && !self.is_crowded(most) {
                return;
            }
            self.outgrow();
        }
        let without = most.saturating_sub(need);
        let most = self.room.most(most);
        // Leave room to compress the next one: for a moment both exist.
        let target = most.saturating_sub(self.room.reserve);
        if self.ledger.live.saturating_add(need) > target && !self.gives_up() {
            while self.ledger.live.saturating_add(need) > target && self.evict_some(need, target, most) {}
        }
        self.cut_behind_dead_roots(without);
    }

    /// Whether recomputation has reached its limit in this step.
    pub(super) fn gives_up(&mut self) -> bool {
        let totals = self.steps.totals;
        let base = totals.compute_ns.max(self.steps.last_ns);
        if totals.repeated_ns as f64 <= self.config.recompute_limit * base as f64 {
            return false;
        }
        if !core::mem::replace(&mut self.steps.totals.gave_up, true) {
            self.world.tell(Event::GaveUp);
        }
        true
    }

    /// A tensor of this many bytes may have to be compressed.
    pub(super) fn reserve_for(&mut self, bytes: u64) {
        if self.room.budget.is_some_and(|budget| bytes <= budget / MOST_RESERVED) {
            self.room.reserve = self.room.reserve.max(bytes);
        }
    }

    /// Called when more is held than before: updates the peak and the floor. `gone` bytes are still counted but released next; `beside` bytes are
    /// needed but not counted.
    ///
    /// # Errors
    ///
    /// The budget is exceeded and the configuration is strict.
    pub(super) fn account(&mut self, gone: u64, beside: u64) -> Result<(), Failure> {
        let live = self.ledger.live + beside;
        self.watch.most_held = self.watch.most_held.max(live);
        self.steps.totals.peak = self.steps.totals.peak.max(live);
        self.room.pool.note(live);
        self.counters.peak.note(live, self.now.kind);
        // While nothing is recorded nothing can be evicted, and nothing has to be.
        let floor = if self.own.records { self.ledger.fixed + gone + beside } else { 0 };
        self.counters.floor.note(floor, self.now.kind);
        let Some(budget) = self.room.budget.filter(|&budget| live > budget) else { return Ok(()) };
        self.steps.totals.over_budget = true;
        if floor <= budget {
            return Ok(());
        }
        self.room.exceed(floor);
        self.below_floor(budget, floor)
    }

    /// Reports that the budget cannot be kept: once, or as an error if the configuration is strict.
    pub(super) fn below_floor(&mut self, budget: u64, floor: u64) -> Result<(), Failure> {
        let event = Event::BelowFloor { budget, floor, kind: self.now.kind };
        if self.config.strict {
            return Err(self.world.in_words(&event));
        }
        if !core::mem::replace(&mut self.room.floor_said, true) {
            self.world.tell(event);
        }
        Ok(())
    }

    /// Evicts up to [`BATCH`] buffers in order of their score until `need` more bytes fit into `target`, with at most `most` bytes held
    /// meanwhile; `false` if none could be evicted.
    fn evict_some(&mut self, need: u64, target: u64, most: u64) -> bool {
        let excess = self.ledger.live + need - target;
        // Small buffers only when no large one is left: they free little and cost one recipe each.
        let mut candidates = self.candidates(excess / 64);
        if candidates.is_empty() {
            candidates = self.candidates(0);
        }
        let mut left = BATCH;
        for &(_, buffer) in &candidates {
            if self.ledger.live + need <= target || left == 0 {
                break;
            }
            left -= usize::from(self.evict_cheaply(buffer, most));
        }
        // Exceeding the budget for a moment is better than exceeding it for longer.
        let is_over = self.ledger.live + need > most;
        left < BATCH || is_over && candidates.iter().any(|&(_, buffer)| self.evict_cheaply(buffer, u64::MAX))
    }

    /// Evictable buffers of more than `least` bytes, best first.
    pub(super) fn candidates(&mut self, least: u64) -> Vec<(f64, BufferKey)> {
        let large =
            self.ledger.iter().filter(|(_, entry)| entry.bytes > least && !entry.is_fixed()).map(|(key, _)| key);
        let keys: Vec<BufferKey> =
            large.filter(|&key| self.policy_of(key) != Some(CheckpointPolicy::MustSave)).collect();
        let mut scored: Vec<(f64, BufferKey)> = keys.into_iter().map(|key| (self.score(key), key)).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored
    }

    fn score(&mut self, key: BufferKey) -> f64 {
        let entry = self.ledger.get(key);
        let used = entry.owners.iter().map(|&owner| self.history.tensors[owner].lineage.used).max().unwrap_or(0);
        let age = self.patience(key).unwrap_or((1 + self.now.clock - used) as f64);
        let bytes = entry.bytes as f64;
        let compressing = self.compressible(key).map(|(_, compressible)| compressible.cost_ns);
        let chain = self.history.chain(key, &self.ledger.get(key).owners);
        // If the chain was not visited whole, its cost is a lower bound.
        let computing = chain.map(|chain| chain.cost_ns.saturating_mul(if chain.is_long { LONG } else { 1 }));
        let cost = computing.into_iter().chain(compressing).min().unwrap_or(u64::MAX).max(1) as f64;
        let weight = self.policy_of(key).map_or(1.0, CheckpointPolicy::weight);
        bytes * bytes * age / (cost * weight)
    }

    /// The policy of the stage that made a buffer.
    fn policy_of(&self, key: BufferKey) -> Option<CheckpointPolicy> {
        if !self.stages.any_policy {
            return None;
        }
        let owners = self.ledger.get(key).owners.iter();
        let recipe = owners.into_iter().find_map(|&owner| self.history.tensors[owner].recipe)?;
        self.history.recipes[recipe].stage.1
    }

    /// Evicts a buffer, by compressing it if that is cheaper than computing it again, or the only way. During compression both
    /// exist, which must not take more than `most` bytes. Returns `false` if nothing could be done.
    pub(super) fn evict_cheaply(&mut self, buffer: BufferKey, most: u64) -> bool {
        // It may have been evicted together with an earlier one.
        if !self.ledger.contains(buffer) || self.ledger.get(buffer).is_fixed() {
            return false;
        }
        self.yield_buffer(buffer, most);
        if !self.ledger.contains(buffer) {
            return true;
        }
        let computing = self.history.chain(buffer, &self.ledger.get(buffer).owners).map(|chain| chain.cost_ns);
        if let Some((owner, compressible)) = self.compressible(buffer) {
            let is_best = computing.is_none_or(|cost| compressible.cost_ns < cost);
            let fits = self.ledger.live.saturating_add(compressible.bytes) <= most;
            if is_best && fits && self.compress_buffer(buffer, owner) {
                return true;
            }
        }
        if computing.is_some() {
            self.evict(buffer);
        }
        computing.is_some()
    }

    /// Upper estimate of the new bytes that an operation takes, on its first run or again, with all its inputs resident and `full` bytes in its outputs.
    pub(super) fn new_bytes(
        &mut self,
        (kind, again): (Kind, bool),
        outputs: &[TensorFacts],
        full: u64,
        inputs: &[TensorKey],
        consumed: &[TensorKey],
    ) -> u64 {
        self.room.reuse.skip();
        let Some(budget) = self.room.tensor_budget() else { return full };
        let is_tight = self.ledger.live.saturating_add(full) > budget;
        if !is_tight && !Reuse::learns(full, budget) {
            return full;
        }
        let arrangement = self.world.arrangement();
        let seen = inputs.iter().map(|&input| {
            let tensor = &self.history.tensors[input];
            let entry = tensor.buffer.map(|buffer| self.ledger.get(buffer));
            Seen {
                facts: tensor.facts,
                made_by: tensor.lineage.made_by,
                consumed: consumed.contains(&input),
                buffer: entry.map(|entry| (entry.owners.len() == 1, entry.bytes > tensor.facts.bytes)),
            }
        });
        let signature = Signature::new((kind, again, arrangement), outputs, full, seen);
        self.room.reuse.expect(signature)
    }
}
