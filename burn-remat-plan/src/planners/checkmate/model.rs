//! Problem (9) of Checkmate as a mixed integer program, without a solver.
//!
//! n ops, n stages; stage t computes op t and may compute earlier ops again, in ascending order. A value v has the
//! producer p(v), the size M(v), and in stage t the users k1 < k2 < .. < km <= t.
//!
//! | paper | here | meaning |
//! | --- | --- | --- |
//! | R(t,i) | `computed` | op i runs in stage t |
//! | S(t,i) | `retained`, per value | v is resident at the start of stage t |
//! | FREE(t,i,k) | Y(t,v,j) - Y(t,v,j+1) | v is released after its j-th user |
//! | U(t,k) | one column per op that may run | bytes while op k runs in stage t |
//!
//! ```text
//! minimize  sum C(i) R(t,i)
//!   R(t,t) = 1,  R(t,i) = 0 for i > t,  S(t,v) = 0 for t <= p(v),  S(n,v) = 1 for results            (8a..8c)
//!   Y(t,v,m+1) = S(t+1,v)
//!   Y(t,v,j) >= Y(t,v,j+1)                                                                            (5), split
//!   Y(t,v,j) >= R(t,kj)                                                                               (5), split
//!   S(t,v) + R(t,p(v)) >= Y(t,v,1)                                                                    (1b), (1c)
//!   S(t,v) + R(t,p(v)) <= 1
//!   U(t,k) = bytes resident as op k runs + R(t,k) (outputs and scratch of k)                          (2), (3)
//!   U(t,k) <= budget
//! ```
//!
//! Departures, none of which cuts off the optimum. **Residency in place of FREE**: Y(t,v,j) says that v is still
//! resident when its j-th user's turn comes. It is the hazard form of (5) with one row per hazard in place of the sums
//! (7b) and (7c); (7b) is not needed, since nothing is gained by holding a value. Y need not be integer. Where R and S
//! are integers, the least Y is the paper's schedule; where they are fractions, Y is far larger than what (7c) with its
//! factor kappa allows, and the relaxation is nearly tight in practice. **No copy twice**: a retained value that is
//! also computed in the stage could have been dropped before, as its users come after its producer. **Explicit row**
//! for U(t,t) over the retained values alone: a knapsack for the solver's cuts.
//!
//! Fixed in advance: R and S where the op can no longer reach anything unfinished; S = 1 for values of no size; S = 1
//! and R = 0 in the first stages, as long as everything still useful fits in the budget at once; R = 0 for ops that may
//! not run again. Values of one op are retained apart from each other.
//!
//! Size: O(ops (values + uses)) columns, rows and entries. Sizes and costs are divided by powers of two, which loses
//! no precision.

use super::program::{IntegerProgram, ONE, Term, ZERO, power_of_two_above};
use crate::frontier::Retention;
use crate::graph::{Graph, OpId, ValueId};

/// How a continuous column follows from the others.
#[derive(Clone, Debug)]
enum Definition {
    Larger(usize, Term, Term),
    Sum(usize, Vec<(f64, Term)>),
}

/// The program for one graph and budget.
#[derive(Clone, Debug)]
pub(in crate::planners) struct Model {
    pub program: IntegerProgram,
    /// Columns of U.
    pub memory_columns: Vec<usize>,
    byte_unit: f64,
    budget: f64,
    ops: usize,
    values: usize,
    /// R, row by row of the lower triangle.
    computed: Vec<Term>,
    /// S, stages 0 to n, values within.
    retained: Vec<Term>,
    /// Up to this stage everything useful is retained.
    ample_stages: Option<usize>,
    definitions: Vec<Definition>,
}

/// The last stage at whose start each value may be of use: `n` for results, 0 for values that nothing needs.
fn last_useful_stages(graph: &Graph) -> Vec<usize> {
    let count = graph.ops().len();
    let mut op_useful: Vec<usize> = (0..count).collect();
    let mut useful = vec![0; graph.values().len()];
    let of_value = |value: ValueId, op_useful: &[usize]| {
        if graph.is_result(value) {
            count
        } else {
            graph.consumers(value).iter().map(|&op| op_useful[op]).max().unwrap_or(0)
        }
    };
    for (op, node) in graph.ops().iter().enumerate().rev() {
        for &value in &node.outputs {
            useful[value] = of_value(value, &op_useful);
            if node.recomputable {
                op_useful[op] = op_useful[op].max(useful[value].min(count - 1));
            }
        }
    }
    for value in graph.inputs() {
        useful[value] = of_value(value, &op_useful);
    }
    useful
}

