//! Builds the linear program of [`lower_bound`](super::lower_bound()).

use super::pdhg::{Program, Row};
use crate::choice::{Choice, implementation, least_cost, least_makespan, useful_implementations};
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId, ValueId};
use crate::need::needs;
use crate::sequence::plan_from_order;
use crate::simulate::simulate;

/// The least cost of running every op once.
pub(super) fn first_computations(graph: &Graph) -> f64 {
    least_makespan(graph)
}

fn least_scratch(op: &crate::graph::Op) -> u64 {
    op.alternatives.iter().map(|a| a.scratch_bytes).fold(op.scratch_bytes, u64::min)
}

/// The ops during which the store-all schedule exceeds the budget, with the excess, in execution order.
pub(super) fn crowded_moments(graph: &Graph, budget: u64) -> Vec<(OpId, u64)> {
    let plan = plan_from_order(graph, &(0..graph.ops().len()).collect::<Vec<_>>());
    let timeline = simulate(graph, &plan);
    let steps = plan.steps.iter().zip(&timeline.bytes);
    steps
        .filter_map(|(step, &bytes)| Some((step.op()?, bytes.checked_sub(budget).filter(|&excess| excess > 0)?)))
        .collect()
}

/// About `count` of the crowded moments: the most crowded of each of `count` equal parts.
pub(super) fn spread(crowded: &[(OpId, u64)], count: usize) -> Vec<OpId> {
    let size = crowded.len().div_ceil(count).max(1);
    crowded
        .chunks(size)
        .filter_map(|part| part.iter().max_by_key(|&&(op, excess)| (excess, std::cmp::Reverse(op))).map(|&(op, _)| op))
        .collect()
}

/// The crowded moments whose op leaves the least room for anything else, at most a tenth of the budget: near the smallest
/// feasible budget, they say more than those with the most resident bytes. Of ops with equal room, the latest.
pub(super) fn tight_moments(graph: &Graph, budget: u64, crowded: &[(OpId, u64)]) -> Vec<OpId> {
    let needs = needs(graph);
    let room = |op: OpId| budget.saturating_sub(needs[op]);
    let mut tight: Vec<OpId> = crowded.iter().map(|&(op, _)| op).filter(|&op| room(op) <= budget / 10).collect();
    tight.sort_by_key(|&op| (room(op), std::cmp::Reverse(op)));
    tight.truncate(TIGHT);
    tight
}

/// How many tight moments are tried.
const TIGHT: usize = 3;

/// The sizes that account for most of the bytes, at most [`UNITS`] of them.
fn units(items: &[(u32, u64)]) -> Vec<u64> {
    let mut bytes = std::collections::BTreeMap::<u64, u128>::new();
    for &(_, size) in items.iter().filter(|&&(_, size)| size > 1) {
        *bytes.entry(size).or_default() += u128::from(size);
    }
    let mut sizes: Vec<u64> = bytes.keys().copied().collect();
    sizes.sort_by_key(|size| (std::cmp::Reverse(bytes[size]), *size));
    sizes.truncate(UNITS);
    sizes
}

/// The largest number of rounded rows that a moment has.
const UNITS: usize = 3;

const NONE: u32 = u32::MAX;

pub(super) struct Relaxation {
    pub program: Program,
    keep: Vec<Vec<u32>>,
    ways: Vec<Choice>,
    first_way: Vec<usize>,
    chosen: Vec<u32>,
    again: Vec<Vec<u32>>,
}

struct Builder<'g> {
    graph: &'g Graph,
    /// Per op: the values that all its implementations read.
    inputs: Vec<Vec<ValueId>>,
    /// The implementations worth considering, op by op.
    ways: Vec<Choice>,
    /// Per op: its first way; at the end, the number of all ways.
    first_way: Vec<usize>,
    program: Program,
    moments: Vec<OpId>,
    /// Per moment and value: the variable `keep`, `FIXED` if it is certain, `NONE` if the value cannot matter.
    keep: Vec<Vec<u32>>,
    /// Per interval after a moment and per way: the variable `again`.
    again: Vec<Vec<u32>>,
    /// Per way: the variable `chosen`, `NONE` if there is no choice or the first computation comes before all moments.
    chosen: Vec<u32>,
}

const FIXED: u32 = u32::MAX - 1;

/// Approximate bytes of an entry, in the program and in its solution.
const BYTES_PER_ENTRY: u64 = 80;

/// Approximate bytes of a relaxation with this many moments, and of its solution.
pub(super) fn bytes_of(graph: &Graph, moments: usize) -> u64 {
    let ops = graph.ops().iter();
    let uses: usize =
        ops.map(|op| 1 + op.inputs.len() + op.alternatives.iter().map(|a| a.inputs.len()).sum::<usize>()).sum();
    3 * ((graph.values().len() + uses) * moments) as u64 * BYTES_PER_ENTRY
}

