//! What cannot be computed again: which roots an operation may take, and how history is cut behind them.
//!
//! A *root* has no recipe: uploads, random results (unless reseeded), uninitialised memory, the user's own operations, and what came of
//! operations that took a root. Without the last rule, `w -= lr * g` would grow a chain through all steps.

use alloc::vec::Vec;

use crate::driver::World;
use crate::facts::Operation;
use crate::history::{KEEP_ROOT_RATIO, Tensor};
use crate::keys::TensorKey;
use crate::passes::Part;

use super::Machine;
use super::call::{Call, Settled};

impl<W: World> Machine<W> {
    /// Decides which consumed roots the operation may really take, and whether it can be recorded.
    ///
    /// A consumed root on which recipes depend is taken only if history can be cut there. Either way the outputs become
    /// roots, so that no chain of updates grows behind them; only a root that is small beside the outputs is kept for
    /// their sake.
    pub(super) fn settle_roots(&mut self, op: &Operation, call: &mut Call) -> Settled {
        for &key in &call.dying {
            let tensor = &self.history.tensors[key];
            if tensor.recipe.is_none() && !tensor.held && !tensor.dependents.is_empty() {
                self.cut(key, true);
            }
        }
        let (records, training) = (self.own.records, self.steps.detector.has_begun());
        let (mut replaces, mut replaces_root) = (false, false);
        let (mut replaces_other, mut replaces_parameter) = (false, false);
        let (tensors, count) = (&self.history.tensors, call.inputs.len());
        for &key in &call.dying {
            let tensor = &tensors[key];
            let mut taken = !tensor.held;
            if tensor.recipe.is_none() && (records || !tensor.lineage.is.computed) {
                let small = tensor.facts.bytes.saturating_mul(KEEP_ROOT_RATIO) <= call.produced;
                let takes = !small && !tensor.held;
                replaces |= takes;
                // What the step has computed is none by how it came to be.
                let takes = takes && !tensor.lineage.is.computed;
                replaces_root |= takes;
                replaces_other |= takes && !tensor.lineage.is.passing;
                let alike = op.outputs.iter().any(|output| output.shape == tensor.facts.shape);
                let succeeded = alike && (tensor.lineage.read > 0 || tensor.lineage.updated > 0 || count == 1);
                replaces_parameter |= takes && tensor.may_be_parameter() && (succeeded || !training);
                taken &= !(small && records) && tensor.dependents.is_empty();
            }
            if taken {
                call.consumed.push(key);
            } else {
                call.only_read.push(tensor.facts.id);
            }
        }
        let nature = op.nature;
        let seed = (nature.random && self.config.reseed).then(|| self.next_seed());
        if nature.varies && !self.counters.varying.contains(&op.kind) {
            self.counters.varying.push(op.kind);
        }
        let repeats = !nature.opaque && !nature.varies && (!nature.random || seed.is_some());
        let (recordable, computes) = (repeats && !replaces, repeats && !replaces_root);
        let passing = !replaces_other && (replaces_root || nature.varies || nature.mask);
        Settled { recordable, computes, replaces, seed, passing, state: replaces_root && !replaces_parameter }
    }

    /// Makes the live descendants of `root` roots, so that nothing depends on `root` any more. `false`, with no change,
    /// if that is not possible or not worth it.
    ///
    /// With `bring_back`, evicted descendants are computed first where they are no larger than the root itself, or where
    /// the budget has proved too small anyway: keeping the root beside its successor would then only add to what is held.
    pub(super) fn cut(&mut self, root: TensorKey, bring_back: bool) -> bool {
        let dependents = self.history.tensors[root].dependents.clone();
        let Some(frontier) = self.history.live_descendants(dependents) else { return false };
        if self.own.taken.as_ref().is_some_and(|taken| frontier.iter().any(|key| taken.contains(key))) {
            return false;
        }
        let tensors = &self.history.tensors;
        let evicted = frontier.iter().map(|&key| &tensors[key]).filter(|tensor| tensor.is_evicted());
        let missing: u64 = evicted.map(|tensor| tensor.facts.bytes).sum();
        let worth_it = bring_back && (missing <= tensors[root].facts.bytes || self.room.overrun() > 0);
        if missing > 0 && !worth_it {
            return false;
        }
        let (passing, training) = (tensors[root].lineage.is.passing, self.steps.detector.has_begun());
        let mut whole = true;
        // All first: what is brought back for one may let go of what another rests on.
        frontier.iter().for_each(|&key| self.pin(key));
        for &key in &frontier {
            if self.history.tensors[key].is_evicted() {
                whole &= self.ensure(key).is_ok();
            }
        }
        for key in frontier {
            if whole {
                self.make_root(key);
                let is = &mut self.history.tensors[key].lineage.is;
                is.passing |= passing;
                is.state |= training && !is.eligible;
            }
            self.unpin(key);
        }
        self.collect();
        whole
    }

