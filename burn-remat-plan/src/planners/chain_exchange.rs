//! Chain schedules that may release a checkpoint early, by dynamic programming.
//!
//! Problem: as in [`chain_persistent`](super::chain_persistent), but a checkpoint need not last until its backward use.
//! Once the far end of a chain is done, more memory is free than before, and another place for the checkpoint may be better;
//! figure 2 of the report shows a chain on which such a schedule beats every persistent one.
//!
//! Method: `C(s, t, m)` as there, and `X(s, r, t, m)`: the same with the input of `r > s` held as part of `m`,
//! and free to be released. `X` is the least of
//!
//! - *keep*: `C(r, t, m - activation r) + C(s, r-1, m)`, as in a persistent schedule;
//! - *again* at `p > r`: run from `r` to `p`, `C(p, t, m - activation r - activation p)`, then `X(s, r, p-1, m)`;
//! - *exchange* for `p > r`: run from `r` to `p` and release `r`, `C(p, t, m - activation p) + C(s, p-1, m)`.
//!
//! In `C`, the option of a checkpoint at `r` becomes the run to `r` followed by `X(s, r, t, m)`. Sub-problems of `C` use
//! `C` again, so exchanges nest.
//!
//! Invariants: never costs more than the persistent optimum at the same units, since *keep* is that option. Only the rows
//! `X` of one `s` are held at a time; the walk back computes them again.
//!
//! Complexity: O(n⁴ · units) time, 4 · n² · units · 2 numbers; longer chains are planned in groups of stages.
//!
//! Source: this project; the recursion is that of Beaumont et al. (RR-9302, Theorem 1) with one more state.
//!
//! Larger than the rule: `schedule`, because it is one table of the moves in the recurrence above.

use crate::deadline::Deadline;

use super::chain_table::Run;
use crate::chain::terms::Terms;
use crate::chain::{ChainStep, StageId};

/// Costs per unit of memory.
type Row = Vec<f64>;

/// What a state does first; `None` is a chain of one stage.
#[derive(Clone, Copy, Debug)]
enum Move {
    Save,
    Checkpoint(StageId),
    Keep,
    Again(StageId),
    Exchange(StageId),
}

/// The tables. `terms` are in units.
pub(super) struct Exchange<'a> {
    terms: &'a Terms,
    limit: usize,
    /// `chains[s][t - s]`.
    chains: Vec<Vec<Row>>,
    deadline: Deadline,
}

/// Rows `X(s, r, t)` of one `s`: `[r - s - 1][t - r]`.
type Held = Vec<Vec<Row>>;

/// Lowers `row[m]` to `constant + Σ part[m - shift]` where all parts exist.
fn relax(row: &mut [f64], need: u64, constant: f64, parts: [(&Row, u64); 2]) {
    let shift = parts.iter().map(|part| part.1).max().unwrap_or(0);
    let Ok(start) = usize::try_from(need.max(shift)) else { return };
    for (m, cell) in row.iter_mut().enumerate().skip(start) {
        let cost = constant + parts[0].0[m - parts[0].1 as usize] + parts[1].0[m - parts[1].1 as usize];
        if cost < *cell {
            *cell = cost;
        }
    }
}

impl<'a> Exchange<'a> {
    /// Fills the tables; `None` if `deadline` passes first.
    pub(super) fn fill(terms: &'a Terms, limit: usize, deadline: Deadline) -> Option<Self> {
        let n = terms.len();
        let mut tables = Self { terms, limit, chains: vec![Vec::new(); n], deadline };
        for s in (0..n).rev() {
            tables.fill_start(s)?;
        }
        Some(tables)
    }

    /// The most memory units for which the tables of this many stages take no more than `memory` bytes.
    pub(super) fn units_within(stages: usize, memory: u64) -> u64 {
        // Rows of both kinds, and a few in use.
        let rows = (stages * (stages + 1) + 8) as u64;
        (memory / size_of::<f64>() as u64 / rows).saturating_sub(1)
    }

    fn chain(&self, s: StageId, t: StageId) -> &Row {
        &self.chains[s][t - s]
    }

    /// Fills all `C(s, t)` of one `s` and returns the rows `X(s, ..)` that they come from. Existing rows are computed again.
    fn fill_start(&mut self, s: StageId) -> Option<Held> {
        let n = self.terms.len();
        self.chains[s].clear();
        let mut held: Held = vec![Vec::new(); n - s - 1];
        for t in s..n {
            if self.deadline.passed() {
                return None;
            }
            for r in s + 1..=t {
                let mut row = vec![f64::INFINITY; self.limit + 1];
                self.each_held_move(s, r, t, &held, |need, constant, parts, _| relax(&mut row, need, constant, parts));
                held[r - s - 1].push(row);
            }
            let mut row = vec![f64::INFINITY; self.limit + 1];
            if s == t {
                let need = usize::try_from(self.terms.save_need(s, s)).unwrap_or(usize::MAX).min(row.len());
                row[need..].fill(self.terms.forward_cost[s] + self.terms.backward_cost[s]);
            } else {
                self.each_move(s, t, &held, |need, constant, parts, _| relax(&mut row, need, constant, parts));
            }
            self.chains[s].push(row);
        }
        Some(held)
    }

