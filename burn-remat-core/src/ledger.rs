//! The ledger: which buffers exist, who owns them, and how many bytes could be evicted.
//!
//! Bytes are counted once for each buffer, however many tensors share it. A buffer is *fixed* while one of its owners must keep
//! it (a root, which could not be computed again) or is in use (pinned). A buffer that a plan wants to keep is not fixed: it could be evicted.
//!
//! **Invariant**: `live` is the sum of all buffers and of what is left in place of evicted ones (compressed data, substitutes); `fixed` is
//! the part of it that could not be evicted now. No other module counts bytes.
//!
//! Every call takes constant time, or time linear in the owners of one buffer.

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::keys::{BufferKey, TensorKey};

/// A buffer on the device.
pub(crate) struct Entry {
    pub identity: u64,
    /// Its number among all buffers: unlike its key and its identity, no other buffer ever has it.
    pub serial: u64,
    pub bytes: u64,
    pub owners: SmallVec<[TensorKey; 2]>,
    /// How many owners must keep it.
    roots: u32,
    /// How many uses of its owners are pending.
    pins: u32,
    /// The step in which it was made.
    pub step: u32,
    /// Whether it was made by a thread other than the one that trains, and the step has not read it.
    pub foreign: bool,
}

impl Entry {
    /// Whether it could not be evicted now.
    pub fn is_fixed(&self) -> bool {
        self.roots > 0 || self.pins > 0
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Slab<Entry>,
    by_identity: FxHashMap<u64, BufferKey>,
    /// Buffers made so far.
    made: u64,
    /// Bytes held.
    pub live: u64,
    /// Bytes of it that could not be evicted now.
    pub fixed: u64,
    /// Bytes of buffers made by other threads.
    pub foreign: u64,
}

impl Ledger {
    pub fn iter(&self) -> impl Iterator<Item = (BufferKey, &Entry)> {
        self.entries.iter()
    }

    /// The owners of a buffer; none if it is gone.
    pub fn owners(&self, key: BufferKey) -> SmallVec<[TensorKey; 2]> {
        self.entries.get(key).map(|entry| entry.owners.clone()).unwrap_or_default()
    }

    /// Whether the buffer still exists.
    pub fn contains(&self, key: BufferKey) -> bool {
        self.entries.contains(key)
    }

    #[inline]
    pub fn get(&self, key: BufferKey) -> &Entry {
        &self.entries[key]
    }

    /// Adds `owner` to a buffer, which is new, shared, or left over from an input that was taken over. `pins` is the number of pending
    /// uses of the owner.
    pub fn attach(&mut self, identity: u64, bytes: u64, owner: Owner, step: u32) -> BufferKey {
        let (entries, live, made) = (&mut self.entries, &mut self.live, &mut self.made);
        let mut new = |entries: &mut Slab<Entry>| {
            *live += bytes;
            *made += 1;
            let (owners, foreign) = (SmallVec::new(), false);
            entries.insert(Entry { identity, serial: *made, bytes, owners, roots: 0, pins: 0, step, foreign })
        };
        // A buffer without an owner is an address that the operation took over, or freed and allocated again. If the size differs, it is
        // another buffer, and both existed for a while.
        let replace = |known: &mut BufferKey| {
            let entry = &entries[*known];
            if entry.owners.is_empty() && entry.bytes != bytes {
                *known = new(entries);
            }
        };
        let key = *self.by_identity.entry(identity).and_modify(replace).or_insert_with(|| new(entries));
        let mut was_left = false;
        self.change(key, |entry| {
            was_left = entry.owners.is_empty();
            entry.owners.push(owner.key);
            entry.roots += u32::from(owner.is_root);
            entry.pins += owner.pins;
        });
        if was_left {
            self.entries[key].step = step;
            self.leave_foreign(key);
        }
        key
    }

    /// Removes an owner. A buffer without owners stays counted until [`sweep`](Self::sweep).
    pub fn detach(&mut self, key: BufferKey, owner: Owner) {
        let entry = &mut self.entries[key];
        if let Some(at) = entry.owners.iter().rposition(|&other| other == owner.key) {
            entry.owners.swap_remove(at);
        }
        self.change(key, |entry| {
            entry.roots -= u32::from(owner.is_root);
            entry.pins -= owner.pins;
        });
    }

    /// Frees the entry of a buffer that has no owner left.
    pub fn sweep(&mut self, key: BufferKey) {
        if self.entries.get(key).is_some_and(|entry| entry.owners.is_empty()) {
            self.leave_foreign(key);
            let entry = self.entries.remove(key);
            self.live -= entry.bytes;
            // A newer buffer may have the same identity by now.
            if let Some(newest) = self.by_identity.remove(&entry.identity).filter(|&newest| newest != key) {
                self.by_identity.insert(entry.identity, newest);
            }
        }
    }

    #[inline]
    fn change(&mut self, key: BufferKey, change: impl FnOnce(&mut Entry)) {
        let entry = &mut self.entries[key];
        let before = entry.is_fixed();
        change(entry);
        match (before, entry.is_fixed()) {
            (false, true) => self.fixed += entry.bytes,
            (true, false) => self.fixed -= entry.bytes,
            _ => {}
        }
    }

    /// Adds a pending use of one of its owners.
    #[inline]
    pub fn pin(&mut self, key: BufferKey) {
        self.change(key, |entry| entry.pins += 1);
    }

    /// The use is over.
    #[inline]
    pub fn unpin(&mut self, key: BufferKey) {
        self.change(key, |entry| entry.pins -= 1);
    }

    /// One of the owners must keep it from now on.
    pub fn add_root(&mut self, key: BufferKey) {
        self.change(key, |entry| entry.roots += 1);
    }

    /// Something was left in place of an evicted buffer.
    pub fn add_small(&mut self, bytes: u64) {
        self.live += bytes;
        self.fixed += bytes;
    }

    /// It is gone.
    pub fn take_small(&mut self, bytes: u64) {
        self.live -= bytes;
        self.fixed -= bytes;
    }

    /// A thread other than the one that trains has made this buffer.
    pub fn mark_foreign(&mut self, key: BufferKey) {
        let entry = &mut self.entries[key];
        if !core::mem::replace(&mut entry.foreign, true) {
            self.foreign += entry.bytes;
        }
    }

    /// The step now uses the buffer. Returns whether it belonged to another thread.
    pub fn leave_foreign(&mut self, key: BufferKey) -> bool {
        let entry = &mut self.entries[key];
        let was_foreign = core::mem::take(&mut entry.foreign);
        if was_foreign {
            self.foreign -= entry.bytes;
        }
        was_foreign
    }
}

/// An owner of a buffer, as the ledger counts it.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub key: TensorKey,
    /// Whether it must keep its buffer.
    pub is_root: bool,
    /// Uses of it that are pending.
    pub pins: u32,
}
