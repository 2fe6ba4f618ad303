//! The known tensors, and the recorded operations that could make them again.
//!
//! A [`Tensor`] is one that the program knows by number; a [`Recipe`] is a recorded operation. They live in two arenas and refer to each other by index.
//! This module only works on the graph: it runs nothing and counts no bytes.
//!
//! **Invariant**: the inputs of a recipe stay known (with data, or with a recipe of their own) for as long as the recipe exists.
//!
//! All walks use explicit stacks and take linear time in what they visit.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::driver::{Compressible, OpKey};
use crate::facts::{CheckpointPolicy, Failure, Kind, Nature, Need, TensorFacts, TensorId};
use crate::keys::{BufferKey, Keys, PathId, RecipeKey, TensorKey};
use crate::ledger::Owner;
use crate::passes::Part;
use crate::trace::{Number, Place, TracedForm};

/// The place of a tensor that came from the host while a plan was followed, until an operation reads it.
pub(crate) const ARRIVED: Place = Place::MAX;

/// At most this many recipes are visited when the cost of bringing something back is summed.
const CHAIN_LIMIT: usize = 96;
/// A dead root is kept if what depends on it has at least this many times its bytes.
pub(crate) const KEEP_ROOT_RATIO: u64 = 8;

/// A tensor that the program holds, or that a recipe still needs.
pub(crate) struct Tensor {
    pub facts: TensorFacts,
    /// Its buffer; `None` while evicted, compressed, released or failed.
    pub buffer: Option<BufferKey>,
    /// Whether the program still holds it.
    pub alive: bool,
    /// Whether a plan holds it.
    pub held: bool,
    /// Pending uses that forbid its eviction.
    pub pins: u32,
    /// How to compute it again; `None` for a root.
    pub recipe: Option<RecipeKey>,
    /// Recipes that read it.
    pub dependents: SmallVec<[RecipeKey; 4]>,
    pub lineage: Lineage,
    pub spot: Spot,
    /// Shared by all of the program's tensors in the same buffer, if there has ever been more than one. A tensor that is brought back may get a buffer
    /// of its own; this still tells what an operation would overwrite without this machine.
    pub alias: Option<Arc<()>>,
    /// What is left in its place while it is evicted.
    pub small: Option<Box<Small>>,
    /// Why it holds no data, if the operation that was to write it failed.
    pub failure: Option<Failure>,
}

/// Where a tensor comes from and what succeeds it: this distinguishes parameters from everything else. See `machine/parameters.rs`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lineage {
    /// The kind of operation that made it.
    pub made_by: Kind,
    /// Clock of the last use.
    pub used: u64,
    /// Clock when it was made.
    pub born: u64,
    /// Clock when the first tensor in its line of succession was made.
    pub since: u64,
    /// Clock when a recorded operation last read it, otherwise 0.
    pub read: u64,
    /// Clock when it took the place of a parameter, otherwise 0.
    pub updated: u64,
    /// Operations between that update and the one before; 0 if there was none.
    pub interval: u64,
    /// The last tensor of its shape that was computed from it.
    pub heir: Option<TensorId>,
    /// The tensor whose `heir` this is.
    pub heir_of: Option<TensorId>,
    pub is: Flags,
    pub part: Part,
}

/// Properties of a tensor.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flags {
    /// It was made by an operation that can run again. It has a recipe, unless nothing was being recorded then.
    pub computed: bool,
    /// It counts towards the bytes that the step has computed and the program holds.
    pub counted: bool,
    /// It is certainly no parameter, though it may be a root: it is a mask, or may differ when the device computes it again, or it has
    /// taken the place of such a root or was cut off from one.
    pub passing: bool,
    /// It, or what it has replaced, was computed by earlier steps: it is an optimizer's state.
    pub state: bool,
    /// It may be a parameter although it was computed, because of what it has succeeded, or because it was drawn from a seed.
    pub eligible: bool,
    /// Nothing has read it since it took the place of a parameter.
    pub fresh: bool,
    /// It is updated as regularly as steps come.
    pub regular: bool,
    /// It was evicted because its plan no longer has a use for it, although it outlives the plan.
    pub parted: bool,
}

/// The position of a tensor in the step.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    /// The step for which the other fields are valid.
    pub step: u32,
    /// Its storage in the trace of that step.
    pub place: Place,
    /// The operation of that step that made it, and the index of the output.
    pub origin: u32,
    /// Its number in that trace.
    pub number: Number,
}

/// What is left of an evicted tensor.
#[derive(Default)]
pub(crate) struct Small {
    pub compressible: Option<Compressible>,
    pub is_compressed: bool,
    /// What is left for operations that need less than its values, and its bytes.
    pub substitute: Option<(Need, u64)>,
}

impl Tensor {
    /// Whether its origin allows it to be a parameter.
    pub fn may_be_parameter(&self) -> bool {
        let is = &self.lineage.is;
        is.eligible || !(is.computed || is.passing || is.state)
    }

    /// Whether it must keep its buffer: it can be neither computed again nor compressed.
    pub fn is_fixed(&self) -> bool {
        self.recipe.is_none() && self.compressible().is_none()
    }

