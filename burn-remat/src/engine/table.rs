//! The engine's records: tensors, recipes, storages.
//!
//! Three arenas with indices for references. A [`Tensor`] is what the program knows by id; a [`Recipe`] is a recorded
//! operation that can run again; a [`Storage`] is a buffer on the device that one tensor or several views own. Bytes
//! are counted per storage.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use burn_backend::{DType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::{FxHashMap, FxHasher};
use slab::Slab;
use smallvec::SmallVec;

use super::forms::Form;
use super::layout::Taken;
use super::stages::PathId;
use super::stubs::Stub;
use crate::backend::{Padding, tensor_bytes};
use crate::checkpoint::CheckpointPolicy;
use crate::planning::Place;

/// Index of a [`Tensor`].
pub(super) type TensorKey = usize;
/// Index of a [`Recipe`].
pub(super) type RecipeKey = usize;
/// Index of a [`Storage`].
pub(super) type StorageKey = usize;

/// What the engine keeps of a tensor's description. The shape itself is only compared, and copying it shows at the rate
/// of operations, so its hash stands for it.
#[derive(Clone, Copy)]
pub(super) struct Description {
    pub id: TensorId,
    pub dtype: DType,
    pub shape: u64,
    /// Of its elements.
    pub bytes: u64,
}

impl Description {
    pub fn of(ir: &TensorIr) -> Self {
        let mut hasher = FxHasher::default();
        ir.shape.hash(&mut hasher);
        let bytes = tensor_bytes(&ir.shape, ir.dtype);
        Self { id: ir.id, dtype: ir.dtype, shape: hasher.finish(), bytes }
    }
}

/// A tensor that the program holds, or that a recipe still needs.
pub(super) struct Tensor {
    pub id: TensorId,
    pub dtype: DType,
    /// Hash of the shape.
    pub shape: u64,
    /// Bytes of its elements.
    pub bytes: u64,
    /// The buffer; `None` while evicted, packed, released or failed.
    pub storage: Option<StorageKey>,
    /// Whether the program still holds it.
    pub alive: bool,
    /// How to compute it again; `None` for a root.
    pub recipe: Option<RecipeKey>,
    /// Recipes that read it.
    pub dependents: SmallVec<[RecipeKey; 4]>,
    /// Pending uses that forbid eviction.
    pub pins: u32,
    /// Clock when it came to be.
    pub born: u64,
    /// Clock when the first came to be of those whose place it has taken, one after the other.
    pub since: u64,
    /// Clock of the last use.
    pub used: u64,
    /// Which kind of operation made it: part of what decides whether a later operation can reuse its buffer.
    pub made_by: u64,
    /// Clock when a recorded operation has read it last, else 0.
    pub read: u64,
    /// Whether an operation that can run again made it. With a recipe, unless nothing was recorded then.
    pub computed: bool,
    /// Whether it is surely no parameter, though it may be a root: a mask, what the device may not compute twice alike, or what has
    /// taken the place of such a root or was cut off from one.
    pub passing: bool,
    /// Whether earlier steps have computed it, or what it has replaced: an optimizer's state. See `updates.rs`.
    pub state: bool,
    /// Whether it may be a parameter although it was computed: from what it has succeeded, or from a seed.
    pub eligible: bool,
    /// Clock at which it took the place of a parameter, else 0.
    pub updated: u64,
    /// Whether nothing has read it since.
    pub fresh: bool,
    /// Operations between that and the update before; 0 if there was none.
    pub interval: u64,
    /// Whether its updates come as regularly as steps.
    pub regular: bool,
    /// The last tensor of its shape that was computed from it.
    pub heir: Option<TensorId>,
    /// The tensor whose `heir` this is.
    pub heir_of: Option<TensorId>,
    /// Whether a plan holds it: a pin of its own.
    pub held: bool,
    /// The step in which `place` and `origin` mean something.
    pub step: u32,
    /// Its storage in the trace of that step.
    pub place: Place,
    /// The operation of that step that made it, and which of its outputs it is: see `tracing.rs`.
    pub origin: u32,
    /// Shared with the program's other tensors in the same buffer, where there ever was one. What the engine brings back may
    /// have a buffer of its own; what an operation may write over on plain Burn is told by this.
    pub name: Option<Arc<()>>,
    /// Another form that it may take.
    pub form: Option<Box<Form>>,
    /// What is left of it for operations that need less than its numbers.
    pub stub: Option<Box<Stub>>,
    /// Why it holds no data, if the work that was to write it failed.
    pub failure: Option<Arc<str>>,
}

impl Tensor {
    /// Whether it may be a parameter, by how it came to be.
    pub fn may_be_parameter(&self) -> bool {
        self.eligible || !(self.computed || self.passing || self.state)
    }

    /// Whether it must keep its buffer: it can neither be computed again nor packed.
    pub fn is_fixed(&self) -> bool {
        self.recipe.is_none() && self.form.is_none()
    }

    /// Whether it has no buffer because it is packed.
    pub fn is_packed(&self) -> bool {
        self.form.as_ref().is_some_and(|form| form.is_packed())
    }

    /// Whether it has neither a buffer nor another form.
    pub fn is_evicted(&self) -> bool {
        self.storage.is_none() && !self.is_packed()
    }

    /// A description without the shape, for where only the id counts.
    pub fn bare(&self, status: TensorStatus) -> TensorIr {
        TensorIr { id: self.id, shape: Shape::new([]), status, dtype: self.dtype }
    }
}

