//! From a traced step to a graph that a planner can handle, and the exact way back.
//!
//! A step of a few thousand operations is too fine-grained for a planner, and most of its operations are trivial. The reduction:
//!
//! - *Small storages* are not worth a decision. Those that together are at most one part in `SMALL_SHARE` of the store-all peak are kept until parameters
//!   are updated, and count as constant bytes of the graph.
//! - *Views* make no value: reading a view is reading its storage.
//! - *Single-use chains* merge: if all that an operation makes dies within the next one, and the next needs nothing else, the two are one op, and what
//!   passes between them is scratch. An operation that makes only small storages (a *rider*) joins a neighbour that needs the same large inputs.
//!   Operations do not merge into an op that would hold much at once.
//! - *Many tiny operations* (a recurrent network) are more than a planner can handle. If there are more than `MOST_OPS` ops, neighbours merge whatever
//!   passes between them, those that touch least first, as long as this is a small part of the store-all peak.
//! - *Updates*: everything from the first parameter update to the end of the step (or to the next forward pass) is one op that cannot run again. It needs
//!   everything alive that depends on what it replaces: this must be resident when the history is cut, and stays as long as the program holds it. An
//!   update in the middle of a step (the first of two optimizers) leaves the rest as it was.
//! - A storage that cannot be computed again (a batch, a dropout mask) and that the program holds beyond its last use gets an op without cost at the
//!   place where the program drops it. So does a storage if another one depends on it that the program holds although nothing reads it any more: the
//!   engine gives up nothing that the program could still ask for.
//!
//! A value with [another form](crate::Compression) becomes two ops: one makes the form, which is no larger than the value; the other makes the value,
//! either from the form (*unpacking*) or, as an alternative, the way the operations do. At first, both together cost what the operations do. After that,
//! the value can be restored from its form as long as a plan keeps the form. The engine makes the form only when it evicts the value, so until then it
//! holds less than the graph says. If unpacking takes longer than the operations, there is no such choice.
//!
//! An operation that needs only the signs or the shape of a value has an alternative that reads a *stub* of it instead. An op without cost, right after
//! the value's own, makes the stub; the cost of the stub and of the temporary tensor is in the alternative's cost.
//!
//! The [policy](crate::CheckpointPolicy) of a stage is in the graph: what must be saved cannot run again, what must be recomputed runs again in an op of
//! its own (`forced.rs`), and preferences weight the costs.
//!
//! The order of operations is kept: an op of the graph is a run of consecutive operations. A graph's memory is an upper bound on the engine's: it counts
//! the output of an in-place operation in addition to its input, unless the two merged.
//!
//! Complexity: O(operations + uses), after a sort of the storages.

mod build;
mod divided;
mod forced;
mod forms;
mod large;
mod lowered;
mod phases;
mod units;
mod uses;

use burn_remat_core::Trace;
use burn_remat_plan::GraphError;

use divided::Divided;
use large::Large;
pub(crate) use lowered::Lowered;
pub(super) use phases::turning_point;
use phases::update_phases;

/// Lowers a step.
///
/// # Errors
///
/// Why the graph is not valid, for example because the step has no operations.
pub(crate) fn lower(trace: &Trace, name: &str) -> Result<Lowered, GraphError> {
    let store_all = trace.store_all();
    let updates = update_phases(trace);
    let large = Large::of(trace, &store_all, &updates);
    let units = units::units(trace, &large, &updates, store_all.iter().max().copied().unwrap_or(0));
    build::build(&Divided::new(trace, &updates, &large, &units), name, store_all)
}
