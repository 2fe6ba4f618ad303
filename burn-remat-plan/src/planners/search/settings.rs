//! What of the search is left out, and how far it goes.

/// How the search works.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    /// Most moves of a thread, where that limits the search.
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
    /// Having repeats that run early because a value goes wait, once it stays.
    Postponing,
    /// Dropping the later repeats that a new one can stand in for.
    Merges,
    /// Exchanging many repeats for one at low temperature.
    Repacking,
    /// Walks at several temperatures that trade places; without, each thread has one that cools.
    Ladder,
}

impl Without {
    /// Leaves out this part too.
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