impl Relaxation {
    /// The relaxation with these moments; `None` if the deadline comes first.
    pub fn new(graph: &Graph, budget: u64, moments: &[OpId], deadline: Deadline) -> Option<Self> {
        let inputs = graph
            .ops()
            .iter()
            .map(|op| {
                let shared = |v: &&ValueId| op.alternatives.iter().all(|a| a.inputs.binary_search(v).is_ok());
                op.inputs.iter().filter(shared).copied().collect()
            })
            .collect();
        let (mut ways, mut first_way) = (Vec::new(), vec![0]);
        for (op, node) in graph.ops().iter().enumerate() {
            ways.extend(useful_implementations(node).into_iter().map(|implementation| Choice { op, implementation }));
            first_way.push(ways.len());
        }
        let chosen = vec![NONE; ways.len()];
        let mut builder = Builder {
            graph,
            inputs,
            ways,
            first_way,
            program: Program::default(),
            moments: moments.to_vec(),
            keep: Vec::new(),
            again: Vec::new(),
            chosen,
        };
        let late = || deadline.passed();
        for at in 0..moments.len() {
            builder.columns(at, budget);
            if late() {
                return None;
            }
        }
        for at in 0..moments.len() {
            if late() {
                return None;
            }
            builder.memory(at, budget);
            builder.interval(at);
        }
        let Builder { program, keep, ways, first_way, chosen, again, .. } = builder;
        Some(Self { program, keep, ways, first_way, chosen, again })
    }

    /// The fraction of each value that a solution keeps at the first moment.
    pub fn kept(&self, solution: &[f64]) -> Vec<f64> {
        let part = |&column: &u32| match column {
            NONE => 0.0,
            FIXED => 1.0,
            column => solution[column as usize],
        };
        self.keep[0].iter().map(part).collect()
    }

    /// For each value, how much larger the bound would be if it were not kept at the first moment, given that by column.
    pub fn regrets(&self, by_column: &[f64]) -> Vec<f64> {
        let regret = |&column: &u32| if column < FIXED { by_column[column as usize] } else { 0.0 };
        self.keep[0].iter().map(regret).collect()
    }

    /// Per op: the implementation that a solution chooses most for its first computation.
    pub fn first(&self, solution: &[f64]) -> Vec<usize> {
        self.most(&self.chosen, solution)
    }

    /// Per op: the implementation that a solution uses most when it computes the op again after the first moment.
    pub fn again(&self, solution: &[f64]) -> Vec<usize> {
        self.most(&self.again[0], solution)
    }

    fn most(&self, columns: &[u32], solution: &[f64]) -> Vec<usize> {
        let part = |way: usize| if columns[way] == NONE { -1.0 } else { solution[columns[way] as usize] };
        let ops = self.first_way.windows(2);
        ops.map(|ends| {
            let most = (ends[0]..ends[1]).reduce(|best, way| if part(way) > part(best) { way } else { best });
            most.map_or(0, |way| self.ways[way].implementation)
        })
        .collect()
    }

    pub fn entries(&self) -> usize {
        self.program.entries()
    }
}

impl<'g> Builder<'g> {
    fn produced_before(&self, value: ValueId, moment: OpId) -> bool {
        self.graph.producer(value).is_none_or(|op| op < moment)
    }

    /// Creates the variables of a moment and of the interval after it.
    fn columns(&mut self, at: usize, budget: u64) {
        let moment = self.moments[at];
        let ops = self.graph.ops();
        // Values that the first computations from the moment on may benefit from.
        let mut useful = vec![false; self.graph.values().len()];
        for &value in self.graph.results() {
            useful[value] = true;
        }
        let mut direct = useful.clone();
        for inputs in &self.inputs[moment..] {
            for &value in inputs {
                useful[value] = true;
                direct[value] = true;
            }
        }
        for way in &self.ways[self.first_way[moment]..] {
            way.inputs(self.graph).iter().for_each(|&value| useful[value] = true);
        }
        let mut again = vec![NONE; self.ways.len()];
        for id in (0..moment).rev() {
            if ops[id].recomputable && ops[id].outputs.iter().any(|&v| useful[v]) {
                for way in self.ways_of(id) {
                    self.ways[way].inputs(self.graph).iter().for_each(|&value| useful[value] = true);
                    again[way] = self.program.column(self.ways[way].cost(self.graph));
                }
            }
        }
        let mut keep = vec![NONE; useful.len()];
        // Whole bytes: sizes have 63 bits, more than a float can represent.
        let mut room = i128::from(budget) - i128::from(self.bytes_of_op(moment));
        let possible: Vec<ValueId> =
            (0..useful.len()).filter(|&value| useful[value] && self.produced_before(value, moment)).collect();
        for &value in &possible {
            let root = self.graph.producer(value).is_none_or(|op| !ops[op].recomputable);
            let certain = self.graph.bytes(value) == 0
                || root && direct[value]
                || self.inputs[moment].binary_search(&value).is_ok();
            if certain {
                keep[value] = FIXED;
                room -= i128::from(self.graph.bytes(value));
            }
        }
        // A value that alone does not fit beside these is never kept; a row of the program would say so only in the limit.
        for value in possible {
            if keep[value] == NONE && i128::from(self.graph.bytes(value)) <= room {
                keep[value] = self.program.column(0.0);
            }
        }
        self.keep.push(keep);
        self.again.push(again);
    }

