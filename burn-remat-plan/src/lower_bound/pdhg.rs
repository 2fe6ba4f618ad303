//! A first-order method for `min c x, A x >= b, 0 <= x <= 1`, designed to find good multipliers rather than a solution.
//!
//! Primal-dual hybrid gradient with diagonal step sizes (Pock & Chambolle 2011), restarts at the average and a primal
//! weight that balances the two step lengths (as in PDLP, Applegate et al. 2021). Departure: only the dual bound at
//! the visited and averaged multipliers is reported.
//!
//! Complexity: two passes over the non-zeros per iteration.
//!
//! Larger than the rule: `solve`, because it is one loop in which every number depends on all others.

use crate::deadline::Deadline;

/// One row under construction.
#[derive(Default)]
pub(super) struct Row {
    entries: Vec<(u32, f64)>,
}

impl Row {
    pub fn push(&mut self, column: u32, factor: f64) {
        self.entries.push((column, factor));
    }
}

/// The linear program.
#[derive(Default)]
pub(super) struct Program {
    cost: Vec<f64>,
    right: Vec<f64>,
    starts: Vec<usize>,
    columns: Vec<u32>,
    factors: Vec<f64>,
}

impl Program {
    pub fn column(&mut self, cost: f64) -> u32 {
        self.cost.push(cost);
        self.cost.len() as u32 - 1
    }

    /// Adds `row >= right`, scaled so that its largest factor is 1.
    pub fn row(&mut self, row: Row, right: f64) {
        let scale = row.entries.iter().map(|&(_, factor)| factor.abs()).fold(0.0, f64::max);
        if scale == 0.0 {
            return;
        }
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        for (column, factor) in row.entries {
            self.columns.push(column);
            self.factors.push(factor / scale);
        }
        self.starts.push(self.columns.len());
        self.right.push(right / scale);
    }

    /// Adds the row that the sum of `items`, each with its factor, is at most `most`. Numbers that a float cannot
    /// represent are rounded so that the row demands less.
    pub fn at_most(&mut self, items: &[(u32, u64)], most: i128) {
        let mut row = Row::default();
        for &(column, factor) in items {
            let near = factor as f64;
            row.push(column, -if near as u128 > u128::from(factor) { near.next_down() } else { near });
        }
        let near = most as f64;
        self.row(row, -if (near as i128) < most { near.next_up() } else { near });
    }

    pub fn entries(&self) -> usize {
        self.columns.len()
    }
}

/// A matrix by rows.
struct Sparse {
    starts: Vec<usize>,
    columns: Vec<u32>,
    factors: Vec<f64>,
}

impl Sparse {
    fn product(&self, row: usize, x: &[f64]) -> f64 {
        let range = self.starts[row]..self.starts[row + 1];
        self.columns[range.clone()].iter().zip(&self.factors[range]).map(|(&c, f)| f * x[c as usize]).sum()
    }

    /// The product and the sum of the magnitudes of its terms.
    fn product_with_magnitude(&self, row: usize, x: &[f64]) -> (f64, f64) {
        let range = self.starts[row]..self.starts[row + 1];
        let terms = self.columns[range.clone()].iter().zip(&self.factors[range]).map(|(&c, f)| f * x[c as usize]);
        terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
    }

    fn magnitude(&self, row: usize) -> f64 {
        self.factors[self.starts[row]..self.starts[row + 1]].iter().map(|f| f.abs()).sum()
    }

    fn transposed(&self, columns: usize) -> Self {
        let mut starts = vec![0; columns + 1];
        for &column in &self.columns {
            starts[column as usize + 1] += 1;
        }
        for column in 0..columns {
            starts[column + 1] += starts[column];
        }
        let mut next = starts.clone();
        let (mut rows, mut factors) = (vec![0; self.columns.len()], vec![0.0; self.columns.len()]);
        for row in 0..self.starts.len() - 1 {
            for entry in self.starts[row]..self.starts[row + 1] {
                let to = &mut next[self.columns[entry] as usize];
                (rows[*to], factors[*to]) = (row as u32, self.factors[entry]);
                *to += 1;
            }
        }
        Self { starts, columns: rows, factors }
    }
}

/// What a [`Solver`] found.
pub(super) struct Solved {
    /// No solution costs less.
    pub bound: f64,
    /// A solution that roughly matches the bound.
    pub solution: Vec<f64>,
    /// The multipliers that prove the bound.
    multipliers: Vec<f64>,
}

pub(super) struct Solver {
    by_row: Sparse,
    by_column: Sparse,
    cost: Vec<f64>,
    right: Vec<f64>,
    /// What one unit of `cost` stands for.
    unit: f64,
    primal_step: Vec<f64>,
    dual_step: Vec<f64>,
}

struct Point {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Point {
    fn distance(&self, other: &Self, dual: bool) -> f64 {
        let (a, b) = if dual { (&self.y, &other.y) } else { (&self.x, &other.x) };
        a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
    }
}

/// How many entries are processed between two readings of the clock.
const CLOCK: usize = 30_000;

impl Solver {
    pub fn new(program: &Program) -> Self {
        let starts = if program.starts.is_empty() { vec![0] } else { program.starts.clone() };
        let by_row = Sparse { starts, columns: program.columns.clone(), factors: program.factors.clone() };
        let by_column = by_row.transposed(program.cost.len());
        let priced: Vec<f64> = program.cost.iter().copied().filter(|&c| c > 0.0).collect();
        let unit = if priced.is_empty() { 1.0 } else { priced.iter().sum::<f64>() / priced.len() as f64 };
        let step = |magnitude: f64| if magnitude > 0.0 { 1.0 / magnitude } else { 1.0 };
        Self {
            primal_step: (0..program.cost.len()).map(|column| step(by_column.magnitude(column))).collect(),
            dual_step: (0..program.right.len()).map(|row| step(by_row.magnitude(row))).collect(),
            cost: program.cost.iter().map(|c| c / unit).collect(),
            right: program.right.clone(),
            unit,
            by_row,
            by_column,
        }
    }

