//! A chain whose stages offer several saved sets, by dynamic programming.
//!
//! Problem: as in [`chain_persistent`](super::chain_persistent), but a stage that saves also chooses what to save (see
//! [`stage_options`](crate::views::stage_options)).
//!
//! Method: `C(s, t, m)` as there, with one more minimum: over the options of `s` if it saves. Two things differ:
//!
//! 1. *Equal runs of stages share a row.* Bytes are counted from what the backward side holds before the backward ops of
//!    `s`; then a row depends only on the classes of the stages `s..=t`. A network of a hundred equal blocks has about a
//!    hundred rows instead of five thousand.
//! 2. *Sizes are rounded to the nearest unit*, and the view may count a value twice: so a row's units guarantee nothing.
//!    Bisection finds the most units for which the schedule's plan fits the budget on the graph itself.
//!
//! Invariants: a plan is returned only if its peak, by simulation, is within the budget.
//!
//! Complexity: O(r · n · units) time for r distinct runs of stages, r ≤ n²/2.
//!
//! Source: Beaumont et al. (RR-9302) for the recursion, Rockmate (Zhao et al. 2023) for the options. Departures: rows by
//! class, sizes relative to the backward side, units by bisection.

use std::collections::HashMap;

use crate::allowance::Allowance;
use crate::chain::StageId;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::planner::Request;
use crate::simulate::simulate;
use crate::views::stage_options::{OptionStep, OptionView};

/// Memory units of a row, at most and at least.
const UNITS: (usize, usize) = (2000, 400);
/// Work of a table: stages times units of all rows.
const MOST_WORK: usize = 100_000_000;
/// How far above the budget a table goes, since a view may count more than there is.
const SLACK: f64 = 1.5;
/// The most stages that an option may take as one: a view's counts for several stages are less exact.
const TOGETHER: [usize; 2] = [usize::MAX, 1];
/// The most plans of a table that are tried: twice what bisection takes.
const ROUNDS: usize = 22;

/// The cheapest plan within the request's budget that any view gives within the request's other limits.
pub(super) fn best_plan(graph: &Graph, request: &Request) -> Option<Plan> {
    let allowance = request.allowance();
    let deadline = allowance.deadline;
    let bytes_for_values = request.budget.saturating_sub(graph.constant_bytes());
    let mut best: Option<(f64, Plan)> = None;
    for view in OptionView::candidates(graph, deadline).iter().filter(|view| view.len() > 1) {
        if deadline.passed() {
            break;
        }
        let most = view.options.iter().flatten().map(|option| option.stages).max().unwrap_or(1);
        for &together in TOGETHER.iter().filter(|&&together| together < most || together > 1) {
            let Some(table) = Table::fill(view, together, bytes_for_values, allowance) else { continue };
            if let Some(found) = table.most_that_fits(graph, request.budget) {
                log::debug!("{} stages, {} rows: {}", view.len(), table.rows.len(), found.0);
                if best.as_ref().is_none_or(|best| found.0 < best.0) {
                    best = Some(found);
                }
            }
        }
    }
    best.map(|(_, plan)| plan)
}

/// What a run of stages does first.
#[derive(Clone, Copy, Debug)]
enum First {
    /// The first stage, or the first few, saves by this option.
    Save(usize),
    /// Runs forward to this checkpoint.
    Checkpoint(StageId),
}

struct Table<'a> {
    view: &'a OptionView,
    together: usize,
    unit: f64,
    limit: usize,
    /// Row of each run of stages: `row_of[s][t - s]`.
    row_of: Vec<Vec<usize>>,
    rows: Vec<Vec<f64>>,
}

impl<'a> Table<'a> {
    /// Fills the table; `None` if time runs out first or it would be too large.
    fn fill(view: &'a OptionView, together: usize, budget: u64, allowance: Allowance) -> Option<Self> {
        let n = view.len();
        let cells = usize::try_from(allowance.memory / size_of::<f64>() as u64).unwrap_or(usize::MAX);
        let units_of = |rows: usize| (MOST_WORK / (rows * n).max(1)).min(cells / rows.max(1)).min(UNITS.0);
        // There are at least as many rows as lengths of runs.
        if units_of(n) < UNITS.1 {
            return None;
        }
        let (row_of, starts) = rows_by_class(&view.class);
        let units = units_of(starts.len());
        if units < UNITS.1 {
            return None;
        }
        // More than what holds everything is of no use.
        let saved: u64 = view.options.iter().map(|options| options[0].saved).sum();
        let during = view.options.iter().map(|options| options[0].backward_bytes + options[0].save_scratch).max();
        let whole = saved + during.unwrap_or(0) + view.gradient[n - 1];
        let most = ((budget as f64 * SLACK).min(whole as f64)).max(1.0);
        let unit = most / units as f64;
        let mut table = Self { view, together, unit, limit: units, row_of, rows: Vec::with_capacity(starts.len()) };
        for (s, t) in starts {
            if allowance.deadline.passed() {
                return None;
            }
            let mut row = vec![f64::INFINITY; units + 1];
            table.each_move(s, t, |need, cost, parts, _| relax(&mut row, need, cost, parts));
            table.rows.push(row);
        }
        Some(table)
    }

