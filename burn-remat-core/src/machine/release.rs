//! When a tensor, a buffer or a recipe may be released.
//!
//! - A dead tensor that can be computed again gives up its buffer at once; its recipe stays while others depend on it.
//! - A dead root keeps its buffer while a recipe depends on it, unless history can be [cut](Machine::cut): when everything alive
//!   that descends from it is resident, those descendants become roots and the dead root is released. Without the cut,
//!   `w -= lr * g` would keep every `w` of the past.
//! - A small dead root below large descendants (token ids below embeddings) is kept instead: it costs little and keeps
//!   them evictable.

use super::Machine;
use crate::driver::{Event, World};
use crate::facts::TensorId;
use crate::keys::{BufferKey, TensorKey};

impl<W: World> Machine<W> {
    /// The program releases a tensor.
    pub fn dropped(&mut self, thread: u64, id: TensorId) {
        if let Some(key) = self.history.find(id) {
            self.now.thread = thread;
            let is_updated = self.note_drop(key);
            self.trace_drop(key);
            self.kill(key);
            let is_kept = self.history.tensors.get(key).is_some_and(|tensor| !tensor.dependents.is_empty());
            self.own.superseded = self.own.superseded.or((is_updated && is_kept).then_some(key));
        }
    }

    /// The program releases a tensor.
    pub(super) fn kill(&mut self, key: TensorKey) {
        if !self.history.tensors[key].alive {
            return;
        }
        self.trace_kill(key);
        self.note_let_go(key);
        if self.watch.follow.is_none() {
            // A plan itself says when it no longer needs a substitute, because what reads it may run again.
            self.drop_substitute(key);
        }
        self.history.end(key);
        let tensor = &mut self.history.tensors[key];
        tensor.alias = None;
        let is_unused = tensor.is_unused();
        self.count_no_more(key);
        if is_unused {
            self.bury(key);
        }
        if !self.history.is_any_alive() {
            // The program has ended in the middle of a plan: nothing will read what the plan holds.
            self.release_holds();
        }
    }

    /// Releases what a dead, unused tensor no longer needs.
    pub(super) fn bury(&mut self, key: TensorKey) {
        let tensor = &self.history.tensors[key];
        if tensor.dependents.is_empty() {
            self.history.garbage.push(key);
            self.collect();
        } else if tensor.recipe.is_some() || tensor.is_compressed() {
            // A compressed tensor stays compressed for those that depend on it.
            self.release_buffer(key);
        } else if !self.history.is_worth_keeping(key) {
            // Nothing is brought back here, because this may run while something else is being brought back.
            self.cut(key, 0);
        }
    }

    /// Removes the tensors that nothing needs, and what only they needed.
    pub(super) fn collect(&mut self) {
        while let Some(key) = self.history.garbage.pop() {
            let Some(tensor) = self.history.tensors.get(key) else { continue };
            if !tensor.is_unused() || !tensor.dependents.is_empty() {
                continue;
            }
            if tensor.buffer.is_some() || tensor.small.is_some() {
                self.release(key);
                self.drop_substitute(key);
            }
            let tensor = self.history.tensors.remove(key);
            self.history.index.remove(&tensor.facts.id);
            if tensor.small.is_some() {
                self.world.gone(tensor.facts.id);
            }
            if let Some(recipe) = tensor.recipe
                && let Some(op) = self.history.detach_output(recipe, key)
            {
                self.world.forget(op);
            }
        }
    }

    /// Frees all data of a tensor.
    pub(super) fn release(&mut self, key: TensorKey) {
        self.discard_compressed(key);
        self.release_buffer(key);
    }

    /// Frees the buffer of a tensor, if it has one.
    pub(super) fn release_buffer(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        let Some(buffer) = tensor.buffer.take() else { return };
        let (id, owner) = (tensor.facts.id, tensor.as_owner(key));
        self.ledger.detach(buffer, owner);
        self.ledger.sweep(buffer);
        self.world.free(id);
    }

    /// Evicts a buffer whose owners can all be computed again.
    pub(super) fn evict(&mut self, buffer: BufferKey) {
        let owners = self.ledger.get(buffer).owners.clone();
        let made_by = owners.first().map_or(0, |&owner| self.history.tensors[owner].lineage.made_by);
        self.world.tell(Event::Evicts(made_by));
        for owner in owners {
            self.release(owner);
        }
        self.count_eviction();
    }

    pub(super) fn count_eviction(&mut self) {
        self.counters.evictions += 1;
        self.room.evictions += 1;
    }
}
