//! Which parts of the search are left out, and how long it runs.

/// How the search works.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    /// The most moves per thread, if that limits the search.
    pub moves: Option<u64>,
    pub without: Without,
}

/// Parts that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Without {
    pub exact: bool,
    pub hints: bool,
    pub swap: bool,
    pub shift: bool,
    pub postpone: bool,
    pub merge: bool,
    pub repack: bool,
    pub ladder: bool,
}

/// A part of the search that can be left out, to see what it contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The exact solution of small graphs.
    Exact,
    /// The start from the solution of the relaxation.
    Hints,
    /// Moves that keep one value and evict another at once.
    Swaps,
    /// Moves of a repeat to another position.
    Shifts,
    /// Postponing repeats that ran early only because a value was evicted, once that value stays.
    Postponing,
    /// Dropping the later repeats that a new one can replace.
    Merges,
    /// Exchanging many repeats for one at low temperature.
    Repacking,
    /// Walks at several temperatures that trade places; without them, each thread has one walk that cools.
    Ladder,
}

impl Without {
    /// Leaves out `part` too.
    pub fn add(&mut self, part: Part) {
        let left_out = match part {
            Part::Exact => &mut self.exact,
            Part::Hints => &mut self.hints,
            Part::Swaps => &mut self.swap,
            Part::Shifts => &mut self.shift,
            Part::Postponing => &mut self.postpone,
            Part::Merges => &mut self.merge,
            Part::Repacking => &mut self.repack,
            Part::Ladder => &mut self.ladder,
        };
        *left_out = true;
    }
}