/// About the most entries that a model of `graph` has.
pub(in crate::planners) fn estimated_entries(graph: &Graph) -> u64 {
    let uses: usize = graph.ops().iter().map(|op| op.inputs.len()).sum();
    (graph.ops().len() as u64 / 2 + 1).saturating_mul((graph.values().len() + uses) as u64).saturating_mul(6)
}

/// Whether the rows for U(t,t) over retained values are part of the model: they help cuts, not the relaxation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planners) enum Knapsacks {
    Include,
    Omit,
}

impl Model {
    /// Builds the program for `budget`; its bounds may be lowered to `least_budget` later.
    pub fn new(graph: &Graph, budget: u64, least_budget: u64, knapsacks: Knapsacks) -> Self {
        let ops = graph.ops();
        let count = ops.len();
        let largest = graph.values().iter().map(|value| value.bytes).max().unwrap_or(0);
        let dearest = ops.iter().map(|op| op.cost).fold(0.0, f64::max);
        let byte_unit = power_of_two_above(largest as f64);
        let total: u64 = graph.constant_bytes()
            + graph.values().iter().map(|value| value.bytes).sum::<u64>()
            + ops.iter().map(|op| op.scratch_bytes).max().unwrap_or(0);
        let mut model = Self {
            program: IntegerProgram::new(dearest),
            memory_columns: Vec::new(),
            byte_unit,
            // More than everything is as good as everything, and this keeps the numbers small.
            budget: budget.min(total) as f64 / byte_unit,
            ops: count,
            values: graph.values().len(),
            computed: Vec::with_capacity(count * (count + 1) / 2),
            retained: Vec::new(),
            ample_stages: None,
            definitions: Vec::new(),
        };
        ops.iter().for_each(|op| model.program.add_base_cost(op.cost));
        let useful = last_useful_stages(graph);
        model.ample_stages = ample_stages(graph, least_budget, &useful);
        model.add_decisions(graph, &useful);
        for stage in 0..count {
            model.add_stage(graph, stage, knapsacks);
        }
        model
    }

    /// R(stage, op).
    pub fn computed(&self, stage: usize, op: OpId) -> Term {
        self.computed[stage * (stage + 1) / 2 + op]
    }

    /// S(stage, value).
    pub fn retained(&self, stage: usize, value: ValueId) -> Term {
        self.retained[stage * self.values + value]
    }

