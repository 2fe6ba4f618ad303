//! The scheduling problem with less to remember: an *abstraction* that any schedule of the graph maps into.
//!
//! For each *group* of values, it remembers only whether any of them is resident. A group weighs as much as its lightest
//! value. Values in no group are forgotten. So are roots, up to the last first computation that is sure to read them, if
//! they are of no use later: these are resident anyway, and `held` counts them at each moment.
//!
//! A computation needs the groups of the values that it reads, counts all that it reads and writes in full (these values
//! are resident, even if they are forgotten), and makes the groups of its outputs resident. A computation that adds no
//! group is left out. So each step of a schedule is one step here or none, never heavier and never more expensive: the
//! cheapest way through the abstraction is a lower bound. If every value with a size has its own group, the abstraction
//! is exact.
//!
//! *What is missing.* If a group is not resident, but a later first computation is sure to read a value of it that was
//! computed before, the group must be *entered*: some computation that writes into the group and reads nothing of it runs
//! again, and what all such computations read must be resident, or be entered in turn. The costs of the entries add up,
//! except that one computation may enter several groups (`Entry`).

use super::bits::Bits;
use crate::choice::{Choice, implementation, least_cost, useful_implementations};
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId, ValueId};

/// What an abstraction remembers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Detail {
    /// Lighter values are forgotten.
    pub least_bytes: u64,
    /// Ops that cost at most this have their outputs in the group of what they read.
    pub cheap: f64,
}

/// An op with one of its implementations.
pub(super) struct Way<const W: usize> {
    pub op: OpId,
    pub inputs: Bits<W>,
    /// Cost of the first computation, above that of the cheapest way.
    pub first: f64,
    /// Cost of any later computation.
    pub again: f64,
    /// Bytes in addition to those that the weights of groups and `held` count.
    pub extra: u64,
}

/// How a group becomes resident.
#[derive(Clone, Copy)]
pub(super) struct Entry<const W: usize> {
    /// The least that this costs; infinite if it is impossible.
    pub cost: f64,
    /// The groups that are read whichever way it is done.
    pub inputs: Bits<W>,
    /// The groups that the same computation enters at no extra cost.
    pub along: Bits<W>,
}

pub(super) struct Model<const W: usize> {
    /// By group.
    pub weights: Vec<u64>,
    pub entries: Vec<Entry<W>>,
    /// By value.
    pub group: Vec<Option<usize>>,
    /// By group: how many first computations are done when all its values have been computed.
    pub born: Vec<usize>,
    /// Op by op.
    pub ways: Vec<Way<W>>,
    /// By op: its first way; at the end, the number of all ways.
    pub first_way: Vec<usize>,
    /// By op.
    pub outputs: Vec<Bits<W>>,
    pub recomputable: Vec<bool>,
    /// By op: bytes of its outputs that cannot be computed again.
    pub fresh_roots: Vec<u64>,
    /// By number of first computations done: bytes certainly resident in addition to the groups.
    pub held: Vec<u64>,
    /// By number of first computations done: what may still be of use.
    pub useful: Vec<Bits<W>>,
    /// By op: the grouped values that its first computation reads with any implementation, as group and producer. After
    /// the last op: the results.
    pub reads: Vec<Vec<(usize, Option<OpId>)>>,
    pub results: Bits<W>,
    pub start: Bits<W>,
}

/// The values that all implementations of an op read.
fn certain_inputs(graph: &Graph, op: OpId) -> impl Iterator<Item = ValueId> + '_ {
    let op = &graph.ops()[op];
    op.inputs.iter().copied().filter(|v| op.alternatives.iter().all(|a| a.inputs.binary_search(v).is_ok()))
}

/// What every abstraction of a graph builds on.
pub(super) struct Shape {
    /// By number of first computations done and by value: whether it is already computed and anything still to do may
    /// benefit from it.
    useful: Vec<Vec<bool>>,
    /// By value: the number of first computations done after the last one that is sure to read it (`ops + 1` for a
    /// result), if it is a root that one is sure to read, and of no use later.
    sure: Vec<Option<usize>>,
}

impl Shape {
    /// The shape of `graph`; `None` if the deadline comes first. Complexity: O(ops · (values + uses)).
    pub fn of(graph: &Graph, deadline: Deadline) -> Option<Self> {
        let useful = useful(graph, deadline)?;
        let mut until = vec![None; graph.values().len()];
        for op in 0..graph.ops().len() {
            certain_inputs(graph, op).for_each(|value| until[value] = Some(op + 1));
        }
        graph.results().iter().for_each(|&value| until[value] = Some(graph.ops().len() + 1));
        let is_useless = |value: ValueId, done: usize| useful.get(done).is_none_or(|of| !of[value]);
        let is_sure = |value: ValueId, until: usize| graph.is_root(value) && is_useless(value, until);
        let sure =
            until.into_iter().enumerate().map(|(value, until)| until.filter(|&until| is_sure(value, until))).collect();
        Some(Self { useful, sure })
    }