    /// The bound that multipliers `y` prove, in the program's unit of cost.
    fn bound(&self, y: &[f64]) -> f64 {
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for (y, right) in y.iter().zip(&self.right) {
            sum += y * right;
            magnitude += (y * right).abs();
        }
        for (column, cost) in self.cost.iter().enumerate() {
            let (price, terms) = self.by_column.product_with_magnitude(column, y);
            sum -= (price - cost).max(0.0);
            magnitude += terms + cost;
        }
        (sum - 1e-9 * magnitude) * self.unit
    }

    /// For each column, how much larger [`Solved::bound`] would be if the column were zero. Several columns add up.
    pub fn regrets(&self, solved: &Solved) -> Vec<f64> {
        let regret = |(column, cost): (usize, &f64)| {
            let (price, terms) = self.by_column.product_with_magnitude(column, &solved.multipliers);
            (price - cost - 1e-9 * (terms + cost)).max(0.0) * self.unit
        };
        self.cost.iter().enumerate().map(regret).collect()
    }

    /// How far a point is from optimal: violation and gap, weighted.
    fn error(&self, point: &Point, bound: f64, weight: f64) -> f64 {
        let violation: f64 = (0..self.right.len())
            .map(|row| (self.right[row] - self.by_row.product(row, &point.x)).max(0.0).powi(2))
            .sum();
        let value: f64 = self.cost.iter().zip(&point.x).map(|(c, x)| c * x).sum();
        let gap = value - bound / self.unit;
        (weight * weight * violation + gap * gap).sqrt()
    }

    fn iterate(&self, point: &mut Point, ahead: &mut [f64], weight: f64) {
        for (column, x) in point.x.iter_mut().enumerate() {
            let slope = self.cost[column] - self.by_column.product(column, &point.y);
            let new = (*x - self.primal_step[column] / weight * slope).clamp(0.0, 1.0);
            ahead[column] = 2.0 * new - *x;
            *x = new;
        }
        for (row, y) in point.y.iter_mut().enumerate() {
            let slope = self.right[row] - self.by_row.product(row, ahead);
            *y = (*y + self.dual_step[row] * weight * slope).max(0.0);
        }
    }

    /// The best bound found in `iterations` iterations, or until `deadline`, or until it reaches `enough`.
    pub fn solve(&self, iterations: u64, deadline: Deadline, enough: f64) -> Solved {
        let mut point = Point { x: vec![0.0; self.cost.len()], y: vec![0.0; self.right.len()] };
        let mut origin = Point { x: point.x.clone(), y: point.y.clone() };
        let mut sum = Point { x: point.x.clone(), y: point.y.clone() };
        let mut ahead = point.x.clone();
        let (mut best, mut weight, mut count) = (0.0f64, 1.0f64, 0u64);
        let (mut error_at_restart, mut last_error) = (f64::INFINITY, f64::INFINITY);
        let (mut done, mut stale, mut since_clock) = (0, 0, 0);
        let (mut solution, mut multipliers) = (point.x.clone(), point.y.clone());
        while done < iterations && best < enough && stale < 60 {
            for step in 0..40 {
                // Iterations over many entries take a while.
                if step > 0 && since_clock > CLOCK {
                    since_clock = 0;
                    if deadline.passed() {
                        break;
                    }
                }
                since_clock += self.by_row.columns.len();
                self.iterate(&mut point, &mut ahead, weight);
                point.x.iter().zip(&mut sum.x).for_each(|(x, sum)| *sum += x);
                point.y.iter().zip(&mut sum.y).for_each(|(y, sum)| *sum += y);
                count += 1;
                done += 1;
            }
            let mean = |sum: &[f64]| -> Vec<f64> { sum.iter().map(|s| s / count as f64).collect() };
            let average = Point { x: mean(&sum.x), y: mean(&sum.y) };
            let (here, there) = (self.bound(&point.y), self.bound(&average.y));
            let new = best.max(here).max(there);
            stale = if new > best + 1e-5 * self.unit.max(best) { 0 } else { stale + 1 };
            if new > best {
                multipliers.clone_from(if here >= there { &point.y } else { &average.y });
            }
            best = new;
            let (error_here, error_there) = (self.error(&point, here, weight), self.error(&average, there, weight));
            let to_average = error_there < error_here;
            let error = error_here.min(error_there);
            solution.clone_from(if to_average { &average.x } else { &point.x });
            if deadline.passed() {
                break;
            }
            let restart = error < 0.2 * error_at_restart
                || error < 0.8 * error_at_restart && error > last_error
                || count * 3 > done;
            last_error = error;
            if restart && count >= 80 {
                if to_average {
                    point = average;
                }
                let (dx, dy) = (point.distance(&origin, false), point.distance(&origin, true));
                if dx > 1e-12 && dy > 1e-12 {
                    weight = (0.5 * (dy / dx).ln() + 0.5 * weight.ln()).exp().clamp(1e-5, 1e5);
                }
                origin = Point { x: point.x.clone(), y: point.y.clone() };
                sum.x.fill(0.0);
                sum.y.fill(0.0);
                count = 0;
                error_at_restart = error;
                last_error = f64::INFINITY;
            }
        }
        Solved { bound: best, solution, multipliers }
    }
}
