//! The data of the page as JSON. Only the page's own script reads it, so it may change together with the script.

use serde::Serialize;

use crate::graph::Phase;

/// All data of the page.
#[derive(Debug, Serialize)]
pub(super) struct Data {
    pub name: String,
    /// Whether times are nanoseconds.
    pub is_time: bool,
    /// Ops of the graph.
    pub ops_in_graph: usize,
    /// Names, to which other fields refer by index.
    pub texts: Vec<String>,
    /// Ops to which bins and rows refer by index.
    pub ops: Vec<OpText>,
    /// Values, largest first.
    pub rows: Vec<Row>,
    /// Number of activations that the backward pass reads but that have no row, and their total bytes.
    pub rows_left_out: (usize, u64),
    /// Bands of memory, from the bottom up.
    pub layers: Vec<Layer>,
    /// The plans; the one without evictions comes first.
    pub views: Vec<View>,
    /// Budgets, ascending.
    pub stops: Vec<Stop>,
    /// The view and the budget with which the page opens, if a plan was given.
    pub given: Option<Given>,
}

#[derive(Debug, Serialize)]
pub(super) struct OpText {
    pub name: usize,
    pub stage: Option<usize>,
    pub phase: Option<Phase>,
}

/// What bytes are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Parameters, optimizer state and whatever else stays throughout.
    Constant,
    Input,
    Activation,
    /// Made by a backward operation or an update.
    Gradient,
    /// Extra memory of an operation while it runs.
    Scratch,
}

/// A band of memory.
#[derive(Debug, Serialize)]
pub(super) struct Layer {
    pub kind: Kind,
    /// The row of its only value.
    pub row: Option<usize>,
    /// Where its values come from, if it has several.
    pub group: Option<usize>,
}

/// A value of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub name: usize,
    /// The op that makes it.
    pub op: usize,
    pub kind: Kind,
    /// Whether it is an activation that the backward pass reads.
    pub is_saved: bool,
    pub bytes: u64,
    /// Time to run its op again.
    pub cost: f64,
}

/// What a plan does with the value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct RowDecision {
    /// How often it is recomputed.
    pub again: u32,
    /// How often it is restored from a compressed form or a copy.
    pub forms: u32,
    /// The name of that form.
    pub form: Option<usize>,
    /// How often an op ran with an alternative that does without it.
    pub spared: u32,
    /// What was kept of it for that purpose.
    pub spared_by: Option<usize>,
    /// Total time spent on recomputing and restoring it.
    pub time: f64,
    /// The longest time in which nothing needs it.
    pub idle: f64,
}

/// One plan.
#[derive(Debug, Serialize)]
pub(super) struct View {
    pub planner: String,
    pub peak: u64,
    pub makespan: f64,
    /// Computations beyond the first of each op, and their time.
    pub again: usize,
    pub again_time: f64,
    pub bins: Bins,
    pub phases: Vec<(u32, u32, Phase)>,
    pub stages: Vec<StageSpan>,
    /// For each row.
    pub decisions: Vec<RowDecision>,
}

/// Memory over time. The figures of a bin are those of its highest step.
#[derive(Debug, Default, Serialize)]
pub(super) struct Bins {
    /// Where each begins, in millionths of the makespan.
    pub starts: Vec<u32>,
    /// Most bytes held.
    pub held: Vec<u64>,
    /// The op that runs then.
    pub ops: Vec<Option<usize>>,
    /// Whether that op has run before.
    pub is_again: Vec<u8>,
    /// The share of the bin's time in which ops run again, in percent.
    pub again: Vec<u8>,
    /// Number of computations.
    pub count: Vec<u32>,
    /// For each layer, its bytes: pairs of a bin and what is held from there on; 0 before the first pair.
    pub layers: Vec<Vec<(usize, u64)>>,
}

/// A stretch of time that belongs to a stage, in millionths.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct StageSpan {
    /// How many stages enclose it.
    pub depth: usize,
    pub start: u32,
    pub end: u32,
    pub name: usize,
}

/// A budget and the cheapest known plan that fits it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Stop {
    pub budget: u64,
    pub view: usize,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Given {
    pub view: usize,
    pub budget: Option<u64>,
}