    pub fn compressible(&self) -> Option<Compressible> {
        self.small.as_ref().and_then(|small| small.compressible)
    }

    /// How it can be compressed, in the form that a trace uses.
    pub fn form(&self) -> Option<TracedForm> {
        let Compressible { alternative, bytes, cost_ns } = self.compressible()?;
        Some(TracedForm { alternative, bytes, cost_ns })
    }

    /// Whether it has no buffer because it is compressed.
    pub fn is_compressed(&self) -> bool {
        self.small.as_ref().is_some_and(|small| small.is_compressed)
    }

    /// Whether it is unused by the program, by plans and by operations in progress.
    #[inline]
    pub fn is_unused(&self) -> bool {
        !self.alive && !self.held && self.pins == 0
    }

    /// Whether it has neither a buffer nor a compressed copy.
    pub fn is_evicted(&self) -> bool {
        self.buffer.is_none() && !self.is_compressed()
    }

    /// Whether it has left a substitute that is enough for an operation that needs no more than this.
    pub fn has_substitute(&self, need: Need) -> bool {
        let substitute = self.small.as_ref().and_then(|small| small.substitute);
        substitute.is_some_and(|(left, _)| left == need || need == Need::Shape)
    }

    pub fn as_owner(&self, key: TensorKey) -> Owner {
        Owner { key, is_root: self.is_fixed(), pins: self.pins }
    }
}

/// A recorded operation.
pub(crate) struct Recipe {
    /// The driver's copy of it.
    pub op: OpKey,
    pub kind: Kind,
    pub nature: Nature,
    pub weak: Option<(TensorId, Need)>,
    /// Inputs, each once.
    pub inputs: Keys,
    /// Outputs in the operation's order; `None` if the output is no longer needed from this recipe.
    pub outputs: SmallVec<[Option<TensorKey>; 2]>,
    /// Bytes of new buffers for all outputs.
    pub produced: u64,
    pub again: Again,
    /// The shortest time that it has taken.
    pub cost_ns: u64,
    /// Clock when it was recorded.
    pub born: u64,
    /// The number of the last graph walk that visited it.
    pub seen: u64,
    /// Its stage, and the stage's policy for its results.
    pub stage: (PathId, Option<CheckpointPolicy>),
}

/// What an operation needs to give the same results again.
#[derive(Clone, Copy)]
pub(crate) struct Again {
    /// The seed to set before it runs, for a random operation that is reseeded.
    pub seed: Option<u64>,
    /// What it would overwrite without this machine: see [`Reused`](crate::Reused).
    pub expected: u8,
}

/// The cost of bringing something back.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chain {
    /// Time of the recipes that would run, as far as they were visited.
    pub cost_ns: u64,
    /// Whether there are more recipes than were visited.
    pub is_long: bool,
    /// Whether they belong to a backward pass, as for what was computed from gradients. That takes its whole forward pass at once, which is as much as
    /// a pass holds without a budget.
    pub runs_backward: bool,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct History {
    pub tensors: Slab<Tensor>,
    pub index: FxHashMap<TensorId, TensorKey>,
    pub recipes: Slab<Recipe>,
    /// How many tensors the program holds.
    alive: usize,
    /// The number of the last graph walk.
    walk: u64,
    /// Work lists, kept to avoid allocating them each time.
    pub garbage: Vec<TensorKey>,
    stack: Vec<RecipeKey>,
}

impl History {
    #[inline]
    pub fn find(&self, id: TensorId) -> Option<TensorKey> {
        self.index.get(&id).copied()
    }

    /// The tensors with this property. O(tensors).
    pub fn keys_of(&self, is_so: impl Fn(&Tensor) -> bool) -> Vec<TensorKey> {
        self.tensors.iter().filter(|(_, tensor)| is_so(tensor)).map(|(key, _)| key).collect()
    }

    #[inline]
    pub fn insert(&mut self, tensor: Tensor) -> TensorKey {
        let id = tensor.facts.id;
        self.alive += usize::from(tensor.alive);
        let key = self.tensors.insert(tensor);
        self.index.insert(id, key);
        key
    }

    /// The program no longer holds a tensor.
    #[inline]
    pub fn end(&mut self, key: TensorKey) {
        let was_alive = core::mem::take(&mut self.tensors[key].alive);
        self.alive -= usize::from(was_alive);
    }

    /// Whether the program holds any tensor.
    pub fn is_any_alive(&self) -> bool {
        self.alive > 0
    }

    /// Whether a key still stands for this tensor.
    pub fn knows(&self, (key, id): (TensorKey, TensorId)) -> bool {
        self.tensors.get(key).is_some_and(|tensor| tensor.facts.id == id)
    }

    pub fn record(&mut self, recipe: Recipe) -> RecipeKey {
        let key = self.recipes.insert(recipe);
        let recipe = &self.recipes[key];
        for &input in &recipe.inputs {
            self.tensors[input].dependents.push(key);
        }
        for &output in recipe.outputs.iter().flatten() {
            self.tensors[output].recipe = Some(key);
        }
        key
    }

