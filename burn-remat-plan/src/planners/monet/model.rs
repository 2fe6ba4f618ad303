//! MONeT's 0-1 program over the [stages](super::stages), without a solver.
//!
//! | paper | here | meaning |
//! | --- | --- | --- |
//! | r(k,i) | `Entry::runs` | op i is computed in stage k |
//! | delta(i,l), delta(k,i,l), delta^(k,l) | `Entry::by` | implementation l of op i runs in stage k |
//! | s(k-1,i), and the constant sets of gradients | `retained` | a value is resident at the start of stage k |
//! | the unions of S, L and D | `residency` | a value is still needed when a reader's turn comes |
//! | m(i), m^(k), m~(k,i) | U, `add_memory` | bytes held while op i has its turn in stage k |
//!
//! ```text
//! minimize  sum cost(i,l) delta(k,i,l)                                                               (9)
//!   sum_l delta(k,i,l) = r(k,i), which is 1 where i runs for the first time
//!   Y(k,v,m+1) = s(k+1,v)
//!   Y(k,v,j) >= Y(k,v,j+1)
//!   Y(k,v,j) >= sum over the implementations l of reader j that read v of delta(k,j,l)               (C.4)
//!   s(k,v) + r(k,p(v)) >= Y(k,v,1)                                                                    (7), (8)
//!   s(k,v) + r(k,p(v)) <= 1
//!   U(k,i) = what is resident when op i has its turn, its outputs and the scratch of its implementation
//!   U(k,i) <= budget                                                                         (1), (5), (6), (14)
//! ```
//!
//! Y stands for the paper's product delta * |S or D|: since exactly one implementation runs, the union of what is saved
//! and what implementation l reads is the larger of two 0-1 numbers, and two rows per reader linearize it. The
//! continuous Y needs no integrality. The rows also hold for ops that do not run: nothing is then resident that would
//! not be at the next op that does.
//!
//! Where the paper bounds the local tensors of a recomputation from above (appendix B), Y is exact: a value that no
//! later op of the stage needs is gone.

use super::stages::Stages;
use crate::choice::{Choice, implementation, implementations, useful_implementations};
use crate::graph::{Graph, OpId, ValueId};
use crate::planners::checkmate::program::{IntegerProgram, ONE, Term, ZERO, power_of_two_above};

/// An op that has its turn in a stage.
#[derive(Clone, Debug)]
struct Entry {
    op: OpId,
    runs: Term,
    /// Implementation and whether it runs; several terms that add up to `runs`.
    by: Vec<(usize, Term)>,
}

/// How a continuous column follows from others.
#[derive(Clone, Debug)]
enum Definition {
    /// The larger of a term and a sum of terms.
    Larger(usize, Term, Vec<Term>),
    Sum(usize, Vec<(f64, Term)>),
}

/// The program for one graph and budget.
pub(super) struct Model {
    pub program: IntegerProgram,
    stages: Stages,
    entries: Vec<Vec<Entry>>,
    /// s, stages 0 to the end, values within.
    retained: Vec<Term>,
    values: usize,
    byte_unit: f64,
    budget: f64,
    definitions: Vec<Definition>,
}

/// When each value may be of use.
struct Uses {
    /// Ops that read each value in some implementation, ascending.
    readers: Vec<Vec<OpId>>,
    /// The last stage at whose start each value may be of use.
    until: Vec<usize>,
}

impl Uses {
    fn new(graph: &Graph, stages: &Stages) -> Self {
        let ops = graph.ops();
        let mut readers = vec![Vec::new(); graph.values().len()];
        for (id, op) in ops.iter().enumerate() {
            let mut read: Vec<ValueId> =
                (0..implementations(op)).flat_map(|k| implementation(op, k).0).copied().collect();
            read.sort_unstable();
            read.dedup();
            read.into_iter().for_each(|value| readers[value].push(id));
        }
        let mut op_until: Vec<usize> = (0..ops.len()).map(|op| stages.first_of(op)).collect();
        let mut until = vec![0; readers.len()];
        let of_value = |value: ValueId, op_until: &[usize]| {
            if graph.is_result(value) {
                stages.count()
            } else {
                readers[value].iter().map(|&op| op_until[op]).max().unwrap_or(0)
            }
        };
        for (id, op) in ops.iter().enumerate().rev() {
            for &value in &op.outputs {
                until[value] = of_value(value, &op_until);
                if stages.may_repeat(graph, id) {
                    op_until[id] = op_until[id].max(until[value].min(stages.count() - 1));
                }
            }
        }
        for value in graph.inputs() {
            until[value] = of_value(value, &op_until);
        }
        Self { readers, until }
    }
}