/// A recorded operation.
pub(super) struct Recipe {
    pub op: Box<OperationIr>,
    /// What plain Burn lets it write over.
    pub taken: Taken,
    /// Inputs, each once.
    pub inputs: SmallVec<[TensorKey; 4]>,
    /// Outputs in the operation's order; `None` once nothing needs it from this recipe.
    pub outputs: SmallVec<[Option<TensorKey>; 2]>,
    /// Seed to set before running, for a random operation that is reseeded.
    pub seed: Option<u64>,
    /// Measured time of the last run.
    pub cost_ns: u64,
    /// Clock when it was recorded.
    pub born: u64,
    /// Mark of the last graph walk that saw it.
    pub seen: u64,
    /// The stage to which it belongs.
    pub stage: PathId,
    /// What the stage says about its results.
    pub policy: Option<CheckpointPolicy>,
}

/// A buffer.
pub(super) struct Storage {
    pub key: u64,
    pub bytes: u64,
    pub owners: SmallVec<[TensorKey; 2]>,
    /// How many owners must keep it. It can be evicted only when there is none.
    pub roots: u32,
    /// The step in which it came to be.
    pub step: u32,
    /// Whether another thread than the one that trains made it, and the step has not read it.
    pub aside: bool,
}

/// All buffers, by identity, with the sums that the engine needs at every operation.
#[derive(Default)]
pub(super) struct Storages {
    slab: Slab<Storage>,
    by_key: FxHashMap<u64, StorageKey>,
    /// Bytes of all storages, and of the small forms of what is packed.
    pub live: u64,
    /// Bytes of those that cannot be evicted.
    pub rooted: u64,
    /// Bytes of storages that are aside.
    pub aside: u64,
}

impl Storages {
    pub fn iter(&self) -> impl Iterator<Item = (StorageKey, &Storage)> {
        self.slab.iter()
    }

    pub fn get(&self, storage: StorageKey) -> &Storage {
        &self.slab[storage]
    }

    /// Bytes of a tensor's buffer, or of one of its own where it has none.
    pub fn bytes_of(&self, tensor: &Tensor, padding: Padding) -> u64 {
        tensor.storage.map_or_else(|| padding.buffer(tensor.bytes), |storage| self.get(storage).bytes)
    }

    /// Adds `owner` to the buffer `key`, which is new, shared, or left over from a consumed input.
    pub fn attach(&mut self, key: u64, bytes: u64, owner: TensorKey, fixed: bool, step: u32) -> StorageKey {
        let slab = &mut self.slab;
        // Without an owner it is an address that the operation took over, or freed and took again. Of another size it is
        // another buffer, and there were both for a while.
        let known = self.by_key.get(&key).copied();
        let known = known.filter(|&known| !slab[known].owners.is_empty() || slab[known].bytes == bytes);
        let storage = known.unwrap_or_else(|| {
            let storage = slab.insert(Storage { key, bytes, owners: SmallVec::new(), roots: 0, step, aside: false });
            self.by_key.insert(key, storage);
            self.live += bytes;
            storage
        });
        if slab[storage].owners.is_empty() {
            slab[storage].step = step;
            self.leave_aside(storage);
        }
        let entry = &mut self.slab[storage];
        entry.owners.push(owner);
        if fixed {
            self.add_root(storage);
        }
        storage
    }

    /// Takes `owner` off. A storage without owners stays counted until [`sweep`](Self::sweep).
    pub fn detach(&mut self, storage: StorageKey, owner: TensorKey, fixed: bool) {
        let entry = &mut self.slab[storage];
        if let Some(at) = entry.owners.iter().rposition(|&other| other == owner) {
            entry.owners.swap_remove(at);
        }
        if fixed {
            entry.roots -= 1;
            if entry.roots == 0 {
                self.rooted -= entry.bytes;
            }
        }
    }

    /// One of the owners must keep it from now on.
    pub fn add_root(&mut self, storage: StorageKey) {
        let entry = &mut self.slab[storage];
        entry.roots += 1;
        if entry.roots == 1 {
            self.rooted += entry.bytes;
        }
    }

    /// A small form of so many bytes has come to be.
    pub fn add_small(&mut self, bytes: u64) {
        self.live += bytes;
        self.rooted += bytes;
    }

    /// It is gone.
    pub fn take_small(&mut self, bytes: u64) {
        self.live -= bytes;
        self.rooted -= bytes;
    }

    /// Another thread than the one that trains has made this buffer.
    pub fn put_aside(&mut self, storage: StorageKey) {
        let entry = &mut self.slab[storage];
        if !std::mem::replace(&mut entry.aside, true) {
            self.aside += entry.bytes;
        }
    }

    /// A buffer is aside no longer. Whether it was.
    pub fn leave_aside(&mut self, storage: StorageKey) -> bool {
        let entry = &mut self.slab[storage];
        let was_aside = std::mem::take(&mut entry.aside);
        if was_aside {
            self.aside -= entry.bytes;
        }
        was_aside
    }

    /// Frees the record of a storage that has no owner left.
    pub fn sweep(&mut self, storage: StorageKey) {
        if self.slab.get(storage).is_some_and(|entry| entry.owners.is_empty()) {
            self.leave_aside(storage);
            let entry = self.slab.remove(storage);
            self.live -= entry.bytes;
            if self.by_key.get(&entry.key) == Some(&storage) {
                self.by_key.remove(&entry.key);
            }
        }
    }
}
