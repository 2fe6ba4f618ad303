//! The tables behind [`chain_dp`](super::chain_dp): least memory and least cost of every sub-chain.
//!
//! The notation is that of `chain_dp`'s header. Both tables hold one entry (a number, or a row of costs per memory
//! unit) for each sub-chain `s..=t`, stored by diagonal `t - s`, because an entry depends on shorter sub-chains only.

use std::time::Instant;

use crate::chain::terms::Terms;
use crate::chain::{ChainStep, StageId};

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

    /// Adds the number of `s..=t`, whose shorter sub-chains are there.
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
    /// Fills the table. O(n³).
    pub(crate) fn of(terms: &Terms, choices: Choices) -> Self {
        let n = terms.len();
        let mut table = Self { bytes: Pairs::new(n) };
        for s in 0..n {
            table.bytes.add(s, s, terms.save_need(s, s));
        }
        for d in 1..n {
            for s in 0..n - d {
                let least = table.options(terms, choices, s, s + d).map(|(_, need)| need).min();
                let least = least.expect("a sub-chain of two stages or more has a checkpoint to choose");
                table.bytes.add(s, s + d, least);
            }
        }
        table
    }

    /// Least memory of `s..=t`.
    pub(crate) fn get(&self, s: StageId, t: StageId) -> u64 {
        self.bytes.before(s, t)
    }

    /// First moves of a sub-chain of at least two stages with the memory that each needs.
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

/// Spells out a schedule; `first` tells what a sub-chain of at least two stages does first within `m`.
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

/// Units per block of a row.
const BLOCK: usize = 16;

/// Rows of costs per memory unit, infinite where a sub-chain does not fit.
pub(super) struct Rows {
    width: usize,
    /// `cells[t - s]` holds the rows of one diagonal, each `width` long.
    cells: Vec<Vec<f64>>,
    /// The last, and so the least, cost of every block of a row, laid out likewise.
    block_floors: Vec<Vec<f64>>,
    /// The least cost of every sub-chain.
    least: Pairs<f64>,
}

/// A row and the least costs of its blocks.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) cells: &'a [f64],
    block_floors: &'a [f64],
}

impl Rows {
    /// Room for rows of `0..=limit` units.
    pub(super) fn new(stages: usize, limit: usize) -> Self {
        Self { width: limit + 1, cells: Vec::new(), block_floors: Vec::new(), least: Pairs::new(stages) }
    }

    /// Costs of `s..=t`.
    pub(super) fn row(&self, s: StageId, t: StageId) -> Row<'_> {
        let blocks = self.width.div_ceil(BLOCK);
        Row {
            cells: &self.cells[t - s][s * self.width..(s + 1) * self.width],
            block_floors: &self.block_floors[t - s][s * blocks..(s + 1) * blocks],
        }
    }

    /// Adds the next diagonal, its rows computed by `fill` on up to `threads` threads.
    pub(super) fn add_diagonal(
        &mut self,
        rows: usize,
        threads: usize,
        fill: impl Fn(&Self, StageId, &mut [f64]) + Sync,
    ) {
        let d = self.cells.len();
        let mut cells = vec![f64::INFINITY; rows * self.width];
        // Below this much work a thread costs more than it brings.
        let threads = if rows * d * self.width < 1 << 17 { 1 } else { threads.clamp(1, rows) };
        let share = rows.div_ceil(threads);
        let fill_share = |(part, chunk): (usize, &mut [f64])| {
            for (k, row) in chunk.chunks_mut(self.width).enumerate() {
                fill(self, part * share + k, row);
            }
        };
        let mut parts = cells.chunks_mut(share * self.width).enumerate();
        let own = parts.next();
        std::thread::scope(|scope| {
            for part in parts {
                scope.spawn(|| fill_share(part));
            }
            own.map(fill_share);
        });
        let last = |block: &[f64]| block[block.len() - 1];
        let floors = cells.chunks(self.width).flat_map(|row| row.chunks(BLOCK).map(last)).collect();
        for (s, row) in cells.chunks(self.width).enumerate() {
            self.least.add(s, s + d, last(row));
        }
        self.cells.push(cells);
        self.block_floors.push(floors);
    }
}

