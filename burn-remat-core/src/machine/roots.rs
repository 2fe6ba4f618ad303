//! What cannot be computed again: which roots an operation may take over, and how history is cut behind them.
//!
//! A *root* has no recipe: uploads, random results (unless reseeded), uninitialised memory, the user's own operations, and the results of
//! operations that took over a root. Without the last rule, `w -= lr * g` would grow a chain through all steps.

use alloc::vec::Vec;

use crate::driver::World;
use crate::facts::Operation;
use crate::history::{KEEP_ROOT_RATIO, Tensor};
use crate::keys::TensorKey;
use crate::passes::Part;

use super::Machine;
use super::call::{Call, Settled};

/// At most this many of the dropped roots are examined, the largest first.
const LARGEST: usize = 8;

impl<W: World> Machine<W> {
    /// Decides which consumed roots the operation may really take over, and whether it can be recorded.
    ///
    /// A consumed root on which recipes depend is taken over only if history can be cut there. Either way the outputs become
    /// roots, so that no chain of updates grows behind them; only a root that is small compared with the outputs is kept for
    /// their sake.
    pub(super) fn settle_roots(&mut self, op: &Operation, call: &mut Call) -> Settled {
        for &key in &call.dying {
            let tensor = &self.history.tensors[key];
            if tensor.recipe.is_none() && !tensor.held && !tensor.dependents.is_empty() {
                let most = self.worth_bringing_back(key);
                self.cut(key, most);
            }
        }
        let (records, training) = (self.own.records, self.steps.detector.has_begun());
        let (mut replaces, mut replaces_root, mut replaces_in_trace) = (false, false, false);
        let (mut replaces_other, mut replaces_parameter) = (false, false);
        let (tensors, count) = (&self.history.tensors, call.inputs.len());
        for &key in &call.dying {
            let tensor = &tensors[key];
            let mut taken = !tensor.held;
            if tensor.recipe.is_none() && (records || !tensor.lineage.is.computed) {
                let small = tensor.facts.bytes.saturating_mul(KEEP_ROOT_RATIO) <= call.produced;
                let takes = !small && !tensor.held;
                replaces |= takes;
                replaces_in_trace |= takes && !self.is_traced_as_recordable(tensor);
                // What the step has computed is not a root by origin.
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
        let passing = !replaces_other && (replaces_root || nature.varies || nature.mask);
        Settled {
            recordable: repeats && !replaces,
            in_trace: repeats && !replaces_in_trace,
            computes: repeats && !replaces_root,
            replaces,
            seed,
            passing,
            state: replaces_root && !replaces_parameter,
        }
    }

    /// Makes the live descendants of `root` roots, so that nothing depends on `root` any more. Returns `false` and changes nothing
    /// if that is not possible or not worth it.
    ///
    /// Evicted descendants are computed first, if they are no more than `most` bytes.
    pub(super) fn cut(&mut self, root: TensorKey, most: u64) -> bool {
        let dependents = self.history.tensors[root].dependents.clone();
        let Some(frontier) = self.history.live_descendants(dependents) else { return false };
        if frontier.iter().any(|key| self.own.taken.contains(key)) {
            return false;
        }
        let tensors = &self.history.tensors;
        let evicted = frontier.iter().map(|&key| &tensors[key]).filter(|tensor| tensor.is_evicted());
        let missing: u64 = evicted.map(|tensor| tensor.facts.bytes).sum();
        if missing > most {
            return false;
        }
        let (passing, training) = (tensors[root].lineage.is.passing, self.steps.detector.has_begun());
        let mut whole = true;
        // All are pinned first: bringing one back may otherwise release what another depends on.
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

    /// Releases roots that the program has dropped, until no more than `most` bytes are held, if everything made from them is resident: gradients, which
    /// are needed once more soon, or what is small compared with what it keeps evictable. O(buffers), only if more is held.
    pub(super) fn cut_behind_dead_roots(&mut self, most: u64) {
        if self.ledger.live <= most {
            return;
        }
        // Another tensor that is being brought back for an operation may depend on the root.
        for root in self.dead_roots(|tensor| self.own.ready || tensor.lineage.part == Part::Backward) {
            if self.ledger.live > most && self.history.tensors.contains(root) {
                self.cut(root, 0);
            }
        }
    }

    /// Brings back what was made from roots that the program has dropped, and releases these, if that takes fewer bytes than they do. Without this, an
    /// image generated with the parameters of a step keeps all of them once they are updated. Called before an operation with `produced` bytes
    /// in its outputs. O(1) if they fit in addition to what cannot be evicted and no parameter was updated, otherwise O(buffers + history).
    pub(super) fn cut_behind_large_roots(&mut self, op: &Operation, produced: u64) {
        let superseded = self.own.superseded.take();
        let Some(budget) = self.room.tensor_budget() else { return };
        let fits = |machine: &Self, new: u64| machine.ledger.fixed.saturating_add(new) <= budget;
        if superseded.is_none() && (fits(self, produced) || fits(self, self.least_new(op))) {
            return;
        }
        if self.is_planned() || self.gives_up() {
            return;
        }
        let is_dead = |tensor: &Tensor| !tensor.alive && tensor.recipe.is_none();
        if let Some(root) = superseded.filter(|&root| self.history.tensors.get(root).is_some_and(is_dead)) {
            let most = self.worth_bringing_back(root);
            self.cut(root, most);
        }
        if fits(self, self.least_new(op)) {
            return;
        }
        let bytes = |key: TensorKey| self.history.tensors[key].facts.bytes;
        let mut roots = self.dead_roots(|_| true);
        roots.sort_by_key(|&root| (core::cmp::Reverse(bytes(root)), root));
        for root in roots.into_iter().take(LARGEST) {
            let most = self.history.tensors.get(root).map_or(0, |tensor| tensor.facts.bytes);
            if self.resting_on(root).is_some_and(|(_, resting)| resting < most) {
                self.cut(root, most);
            }
        }
    }

    /// Most bytes to bring back so that a root can be released: usually its own bytes. For a parameter, the bytes of all roots that must stay for
    /// what was evicted, since these are updated next, and now there is still room.
    fn worth_bringing_back(&mut self, root: TensorKey) -> u64 {
        let Tensor { alive, facts, .. } = self.history.tensors[root];
        if alive && self.room.overrun() > 0 {
            // The budget has proved too small: a root that is kept beside its successor would only add to what is held.
            return u64::MAX;
        }
        let own = facts.bytes;
        if alive && !self.is_parameter(root) {
            return own;
        }
        let Some((frontier, resting)) = self.resting_on(root) else { return 0 };
        let below = self.roots_below(&frontier);
        if resting < below { below.max(own) } else { own }
    }

    /// The tensors that would become roots if this one were released, and the bytes of those that are no roots yet.
    fn resting_on(&mut self, root: TensorKey) -> Option<(Vec<TensorKey>, u64)> {
        let dependents = self.history.tensors.get(root)?.dependents.clone();
        let frontier = self.history.live_descendants(dependents)?;
        let resting = frontier.iter().map(|&key| &self.history.tensors[key]).filter(|tensor| tensor.recipe.is_some());
        let bytes = resting.map(|tensor| tensor.facts.bytes).sum();
        Some((frontier, bytes))
    }

    /// Bytes of the roots from which the evicted ones of these tensors would be computed.
    fn roots_below(&mut self, keys: &[TensorKey]) -> u64 {
        let closure = self.history.closure(keys).unwrap_or_default();
        let inputs = closure.iter().flat_map(|&recipe| self.history.recipes[recipe].inputs.iter().copied());
        let mut roots: Vec<TensorKey> = inputs.filter(|&key| self.history.tensors[key].recipe.is_none()).collect();
        roots.sort_unstable();
        roots.dedup();
        roots.iter().map(|&key| self.history.tensors[key].facts.bytes).sum()
    }

    /// Roots that the program has dropped and nobody uses, and that are kept for what was made from them.
    fn dead_roots(&self, is_meant: impl Fn(&Tensor) -> bool) -> Vec<TensorKey> {
        let is_left = |owner: &TensorKey| {
            let tensor = &self.history.tensors[*owner];
            tensor.is_unused() && tensor.recipe.is_none() && is_meant(tensor)
        };
        let left = self.ledger.iter().filter(|(_, entry)| entry.is_fixed() && entry.owners.iter().all(is_left));
        left.flat_map(|(_, entry)| entry.owners.iter().copied()).collect()
    }

    /// The least that an operation must allocate beyond what it may overwrite.
    fn least_new(&self, op: &Operation) -> u64 {
        let taken = self.own.taken.iter().map(|&key| &self.history.tensors[key].facts);
        let over = taken.filter(|facts| op.outputs.iter().any(|output| output.shape == facts.shape));
        op.produced().saturating_sub(over.map(|facts| facts.bytes).sum())
    }

    /// Forgets how to compute a resident tensor. [`collect`](Self::collect) must follow.
    pub(super) fn make_root(&mut self, key: TensorKey) {
        if self.history.tensors[key].recipe.is_some() {
            self.note_outlives(key);
            self.keep_data(key);
        }
    }

    /// A tensor outlives the step that computed it: it no longer counts as computed.
    pub(super) fn note_outlives(&mut self, key: TensorKey) {
        self.count_no_more(key);
        let is = &mut self.history.tensors[key].lineage.is;
        if core::mem::take(&mut is.computed) {
            // Before step boundaries are known, parameters may have been computed too.
            is.state |= !is.eligible && self.steps.detector.is_exact();
        }
    }

    /// Forgets how to compute a resident tensor, which still counts as computed. [`collect`](Self::collect) must follow.
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

    /// Forgets the history recorded before `clock`: what is alive and depends on it is brought back if it was evicted, becomes a root,
    /// and is kept from then on. What is `spared` keeps its history.
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
            self.note_wanted(key);
            // What cannot be restored now is still there, and may be later.
            if let Err(failure) = self.ensure(key)
                && !self.history.tensors[key].is_compressed()
            {
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

    /// A tensor no longer counts towards what the step has computed and the program holds.
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