/// About the most entries that a model of `graph` has.
pub(super) fn estimated_entries(graph: &Graph, stages: &Stages) -> u64 {
    let uses: usize =
        graph.ops().iter().flat_map(|op| (0..implementations(op)).map(|k| implementation(op, k).0.len() + 1)).sum();
    (stages.count() as u64).saturating_mul((graph.values().len() + uses) as u64).saturating_mul(6)
}

impl Model {
    pub fn new(graph: &Graph, stages: Stages, budget: u64) -> Self {
        let ops = graph.ops();
        let largest = graph.values().iter().map(|value| value.bytes).max().unwrap_or(0);
        let scratch = ops.iter().flat_map(|op| (0..implementations(op)).map(|k| implementation(op, k).2)).max();
        let costs = ops.iter().flat_map(|op| (0..implementations(op)).map(|k| implementation(op, k).1));
        let byte_unit = power_of_two_above(largest.max(scratch.unwrap_or(0)) as f64);
        let total: u64 =
            graph.constant_bytes() + graph.values().iter().map(|value| value.bytes).sum::<u64>() + scratch.unwrap_or(0);
        let mut model = Self {
            program: IntegerProgram::new(costs.fold(0.0, f64::max)),
            stages,
            entries: Vec::with_capacity(stages.count()),
            retained: Vec::new(),
            values: graph.values().len(),
            byte_unit,
            budget: budget.min(total) as f64 / byte_unit,
            definitions: Vec::new(),
        };
        let uses = Uses::new(graph, &stages);
        for stage in 0..stages.count() {
            let entries = model.entries_of(graph, stage, &uses);
            model.entries.push(entries);
        }
        model.add_retained(graph, &uses);
        for stage in 0..stages.count() {
            model.add_stage(graph, stage, &uses);
        }
        model
    }

    /// The ops that have a turn in `stage`, with their columns.
    fn entries_of(&mut self, graph: &Graph, stage: usize, uses: &Uses) -> Vec<Entry> {
        let mut entries = Vec::new();
        for op in self.stages.optional(stage).chain(self.stages.forced(stage)) {
            let forced = self.stages.forced(stage).contains(&op);
            let node = &graph.ops()[op];
            let reaches = node.outputs.iter().any(|&value| uses.until[value] >= stage && graph.bytes(value) > 0);
            let may_repeat = node.recomputable && reaches;
            if !forced && !may_repeat {
                continue;
            }
            let ways = useful_implementations(node);
            let cost = |k: usize| implementation(node, k).1;
            let entry = match (&ways[..], forced) {
                (&[only], true) => {
                    self.program.add_base_cost(cost(only));
                    Entry { op, runs: ONE, by: vec![(only, ONE)] }
                }
                (&[only], false) => {
                    let runs = Term::Column(self.program.binary(cost(only)));
                    Entry { op, runs, by: vec![(only, runs)] }
                }
                _ => {
                    let by: Vec<(usize, Term)> =
                        ways.iter().map(|&k| (k, Term::Column(self.program.binary(cost(k))))).collect();
                    let mut terms: Vec<(f64, Term)> = by.iter().map(|&(_, term)| (1.0, term)).collect();
                    let runs = if forced { ONE } else { self.sum_column(&terms, 1.0) };
                    if forced {
                        terms.push((-1.0, ONE));
                        self.program.add_row(0.0, 0.0, &terms);
                    }
                    Entry { op, runs, by }
                }
            };
            entries.push(entry);
        }
        entries
    }

    /// A continuous column, at most `upper`, that equals the sum of `terms`.
    fn sum_column(&mut self, terms: &[(f64, Term)], upper: f64) -> Term {
        let column = self.program.continuous(upper);
        self.definitions.push(Definition::Sum(column, terms.to_vec()));
        let mut row = terms.to_vec();
        row.push((-1.0, Term::Column(column)));
        self.program.add_row(0.0, 0.0, &row);
        Term::Column(column)
    }

    fn retained(&self, stage: usize, value: ValueId) -> Term {
        self.retained[stage * self.values + value]
    }