/// Lowers `row[m]` to `constant + left[m - shift] + right[m]` for each `m` from `start` on where that is less. All
/// three fall with `m`; `floor` is a lower bound of the sum. Blocks in which even the least sum is no less than the
/// dearest cell are passed over: nearly all are.
pub(super) fn relax(row: &mut [f64], start: usize, floor: f64, constant: f64, (left, shift): (Row, usize), right: Row) {
    let end = row.partition_point(|&cost| cost > floor);
    let mut from = start;
    while from < end {
        let block = from / BLOCK;
        let to = ((block + 1) * BLOCK).min(end);
        let least = constant + left.block_floors[(to - 1 - shift) / BLOCK] + right.block_floors[block];
        if least < row[from] {
            let left = &left.cells[from - shift..to - shift];
            for ((cell, &a), &b) in row[from..to].iter_mut().zip(left).zip(&right.cells[from..to]) {
                let cost = constant + a + b;
                *cell = if cost < *cell { cost } else { *cell };
            }
        }
        from = to;
    }
}

/// Least costs of every sub-chain for every number of memory units.
pub(crate) struct Table<'a> {
    terms: &'a Terms,
    choices: Choices,
    minimum: Minimum,
    rows: Rows,
    limit: usize,
}

impl<'a> Table<'a> {
    /// Fills the table for `0..=limit` units; `None` where `deadline` passes first. `terms` are in units.
    pub(crate) fn fill(
        terms: &'a Terms,
        choices: Choices,
        limit: usize,
        threads: usize,
        deadline: Instant,
    ) -> Option<Self> {
        let n = terms.len();
        let minimum = Minimum::of(terms, choices);
        let mut table = Self { terms, choices, minimum, rows: Rows::new(n, limit), limit };
        for d in 0..n {
            if Instant::now() >= deadline {
                return None;
            }
            let mut rows = std::mem::replace(&mut table.rows, Rows::new(0, 0));
            rows.add_diagonal(n - d, threads, |rows, s, row| table.fill_row(rows, s, s + d, row));
            table.rows = rows;
        }
        Some(table)
    }

    /// Least cost of the whole chain within `limit` units beside its input; infinite where it does not fit.
    pub(crate) fn cost(&self) -> f64 {
        self.rows.row(0, self.terms.len() - 1).cells[self.limit]
    }

    fn fill_row(&self, rows: &Rows, s: StageId, t: StageId, row: &mut [f64]) {
        let (terms, limit) = (self.terms, self.limit);
        let once = terms.forward_cost[s] + terms.backward_cost[s];
        let fits = |need: u64| usize::try_from(need).ok().filter(|&need| need <= limit);
        if s == t {
            if let Some(need) = fits(terms.save_need(s, s)) {
                row[need..].fill(once);
            }
            return;
        }
        if self.choices == Choices::SavedAndInputs {
            let need = terms.save_need(s, t).max(terms.saved[s] + self.minimum.get(s + 1, t));
            if let Some(need) = fits(need) {
                let shift = terms.saved[s] as usize;
                let rest = &rows.row(s + 1, t).cells[need - shift..=limit - shift];
                for (cell, cost) in row[need..].iter_mut().zip(rest) {
                    *cell = once + cost;
                }
            }
        }
        let mut run = Run::from(terms, s);
        for _ in s..t {
            let (k, way, cost) = run.step();
            let Some(way) = fits(terms.gradient[t] + way) else { break };
            let after = terms.activation[k] + self.minimum.bytes.behind(k, t);
            let Some(after) = fits(after.max(self.minimum.bytes.before(s, k - 1))) else { continue };
            let floor = cost + rows.least.behind(k, t) + rows.least.before(s, k - 1);
            let start = way.max(after);
            if row[start] <= floor {
                continue;
            }
            let shift = terms.activation[k] as usize;
            let (left, right) = (rows.row(k, t), rows.row(s, k - 1));
            relax(row, start, floor, cost, (left, shift), right);
        }
    }

    /// The cheapest schedule, or `None` where none fits.
    pub(crate) fn schedule(&self) -> Option<Vec<ChainStep>> {
        self.cost().is_finite().then(|| walk(self.terms, self.limit, |s, t, m| self.first(s, t, m)))
    }

    /// The cheapest first move: the costs tell, by the same sums that made them.
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
                    consider(once + self.rows.row(s + 1, t).cells[m - terms.saved[s] as usize], first);
                }
                First::Checkpoint(k) => {
                    let way: f64 = terms.forward_cost[s..k].iter().sum();
                    let left = self.rows.row(k, t).cells[m - terms.activation[k] as usize];
                    consider(way + left + self.rows.row(s, k - 1).cells[m], first);
                }
            }
        }
        best.1
    }
}