    /// The bytes that it takes.
    pub fn bytes_of(graph: &Graph) -> usize {
        (graph.ops().len() + 1) * graph.values().len()
    }

    /// How many groups an abstraction with this detail has.
    pub fn count_groups(&self, graph: &Graph, detail: Detail) -> usize {
        groups(graph, detail, &self.sure).1
    }
}

/// The group of each value, and the number of groups.
fn groups(graph: &Graph, detail: Detail, sure: &[Option<usize>]) -> (Vec<Option<usize>>, usize) {
    let counts = |value: ValueId| {
        let bytes = graph.bytes(value);
        bytes > 0 && bytes >= detail.least_bytes && sure[value].is_none()
    };
    let mut group = vec![None; graph.values().len()];
    let mut count = 0;
    let mut new = |group: &mut Vec<Option<usize>>, value: ValueId| {
        group[value] = Some(count);
        count += 1;
    };
    graph.inputs().filter(|&value| counts(value)).for_each(|value| new(&mut group, value));
    for op in graph.ops() {
        let is_cheap = op.recomputable && detail.cheap > 0.0 && least_cost(op) <= detail.cheap;
        for &value in op.outputs.iter().filter(|&&value| counts(value)) {
            // Values of about the same size, because a group weighs as much as its lightest value.
            let similar = |&&read: &&ValueId| {
                group[read].is_some() && graph.bytes(read).abs_diff(graph.bytes(value)) <= graph.bytes(value) / 4
            };
            match op.inputs.iter().filter(similar).max_by_key(|&&read| graph.producer(read)) {
                Some(&read) if is_cheap => group[value] = group[read],
                _ => new(&mut group, value),
            }
        }
    }
    (group, count)
}

impl<const W: usize> Model<W> {
    /// The abstraction of `graph`, which must have at most `64 W` groups.
    pub fn new(graph: &Graph, detail: Detail, shape: &Shape) -> Self {
        let sure = &shape.sure;
        let (group, count) = groups(graph, detail, sure);
        let bits = |values: &[ValueId]| values.iter().filter_map(|&value| group[value]).collect::<Bits<W>>();
        let (mut weights, mut born) = (vec![u64::MAX; count], vec![0; count]);
        for (value, group) in group.iter().enumerate() {
            if let Some(group) = *group {
                weights[group] = weights[group].min(graph.bytes(value));
                born[group] = born[group].max(graph.producer(value).map_or(0, |op| op + 1));
            }
        }
        let ops = graph.ops();
        let (mut ways, mut first_way) = (Vec::new(), vec![0]);
        for (op, node) in ops.iter().enumerate() {
            for implementation in useful_implementations(node) {
                ways.push(way(graph, Choice { op, implementation }, sure, &weights, bits));
            }
            first_way.push(ways.len());
        }
        let mut model = Self {
            weights,
            entries: Vec::new(),
            born,
            ways,
            first_way,
            outputs: ops.iter().map(|op| bits(&op.outputs)).collect(),
            recomputable: ops.iter().map(|op| op.recomputable).collect(),
            fresh_roots: ops
                .iter()
                .map(|op| op.outputs.iter().filter(|&&v| sure[v].is_some()).map(|&v| graph.bytes(v)).sum())
                .collect(),
            held: held(graph, sure),
            useful: shape
                .useful
                .iter()
                .map(|is_useful| group.iter().zip(is_useful).filter_map(|(group, &of)| group.filter(|_| of)).collect())
                .collect(),
            reads: reads(graph, &group),
            results: bits(graph.results()),
            start: bits(&graph.inputs().collect::<Vec<_>>()),
            group: group.clone(),
        };
        model.entries = model.entries();
        model
    }

    /// The ways of `op`.
    pub fn ways_of(&self, op: OpId) -> &[Way<W>] {
        &self.ways[self.first_way[op]..self.first_way[op + 1]]
    }

    /// By group: how much more is at least spent if none of its values is resident, given that by value; at most its entry.
    pub fn regrets(&self, by_value: &[f64]) -> Vec<f64> {
        let mut regrets = vec![0.0; self.weights.len()];
        for (value, &regret) in by_value.iter().enumerate() {
            if let Some(group) = self.group[value] {
                regrets[group] += regret;
            }
        }
        let part = |group: usize| self.entries[group].cost / self.entries[group].along.members().count().max(1) as f64;
        regrets.into_iter().enumerate().map(|(group, regret)| regret.min(part(group))).collect()
    }

