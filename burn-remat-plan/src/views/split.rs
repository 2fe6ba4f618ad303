//! Forward pass, backward pass and update of a training graph, and what the one hands to the other.

use crate::graph::{Graph, OpId, Phase, ValueId};

/// A training graph by phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Ops of the forward pass, ascending.
    pub forward: Vec<OpId>,
    /// Ops of the backward pass, ascending.
    pub backward: Vec<OpId>,
    /// Ops of the update, ascending.
    pub update: Vec<OpId>,
    /// Outputs of forward ops that a later phase uses: what store-all saves, ascending.
    pub saved: Vec<ValueId>,
}

/// Splits `graph` by the phases of its ops; `None` where an op has no phase. Complexity: O(ops + uses).
///
/// ```
/// use burn_remat_plan::generate::{Options, by_name};
/// use burn_remat_plan::views::split;
///
/// let graph = by_name("linear", &Options { depth: 3, ..Options::default() })?;
/// let parts = split(&graph).expect("generated graphs have phases");
/// assert_eq!(parts.forward.len() + parts.backward.len(), graph.ops().len());
/// # Ok::<(), burn_remat_plan::generate::GenerateError>(())
/// ```
pub fn split(graph: &Graph) -> Option<Split> {
    let phases: Vec<Phase> = graph.ops().iter().map(|op| op.phase).collect::<Option<_>>()?;
    let of = |wanted: Phase| (0..phases.len()).filter(|&op| phases[op] == wanted).collect();
    let is_saved = |value: ValueId| {
        graph.producer(value).is_some_and(|op| phases[op] == Phase::Forward)
            && graph.consumers(value).iter().any(|&op| phases[op] != Phase::Forward)
    };
    Some(Split {
        forward: of(Phase::Forward),
        backward: of(Phase::Backward),
        update: of(Phase::Update),
        saved: (0..graph.values().len()).filter(|&value| is_saved(value)).collect(),
    })
}
