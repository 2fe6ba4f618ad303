//! Which values have a row in the table: the largest of those that the backward pass reads, then the largest of the others.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::decisions::activations;
use crate::graph::{Graph, OpId, Phase, ValueId};

use super::model::{Kind, Row};
use super::texts::Names;

/// Largest number of rows of values that the backward pass reads, and of others.
const MOST: [usize; 2] = [250, 50];

/// What a value is held for.
pub(super) fn kind_of(graph: &Graph, value: ValueId) -> Kind {
    match graph.producer(value).map(|op| graph.ops()[op].phase) {
        None => Kind::Input,
        Some(None | Some(Phase::Forward)) => Kind::Activation,
        Some(Some(Phase::Backward | Phase::Update)) => Kind::Gradient,
    }
}

/// Values with rows.
pub(super) struct Listed {
    /// Largest first.
    pub values: Vec<ValueId>,
    /// Number of activations that the backward pass reads but that have no row, and their total bytes.
    pub left_out: (usize, u64),
}

/// Chooses the values, including `named`.
pub(super) fn listed(graph: &Graph, named: &[ValueId]) -> Listed {
    let reads = activations(graph);
    let mut computed: Vec<ValueId> = (0..reads.len()).filter(|&value| graph.producer(value).is_some()).collect();
    computed.sort_by_key(|&value| (Reverse(graph.bytes(value)), value));
    let (saved, others): (Vec<ValueId>, Vec<ValueId>) = computed.into_iter().partition(|&value| reads[value]);
    let first = saved.iter().take(MOST[0]).chain(others.iter().take(MOST[1]));
    let all: BTreeSet<ValueId> = first.chain(named).copied().collect();
    let missing: Vec<ValueId> = saved.into_iter().filter(|value| !all.contains(value)).collect();
    let mut values: Vec<ValueId> = all.into_iter().collect();
    values.sort_by_key(|&value| (Reverse(graph.bytes(value)), value));
    Listed { values, left_out: (missing.len(), graph.bytes_of(&missing)) }
}

/// A row of the table.
pub(super) fn row(graph: &Graph, value: ValueId, is_saved: bool, costs: &[f64], names: &mut Names<'_>) -> Option<Row> {
    let maker: OpId = graph.producer(value)?;
    let op = names.op(maker);
    let name = &graph.values()[value].name;
    let name = if name.is_empty() { names.op_name(op) } else { names.texts.index(name) };
    let kind = kind_of(graph, value);
    Some(Row { name, op, kind, is_saved, bytes: graph.bytes(value), cost: costs.get(maker).copied().unwrap_or(0.0) })
}
