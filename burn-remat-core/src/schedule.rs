//! What to keep, evict and compute again between the operations of a step.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::facts::Need;
use crate::spine::Spine;
use crate::trace::{EXTERNAL, Number, Place, Position, Trace, extend};

/// An action between operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Computes storages again and holds them.
    Recompute(SmallVec<[Place; 2]>),
    /// Evicts a storage.
    Evict(Place),
    /// Compresses a storage.
    Compress(Place),
    /// Leaves a substitute of a storage, which takes this many bytes, before it is evicted.
    LeaveSubstitute(Place, Need, u64),
    /// Drops the substitute of a storage.
    DropSubstitute(Place),
    /// No longer holds a storage, because the next operations are the last that need it.
    Loosen(Place),
    /// Holds nothing any more: parameters are about to be updated, or the step ends.
    ReleaseAll,
}

/// A schedule for one kind of step.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// The step that it is made for.
    pub trace: Arc<Trace>,
    /// The spine of that step.
    pub spine: Spine,
    /// Signature of the step's first operations, by their number.
    pub prefixes: Vec<u64>,
    /// What to do before each operation.
    pub before: Vec<Vec<Action>>,
    /// What to do after each operation.
    pub after: Vec<Vec<Action>>,
    /// Whether a storage is held from when it appears.
    pub holds: Vec<bool>,
    /// Whether the schedule decides on a storage: it may have to be evicted.
    pub decides: Vec<bool>,
    /// The tensors of each storage, as operation and index of the output.
    pub owners: Vec<SmallVec<[(Position, u8); 2]>>,
    /// The operations that read each storage, in order.
    pub uses: Vec<SmallVec<[Position; 4]>>,
    /// For each tensor, the operation that makes it and the index of the output; see [`Trace::origins`].
    pub origins: Vec<u32>,
    /// Bytes predicted.
    pub foreseen: Foreseen,
    /// Most bytes predicted.
    pub peak: u64,
}

/// The bytes that a schedule holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    /// Most bytes from the end of the previous operation to the end of each operation, an upper bound.
    pub during: Vec<u64>,
    /// Bytes after each operation, exactly, as far as they are known.
    pub after: Vec<u64>,
}

impl Schedule {
    /// A schedule without any actions, in which storages are held as `holds` says.
    pub fn new(trace: Arc<Trace>, holds: Vec<bool>, decides: Vec<bool>) -> Self {
        let mut prefixes = vec![0];
        for op in &trace.ops {
            prefixes.push(extend(prefixes[prefixes.len() - 1], op.signature));
        }
        let mut owners = vec![SmallVec::new(); trace.storages.len()];
        let mut uses = vec![SmallVec::new(); trace.storages.len()];
        for (at, op) in trace.ops.iter().enumerate() {
            op.reads.iter().for_each(|&place| uses[place as usize].push(at as Position));
            for (k, &place) in op.writes.iter().enumerate() {
                owners[place as usize].push((at as Position, k as u8));
            }
        }
        let count = trace.ops.len();
        let (before, after) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let (spine, origins, foreseen) = (Spine::of(&trace), trace.origins(), Foreseen::default());
        Self { trace, spine, prefixes, before, after, holds, decides, owners, uses, origins, foreseen, peak: 0 }
    }

    /// The schedule with a prediction, with which the engine compares what it holds.
    pub fn with_foreseen(mut self, foreseen: Foreseen) -> Self {
        self.peak = foreseen.during.iter().max().copied().unwrap_or(0);
        self.foreseen = foreseen;
        self
    }

    /// The schedule with the prediction that nothing is evicted.
    pub fn storing_all(self) -> Self {
        let during = self.trace.store_all();
        self.with_foreseen(Foreseen { during, after: Vec::new() })
    }

    /// Identifies the step that the schedule is made for, see [`Spine::structure`].
    pub fn structure(&self) -> u64 {
        self.spine.structure()
    }