    /// Lets roots go that the program has dropped, until no more than `most` bytes are held, where all that was made of them is there: gradients, which
    /// are needed once more, and soon, or what is small beside what it keeps evictable. O(buffers), only where more is held.
    pub(super) fn cut_behind_dead_roots(&mut self, most: u64) {
        if self.ledger.live <= most {
            return;
        }
        let ready = self.own.taken.is_some();
        let is_left = |owner: &TensorKey| {
            let tensor = &self.history.tensors[*owner];
            let is_dead = !tensor.alive && !tensor.held && tensor.pins == 0;
            // What is brought back for an operation may rest on others.
            is_dead && tensor.recipe.is_none() && (ready || tensor.lineage.part == Part::Backward)
        };
        let left = self.ledger.iter().filter(|(_, entry)| entry.is_fixed() && entry.owners.iter().all(is_left));
        let left: Vec<TensorKey> = left.flat_map(|(_, entry)| entry.owners.iter().copied()).collect();
        for root in left {
            if self.ledger.live > most && self.history.tensors.contains(root) {
                self.cut(root, false);
            }
        }
    }

    /// Forgets how to compute a resident tensor. [`collect`](Self::collect) must follow.
    pub(super) fn make_root(&mut self, key: TensorKey) {
        if self.history.tensors[key].recipe.is_some() {
            self.note_outlives(key);
            self.keep_data(key);
        }
    }

    /// A tensor outlives the step that has computed it: it counts as computed no more.
    pub(super) fn note_outlives(&mut self, key: TensorKey) {
        self.count_no_more(key);
        let is = &mut self.history.tensors[key].lineage.is;
        if core::mem::take(&mut is.computed) {
            // Before steps are known, parameters may have been computed too.
            is.state |= !is.eligible && self.steps.detector.is_exact();
        }
    }

    /// Forgets how to compute a resident tensor, which counts as computed all the same. [`collect`](Self::collect) must follow.
    pub(super) fn keep_data(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        let Some(recipe) = tensor.recipe.take() else { return };
        if let (Some(buffer), None) = (tensor.buffer, tensor.compressible()) {
            self.ledger.add_root(buffer);
        }
        if let Some(op) = self.history.detach_output(recipe, key) {
            self.world.forget(op);
        }
    }

    /// Forgets the history recorded before `clock`: what is alive and rests on it becomes a root, after it has been
    /// brought back where it was evicted, and is kept from then on. What is `spared` goes on as before.
    pub(super) fn forget_before(&mut self, clock: u64, spared: impl Fn(&Tensor) -> bool) {
        let recipes = self.history.recipes.iter().filter(|(_, recipe)| recipe.born < clock);
        let old: Vec<usize> = recipes.map(|(key, _)| key).collect();
        let Some(frontier) = self.history.live_descendants(old) else { return };
        let is_spared = |key: &TensorKey| spared(&self.history.tensors[*key]);
        let (left, frontier): (Vec<TensorKey>, Vec<TensorKey>) = frontier.into_iter().partition(is_spared);
        left.into_iter().for_each(|key| self.count_no_more(key));
        frontier.iter().for_each(|&key| self.pin(key));
        for &key in &frontier {
            let tensor = &self.history.tensors[key];
            if tensor.is_compressed() && !tensor.alive {
                continue;
            }
            if let Err(failure) = self.ensure(key) {
                self.fail(key, failure);
            }
        }
        for key in frontier {
            if !self.history.tensors[key].is_compressed() {
                self.keep_as_it_is(key);
            }
            self.make_root(key);
            self.unpin(key);
        }
        self.collect();
    }

    /// A tensor counts no more among what the step has computed and the program holds.
    pub(super) fn count_no_more(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        if core::mem::take(&mut tensor.lineage.is.counted) {
            self.steps.computed_bytes -= tensor.facts.bytes;
        }
    }

    fn next_seed(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood): every seed differs and none depends on the backend's own generator.
        self.own.seeds = self.own.seeds.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut seed = self.own.seeds;
        seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        seed ^ (seed >> 31)
    }
}
