//! Which kind of step comes next: the one that followed the longest run of kinds that has been seen before.
//!
//! A program that trains two networks in turns, or accumulates gradients over batches of different sizes, goes through its kinds of step in a rhythm of
//! its own. Looking one step back is not enough: after four steps of one kind, a fifth may come, or the other kind.
//!
//! Complexity: O([`LONGEST`]) for each step.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

/// How many steps back it looks at most.
const LONGEST: usize = 8;
/// If what was expected has come this often in a row, the next is expected for sure.
const SURE: u32 = 4;
/// How many runs are remembered before it begins anew.
const MOST: usize = 1 << 14;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Sequence {
    /// The kind that is expected next.
    expected: Option<u64>,
    /// The last kinds, the newest first.
    last: VecDeque<u64>,
    /// What followed a run of kinds last time.
    followed: FxHashMap<u64, u64>,
    /// How often in a row the expected kind has come.
    right: u32,
}

fn run<'a>(kinds: impl Iterator<Item = &'a u64>) -> u64 {
    let mut hasher = FxHasher::default();
    // Otherwise a run of zeros would be the same as none.
    1_u64.hash(&mut hasher);
    kinds.for_each(|kind| kind.hash(&mut hasher));
    hasher.finish()
}

impl Sequence {
    /// Expects steps of these kinds, in this order, and then the last of them again and again.
    pub fn expect(&mut self, kinds: &[u64]) {
        self.expected = kinds.first().copied();
        for pair in kinds.windows(2) {
            self.followed.insert(run([pair[0]].iter()), pair[1]);
        }
        for &kind in kinds {
            self.followed.entry(run([kind].iter())).or_insert(kind);
        }
    }

    /// Records that a step of this kind is over.
    pub fn came(&mut self, kind: u64) {
        self.right = if self.expected == Some(kind) { self.right.saturating_add(1) } else { 0 };
        if self.followed.len() > MOST {
            self.followed.clear();
        }
        for length in 1..=self.last.len() {
            self.followed.insert(run(self.last.iter().take(length)), kind);
        }
        self.last.truncate(LONGEST - 1);
        self.last.push_front(kind);
        let mut runs = (1..=self.last.len()).rev().map(|length| run(self.last.iter().take(length)));
        self.expected = runs.find_map(|run| self.followed.get(&run).copied());
    }

    /// The kind that is expected next.
    pub fn next(&self) -> Option<u64> {
        self.expected
    }

    /// Whether the expected kinds have come for a while.
    pub fn is_sure(&self) -> bool {
        self.right >= SURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rhythm_is_learned_and_a_change_forgets_that_it_is_sure() {
        let mut sequence = Sequence::default();
        let kind = |at: usize| u64::from(at % 6 == 5);
        (0..18).for_each(|at| sequence.came(kind(at)));
        for at in 18..60 {
            assert_eq!((sequence.next(), sequence.is_sure()), (Some(kind(at)), true), "{at}");
            sequence.came(kind(at));
        }
        sequence.came(7);
        assert!(!sequence.is_sure());
    }

    #[test]
    fn what_is_expected_comes_first_and_then_again_and_again() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.next(), None);
        sequence.expect(&[3, 5]);
        let seen: Vec<_> = (0..4)
            .map(|_| {
                let next = sequence.next().unwrap();
                sequence.came(next);
                next
            })
            .collect();
        assert_eq!(seen, [3, 5, 5, 5]);
    }
}