    /// Which storages are held when the operation at `position` is about to begin.
    pub fn held_before(&self, position: usize) -> Vec<bool> {
        let mut held = vec![false; self.holds.len()];
        let take = |held: &mut Vec<bool>, actions: &[Action]| {
            for action in actions {
                match action {
                    Action::Recompute(places) => places.iter().for_each(|&place| held[place as usize] = true),
                    Action::Evict(place) | Action::Compress(place) | Action::Loosen(place) => {
                        held[*place as usize] = false;
                    }
                    Action::ReleaseAll => held.fill(false),
                    Action::LeaveSubstitute(..) | Action::DropSubstitute(_) => {}
                }
            }
        };
        for (at, op) in self.trace.ops[..position].iter().enumerate() {
            let outside = |&&place: &&Place| self.trace.storages[place as usize].made_by.is_none();
            op.reads.iter().filter(outside).for_each(|&p| held[p as usize] |= self.holds[p as usize]);
            take(&mut held, &self.before[at]);
            op.writes.iter().for_each(|&place| held[place as usize] |= self.holds[place as usize]);
            take(&mut held, &self.after[at]);
        }
        held
    }

    /// The substitutes that have been left, and not dropped, when the operation at `position` is about to begin.
    pub fn substitutes_before(&self, position: usize) -> FxHashMap<Place, Need> {
        let mut left = FxHashMap::default();
        for action in (0..position).flat_map(|at| self.before[at].iter().chain(&self.after[at])) {
            match action {
                Action::LeaveSubstitute(place, need, _) => drop(left.insert(*place, *need)),
                Action::DropSubstitute(place) => drop(left.remove(place)),
                Action::ReleaseAll => left.clear(),
                _ => {}
            }
        }
        left
    }

    /// The storages that the schedule decides on, that have appeared before `position`, and that are not among those `held` there.
    pub fn given_up<'a>(&'a self, position: usize, held: &'a [bool]) -> impl Iterator<Item = Place> + 'a {
        let has_appeared = move |place: usize| (self.trace.storages[place].appeared as usize) < position;
        let is_given_up = move |&place: &usize| !held[place] && self.decides[place] && has_appeared(place);
        (0..held.len()).filter(is_given_up).map(|place| place as Place)
    }

    /// Which of the storages `held` at `position` are used from there on: operations read them, or something that is computed again later depends on them.
    pub fn of_use_from(&self, position: usize, held: &[bool]) -> Vec<bool> {
        let ops = &self.trace.ops;
        let mut is_of_use = vec![false; self.holds.len()];
        ops[position..].iter().flat_map(|op| &op.reads).for_each(|&place| is_of_use[place as usize] = true);
        let coming = self.before[position..].iter().chain(&self.after[position..]).flatten();
        let again =
            coming.filter_map(|action| if let Action::Recompute(places) = action { Some(places) } else { None });
        let mut rests: Vec<Place> = again.flatten().copied().collect();
        let mut is_known = vec![false; self.holds.len()];
        while let Some(place) = rests.pop() {
            let maker = self.owners[place as usize].first().map(|&(maker, _)| &ops[maker as usize]);
            for &read in maker.into_iter().flat_map(|op| &op.reads) {
                is_of_use[read as usize] = true;
                if !held[read as usize] && !core::mem::replace(&mut is_known[read as usize], true) {
                    rests.push(read);
                }
            }
        }
        is_of_use
    }

    /// The next operation at or after `position` that reads a storage.
    pub fn next_use(&self, place: Place, position: usize) -> Option<usize> {
        let uses = &self.uses[place as usize];
        uses.get(uses.partition_point(|&at| (at as usize) < position)).map(|&at| at as usize)
    }

    /// Whether a tensor comes from outside the step.
    pub(crate) fn is_external(&self, number: Number) -> bool {
        self.origins[number as usize] == EXTERNAL
    }
}
