//! Where passes differ from their plans, and in how many ways.
//!
//! A pass that leaves its plan is traced, and its kind gets a plan if it comes again. A program that does something else in one place each time (skips
//! layers at random, exits early) has too many kinds for that. So kinds are counted, not passes: where several kinds have left a plan in one place, or
//! many kinds have left it in total, the next pass that does so probably has no plan either.
//!
//! Complexity: O(1) per query; at most [`MOST`] entries.

use core::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

/// As soon as this many kinds have left a plan in one place, or in total, the next one is expected to have no plan.
const MANY: u8 = 4;
const MANY_IN_ALL: u8 = 8;
/// Most entries that are remembered.
const MOST: usize = 4096;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Differences {
    /// The plan that the current pass has left, and where.
    left: Option<(u64, usize)>,
    /// Which kinds have left which plans.
    seen: FxHashSet<u64>,
    /// How many kinds have left, by plan and place, and by plan.
    kinds: FxHashMap<u64, u8>,
}

impl Differences {
    /// The current pass leaves a plan for passes of this structure.
    pub fn leaves(&mut self, plan: u64, at: usize) {
        self.left = Some((plan, at));
    }

    /// The pass is over; it had this structure if it was traced.
    pub fn ends(&mut self, structure: Option<u64>) {
        let Some(((plan, at), structure)) = self.left.take().zip(structure) else { return };
        if self.seen.len() >= MOST || self.kinds.len() >= MOST {
            (self.seen, self.kinds) = Default::default();
        }
        if self.seen.insert(key((plan, structure))) {
            for place in [Some(at), None] {
                let kinds = self.kinds.entry(key((plan, place))).or_default();
                *kinds = kinds.saturating_add(1);
            }
        }
    }

    /// Whether so many kinds have left this plan, here or in total, that another one is expected to.
    pub fn are_many(&self, plan: u64, at: usize) -> bool {
        let kinds = |place: Option<usize>| self.kinds.get(&key((plan, place))).copied().unwrap_or(0);
        kinds(Some(at)) >= MANY || kinds(None) >= MANY_IN_ALL
    }
}

fn key(of: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    of.hash(&mut hasher);
    hasher.finish()
}
