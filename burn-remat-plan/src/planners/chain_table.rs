//! The tables behind [`chain_persistent`](super::chain_persistent): least memory and least cost of every sub-chain.
//!
//! The notation is that of the header there. Both tables hold one entry for each sub-chain `s..=t`, which depends on
//! shorter sub-chains only: a number, or a row of costs per memory unit, which is stored in [tiles](Tiles).

use super::chain_tiles::{Recipe, Tiles};
use crate::chain::terms::Terms;
use crate::chain::{ChainStep, StageId};
use crate::deadline::Deadline;

/// Which schedules a table ranges over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choices {
    /// Saved sets and inputs may be kept.
    SavedAndInputs,
    /// Only inputs may be kept; a saved set lives only while its own backward operation is next.
    InputsOnly,
}

/// What a sub-chain does first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// The first stage saves and stays.
    Save,
    /// Runs forward to this checkpoint.
    Checkpoint(StageId),
}

/// Bytes of running forward from `s` to the checkpoint before `k` without saving, the input of `s` not counted, for
/// each `k` in `s+1..`: a running maximum.
pub(super) struct Run<'a> {
    terms: &'a Terms,
    /// Next checkpoint to be reported.
    k: StageId,
    start: StageId,
    need: u64,
    cost: f64,
}

impl<'a> Run<'a> {
    pub(super) fn from(terms: &'a Terms, start: StageId) -> Self {
        Self { terms, k: start, start, need: 0, cost: 0.0 }
    }

    /// Goes on by one stage: the checkpoint reached, the most bytes on the way, the cost of the way.
    pub(super) fn step(&mut self) -> (StageId, u64, f64) {
        let j = self.k;
        let bytes = if j == self.start { self.terms.departure(j) } else { self.terms.transit(j) };
        self.need = self.need.max(bytes);
        self.cost += self.terms.forward_cost[j];
        self.k += 1;
        (self.k, self.need, self.cost)
    }
}

/// A number for every sub-chain, added diagonal by diagonal. Held twice, so that a walk over all checkpoints of a
/// sub-chain reads both of its halves in order.
struct Pairs<T> {
    /// `by_start[s][t - s]`.
    by_start: Vec<Vec<T>>,
    /// `by_end[t][t - s]`.
    by_end: Vec<Vec<T>>,
}

impl<T: Copy> Pairs<T> {
    fn new(stages: usize) -> Self {
        let empty = || (0..stages).map(|_| Vec::new()).collect();
        Self { by_start: empty(), by_end: empty() }
    }

    /// Adds the number of `s..=t`; its shorter sub-chains have been added.
    fn add(&mut self, s: StageId, t: StageId, number: T) {
        self.by_start[s].push(number);
        self.by_end[t].push(number);
    }

    /// The number of `s..=t`, near those of the same `s`.
    fn before(&self, s: StageId, t: StageId) -> T {
        self.by_start[s][t - s]
    }

    /// The number of `s..=t`, near those of the same `t`.
    fn behind(&self, s: StageId, t: StageId) -> T {
        self.by_end[t][t - s]
    }
}

/// The least memory of every sub-chain, its input not counted.
pub(crate) struct Minimum {
    bytes: Pairs<u64>,
}

impl Minimum {
    /// Fills the table; `None` if the deadline comes first. O(n³).
    pub(crate) fn of(terms: &Terms, choices: Choices, deadline: Deadline) -> Option<Self> {
        let n = terms.len();
        let mut table = Self { bytes: Pairs::new(n) };
        for s in 0..n {
            table.bytes.add(s, s, terms.save_need(s, s));
        }
        for d in 1..n {
            if d.is_multiple_of(16) && deadline.passed() {
                return None;
            }
            for s in 0..n - d {
                let least = table.options(terms, choices, s, s + d).map(|(_, need)| need).min();
                let least = least.expect("a sub-chain of two stages or more has a checkpoint to choose");
                table.bytes.add(s, s + d, least);
            }
        }
        Some(table)
    }