    /// Bytes resident at a moment in addition to the values that are kept.
    fn bytes_of_op(&self, moment: OpId) -> u64 {
        let op = &self.graph.ops()[moment];
        self.graph.constant_bytes() + self.graph.bytes_of(&op.outputs) + least_scratch(op)
    }

    fn memory(&mut self, at: usize, budget: u64) {
        let moment = self.moments[at];
        let mut room = i128::from(budget) - i128::from(self.bytes_of_op(moment));
        // The bytes that each variable takes up if it is 1.
        let mut items: Vec<(u32, u64)> = Vec::new();
        for (way, column) in self.choice_of_first(moment) {
            let (inputs, _, scratch) = self.implementation(way);
            items.push((column, scratch - least_scratch(&self.graph.ops()[moment])));
            // What it reads must be resident.
            for &value in inputs {
                let keep = self.keep[at][value];
                if keep != FIXED {
                    let mut needs = Row::default();
                    if keep != NONE {
                        needs.push(keep, 1.0);
                    }
                    needs.push(column, -1.0);
                    self.program.row(needs, 0.0);
                }
            }
        }
        for (value, &keep) in self.keep[at].iter().enumerate() {
            match keep {
                NONE => {}
                FIXED => room -= i128::from(self.graph.bytes(value)),
                column => items.push((column, self.graph.bytes(value))),
            }
        }
        self.program.at_most(&items, room);
        // If there is no room at all, there is no schedule.
        if let Ok(room) = u64::try_from(room) {
            for unit in units(&items) {
                let whole: Vec<(u32, u64)> = items.iter().map(|&(column, bytes)| (column, bytes / unit)).collect();
                self.program.at_most(&whole, (room / unit).into());
            }
        }
    }

    fn ways_of(&self, op: OpId) -> std::ops::Range<usize> {
        self.first_way[op]..self.first_way[op + 1]
    }

    fn implementation(&self, way: usize) -> (&'g [ValueId], f64, u64) {
        let Choice { op, implementation: k } = self.ways[way];
        implementation(&self.graph.ops()[op], k)
    }

    /// If `op` has several ways: a variable for each, one of which is chosen for the first computation, at what it
    /// costs above the cheapest.
    fn choice_of_first(&mut self, op: OpId) -> Vec<(usize, u32)> {
        let ways = self.ways_of(op);
        if ways.len() == 1 {
            return Vec::new();
        }
        let least = least_cost(&self.graph.ops()[op]);
        let chosen: Vec<(usize, u32)> = ways
            .map(|way| {
                let cost = self.implementation(way).1 - least;
                (way, self.program.column(cost))
            })
            .collect();
        let mut one = Row::default();
        for &(way, column) in &chosen {
            one.push(column, 1.0);
            self.chosen[way] = column;
        }
        self.program.row(one, 1.0);
        chosen
    }

    /// Adds a row: kept at the moment, or computed again in the interval after it, is at least `user` (a variable) plus
    /// `constant`.
    fn available(&mut self, at: usize, value: ValueId, user: Option<u32>, constant: f64) {
        let keep = self.keep[at][value];
        if keep == FIXED || !self.produced_before(value, self.moments[at]) {
            return;
        }
        let mut row = Row::default();
        if keep != NONE {
            row.push(keep, 1.0);
        }
        if let Some(op) = self.graph.producer(value) {
            let again = self.ways_of(op).map(|way| self.again[at][way]).filter(|&again| again != NONE);
            again.for_each(|again| row.push(again, 1.0));
        }
        if let Some(user) = user {
            row.push(user, -1.0);
        }
        self.program.row(row, constant);
    }

    fn interval(&mut self, at: usize) {
        let next = self.moments.get(at + 1).copied();
        let end = next.unwrap_or(self.graph.ops().len());
        let mut direct: Vec<ValueId> = self.inputs[self.moments[at] + 1..end].iter().flatten().copied().collect();
        if next.is_none() {
            direct.extend_from_slice(self.graph.results());
        }
        direct.sort_unstable();
        direct.dedup();
        for value in direct {
            self.available(at, value, None, 1.0);
        }
        for op in self.moments[at] + 1..end {
            for (way, column) in self.choice_of_first(op) {
                for &value in self.implementation(way).0 {
                    if self.inputs[op].binary_search(&value).is_err() {
                        self.available(at, value, Some(column), 0.0);
                    }
                }
            }
        }
        for way in 0..self.ways.len() {
            let again = self.again[at][way];
            if again != NONE {
                for &value in self.implementation(way).0 {
                    self.available(at, value, Some(again), 0.0);
                }
            }
        }
        if next.is_some() {
            for value in 0..self.graph.values().len() {
                match self.keep[at + 1][value] {
                    NONE => {}
                    FIXED if self.graph.bytes(value) == 0 => {}
                    FIXED => self.available(at, value, None, 1.0),
                    column => self.available(at, value, Some(column), 0.0),
                }
            }
        }
    }
}
