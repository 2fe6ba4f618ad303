//! A mixed integer program under construction, without a solver: columns, rows, and constants folded away.

/// A constant or a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::planners) enum Term {
    /// A number known in advance.
    Fixed(f64),
    /// A column of the program.
    Column(usize),
}

pub(in crate::planners) const ZERO: Term = Term::Fixed(0.0);
pub(in crate::planners) const ONE: Term = Term::Fixed(1.0);

impl Term {
    /// Its number, given those of the columns.
    pub fn number(self, numbers: &[f64]) -> f64 {
        match self {
            Self::Fixed(number) => number,
            Self::Column(column) => numbers[column],
        }
    }
}

/// A variable of the program.
#[derive(Clone, Copy, Debug)]
pub(in crate::planners) struct Column {
    pub cost: f64,
    pub lower: f64,
    pub upper: f64,
    pub integer: bool,
}

/// `lower <= sum of terms <= upper`; infinite where there is no bound.
#[derive(Clone, Debug)]
pub(in crate::planners) struct Constraint {
    pub lower: f64,
    pub upper: f64,
    pub terms: Vec<(usize, f64)>,
}

/// Minimize the columns' costs subject to the rows.
#[derive(Clone, Debug)]
pub(in crate::planners) struct IntegerProgram {
    pub columns: Vec<Column>,
    pub rows: Vec<Constraint>,
    /// A constant part of the cost, in the program's unit: add it to every objective.
    pub base_cost: f64,
    /// The graph's costs are the program's costs times this.
    pub cost_unit: f64,
    /// Whether a row of constants alone turned out to be impossible.
    pub contradiction: bool,
}

/// Least power of two that is at least `x`, as a float; 1 for 0. Dividing by it loses no precision.
pub(in crate::planners) fn power_of_two_above(x: f64) -> f64 {
    if x > 0.0 { x.log2().ceil().exp2() } else { 1.0 }
}

impl IntegerProgram {
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
        merged.sort_unstable_by_key(|&(column, _)| column);
        merged.dedup_by(|next, kept| {
            next.0 == kept.0 && {
                kept.1 += next.1;
                true
            }
        });
        merged.retain(|&(_, factor)| factor != 0.0);
        let (lower, upper) = (lower - constant, upper - constant);
        if merged.is_empty() {
            self.contradiction |= lower > 1e-9 || upper < -1e-9;
        } else {
            self.rows.push(Constraint { lower, upper, terms: merged });
        }
    }

    /// An objective of the program in the unit of the graph; 0 if it is so small that the product could have any relative error: a bound
    /// must never come out larger than it is.
    pub fn in_graph_unit(&self, objective: f64) -> f64 {
        let cost = (objective + self.base_cost) * self.cost_unit;
        if cost.is_subnormal() { 0.0 } else { cost }
    }
}