    fn add_retained(&mut self, graph: &Graph, uses: &Uses) {
        let last = self.stages.count();
        // The last stage whose first computations read the value in every implementation.
        let certain: Vec<usize> = (0..self.values)
            .map(|value| {
                let always = |&&op: &&OpId| {
                    let node = &graph.ops()[op];
                    useful_implementations(node).into_iter().all(|k| implementation(node, k).0.contains(&value))
                };
                let read = uses.readers[value].iter().filter(always).map(|&op| self.stages.first_of(op)).max();
                if graph.is_result(value) { last } else { read.unwrap_or(0) }
            })
            .collect();
        for stage in 0..=last {
            for (value, &certain) in certain.iter().enumerate() {
                let producer = graph.producer(value);
                let exists = producer.is_none_or(|op| self.stages.first_of(op) < stage);
                let root = producer.is_none_or(|op| !self.stages.may_repeat(graph, op));
                let term = if !exists || (stage > 0 && uses.until[value] < stage) {
                    ZERO
                } else if stage == 0 || stage == last || graph.bytes(value) == 0 || (root && certain >= stage) {
                    ONE
                } else {
                    Term::Column(self.program.binary(0.0))
                };
                self.retained.push(term);
            }
        }
    }

    /// Y for the readers of a value in one stage, each the sum of its terms, and what is retained at the end.
    fn residency(&mut self, end: Term, readers: &[Vec<Term>]) -> Vec<Term> {
        let mut chain = vec![end];
        for here in readers.iter().rev() {
            let later = *chain.last().expect("starts with one");
            chain.push(match here[..] {
                _ if later == ONE => ONE,
                [only] if only == ONE => ONE,
                [only] if later == ZERO => only,
                _ => self.larger(later, here),
            });
        }
        chain.reverse();
        chain
    }

    /// A column that is at least a term and at least a sum of terms.
    fn larger(&mut self, later: Term, here: &[Term]) -> Term {
        let column = self.program.continuous(1.0);
        let term = Term::Column(column);
        let mut row: Vec<(f64, Term)> = here.iter().map(|&part| (-1.0, part)).collect();
        row.push((1.0, term));
        self.program.add_row(0.0, f64::INFINITY, &row);
        self.program.add_row(0.0, f64::INFINITY, &[(1.0, term), (-1.0, later)]);
        self.definitions.push(Definition::Larger(column, later, here.to_vec()));
        term
    }

    fn add_stage(&mut self, graph: &Graph, stage: usize, uses: &Uses) {
        let entries = std::mem::take(&mut self.entries[stage]);
        let place = |op: OpId| entries.binary_search_by_key(&op, |entry| entry.op).ok();
        // How the resident bytes change as each op's turn comes.
        let mut changes: Vec<Vec<(f64, Term)>> = vec![Vec::new(); entries.len() + 1];
        changes[0].push((1.0, Term::Fixed(graph.constant_bytes() as f64 / self.byte_unit)));
        for value in 0..self.values {
            let producer = graph.producer(value);
            if producer.is_some_and(|op| self.stages.first_of(op) > stage) {
                continue;
            }
            let made_at = producer.and_then(place);
            let kept = self.retained(stage, value);
            let made = made_at.map_or(ZERO, |at| entries[at].runs);
            let readers: Vec<(usize, Vec<Term>)> = uses.readers[value]
                .iter()
                .filter_map(|&op| place(op))
                .filter_map(|at| reading(graph, &entries[at], value).map(|terms| (at, terms)))
                .collect();
            let terms: Vec<Vec<Term>> = readers.iter().map(|(_, terms)| terms.clone()).collect();
            let chain = self.residency(self.retained(stage + 1, value), &terms);
            self.program.add_row(0.0, f64::INFINITY, &[(1.0, kept), (1.0, made), (-1.0, chain[0])]);
            let bytes = graph.bytes(value) as f64 / self.byte_unit;
            if bytes == 0.0 {
                continue;
            }
            let mut hold = |from: usize, to: usize, term: Term| {
                if from < to && term != ZERO {
                    changes[from].push((bytes, term));
                    changes[to].push((-bytes, term));
                }
            };
            let mut from = 0;
            if let Some(at) = made_at {
                self.program.add_row(f64::NEG_INFINITY, 1.0, &[(1.0, kept), (1.0, made)]);
                hold(0, at + 1, kept);
                hold(at, at + 1, made);
                from = at + 1;
            }
            for ((at, _), &needed) in readers.iter().zip(&chain) {
                hold(from, at + 1, needed);
                from = at + 1;
            }
            hold(from, entries.len(), chain[readers.len()]);
        }
        for (at, entry) in entries.iter().enumerate() {
            for &(k, runs) in &entry.by {
                let scratch = implementation(&graph.ops()[entry.op], k).2 as f64 / self.byte_unit;
                if scratch > 0.0 {
                    changes[at].push((scratch, runs));
                    changes[at + 1].push((-scratch, runs));
                }
            }
        }
        self.add_memory(&changes[..entries.len()]);
        self.entries[stage] = entries;
    }