    pub fn weigh(&self, groups: &Bits<W>) -> u64 {
        groups.members().map(|group| self.weights[group]).sum()
    }

    fn entries(&self) -> Vec<Entry<W>> {
        let mut entering: Vec<Vec<&Way<W>>> = vec![Vec::new(); self.weights.len()];
        for way in self.ways.iter().filter(|way| self.recomputable[way.op]) {
            for group in self.outputs[way.op].minus(&way.inputs).members() {
                entering[group].push(way);
            }
        }
        let entering = &entering;
        // An op that alone enters all its groups counts once for all of them; otherwise it counts in part for each.
        let enters = |op: OpId| self.outputs[op].members().filter(move |&g| entering[g].iter().any(|way| way.op == op));
        let is_alone = |op: OpId| enters(op).all(|group| entering[group].iter().all(|way| way.op == op));
        let entry = |ways: &Vec<&Way<W>>| {
            let Some(first) = ways.first() else {
                return Entry { cost: f64::INFINITY, inputs: Bits::EMPTY, along: Bits::EMPTY };
            };
            let inputs = ways.iter().fold(first.inputs, |all, way| all.common(&way.inputs));
            let along: Bits<W> = if is_alone(first.op) { enters(first.op).collect() } else { Bits::EMPTY };
            let part = |way: &&&Way<W>| match is_alone(way.op) {
                true => way.again,
                false => way.again / enters(way.op).count() as f64,
            };
            Entry { cost: ways.iter().map(|way| part(&way)).fold(f64::INFINITY, f64::min), inputs, along }
        };
        entering.iter().map(entry).collect()
    }
}

fn way<const W: usize>(
    graph: &Graph,
    choice: Choice,
    sure: &[Option<usize>],
    weights: &[u64],
    bits: impl Fn(&[ValueId]) -> Bits<W>,
) -> Way<W> {
    let node = &graph.ops()[choice.op];
    let (inputs, again, scratch) = implementation(node, choice.implementation);
    let touched: Vec<ValueId> =
        inputs.iter().chain(&node.outputs).copied().filter(|&value| sure[value].is_none()).collect();
    let told: u64 = bits(&touched).members().map(|group| weights[group]).sum();
    Way {
        op: choice.op,
        inputs: bits(inputs),
        first: again - least_cost(node),
        again,
        extra: graph.bytes_of(&touched) + scratch - told,
    }
}

/// By number of first computations done: the constant bytes and the roots that a later one is sure to read.
fn held(graph: &Graph, sure: &[Option<usize>]) -> Vec<u64> {
    let end = graph.ops().len();
    let mut held = vec![graph.constant_bytes(); end + 1];
    for (value, until) in sure.iter().enumerate() {
        let from = graph.producer(value).map_or(0, |op| op + 1);
        if let Some(until) = *until {
            held[from..until.min(end + 1)].iter_mut().for_each(|held| *held += graph.bytes(value));
        }
    }
    held
}

/// [`Shape::useful`]; `None` if the deadline comes first.
fn useful(graph: &Graph, deadline: Deadline) -> Option<Vec<Vec<bool>>> {
    let ops = graph.ops();
    let all_inputs = |op: OpId| ops[op].inputs.iter().chain(ops[op].alternatives.iter().flat_map(|a| &a.inputs));
    let mut direct = vec![false; graph.values().len()];
    graph.results().iter().for_each(|&value| direct[value] = true);
    let mut sets = Vec::with_capacity(ops.len() + 1);
    for done in (0..=ops.len()).rev() {
        if deadline.passed() {
            return None;
        }
        if done < ops.len() {
            all_inputs(done).for_each(|&value| direct[value] = true);
        }
        let mut useful = direct.clone();
        for op in (0..done).rev() {
            if ops[op].recomputable && ops[op].outputs.iter().any(|&value| useful[value]) {
                all_inputs(op).for_each(|&value| useful[value] = true);
            }
        }
        for (value, useful) in useful.iter_mut().enumerate() {
            *useful &= graph.producer(value).is_none_or(|op| op < done);
        }
        sets.push(useful);
    }
    sets.reverse();
    Some(sets)
}

fn reads(graph: &Graph, group: &[Option<usize>]) -> Vec<Vec<(usize, Option<OpId>)>> {
    let grouped = |value: ValueId| group[value].map(|group| (group, graph.producer(value)));
    let mut reads: Vec<Vec<_>> =
        (0..graph.ops().len()).map(|op| certain_inputs(graph, op).filter_map(grouped).collect()).collect();
    reads.push(graph.results().iter().filter_map(|&value| grouped(value)).collect());
    reads
}
