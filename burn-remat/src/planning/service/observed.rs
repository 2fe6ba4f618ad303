//! What has been seen of each kind of step: how often it came, how long its operations took, and whether planning it is of any use.
//!
//! A kind is identified by its structure. Its costs are medians of the first few steps, and its scratch is the least seen. Complexity: O(kinds) to find
//! one, O(operations) to record the measurements of a step.

use burn_remat_core::Trace;

/// How often a step must be seen before it is planned.
pub(super) const SEEN: usize = 3;
/// How often a kind of step is planned anew because more is held at its beginning than before.
const MOST_REPLANS: u32 = 4;
/// How many kinds of step are remembered, and how many plans are kept.
const MOST_KINDS: usize = 128;
/// If this many kinds have come and none of them twice, every step is probably different.
const MANY: usize = 4;

/// Which of `count` kinds goes to make room for this one. The choice is as good as random, so a new kind usually stays until it is back, and if more kinds
/// than fit come in rotation, some of them stay.
fn goes_for(structure: u64, count: usize) -> usize {
    (structure % count as u64) as usize
}

/// Adds what is known of a kind, in place of one chosen at random if there are too many.
pub(super) fn add<T>(all: &mut Vec<T>, structure: u64, known: T) {
    if all.len() >= MOST_KINDS {
        all.remove(goes_for(structure, all.len()));
    }
    all.push(known);
}

/// A kind of step.
#[derive(Default)]
pub(super) struct Observed {
    structure: u64,
    /// The first kind seen of those that are like this one apart from sizes.
    family: u64,
    /// The exact signature of the last such step, including its glue.
    signature: u64,
    /// Times of each of its operations, and the least scratch seen: larger values include what else the process allocated meanwhile.
    costs: Vec<Vec<u64>>,
    scratch: Vec<u64>,
    seen: usize,
    /// The most bytes that were held when it began.
    held_at_start: u64,
    /// Whether planning was tried, or is of no use.
    pub settled: bool,
    /// Peak of the step for which it was tried. Once is enough, whatever the outcome.
    pub tried: Option<u64>,
    /// Whether its plan comes from the cache.
    pub cached: bool,
    /// The budget for which the results of dry runs were last looked for on disk.
    pub looked_for: Option<u64>,
    /// How often its plan was [outgrown](Kinds::outgrown).
    replans: u32,
}

impl Observed {
    /// Records the measurements of one more such step. The trace gets what was found over all of them, except the [times](Self::with_times).
    pub fn measure(&mut self, trace: &mut Trace) {
        let signature = trace.signature();
        self.seen += 1;
        self.held_at_start = self.held_at_start.max(trace.held_at_start);
        trace.held_at_start = self.held_at_start;
        if self.costs.is_empty() || self.signature != signature {
            let count = trace.ops.len();
            (self.signature, self.costs, self.scratch) = (signature, vec![Vec::new(); count], vec![u64::MAX; count]);
        }
        if self.costs.first().is_some_and(|costs| costs.len() < 2 * SEEN) {
            for (costs, op) in self.costs.iter_mut().zip(&trace.ops) {
                costs.push(op.cost_ns);
            }
        }
        for (least, op) in self.scratch.iter_mut().zip(&mut trace.ops) {
            *least = op.scratch.min(*least);
            op.scratch = *least;
        }
    }

    /// The trace of such a step with the medians of all times measured.
    pub fn with_times(&self, trace: Trace) -> Trace {
        let medians = self.costs.iter().map(|costs| {
            let mut costs = costs.clone();
            costs.sort_unstable();
            costs.get(costs.len() / 2).copied().unwrap_or(1)
        });
        trace.with_measures(medians.zip(self.scratch.iter().copied()).collect::<Vec<_>>())
    }

    /// Whether it has been seen often enough for its costs to be known.
    pub fn is_known(&self) -> bool {
        self.seen >= SEEN
    }

    /// Whether it has just come back: another process may have left a plan for it.
    pub fn is_back(&self) -> bool {
        self.seen == 2
    }

    /// The signature of the last such step.
    pub fn signature(&self) -> u64 {
        self.signature
    }

    /// Lets planning be tried again.
    fn reopen(&mut self) {
        (self.settled, self.tried) = (false, None);
    }
}

/// Kinds of step that have been seen.
#[derive(Default)]
pub(super) struct Kinds(Vec<Observed>);

impl Kinds {
    /// Whether this many kinds have come, each of them once, so that none seems to come back.
    pub fn are_all_new(&self) -> bool {
        self.0.len() >= MANY && self.0.iter().all(|known| known.seen == 1)
    }

    /// Whether any has come more than once. The first step of a program, which sets up parameters, does things that no other step does. If passes are
    /// guided by its plan, or by the plan of a wrong step, they seem to begin elsewhere.
    pub fn are_back(&self) -> bool {
        self.0.iter().any(|known| known.seen > 1)
    }

