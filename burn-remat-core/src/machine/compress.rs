//! What is left in place of an evicted tensor, where that is cheaper than computing it again.
//!
//! Some tensors can be *compressed*: their values are stored in fewer bytes, or elsewhere, and the buffer is released. When the tensor is
//! needed it gets a buffer again. So even a root (a random mask, which could not be computed again at all) can be evicted. This
//! is decided by the plan, or by the online policy, which takes the cheaper way.
//!
//! Also, an operation that needs less of an input than its values can use a *substitute* that was left of the input: its signs, or its
//! shape. Only plans make substitutes, because only they know who will still read a tensor.
//!
//! The driver knows how to do this; here it is decided when, and accounted for.

use super::Machine;
use super::call::Made;
use crate::driver::{Compressible, Event, World};
use crate::facts::{Alternative, Failure, Need};
use crate::history::Small;
use crate::keys::{BufferKey, TensorKey};

impl<W: World> Machine<W> {
    /// The tensor to compress in order to evict a buffer.
    pub(super) fn compressible(&self, buffer: BufferKey) -> Option<(TensorKey, Compressible)> {
        let owners = self.ledger.get(buffer).owners.iter();
        owners.into_iter().find_map(|&owner| Some((owner, self.history.tensors[owner].compressible()?)))
    }

    /// Evicts a buffer by compressing the tensor that owns it, together with all views of it. Returns `false` and changes nothing if
    /// the device does not allow reading it; it is then no longer compressible.
    pub(super) fn compress_buffer(&mut self, buffer: BufferKey, owner: TensorKey) -> bool {
        let mut others = self.ledger.get(buffer).owners.clone();
        others.retain(|other| *other != owner);
        // Another tensor in the same buffer must be computable again.
        let done = others.iter().all(|&other| self.history.tensors[other].recipe.is_some()) && self.compress(owner);
        if done {
            others.into_iter().for_each(|other| self.release(other));
            self.count_eviction();
        }
        done
    }

    fn compress(&mut self, key: TensorKey) -> bool {
        let tensor = &self.history.tensors[key];
        let (Some(Compressible { alternative, .. }), true) = (tensor.compressible(), tensor.buffer.is_some()) else {
            return false;
        };
        if tensor.is_compressed() {
            self.release_buffer(key);
            return true;
        }
        let (facts, made_by) = (tensor.facts, tensor.lineage.made_by);
        let Some((bytes, ns)) = self.world.compress(facts.id) else {
            self.keep_as_it_is(key);
            return false;
        };
        self.world.tell(Event::Compresses(made_by));
        if let Some(small) = self.history.tensors[key].small.as_deref_mut() {
            small.is_compressed = true;
            if let Some(compressible) = &mut small.compressible {
                compressible.bytes = bytes;
            }
        }
        self.ledger.add_small(bytes);
        // For a moment both exist. If that exceeds the budget, more than the budget was needed before.
        let _ = self.account(facts.buffer_bytes, 0);
        // Noted now, so that a tensor that existed when the step began does not seem to arrive later because it was brought back.
        self.place_of(key);
        self.release_buffer(key);
        self.count_evicted_to(alternative, facts.bytes, bytes);
        self.count_alternative(alternative, ns);
        true
    }

    /// Gives a compressed tensor a buffer again.
    pub(super) fn decompress(&mut self, key: TensorKey) -> Result<(), Failure> {
        let facts = self.history.tensors[key].facts;
        self.make_room(facts.buffer_bytes);
        let Some(Compressible { alternative, .. }) = self.history.tensors[key].compressible() else { return Ok(()) };
        // If this fails, the only copy still exists.
        let (buffer, ns) = self.world.decompress(facts.id).map_err(|cause| {
            let failure = self.world.explain(0, &cause, self.circumstances());
            self.remember(&failure);
            failure
        })?;
        let made = Made { outputs: &[key], buffers: &[(buffer, None)], ..Made::default() };
        let done = self.settle(&made, &[], &[]);
        let tensor = &self.history.tensors[key];
        if tensor.alive || tensor.held {
            self.discard_compressed(key);
        }
        // Otherwise it is back for one use, and is evicted again after that.
        self.count_alternative(alternative, ns);
        done
    }

    /// Drops the compressed copy of a tensor.
    pub(super) fn discard_compressed(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        let (id, Some(small)) = (tensor.facts.id, tensor.small.as_deref_mut()) else { return };
        if core::mem::take(&mut small.is_compressed) {
            let bytes = small.compressible.map_or(0, |compressible| compressible.bytes);
            self.world.discard(id);
            self.ledger.take_small(bytes);
        }
    }

    /// A resident tensor is no longer compressible: from now on it is kept as it is, or computed again.
    pub(super) fn keep_as_it_is(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        let taken = tensor.small.as_deref_mut().and_then(|small| small.compressible.take());
        if let (Some(_), None, Some(buffer)) = (taken, tensor.recipe, tensor.buffer) {
            self.ledger.add_root(buffer);
        }
    }

    /// Leaves a substitute of a tensor that is about to be evicted.
    pub(super) fn leave_substitute(&mut self, key: TensorKey, need: Need) {
        let tensor = &self.history.tensors[key];
        let facts = tensor.facts;
        if !self.lacks_substitute(key) {
            return;
        }
        let Some((bytes, ns)) = self.world.leave_substitute(facts.id, need) else { return };
        self.history.tensors[key].small.get_or_insert_with(|| Small::default().into()).substitute = Some((need, bytes));
        self.ledger.add_small(bytes);
        let _ = self.account(0, 0);
        self.count_evicted_to(need.alternative(), facts.bytes, bytes);
        self.count_alternative(need.alternative(), ns);
    }

    /// Whether a substitute can be left of a tensor and has not been yet.
    pub(super) fn lacks_substitute(&self, key: TensorKey) -> bool {
        let tensor = &self.history.tensors[key];
        // The tensor built from the substitute fills a buffer of its own.
        let fills = |buffer| self.ledger.get(buffer).bytes == tensor.facts.buffer_bytes;
        tensor.buffer.is_some_and(fills) && tensor.small.as_ref().is_none_or(|small| small.substitute.is_none())
    }

    /// Drops the substitute of a tensor, if there is one.
    pub(super) fn drop_substitute(&mut self, key: TensorKey) {
        let tensor = &mut self.history.tensors[key];
        let (id, Some(small)) = (tensor.facts.id, tensor.small.as_deref_mut()) else { return };
        if let Some((_, bytes)) = small.substitute.take() {
            self.world.drop_substitute(id);
            self.ledger.take_small(bytes);
        }
    }

    /// Counts a tensor that now takes fewer bytes.
    fn count_evicted_to(&mut self, alternative: Alternative, from: u64, to: u64) {
        let counts = &mut self.counters.alternatives[alternative as usize];
        counts.tensors += 1;
        counts.from += from;
        counts.to += to;
    }

    /// Counts the time that compression and decompression took.
    fn count_alternative(&mut self, alternative: Alternative, ns: u64) {
        self.counters.alternatives[alternative as usize].ns += ns;
        self.counters.times.recompute += ns;
        self.steps.totals.recompute_ns += ns;
        self.steps.totals.repeated_ns += ns;
    }
}