    fn row(&self, s: StageId, t: StageId) -> &[f64] {
        &self.rows[self.row_of[s][t - s]]
    }

    /// Bytes in units, to the nearest; negative where the backward side shrinks.
    fn units(&self, bytes: i128) -> i64 {
        // Half the range is enough for any graph, and is much faster to convert.
        let bytes = bytes.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        (bytes as f64 / self.unit).round() as i64
    }

    /// What the backward side holds at `t` beyond what it holds at `s`.
    fn beyond(&self, t: StageId, s: StageId) -> i128 {
        i128::from(self.view.gradient[t]) - i128::from(self.view.gradient[s])
    }

    /// All first moves of `s..=t`: units needed, cost, and the rows that follow, each with how many units fewer it has.
    fn each_move(&self, s: StageId, t: StageId, mut see: impl FnMut(i64, f64, &[(&[f64], i64)], First)) {
        let view = self.view;
        for (number, option) in view.options[s].iter().enumerate() {
            if option.stages > self.together.min(t + 1 - s) {
                continue;
            }
            let behind = s + option.stages;
            let saved = i128::from(option.saved);
            let forward = self.beyond(t, s) + i128::from(option.save_scratch);
            let backward = i128::from(option.backward_bytes) - i128::from(view.gradient[s]);
            let need = self.units(saved + forward.max(backward));
            let cost = view.forward_cost[s..behind].iter().sum::<f64>() + option.backward_cost;
            if behind > t {
                see(need, cost, &[], First::Save(number));
            } else {
                let less = self.units(saved + self.beyond(behind, s));
                see(need, cost, &[(self.row(behind, t), less)], First::Save(number));
            }
        }
        let (mut way, mut cost) = (0_u64, 0.0);
        for k in s + 1..=t {
            let carried = if k - 1 == s { 0 } else { view.activation[k - 1] };
            way = way.max(carried + view.activation[k] + view.pass_scratch[k - 1]);
            cost += view.forward_cost[k - 1];
            let need = self.units(self.beyond(t, s) + i128::from(way));
            let less = self.units(i128::from(view.activation[k]) + self.beyond(k, s));
            see(need, cost, &[(self.row(k, t), less), (self.row(s, k - 1), 0)], First::Checkpoint(k));
        }
    }

    /// The cheapest schedule within `units`.
    fn schedule(&self, units: usize) -> Option<Vec<OptionStep>> {
        enum Task {
            Solve(StageId, StageId, i64),
            Emit(OptionStep),
        }
        let n = self.view.len();
        let mut steps = Vec::new();
        let mut stack = vec![Task::Solve(0, n - 1, units as i64)];
        while let Some(task) = stack.pop() {
            let (s, t, m) = match task {
                Task::Emit(step) => {
                    steps.push(step);
                    continue;
                }
                Task::Solve(s, t, m) => (s, t, m.min(self.limit as i64)),
            };
            let mut best = (f64::INFINITY, First::Save(0), 0);
            self.each_move(s, t, |need, cost, parts, first| {
                let part = |&(row, less): &(&[f64], i64)| at(row, m - less);
                let cost = cost + parts.iter().map(part).sum::<f64>();
                if need <= m && cost < best.0 {
                    best = (cost, first, parts.first().map_or(0, |part| part.1));
                }
            });
            match best {
                (cost, ..) if cost.is_infinite() => return None,
                (_, First::Save(option), less) => {
                    let behind = s + self.view.options[s][option].stages;
                    steps.extend((s..behind).map(OptionStep::Forward));
                    stack.push(Task::Emit(OptionStep::Backward(s, option)));
                    if behind <= t {
                        stack.push(Task::Solve(behind, t, m - less));
                    }
                }
                (_, First::Checkpoint(k), less) => {
                    steps.extend((s..k).map(OptionStep::Forward));
                    stack.push(Task::Solve(s, k - 1, m));
                    stack.push(Task::Solve(k, t, m - less));
                }
            }
        }
        Some(steps)
    }