    /// Bytes of the table of this many stages: twice its final size, which its rows may take while they grow.
    pub(crate) fn bytes_of(stages: usize) -> u64 {
        2 * (stages * (stages + 1) * size_of::<u64>()) as u64
    }

    /// Least memory of `s..=t`.
    pub(crate) fn get(&self, s: StageId, t: StageId) -> u64 {
        self.bytes.before(s, t)
    }

    /// First moves of a sub-chain of at least two stages, with the memory that each needs.
    fn options<'a>(
        &'a self,
        terms: &'a Terms,
        choices: Choices,
        s: StageId,
        t: StageId,
    ) -> impl Iterator<Item = (First, u64)> + 'a {
        let save = (choices == Choices::SavedAndInputs)
            .then(|| (First::Save, terms.save_need(s, t).max(terms.saved[s] + self.get(s + 1, t))));
        let mut run = Run::from(terms, s);
        let checkpoints = (s + 1..=t).map(move |_| {
            let (k, way, _) = run.step();
            let need = (terms.gradient[t] + way)
                .max(terms.activation[k] + self.bytes.behind(k, t))
                .max(self.bytes.before(s, k - 1));
            (First::Checkpoint(k), need)
        });
        save.into_iter().chain(checkpoints)
    }

    /// A schedule of least memory for the whole chain.
    pub(crate) fn schedule(&self, terms: &Terms, choices: Choices) -> Vec<ChainStep> {
        let first = |s, t, _| {
            let best = self.options(terms, choices, s, t).min_by_key(|&(_, need)| need);
            best.expect("a sub-chain of two stages or more has a checkpoint to choose").0
        };
        walk(terms, 0, first)
    }
}

/// Writes out a schedule; `first` says what a sub-chain of at least two stages does first within `m`.
fn walk(terms: &Terms, m: usize, first: impl Fn(StageId, StageId, usize) -> First) -> Vec<ChainStep> {
    enum Task {
        Solve(StageId, StageId, usize),
        Emit(ChainStep),
    }
    let less = |m: usize, bytes: u64| m.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut steps = Vec::new();
    let mut stack = vec![Task::Solve(0, terms.len() - 1, m)];
    while let Some(task) = stack.pop() {
        match task {
            Task::Emit(step) => steps.push(step),
            Task::Solve(s, t, _) if s == t => steps.extend([ChainStep::SaveAll(s), ChainStep::Backward(s)]),
            Task::Solve(s, t, m) => match first(s, t, m) {
                First::Save => {
                    steps.push(ChainStep::SaveAll(s));
                    stack.push(Task::Emit(ChainStep::Backward(s)));
                    stack.push(Task::Solve(s + 1, t, less(m, terms.saved[s])));
                }
                First::Checkpoint(k) => {
                    steps.push(ChainStep::KeepInput(s));
                    steps.extend((s + 1..k).map(ChainStep::Pass));
                    stack.push(Task::Solve(s, k - 1, m));
                    stack.push(Task::Solve(k, t, less(m, terms.activation[k])));
                }
            },
        }
    }
    steps
}

/// Least costs of every sub-chain for every number of memory units, infinite if it does not fit.
pub(crate) struct Table<'a> {
    terms: &'a Terms,
    choices: Choices,
    minimum: Minimum,
    /// Bytes and cost of the run from `s` to each checkpoint: `runs[s][k - s - 1]`.
    runs: Vec<Vec<(u64, f64)>>,
    rows: Tiles,
    limit: usize,
}

impl<'a> Table<'a> {
    /// Fills the table for `0..=limit` units; `None` if `deadline` passes first. `terms` are in units.
    pub(crate) fn fill(
        terms: &'a Terms,
        choices: Choices,
        limit: usize,
        threads: usize,
        deadline: Deadline,
    ) -> Option<Self> {
        let n = terms.len();
        let run = |s| {
            let mut run = Run::from(terms, s);
            (s + 1..n).map(|_| run.step()).map(|(_, way, cost)| (way, cost)).collect()
        };
        let mut table = Self {
            terms,
            choices,
            minimum: Minimum::of(terms, choices, deadline)?,
            runs: (0..n).map(run).collect(),
            rows: Tiles::new(n, 0),
            limit,
        };
        let rows = Tiles::fill(n, limit + 1, threads, deadline, &table)?;
        table.rows = rows;
        Some(table)
    }