    /// The input that an operation can do without: it is evicted and has left a sufficient substitute.
    #[inline]
    pub fn spared(&self, weak: Option<(TensorId, Need)>) -> Option<(TensorKey, Need)> {
        let (id, need) = weak?;
        let key = self.find(id)?;
        let tensor = &self.tensors[key];
        (tensor.is_evicted() && tensor.has_substitute(need)).then_some((key, need))
    }

    /// The recipes that must run to bring `keys` back, in the order in which they were recorded.
    pub fn closure(&mut self, keys: &[TensorKey]) -> Result<Vec<RecipeKey>, Failure> {
        self.walk += 1;
        let mut found = Vec::new();
        let mut stack: Vec<TensorKey> = keys.to_vec();
        while let Some(key) = stack.pop() {
            let tensor = &self.tensors[key];
            if !tensor.is_evicted() {
                continue;
            }
            if let Some(failure) = &tensor.failure {
                return Err(failure.clone());
            }
            let Some(at) = tensor.recipe else {
                return Err(
                    format!("internal error: tensor {} is gone and cannot be recomputed", tensor.facts.id).into()
                );
            };
            if mem::replace(&mut self.recipes[at].seen, self.walk) == self.walk {
                continue;
            }
            let recipe = &self.recipes[at];
            found.push((recipe.born, at));
            let spared = self.spared(recipe.weak).map(|(key, _)| key);
            stack.extend(recipe.inputs.iter().filter(|&&input| spared != Some(input)));
        }
        // What a recipe reads was recorded before it.
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, at)| at).collect())
    }

    /// The tensors, alive, compressed or held by a plan, that would need one of `recipes` to be computed again; `None` while a
    /// computation is in progress there.
    pub fn live_descendants(&mut self, recipes: impl IntoIterator<Item = RecipeKey>) -> Option<Vec<TensorKey>> {
        self.walk += 1;
        let mut stack: Vec<RecipeKey> = recipes.into_iter().collect();
        let mut frontier = Vec::new();
        while let Some(at) = stack.pop() {
            let recipe = &mut self.recipes[at];
            if mem::replace(&mut recipe.seen, self.walk) == self.walk {
                continue;
            }
            for &output in recipe.outputs.iter().flatten() {
                let tensor = &self.tensors[output];
                if tensor.alive || tensor.held || tensor.is_compressed() {
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

    /// The cost of computing these owners of a buffer again if it were evicted now; `None` if that is impossible.
    pub fn chain(&mut self, buffer: BufferKey, owners: &[TensorKey]) -> Option<Chain> {
        if owners.iter().any(|&owner| self.tensors[owner].recipe.is_none()) {
            return None;
        }
        self.walk += 1;
        let (mut chain, mut count) = (Chain::default(), 0);
        let mut stack = mem::take(&mut self.stack);
        stack.clear();
        stack.extend(owners.iter().filter_map(|&owner| self.tensors[owner].recipe));
        while let Some(at) = stack.pop() {
            let recipe = &mut self.recipes[at];
            if mem::replace(&mut recipe.seen, self.walk) == self.walk {
                continue;
            }
            chain.cost_ns += recipe.cost_ns;
            count += 1;
            chain.is_long = count >= CHAIN_LIMIT;
            if chain.is_long {
                break;
            }
            for &input in &recipe.inputs {
                let tensor = &self.tensors[input];
                if tensor.buffer.is_none_or(|held| held == buffer) && !tensor.is_compressed() {
                    chain.runs_backward |= tensor.buffer.is_none() && tensor.lineage.part == Part::Backward;
                    stack.extend(tensor.recipe);
                }
            }
        }
        self.stack = stack;
        Some(chain)
    }

    /// Whether a dead root is small compared with what it keeps evictable.
    pub fn is_worth_keeping(&self, root: TensorKey) -> bool {
        let bytes = self.tensors[root].facts.bytes;
        let recipes = self.tensors[root].dependents.iter().map(|&recipe| &self.recipes[recipe]);
        let kept = recipes.flat_map(|recipe| recipe.outputs.iter().flatten());
        let kept: u64 = kept.map(|&output| self.tensors[output].facts.bytes).sum();
        bytes.saturating_mul(KEEP_ROOT_RATIO) <= kept
    }

    /// Removes an output from a recipe, and the recipe too if that was its last one. Tensors that only the recipe needed are added to the garbage.
    pub fn detach_output(&mut self, key: RecipeKey, output: TensorKey) -> Option<OpKey> {
        let recipe = &mut self.recipes[key];
        for slot in &mut recipe.outputs {
            if *slot == Some(output) {
                *slot = None;
            }
        }
        if recipe.outputs.iter().any(Option::is_some) {
            return None;
        }
        let recipe = self.recipes.remove(key);
        for input in recipe.inputs {
            let tensor = &mut self.tensors[input];
            if let Some(at) = tensor.dependents.iter().rposition(|&other| other == key) {
                tensor.dependents.swap_remove(at);
            }
            if tensor.dependents.is_empty() && tensor.is_unused() {
                self.garbage.push(input);
            }
        }
        Some(recipe.op)
    }
}