    /// The cheapest plan seen while looking for the most units whose plan has a peak within `budget`. The next units to try
    /// follow from the last plan's distance from the budget, or are in the middle if that brings little.
    fn most_that_fits(&self, graph: &Graph, budget: u64) -> Option<(f64, Plan)> {
        let row = self.row(0, self.view.len() - 1);
        let mut low = row.partition_point(|cost| cost.is_infinite()) as i64;
        let mut high = self.limit as i64;
        let bytes_for_values = budget.saturating_sub(graph.constant_bytes());
        let mut guess = Some(self.units(i128::from(bytes_for_values) - i128::from(self.view.gradient[0])));
        let mut best: Option<(f64, Plan)> = None;
        for _ in 0..ROUNDS {
            if low > high {
                break;
            }
            let units = guess.map_or(low + (high - low) / 2, |guess| guess.clamp(low, high));
            let Some(steps) = self.schedule(units as usize) else { break };
            let plan = self.view.plan(graph, &steps);
            let timeline = simulate(graph, &plan);
            let left = i128::from(budget) - i128::from(timeline.peak_bytes);
            let width = high - low;
            if left < 0 {
                high = units - 1;
            } else {
                low = units + 1;
                if best.as_ref().is_none_or(|best| timeline.makespan < best.0) {
                    best = Some((timeline.makespan, plan));
                }
            }
            let brings_little = guess.is_some() && (high - low) * 2 > width;
            guess = (!brings_little).then(|| units + (left as f64 / self.unit).floor() as i64);
        }
        best
    }
}

/// A cell of a row; more than the limit is no better than the limit.
fn at(row: &[f64], units: i64) -> f64 {
    usize::try_from(units).map_or(f64::INFINITY, |units| row[units.min(row.len() - 1)])
}

/// Lowers `row` to `cost` plus the parts where all of them exist.
fn relax<'a>(row: &mut [f64], need: i64, cost: f64, parts: &[(&'a [f64], i64)]) {
    let start = parts.iter().map(|part| part.1).fold(need, i64::max).max(0);
    let Ok(start) = usize::try_from(start) else { return };
    let last = row.len() - 1;
    if start > last {
        return;
    }
    let floor = cost + parts.iter().map(|&(part, less)| at(part, last as i64 - less)).sum::<f64>();
    let end = row.partition_point(|&known| known > floor);
    if start >= end {
        return;
    }
    // The cells of a part from `start` on, where all of them lie within its row.
    let slice = |&(part, less): &(&'a [f64], i64)| -> Option<&'a [f64]> {
        let less = usize::try_from(less).ok()?;
        part.get(start - less..end - less)
    };
    let cells = &mut row[start..end];
    match parts.iter().map(slice).collect::<Option<Vec<_>>>().as_deref() {
        Some([]) => cells.iter_mut().for_each(|cell| *cell = least(*cell, cost)),
        Some([one]) => cells.iter_mut().zip(*one).for_each(|(cell, one)| *cell = least(*cell, cost + one)),
        Some([one, two]) => {
            for ((cell, one), two) in cells.iter_mut().zip(*one).zip(*two) {
                *cell = least(*cell, cost + one + two);
            }
        }
        _ => {
            for (m, cell) in cells.iter_mut().enumerate() {
                let part = |&(part, less): &(&[f64], i64)| at(part, (start + m) as i64 - less);
                *cell = least(*cell, cost + parts.iter().map(part).sum::<f64>());
            }
        }
    }
}

/// The lesser of two numbers, neither of which is NaN.
fn least(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

/// A number for every run of stages, equal for equal classes, and a run for each number, the shorter ones first.
fn rows_by_class(class: &[usize]) -> (Vec<Vec<usize>>, Vec<(StageId, StageId)>) {
    let n = class.len();
    let mut number_of: HashMap<(usize, usize), usize> = HashMap::new();
    let mut starts = Vec::new();
    let mut row_of: Vec<Vec<usize>> = vec![Vec::with_capacity(n); n];
    for length in 0..n {
        for (s, rows) in row_of.iter_mut().enumerate().take(n - length) {
            let t = s + length;
            // A run is identified by the run without its last stage and by that stage's class; a run of one stage by its class.
            let before = rows.last().copied().unwrap_or(usize::MAX);
            let next = starts.len();
            let number = *number_of.entry((before, class[t])).or_insert(next);
            if number == next {
                starts.push((s, t));
            }
            rows.push(number);
        }
    }
    (row_of, starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_runs_of_stages_share_a_row() {
        // One head, four equal stages, one tail: 4 runs inside, 4 from the head, 4 to the tail, 1 whole, and two ends.
        let (row_of, starts) = rows_by_class(&[0, 1, 1, 1, 1, 2]);
        assert_eq!(starts.len(), 4 + 4 + 4 + 1 + 2);
        assert_eq!(row_of[1][2], row_of[2][2]);
        assert!(row_of[0][2] != row_of[1][2] && row_of[3][2] != row_of[2][2]);
        // Every run that a row is made of has a smaller number.
        for (number, &(s, t)) in starts.iter().enumerate() {
            assert!((s + 1..=t).all(|k| row_of[k][t - k] < number && row_of[s][k - 1 - s] < number));
        }
    }
}