    /// The columns among S.
    pub fn retained_columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.retained.iter().filter_map(|&term| match term {
            Term::Column(column) => Some(column),
            Term::Fixed(_) => None,
        })
    }

    fn is_ample(&self, stage: usize) -> bool {
        self.ample_stages.is_some_and(|last| stage <= last)
    }

    fn add_decisions(&mut self, graph: &Graph, useful: &[usize]) {
        let ops = graph.ops();
        for stage in 0..self.ops {
            for (op, node) in ops.iter().enumerate().take(stage + 1) {
                let reaches = node.outputs.iter().any(|&value| useful[value] >= stage && graph.bytes(value) > 0);
                let term = if op == stage {
                    ONE
                } else if !node.recomputable || self.is_ample(stage) || !reaches {
                    ZERO
                } else {
                    Term::Column(self.program.binary(node.cost))
                };
                self.computed.push(term);
            }
        }
        for stage in 0..=self.ops {
            for (value, &useful) in useful.iter().enumerate() {
                let exists = graph.producer(value).is_none_or(|op| op < stage);
                let term = if stage == 0 {
                    if exists { ONE } else { ZERO }
                } else if !exists || useful < stage {
                    ZERO
                } else if stage == self.ops || self.is_ample(stage) || graph.bytes(value) == 0 {
                    ONE
                } else {
                    Term::Column(self.program.binary(0.0))
                };
                self.retained.push(term);
            }
        }
    }

    /// Y(stage, value, 1 to m+1) for the given users, from the last to the first; returned in ascending order.
    fn add_residency(&mut self, stage: usize, value: ValueId, users: &[OpId]) -> Vec<Term> {
        let mut chain = vec![self.retained(stage + 1, value)];
        for &user in users.iter().rev() {
            let (later, here) = (*chain.last().expect("starts with one"), self.computed(stage, user));
            let term = if later == ONE || here == ONE {
                ONE
            } else if later == ZERO {
                here
            } else {
                let column = self.program.continuous(1.0);
                let term = Term::Column(column);
                self.program.add_row(0.0, f64::INFINITY, &[(1.0, term), (-1.0, later)]);
                self.program.add_row(0.0, f64::INFINITY, &[(1.0, term), (-1.0, here)]);
                self.definitions.push(Definition::Larger(column, later, here));
                term
            };
            chain.push(term);
        }
        chain.reverse();
        chain
    }

    /// Rows and columns of one stage.
    fn add_stage(&mut self, graph: &Graph, stage: usize, knapsacks: Knapsacks) {
        // How the resident bytes change as each op's turn comes.
        let mut changes: Vec<Vec<(f64, Term)>> = vec![Vec::new(); stage + 2];
        changes[0].push((1.0, Term::Fixed(graph.constant_bytes() as f64 / self.byte_unit)));
        for value in 0..self.values {
            let producer = graph.producer(value);
            if producer.is_some_and(|op| op > stage) {
                continue;
            }
            let users: Vec<OpId> = graph.consumers(value).iter().copied().filter(|&op| op <= stage).collect();
            let users: Vec<OpId> = users.into_iter().filter(|&op| self.computed(stage, op) != ZERO).collect();
            let chain = self.add_residency(stage, value, &users);
            let kept = self.retained(stage, value);
            let made = producer.map_or(ZERO, |op| self.computed(stage, op));
            self.program.add_row(0.0, f64::INFINITY, &[(1.0, kept), (1.0, made), (-1.0, chain[0])]);
            let bytes = graph.bytes(value) as f64 / self.byte_unit;
            if bytes == 0.0 {
                continue;
            }
            self.program.add_row(f64::NEG_INFINITY, 1.0, &[(1.0, kept), (1.0, made)]);
            // Resident until the first user, in one or two terms.
            let mut held = vec![chain[0]];
            if let Some(op) = producer {
                changes[0].push((bytes, kept));
                changes[op].push((bytes, made));
                // One of several outputs may be useless although its op runs.
                if graph.ops()[op].outputs.len() > 1 || users.is_empty() {
                    changes[op + 1].extend([(-bytes, kept), (-bytes, made), (bytes, chain[0])]);
                } else {
                    held = vec![kept, made];
                }
            } else {
                changes[0].push((bytes, chain[0]));
            }
            for (&user, &after) in users.iter().zip(&chain[1..]) {
                changes[user + 1].extend(held.iter().map(|&term| (-bytes, term)));
                changes[user + 1].push((bytes, after));
                held = vec![after];
            }
        }
        for op in 0..=stage {
            let scratch = graph.ops()[op].scratch_bytes as f64 / self.byte_unit;
            if scratch > 0.0 {
                let here = self.computed(stage, op);
                changes[op].push((scratch, here));
                changes[op + 1].push((-scratch, here));
            }
        }
        self.add_memory(stage, &changes, knapsacks);
    }

    /// U of one stage, by recurrence over the ops that may run.
    fn add_memory(&mut self, stage: usize, changes: &[Vec<(f64, Term)>], knapsacks: Knapsacks) {
        let mut previous: Option<usize> = None;
        let mut pending = Vec::new();
        let mut all = Vec::new();
        for (op, change) in changes.iter().enumerate().take(stage + 1) {
            pending.extend(change.iter().filter(|&&(_, term)| term != ZERO));
            if knapsacks == Knapsacks::Include {
                all.extend(change.iter().filter(|&&(_, term)| term != ZERO));
            }
            if self.computed(stage, op) == ZERO {
                continue;
            }
            pending.extend(previous.map(|column| (1.0, Term::Column(column))));
            let column = self.program.continuous(self.budget);
            self.memory_columns.push(column);
            let mut terms = std::mem::take(&mut pending);
            self.definitions.push(Definition::Sum(column, terms.clone()));
            terms.push((-1.0, Term::Column(column)));
            self.program.add_row(0.0, 0.0, &terms);
            previous = Some(column);
        }
        if knapsacks == Knapsacks::Include {
            self.program.add_row(f64::NEG_INFINITY, self.budget, &all);
        }
    }

    /// The budget less `shortfall` bytes, in the unit of the columns U.
    pub fn scaled_budget(&self, shortfall: f64) -> f64 {
        self.budget - shortfall / self.byte_unit
    }

    /// All columns for the schedule that computes `sequence`: ascending stages, each value live where a plan has it.
    pub fn values_of(&self, graph: &Graph, sequence: &[OpId]) -> Vec<f64> {
        let mut numbers = vec![0.0; self.program.columns.len()];
        let mut live: Vec<bool> = (0..self.values).map(|value| graph.is_result(value)).collect();
        let ends = row_ends(sequence);
        // Backwards: what is live before the first op of stage t is S(t).
        for stage in (0..self.ops).rev() {
            let row = &sequence[stage.checked_sub(1).map_or(0, |before| ends[before])..ends[stage]];
            for &op in row.iter().rev() {
                if let Term::Column(column) = self.computed(stage, op) {
                    numbers[column] = 1.0;
                }
                for &value in &graph.ops()[op].outputs {
                    live[value] = false;
                }
                for &value in &graph.ops()[op].inputs {
                    live[value] = true;
                }
            }
            for (value, &live) in live.iter().enumerate() {
                if let Term::Column(column) = self.retained(stage, value) {
                    numbers[column] = f64::from(u8::from(live));
                }
            }
        }
        for definition in &self.definitions {
            match definition {
                Definition::Larger(column, a, b) => numbers[*column] = a.number(&numbers).max(b.number(&numbers)),
                Definition::Sum(column, terms) => {
                    numbers[*column] = terms.iter().map(|&(factor, term)| factor * term.number(&numbers)).sum();
                }
            }
        }
        numbers
    }

    /// The retention in which `holds` decides each entry of S from its number (and stage and value).
    pub fn retention(&self, numbers: &[f64], mut holds: impl FnMut(f64, usize, ValueId) -> bool) -> Retention {
        let mut retention = Retention::new();
        for value in 0..self.values {
            let mut first = None;
            for stage in 0..=self.ops {
                let kept = match self.retained(stage, value) {
                    Term::Fixed(number) => number > 0.5,
                    Term::Column(column) => holds(numbers[column], stage, value),
                };
                match (kept, first) {
                    (true, None) => first = Some(stage),
                    (false, Some(start)) => {
                        retention.keep(value, start, stage - 1);
                        first = None;
                    }
                    _ => {}
                }
            }
            if let Some(start) = first {
                retention.keep(value, start, self.ops);
            }
        }
        retention
    }
}

/// Where the row of each stage ends in `sequence`: after the first computation of its op.
fn row_ends(sequence: &[OpId]) -> Vec<usize> {
    let mut ends = Vec::new();
    for (at, &op) in sequence.iter().enumerate() {
        if op == ends.len() {
            ends.push(at + 1);
        }
    }
    ends
}

/// The last stage up to which everything that is still useful fits in the budget at once.
fn ample_stages(graph: &Graph, budget: u64, useful: &[usize]) -> Option<usize> {
    let mut ample = None;
    for (stage, node) in graph.ops().iter().enumerate() {
        let kept = (0..graph.values().len()).filter(|&value| {
            useful[value] >= stage
                && graph.producer(value).is_none_or(|op| op < stage)
                && !node.outputs.contains(&value)
        });
        let bytes: u64 = kept.map(|value| graph.bytes(value)).sum();
        if graph.constant_bytes() + bytes + graph.bytes_of(&node.outputs) + node.scratch_bytes > budget {
            break;
        }
        ample = Some(stage);
    }
    ample
}
