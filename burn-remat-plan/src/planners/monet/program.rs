//! A mixed integer program under construction: columns, rows, and constants folded away.

use crate::planners::checkmate::model::{Column, Row, Term};
use crate::planners::checkmate::solver::Program as Solvable;

/// Minimize the columns' costs subject to the rows.
pub(super) struct Program {
    columns: Vec<Column>,
    rows: Vec<Row>,
    base_cost: f64,
    cost_unit: f64,
    contradiction: bool,
}

/// Least power of two that is at least `x`, as a float; 1 for 0.
pub(super) fn power_of_two_above(x: f64) -> f64 {
    if x > 0.0 { x.log2().ceil().exp2() } else { 1.0 }
}

impl Program {
    /// An empty program for costs of up to `dearest`.
    pub fn new(dearest: f64) -> Self {
        let fine = dearest == 0.0 || (1.0..=1e6).contains(&dearest);
        let unit = if fine { 1.0 } else { power_of_two_above(dearest) / f64::from(1 << 14) };
        let cost_unit = if unit > 0.0 && unit.is_finite() { unit } else { 1.0 };
        Self { columns: Vec::new(), rows: Vec::new(), base_cost: 0.0, cost_unit, contradiction: false }
    }

    /// Adds a cost that no decision changes.
    pub fn add_base_cost(&mut self, cost: f64) {
        self.base_cost += cost / self.cost_unit;
    }

    /// A 0-1 column with a cost in the unit of the graph.
    pub fn binary(&mut self, cost: f64) -> usize {
        self.columns.push(Column { cost: cost / self.cost_unit, lower: 0.0, upper: 1.0, integer: true });
        self.columns.len() - 1
    }

    /// A column from 0 to `upper`.
    pub fn continuous(&mut self, upper: f64) -> usize {
        self.columns.push(Column { cost: 0.0, lower: 0.0, upper, integer: false });
        self.columns.len() - 1
    }

    /// `lower <= sum of factor * term <= upper`.
    pub fn add_row(&mut self, lower: f64, upper: f64, terms: &[(f64, Term)]) {
        let mut constant = 0.0;
        let mut merged: Vec<(usize, f64)> = Vec::with_capacity(terms.len());
        for &(factor, term) in terms {
            match term {
                Term::Fixed(number) => constant += factor * number,
                Term::Column(column) => merged.push((column, factor)),
            }
        }
        merged.sort_by_key(|&(column, _)| column);
        merged.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        merged.retain(|&(_, factor)| factor != 0.0);
        let (lower, upper) = (lower - constant, upper - constant);
        match merged.is_empty() {
            true => self.contradiction |= lower > 1e-9 || upper < -1e-9,
            false => self.rows.push(Row { lower, upper, terms: merged }),
        }
    }
}

impl Solvable for Program {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn base_cost(&self) -> f64 {
        self.base_cost
    }

    fn cost_unit(&self) -> f64 {
        self.cost_unit
    }

    fn contradiction(&self) -> bool {
        self.contradiction
    }
}
