//! When a tensor, a buffer or a recipe may go.
//!
//! - A dead tensor that can be computed again gives up its buffer at once; its recipe stays while others depend on it.
//! - A dead root keeps its buffer while a recipe depends on it, unless history can be *cut*: when everything alive
//!   that descends from it is resident, those descendants become roots and the dead root goes. Without the cut,
//!   `w -= lr * g` would keep every `w` of the past.
//! - A small dead root below large descendants (token ids below embeddings) is kept instead: it costs little and keeps
//!   them evictable.
//! - At a step boundary all older history is forgotten.
//!
//! All walks use explicit stacks; the cost of a removal is linear in what it removes.

use burn_ir::{OperationIr, TensorStatus};

use super::table::{RecipeKey, TensorKey};
use super::{Engine, KEEP_ROOT_RATIO, SPARE_LIMIT};
use crate::backend::RematBackend;

impl<B: RematBackend> Engine<B> {
    /// The program lets go of a tensor.
    pub(super) fn kill(&mut self, key: TensorKey) {
        if !self.tensors[key].alive {
            return;
        }
        self.trace_kill(key);
        if self.follow.is_none() {
            // A plan says itself when it needs a stub no more: what reads it may run again.
            self.drop_stub(key);
        }
        let tensor = &mut self.tensors[key];
        tensor.alive = false;
        tensor.name = None;
        if tensor.computed {
            self.computed_bytes -= tensor.bytes;
        }
        if tensor.pins == 0 {
            self.bury(key);
        }
    }

    /// Gives back one pin.
    pub(super) fn unpin(&mut self, key: TensorKey) {
        let tensor = &mut self.tensors[key];
        tensor.pins -= 1;
        if tensor.pins == 0 && !tensor.alive {
            self.bury(key);
        }
    }

    /// Releases what a dead, unpinned tensor no longer needs.
    fn bury(&mut self, key: TensorKey) {
        let tensor = &self.tensors[key];
        if tensor.dependents.is_empty() {
            self.garbage.push(key);
            self.collect();
        } else if tensor.recipe.is_some() || tensor.is_packed() {
            // What is packed stays so, for those who rest on it.
            self.release_buffer(key);
        } else if !self.is_worth_keeping(key) {
            // Nothing is brought back here: this may run while something else is.
            self.cut(key, false);
        }
    }

    /// Whether a dead root is small beside what it keeps evictable.
    fn is_worth_keeping(&self, root: TensorKey) -> bool {
        let bytes = self.tensors[root].bytes;
        let mut kept = 0;
        for &recipe in &self.tensors[root].dependents {
            for output in self.recipes[recipe].outputs.iter().flatten() {
                kept += self.tensors[*output].bytes;
            }
        }
        bytes.saturating_mul(KEEP_ROOT_RATIO) <= kept
    }

    /// Makes the live descendants of `root` roots, so that nothing depends on `root` any more. `false`, with no change,
    /// if that is not possible or not worth it.
    ///
    /// With `bring_back`, evicted descendants are computed first where they are no larger than the root itself, or where
    /// the budget has proved too small anyway: keeping the root beside its successor would then only add to what is held.
    pub(super) fn cut(&mut self, root: TensorKey, bring_back: bool) -> bool {
        let Some(frontier) = self.live_descendants(self.tensors[root].dependents.to_vec()) else { return false };
        let evicted = frontier.iter().map(|&key| &self.tensors[key]).filter(|tensor| tensor.is_evicted());
        let missing: u64 = evicted.map(|tensor| tensor.bytes).sum();
        let worth_it = bring_back && (missing <= self.tensors[root].bytes || self.overrun > 0);
        if missing > 0 && !worth_it {
            return false;
        }
        let (passing, training) = (self.tensors[root].passing, self.detector.has_begun());
        let mut whole = true;
        for &key in &frontier {
            self.tensors[key].pins += 1;
            if self.tensors[key].is_evicted() {
                whole &= self.ensure(key).is_ok();
            }
        }
        for key in frontier {
            if whole {
                self.make_root(key);
                let tensor = &mut self.tensors[key];
                tensor.passing |= passing;
                tensor.state |= training && !tensor.eligible;
            }
            self.unpin(key);
        }
        self.collect();
        whole
    }