    /// U of one stage: the memory at each op's turn follows from that at the turn before.
    fn add_memory(&mut self, changes: &[Vec<(f64, Term)>]) {
        let mut previous = ZERO;
        for change in changes {
            let mut terms = change.clone();
            terms.push((1.0, previous));
            previous = self.sum_column(&terms, self.budget);
        }
    }

    /// Whether the program has a solution for `choices`: no op twice between two later ops, and all in order.
    pub fn includes(&self, choices: &[Choice]) -> bool {
        let ends = self.stage_ends(choices);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).all(|(from, &to)| choices[from..to].is_sorted_by(|a, b| a.op < b.op))
    }

    /// All columns for a schedule of the class.
    pub fn values_of(&self, graph: &Graph, choices: &[Choice]) -> Vec<f64> {
        let mut numbers = vec![0.0; self.program.columns.len()];
        let mut set = |term: Term, number: bool| {
            if let Term::Column(column) = term {
                numbers[column] = f64::from(u8::from(number));
            }
        };
        let mut live: Vec<bool> = (0..self.values).map(|value| graph.is_result(value)).collect();
        let ends = self.stage_ends(choices);
        for stage in (0..self.stages.count()).rev() {
            let row = &choices[stage.checked_sub(1).map_or(0, |before| ends[before])..ends[stage]];
            for choice in row.iter().rev() {
                let entries = &self.entries[stage];
                if let Ok(at) = entries.binary_search_by_key(&choice.op, |entry| entry.op) {
                    entries[at].by.iter().for_each(|&(k, term)| set(term, k == choice.implementation));
                }
                let op = &graph.ops()[choice.op];
                op.outputs.iter().for_each(|&value| live[value] = false);
                implementation(op, choice.implementation).0.iter().for_each(|&value| live[value] = true);
            }
            for (value, &live) in live.iter().enumerate() {
                set(self.retained(stage, value), live);
            }
        }
        for definition in &self.definitions {
            match definition {
                Definition::Larger(column, later, here) => {
                    let here: f64 = here.iter().map(|&term| term.number(&numbers)).sum();
                    numbers[*column] = later.number(&numbers).max(here);
                }
                Definition::Sum(column, terms) => {
                    numbers[*column] = terms.iter().map(|&(factor, term)| factor * term.number(&numbers)).sum();
                }
            }
        }
        numbers
    }

    /// Where each stage ends: after the first computation of its last op.
    fn stage_ends(&self, choices: &[Choice]) -> Vec<usize> {
        let mut ends = Vec::with_capacity(self.stages.count());
        let mut next = 0;
        for (at, choice) in choices.iter().enumerate() {
            if choice.op == next {
                next += 1;
                if self.stages.forced(ends.len()).end == next {
                    ends.push(at + 1);
                }
            }
        }
        ends
    }

    /// The schedule that the solver's numbers stand for.
    pub fn choices(&self, numbers: &[f64]) -> Vec<Choice> {
        let runs = |entry: &&Entry| entry.by.iter().map(|&(_, term)| term.number(numbers)).sum::<f64>() > 0.5;
        let chosen = |entry: &Entry| {
            let best = entry.by.iter().max_by(|a, b| a.1.number(numbers).total_cmp(&b.1.number(numbers)));
            Choice { op: entry.op, implementation: best.map_or(0, |&(k, _)| k) }
        };
        self.entries.iter().flatten().filter(runs).map(chosen).collect()
    }
}

/// Terms whose sum says whether `entry` reads `value`; `None` if no implementation does.
fn reading(graph: &Graph, entry: &Entry, value: ValueId) -> Option<Vec<Term>> {
    let node = &graph.ops()[entry.op];
    let by = entry.by.iter().filter(|&&(k, _)| implementation(node, k).0.binary_search(&value).is_ok());
    let terms: Vec<Term> = by.map(|&(_, term)| term).collect();
    match terms.len() {
        0 => None,
        all if all == entry.by.len() => Some(vec![entry.runs]),
        _ => Some(terms),
    }
}
