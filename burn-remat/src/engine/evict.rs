//! The online policy: which buffer to give up when the next operation does not fit.
//!
//! A storage may be evicted when all its owners can be computed again and none is pinned. Among those the policy takes
//! the one with the largest
//!
//! ```text
//!     bytes^2 x age / cost
//! ```
//!
//! where age counts operations since the last use and cost is the measured time of every recipe that would have to run
//! to bring the storage back, evicted ancestors included. The family is that of dynamic tensor rematerialization
//! (Kirisame et al.), which has bytes to the first power. The square was measured: it favours few large buffers over
//! many small ones, and so takes fewer and cheaper recomputations on transformers at the same budget, and no more on
//! convolutional networks. Bytes alone, or bytes and age alone, evict gradients and are ruinous.
//!
//! Scores are computed for all candidates in one pass and used for a few evictions before they are computed anew, so a
//! call costs O(storages x chain) per [`BATCH`] evictions, with chains cut off at [`CHAIN_LIMIT`] recipes.

use super::forms::Packable;
use super::table::StorageKey;
use super::{Engine, Failure, Floor};
use crate::backend::RematBackend;
use crate::budget::DisplayBytes;
use crate::checkpoint::CheckpointPolicy;

/// Evictions per scoring pass.
const BATCH: usize = 8;
/// Recipes looked at when a chain's cost is summed.
const CHAIN_LIMIT: usize = 96;

impl<B: RematBackend> Engine<B> {
    /// Evicts until `need` more bytes fit in the budget, as far as there is something to evict.
    ///
    /// A budget that has proved too small is not fought for: the engine then works inside the smallest amount that has
    /// sufficed so far.
    pub(super) fn make_room(&mut self, need: u64) {
        let Some(budget) = self.tensor_budget() else { return };
        if self.follow.is_some() && !self.aside.now {
            // The plan has made room.
            return;
        }
        let most = budget.max(self.overrun);
        // Room to pack the next one: for a moment there are both forms of it.
        let target = most.saturating_sub(self.forms.reserve);
        if self.storages.live.saturating_add(need) <= target {
            return;
        }
        if self.step.repeated_ns as f64 > self.config.recompute_limit * self.step.base_ns(self.stats.base_ns) {
            if !std::mem::replace(&mut self.step.gave_up, true) {
                log::warn!(
                    "recomputation in this step exceeded {} times its own compute time: the rest of the step keeps \
                     what it computes. Raise the budget, or the limit with `with_recompute_limit`.",
                    self.config.recompute_limit
                );
            }
            return;
        }
        while self.storages.live.saturating_add(need) > target && self.evict_some(need, target, most) {}
    }

    /// Called when an operation has run and all it needed is held: keeps the peak and the floor.
    ///
    /// `fixed` is the part that could not have been evicted: roots, the operation's own inputs and outputs.
    ///
    /// # Errors
    ///
    /// Over budget, where the configuration is strict.
    pub(super) fn account(&mut self, fixed: u64, kind: u64) -> Result<(), Failure> {
        let live = self.storages.live;
        self.most_held = self.most_held.max(live);
        self.step.peak = self.step.peak.max(live);
        self.pool.note(live);
        if live > self.stats.peak {
            self.stats.peak = live;
            self.stats.peak_op = kind;
        }
        let mut floor = if self.light { 0 } else { fixed };
        let over = self.budget.is_some_and(|budget| live > budget);
        if over {
            self.step.over_budget = true;
            // A plan that has foreseen less is about to be left; without it something could have been evicted.
            let is_planned = self.follow.as_ref().is_some_and(|follow| self.budget >= Some(follow.schedule().peak));
            if !is_planned || self.aside.now {
                self.overrun = self.overrun.max(live);
                floor = live;
            }
        }
        if floor > self.stats.floor.bytes {
            self.stats.floor = Floor { bytes: floor, kind: self.serving };
        }
        match self.budget {
            Some(budget) if floor > budget => self.below_floor(budget),
            _ => Ok(()),
        }
    }

    /// Says that the budget cannot be met: once, or as an error if the configuration is strict.
    pub(super) fn below_floor(&mut self, budget: u64) -> Result<(), Failure> {
        let floor = self.stats.floor.bytes;
        let op = self.names.get(&self.stats.floor.kind).map_or("reading or uploading a tensor", String::as_str);
        let (budget, least) = (DisplayBytes(budget), DisplayBytes(floor));
        let message = format!(
            "the budget of {budget} is below the floor: `{op}` needs {least} at once that cannot be evicted. Set a budget of \
             at least {floor} bytes, or make the batch smaller."
        );
        if self.config.strict {
            return Err(message.into());
        }
        if !std::mem::replace(&mut self.floor_said, true) {
            log::warn!("{message} The run goes on with as little as it can.");
        }
        Ok(())
    }