    /// What is known of a kind, which is remembered from now on.
    pub fn of(&mut self, structure: u64) -> &mut Observed {
        let at = match self.0.iter().position(|known| known.structure == structure) {
            Some(at) => at,
            None => {
                self.make_room(structure);
                self.0.push(Observed { structure, family: structure, ..Observed::default() });
                self.0.len() - 1
            }
        };
        &mut self.0[at]
    }

    /// Records that a kind is like another apart from sizes.
    pub fn are_alike(&mut self, structure: u64, other: u64) {
        let family = self.of(other).family;
        self.of(structure).family = family;
    }

    fn family(&self, structure: u64) -> impl Iterator<Item = &Observed> {
        let family = self.0.iter().find(|known| known.structure == structure).map(|known| known.family);
        self.0.iter().filter(move |known| Some(known.family) == family)
    }

    /// The kinds that are like this one, including itself.
    pub fn like(&self, structure: u64) -> impl Iterator<Item = u64> {
        self.family(structure).map(|known| known.structure)
    }

    /// Peak of the largest step like this one for which planning was tried.
    pub fn most_tried(&self, structure: u64) -> u64 {
        self.family(structure).filter_map(|known| known.tried).max().unwrap_or(0)
    }

    /// Whether kinds like this one have been seen often enough, all together.
    pub fn is_family_known(&self, structure: u64) -> bool {
        self.family(structure).map(|known| known.seen).sum::<usize>() >= SEEN
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How often the most frequent kind was seen.
    pub fn most_seen(&self) -> usize {
        self.0.iter().map(|known| known.seen).max().unwrap_or(0)
    }

    /// Whether enough steps of any kind were seen to go by. The first may do things that no other does, and are recorded as they come.
    pub fn are_enough(&self) -> bool {
        self.0.iter().map(|known| known.seen).sum::<usize>() >= SEEN
    }

    /// Of two kinds chosen [at random](goes_for), removes the one that was seen less.
    fn make_room(&mut self, newcomer: u64) {
        let count = self.0.len();
        if count >= MOST_KINDS {
            let (one, other) = (goes_for(newcomer, count), goes_for(newcomer / MOST_KINDS as u64, count));
            self.0.remove(if self.0[one].seen < self.0[other].seen { one } else { other });
        }
    }

    /// Whether planning this kind was tried, or is of no use.
    pub fn is_settled(&self, structure: u64) -> bool {
        self.0.iter().any(|known| known.structure == structure && known.settled)
    }

    /// Whether all kinds have been seen more than often enough, and are settled.
    pub fn are_settled(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|known| known.settled && known.seen > SEEN)
    }

    /// Forgets what was settled without being tried.
    pub fn unsettle(&mut self) {
        self.0.iter_mut().for_each(|known| known.settled &= known.tried.is_some());
    }

    /// Has all kinds planned anew.
    pub fn reopen(&mut self) {
        self.0.iter_mut().for_each(Observed::reopen);
    }

    /// Has a kind planned anew, a few times at most: more is held when such a step begins than its plan predicted.
    pub fn outgrown(&mut self, structure: u64) {
        let known = self.0.iter_mut().find(|known| known.structure == structure);
        if let Some(known) = known.filter(|known| known.settled && known.replans < MOST_REPLANS) {
            known.replans += 1;
            known.reopen();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::*;

    /// Structures of this many kinds, as mixed as the real ones.
    fn kinds(count: u64) -> Vec<u64> {
        let mixed = |kind: u64| {
            let mut hasher = DefaultHasher::new();
            kind.hash(&mut hasher);
            hasher.finish()
        };
        (0..count).map(mixed).collect()
    }

    fn come(all: &mut Kinds, structures: &[u64]) {
        structures.iter().for_each(|&structure| all.of(structure).seen += 1);
    }

    fn known(all: &Kinds, structures: &[u64]) -> usize {
        structures
            .iter()
            .filter(|&&structure| all.0.iter().any(|known| known.structure == structure && known.is_known()))
            .count()
    }

    #[test]
    fn new_kinds_become_known_however_many_there_were_before() {
        let structures = kinds(MOST_KINDS as u64 + 8);
        let (old, new) = structures.split_at(MOST_KINDS);
        let mut all = Kinds::default();
        (0..10).for_each(|_| come(&mut all, old));
        (0..10).for_each(|_| come(&mut all, new));
        assert_eq!(known(&all, new), new.len());
        assert!(known(&all, old) >= old.len() - 2 * new.len());
        assert_eq!(all.count(), MOST_KINDS);
    }

    #[test]
    fn of_more_kinds_than_fit_some_are_known() {
        let structures = kinds(2 * MOST_KINDS as u64);
        let mut all = Kinds::default();
        (0..20).for_each(|_| come(&mut all, &structures));
        assert!(known(&all, &structures) > MOST_KINDS / 4, "{}", known(&all, &structures));
    }
}