    /// All moves of `C(s, t)` for `s < t`.
    fn each_move(&self, s: StageId, t: StageId, held: &Held, mut see: impl FnMut(u64, f64, [(&Row, u64); 2], Move)) {
        let terms = self.terms;
        let nothing = vec![0.0; self.limit + 1];
        let once = terms.forward_cost[s] + terms.backward_cost[s];
        let parts = [(self.chain(s + 1, t), terms.saved[s]), (&nothing, 0)];
        see(terms.save_need(s, t), once, parts, Move::Save);
        let mut run = Run::from(terms, s);
        for _ in s..t {
            let (r, way, cost) = run.step();
            let parts = [(&held[r - s - 1][t - r], 0), (&nothing, 0)];
            see(terms.gradient[t] + way, cost, parts, Move::Checkpoint(r));
        }
    }

    /// All moves of `X(s, r, t)`.
    fn each_held_move(
        &self,
        s: StageId,
        r: StageId,
        t: StageId,
        held: &Held,
        mut see: impl FnMut(u64, f64, [(&Row, u64); 2], Move),
    ) {
        let terms = self.terms;
        let before = |p: StageId| &self.chains[s][p - 1 - s];
        see(0, 0.0, [(self.chain(r, t), terms.activation[r]), (before(r), 0)], Move::Keep);
        let mut run = Run::from(terms, r);
        let mut passing = 0;
        for _ in r..t {
            let (p, way, cost) = run.step();
            passing = terms.transit(p - 1).max(passing);
            let way = terms.gradient[t] + terms.activation[r] + way;
            let both = terms.activation[r] + terms.activation[p];
            see(way, cost, [(self.chain(p, t), both), (&held[r - s - 1][p - 1 - r], 0)], Move::Again(p));
            let parts = [(self.chain(p, t), terms.activation[p]), (before(p), 0)];
            see(terms.gradient[t] + passing, cost, parts, Move::Exchange(p));
        }
    }

    /// The cheapest schedule, or `None` if none fits or time is up.
    pub(super) fn schedule(mut self) -> Option<Vec<ChainStep>> {
        enum Task {
            Chain(StageId, StageId, usize),
            Held(StageId, StageId, StageId, usize),
            Emit(ChainStep),
        }
        let terms = self.terms;
        let n = terms.len();
        if !self.chain(0, n - 1)[self.limit].is_finite() {
            return None;
        }
        let mut rows: (StageId, Held) = (0, self.fill_start(0)?);
        let mut steps = Vec::new();
        let mut stack = vec![Task::Chain(0, n - 1, self.limit)];
        while let Some(task) = stack.pop() {
            let (s, m) = match task {
                Task::Emit(step) => {
                    steps.push(step);
                    continue;
                }
                Task::Chain(s, t, _) if s == t => {
                    steps.extend([ChainStep::SaveAll(s), ChainStep::Backward(s)]);
                    continue;
                }
                Task::Chain(s, _, m) | Task::Held(s, _, _, m) => (s, m),
            };
            if rows.0 != s {
                // Free the rows of another start first: there is memory for one start only.
                rows.1 = Vec::new();
                rows = (s, self.fill_start(s)?);
            }
            let mut best = (f64::INFINITY, Move::Save);
            let mut see = |need: u64, constant: f64, parts: [(&Row, u64); 2], first: Move| {
                if need.max(parts[0].1).max(parts[1].1) <= m as u64 {
                    let cost = parts.iter().fold(constant, |sum, (row, shift)| sum + row[m - *shift as usize]);
                    if cost < best.0 {
                        best = (cost, first);
                    }
                }
            };
            let less = |bytes: u64| m.saturating_sub(bytes as usize);
            match task {
                Task::Chain(_, t, _) => {
                    self.each_move(s, t, &rows.1, &mut see);
                    match best.1 {
                        Move::Checkpoint(r) => {
                            steps.push(ChainStep::KeepInput(s));
                            steps.extend((s + 1..r).map(ChainStep::Pass));
                            stack.push(Task::Held(s, r, t, m));
                        }
                        _ => {
                            steps.push(ChainStep::SaveAll(s));
                            stack.push(Task::Emit(ChainStep::Backward(s)));
                            stack.push(Task::Chain(s + 1, t, less(terms.saved[s])));
                        }
                    }
                }
                Task::Held(_, r, t, _) => {
                    self.each_held_move(s, r, t, &rows.1, &mut see);
                    match best.1 {
                        Move::Again(p) => {
                            steps.push(ChainStep::KeepInput(r));
                            steps.extend((r + 1..p).map(ChainStep::Pass));
                            stack.push(Task::Held(s, r, p - 1, m));
                            stack.push(Task::Chain(p, t, less(terms.activation[r] + terms.activation[p])));
                        }
                        Move::Exchange(p) => {
                            steps.extend((r..p).map(ChainStep::Pass));
                            stack.push(Task::Chain(s, p - 1, m));
                            stack.push(Task::Chain(p, t, less(terms.activation[p])));
                        }
                        _ => {
                            stack.push(Task::Chain(s, r - 1, m));
                            stack.push(Task::Chain(r, t, less(terms.activation[r])));
                        }
                    }
                }
                Task::Emit(_) => {}
            }
        }
        Some(steps)
    }
}