    /// The cheapest schedule, or `None` if none fits.
    pub(crate) fn schedule(&self) -> Option<Vec<ChainStep>> {
        self.schedule_within(self.limit)
    }

    /// The cheapest schedule within `units`, at most `limit`; `None` if none fits.
    pub(crate) fn schedule_within(&self, units: usize) -> Option<Vec<ChainStep>> {
        let cost = self.rows.row(0, self.terms.len() - 1)[units];
        cost.is_finite().then(|| walk(self.terms, units, |s, t, m| self.first(s, t, m)))
    }

    /// The cheapest first move, found from the costs by the same sums that made them.
    fn first(&self, s: StageId, t: StageId, m: usize) -> First {
        let terms = self.terms;
        let mut best = (f64::INFINITY, First::Checkpoint(t));
        let mut consider = |cost: f64, first: First| {
            if cost < best.0 {
                best = (cost, first);
            }
        };
        for (first, need) in self.minimum.options(terms, self.choices, s, t).filter(|&(_, need)| need <= m as u64) {
            debug_assert!(need <= m as u64);
            match first {
                First::Save => {
                    let once = terms.forward_cost[s] + terms.backward_cost[s];
                    consider(once + self.rows.row(s + 1, t)[m - terms.saved[s] as usize], first);
                }
                First::Checkpoint(k) => {
                    let left = self.rows.row(k, t)[m - terms.activation[k] as usize];
                    consider(self.runs[s][k - s - 1].1 + left + self.rows.row(s, k - 1)[m], first);
                }
            }
        }
        best.1
    }

    fn fits(&self, need: u64) -> Option<usize> {
        usize::try_from(need).ok().filter(|&need| need <= self.limit)
    }
}

impl Recipe for Table<'_> {
    fn single(&self, s: StageId, row: &mut [f64]) {
        if let Some(need) = self.fits(self.terms.save_need(s, s)) {
            row[need..].fill(self.terms.forward_cost[s] + self.terms.backward_cost[s]);
        }
    }

    fn save(&self, s: StageId, t: StageId, row: &mut [f64], rest: &[f64]) {
        let terms = self.terms;
        if self.choices == Choices::InputsOnly {
            return;
        }
        let need = terms.save_need(s, t).max(terms.saved[s] + self.minimum.get(s + 1, t));
        if let Some(need) = self.fits(need) {
            let once = terms.forward_cost[s] + terms.backward_cost[s];
            let rest = &rest[need - terms.saved[s] as usize..];
            for (cell, &cost) in row[need..].iter_mut().zip(rest) {
                *cell = least(*cell, once + cost);
            }
        }
    }

    fn checkpoint(&self, (s, k, t): (StageId, StageId, StageId), row: &mut [f64], behind: &[f64], before: &[f64]) {
        let terms = self.terms;
        let (way, cost) = self.runs[s][k - s - 1];
        let need = (terms.gradient[t] + way)
            .max(terms.activation[k] + self.minimum.bytes.behind(k, t))
            .max(self.minimum.bytes.before(s, k - 1));
        let Some(start) = self.fits(need) else { return };
        // All three rows fall as memory grows: once this row is down at the least sum, there is nothing to gain.
        let floor = cost + behind[self.limit] + before[self.limit];
        let end = row.partition_point(|&cost| cost > floor);
        if start >= end {
            return;
        }
        let shift = terms.activation[k] as usize;
        let sums = behind[start - shift..end - shift].iter().zip(&before[start..end]);
        for (cell, (behind, before)) in row[start..end].iter_mut().zip(sums) {
            *cell = least(*cell, cost + behind + before);
        }
    }
}

/// The lesser of two numbers, neither of which is NaN: one instruction, which `f64::min` is not.
fn least(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}
