//! The bytes that a driver without data holds, counted from the tensors it is told to make and free. No code is shared with the machine.
//!
//! Tensors have buffers, which are identified by number and freed with their last tensor. What is left in place of evicted tensors is counted
//! beside them. Every call takes constant time.

use rustc_hash::FxHashMap;

use crate::driver::Buffer;
use crate::facts::TensorId;

/// The number of tensors that share a buffer, and its bytes.
#[derive(Clone, Copy)]
struct Owned {
    tensors: u32,
    bytes: u64,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Accounts {
    /// The buffer of each tensor.
    buffers: FxHashMap<TensorId, u64>,
    owned: FxHashMap<u64, Owned>,
    /// What is left in place of evicted tensors: their compressed data (`true`), or a substitute.
    small: FxHashMap<(TensorId, bool), u64>,
    bytes: u64,
    last: u64,
}

impl Accounts {
    /// Bytes of all buffers, and of what is left in place of evicted tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A number for a new buffer.
    pub fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The buffer of a tensor.
    pub fn identity(&self, id: TensorId) -> Option<u64> {
        self.buffers.get(&id).copied()
    }

    /// The buffer of a tensor, if no other tensor shares it.
    pub fn sole(&self, id: TensorId) -> Option<u64> {
        self.identity(id).filter(|identity| self.owned.get(identity).is_some_and(|owned| owned.tensors == 1))
    }

    /// Whether any tensor has this buffer.
    pub fn is_held(&self, identity: u64) -> bool {
        self.owned.contains_key(&identity)
    }

    /// Gives a tensor this buffer, which takes `bytes` if it is new.
    pub fn give(&mut self, id: TensorId, identity: u64, bytes: u64) -> Buffer {
        self.buffers.insert(id, identity);
        let owned = self.owned.entry(identity).or_insert(Owned { tensors: 0, bytes });
        owned.tensors += 1;
        let Owned { tensors, bytes } = *owned;
        self.bytes += if tensors == 1 { bytes } else { 0 };
        Buffer::Known { identity, bytes }
    }

    /// Gives a tensor the buffer of another one.
    pub fn share(&mut self, new: TensorId, source: TensorId) -> Buffer {
        let identity = self.identity(source).unwrap_or_else(|| self.fresh());
        self.give(new, identity, 0)
    }

    /// Takes a tensor's buffer from it.
    pub fn take(&mut self, id: TensorId) {
        let Some(identity) = self.buffers.remove(&id) else { return };
        let Some(owned) = self.owned.get_mut(&identity) else { return };
        owned.tensors -= 1;
        if owned.tensors == 0 {
            self.bytes -= owned.bytes;
            self.owned.remove(&identity);
        }
    }

    /// Counts the bytes of something left in place of an evicted tensor.
    pub fn add_small(&mut self, of: (TensorId, bool), bytes: u64) {
        self.bytes += bytes;
        self.bytes -= self.small.insert(of, bytes).unwrap_or(0);
    }

    /// It is freed.
    pub fn drop_small(&mut self, of: (TensorId, bool)) {
        self.bytes -= self.small.remove(&of).unwrap_or(0);
    }
}