    /// The tensors, live, packed or held by a plan, that would need one of `recipes` to be computed again; `None` while a computation is under way
    /// there.
    fn live_descendants(&mut self, recipes: Vec<RecipeKey>) -> Option<Vec<TensorKey>> {
        self.walk += 1;
        let mut stack = recipes;
        let mut frontier = Vec::new();
        while let Some(at) = stack.pop() {
            let recipe = &mut self.recipes[at];
            if std::mem::replace(&mut recipe.seen, self.walk) == self.walk {
                continue;
            }
            for &output in recipe.outputs.iter().flatten() {
                let tensor = &self.tensors[output];
                if tensor.alive || tensor.held || tensor.is_packed() {
                    frontier.push(output);
                } else if tensor.pins > 0 {
                    return None;
                } else {
                    stack.extend_from_slice(&tensor.dependents);
                }
            }
        }
        Some(frontier)
    }

    /// Forgets how to compute a resident tensor. [`collect`](Self::collect) must follow.
    pub(super) fn make_root(&mut self, key: TensorKey) {
        let tensor = &mut self.tensors[key];
        let Some(recipe) = tensor.recipe.take() else { return };
        if std::mem::take(&mut tensor.computed) {
            // Before steps are known, parameters may have been computed too.
            tensor.state |= !tensor.eligible && self.detector.is_exact();
            if tensor.alive {
                self.computed_bytes -= tensor.bytes;
            }
        }
        if let (Some(storage), None) = (tensor.storage, &tensor.form) {
            self.storages.add_root(storage);
        }
        self.detach_output(recipe, key);
    }

    fn detach_output(&mut self, key: RecipeKey, output: TensorKey) {
        let recipe = &mut self.recipes[key];
        for slot in &mut recipe.outputs {
            if *slot == Some(output) {
                *slot = None;
            }
        }
        if recipe.outputs.iter().any(Option::is_some) {
            return;
        }
        let recipe = self.recipes.remove(key);
        if self.spare.len() < SPARE_LIMIT {
            self.spare.push(recipe.op);
        }
        for input in recipe.inputs {
            let tensor = &mut self.tensors[input];
            if let Some(at) = tensor.dependents.iter().rposition(|&other| other == key) {
                tensor.dependents.swap_remove(at);
            }
            if tensor.dependents.is_empty() && !tensor.alive && tensor.pins == 0 {
                self.garbage.push(input);
            }
        }
    }

    /// Removes the tensors that nothing needs, and what only they needed.
    pub(super) fn collect(&mut self) {
        while let Some(key) = self.garbage.pop() {
            let Some(tensor) = self.tensors.get(key) else { continue };
            if tensor.alive || tensor.pins > 0 || !tensor.dependents.is_empty() {
                continue;
            }
            self.release(key);
            self.drop_stub(key);
            let tensor = self.tensors.remove(key);
            self.index.remove(&tensor.id);
            if let Some(recipe) = tensor.recipe {
                self.detach_output(recipe, key);
            }
        }
    }

    /// Frees what a tensor has of data.
    pub(super) fn release(&mut self, key: TensorKey) {
        self.drop_packed(key);
        self.release_buffer(key);
    }

    /// Frees the buffer of a tensor, if it has one.
    pub(super) fn release_buffer(&mut self, key: TensorKey) {
        let tensor = &mut self.tensors[key];
        let Some(storage) = tensor.storage.take() else { return };
        let fixed = tensor.is_fixed();
        let ir = tensor.bare(TensorStatus::ReadWrite);
        self.storages.detach(storage, key, fixed);
        self.storages.sweep(storage);
        self.executor.run(&mut Some(OperationIr::Drop(ir)));
    }

    /// Forgets all history recorded before `clock`: what is alive and rests on it becomes a root, after it has been
    /// brought back where it was evicted, and is kept from then on.
    pub(super) fn forget_before(&mut self, clock: u64) {
        let old: Vec<RecipeKey> =
            self.recipes.iter().filter(|(_, recipe)| recipe.born < clock).map(|(key, _)| key).collect();
        let Some(frontier) = self.live_descendants(old) else { return };
        for &key in &frontier {
            self.tensors[key].pins += 1;
            let tensor = &self.tensors[key];
            if tensor.is_packed() && !tensor.alive {
                continue;
            }
            if let Err(failure) = self.ensure(key) {
                self.fail(key, failure);
            }
        }
        for key in frontier {
            if !self.tensors[key].is_packed() {
                self.fix(key);
            }
            self.make_root(key);
            self.unpin(key);
        }
        self.collect();
    }
}