    /// Evicts up to [`BATCH`] storages in order of their score until `need` more bytes keep to `target`, with at most `most` held
    /// meanwhile; `false` if none could be.
    fn evict_some(&mut self, need: u64, target: u64, most: u64) -> bool {
        let excess = self.storages.live + need - target;
        // Small buffers only when no large one is left: they free little and cost a recipe each.
        let mut candidates = self.candidates(excess / 64);
        if candidates.is_empty() {
            candidates = self.candidates(0);
        }
        let mut left = BATCH;
        for &(_, storage) in &candidates {
            if self.storages.live + need <= target || left == 0 {
                break;
            }
            left -= usize::from(self.evict_cheaply(storage, most));
        }
        // To be over budget for a moment is better than to stay so.
        let is_over = self.storages.live + need > most;
        left < BATCH || is_over && candidates.iter().any(|&(_, storage)| self.evict_cheaply(storage, u64::MAX))
    }

    /// Evictable storages of more than `least` bytes, best first.
    fn candidates(&mut self, least: u64) -> Vec<(f64, StorageKey)> {
        let keys: Vec<StorageKey> = self
            .storages
            .iter()
            .filter(|(_, storage)| storage.roots == 0 && storage.bytes > least)
            .filter(|(_, storage)| storage.owners.iter().all(|&owner| self.tensors[owner].pins == 0))
            .filter(|(key, _)| self.policy_of(*key) != Some(CheckpointPolicy::MustSave))
            .map(|(key, _)| key)
            .collect();
        let mut scored: Vec<(f64, StorageKey)> = keys.into_iter().map(|key| (self.score(key), key)).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored
    }

    fn score(&mut self, key: StorageKey) -> f64 {
        let storage = self.storages.get(key);
        let used = storage.owners.iter().map(|&owner| self.tensors[owner].used).max().unwrap_or(0);
        let age = (1 + self.clock - used) as f64;
        let packing = self.packable(key).map_or(u64::MAX, |packable| packable.cost_ns);
        let cost = self.chain_cost(key).min(packing).max(1) as f64;
        let bytes = self.storages.get(key).bytes as f64;
        let weight = self.policy_of(key).map_or(1.0, CheckpointPolicy::weight);
        bytes * bytes * age / (cost * weight)
    }

    /// What the stage that made a storage says about it.
    fn policy_of(&self, key: StorageKey) -> Option<CheckpointPolicy> {
        if !self.stages.any_policy {
            return None;
        }
        let recipe = self.storages.get(key).owners.iter().find_map(|&owner| self.tensors[owner].recipe)?;
        self.recipes[recipe].policy
    }

    /// Time to compute a storage again if it were evicted now; the most there is where it cannot be.
    fn chain_cost(&mut self, key: StorageKey) -> u64 {
        if self.storages.get(key).owners.iter().any(|&owner| self.tensors[owner].recipe.is_none()) {
            return u64::MAX;
        }
        self.walk += 1;
        let mut cost = 0;
        let mut count = 0;
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        stack.extend(self.storages.get(key).owners.iter().filter_map(|&owner| self.tensors[owner].recipe));
        while let Some(at) = stack.pop() {
            let recipe = &mut self.recipes[at];
            if std::mem::replace(&mut recipe.seen, self.walk) == self.walk {
                continue;
            }
            cost += recipe.cost_ns;
            count += 1;
            if count >= CHAIN_LIMIT {
                break;
            }
            for &input in &recipe.inputs {
                let tensor = &self.tensors[input];
                if tensor.storage.is_none_or(|storage| storage == key) && !tensor.is_packed() {
                    stack.extend(tensor.recipe);
                }
            }
        }
        self.stack = stack;
        cost
    }

    /// Evicts a storage, by packing it where that is cheaper than to compute it again, or the only way. While it is packed there
    /// are both, which must not be more than `most` bytes: `false` if nothing could be done.
    fn evict_cheaply(&mut self, storage: StorageKey, most: u64) -> bool {
        let owners = &self.storages.get(storage).owners;
        let can_recompute = owners.iter().all(|&owner| self.tensors[owner].recipe.is_some());
        if let Some(Packable { owner, bytes, cost_ns }) = self.packable(storage) {
            let is_best = !can_recompute || cost_ns < self.chain_cost(storage);
            if is_best && self.storages.live.saturating_add(bytes) <= most && self.pack_storage(storage, owner) {
                return true;
            }
        }
        if can_recompute {
            self.evict(storage);
        }
        can_recompute
    }

    /// Evicts a storage whose owners can all be computed again.
    pub(super) fn evict(&mut self, storage: StorageKey) {
        let owners = self.storages.get(storage).owners.clone();
        for owner in owners {
            self.release(owner);
        }
        self.stats.evictions += 1;
    }
}
