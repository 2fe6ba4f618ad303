//! From a traced step to a graph that a planner can live with, and the exact way back.
//!
//! A step of a few thousand operations is too fine for a planner and mostly trivial. The reduction:
//!
//! - *Small storages* are not worth a decision. Those that together are at most one part in `SMALL_SHARE` of the
//!   store-all peak are kept until parameters are updated and counted in the graph's constant bytes.
//! - *Views* make no value: reading a view is reading its storage.
//! - *Single-use chains* merge: where all that an operation makes dies within the next one, and the next needs nothing
//!   else, the two are one op, and what passes between them is scratch. An operation that makes only small storages (a
//!   *rider*) joins a neighbour that needs the same large inputs. An op that would then hold much at once stays apart.
//! - *Many tiny operations* (a recurrent network) are more than a planner can weigh. Beyond `MOST_OPS` ops neighbours
//!   merge whatever passes between them, first those that touch least, as long as that is a small part of the store-all peak.
//! - *Updates*: from the first parameter update to the end of the step (or to the next forward pass) all is one op that
//!   cannot run again and needs everything alive that rests on what it replaces: that is resident when history is cut, and
//!   stays for as long as the program holds it. An update in the middle of a step (the first of two optimizers) leaves the
//!   rest as it was.
//! - A storage that cannot be computed again (a batch, a dropout mask) and that the program holds beyond its last use
//!   gets an op without cost where the program lets go of it. So does one on which a storage rests that the program
//!   holds although nothing reads it any more: the engine gives nothing up for good that the program could still ask for.
//!
//! A value with [another form](crate::Compression) becomes two ops: one that makes the form, which is no larger than the value, and one
//! that makes the value, either from the form (*unpacking*) or, as an alternative, the way the operations do. Both together cost once what
//! the operations do; after that, the value can be had from its form for as long as a plan keeps that. The engine makes the form only when
//! it evicts the value, so it holds less than the graph says until then. Where unpacking takes longer than the operations, there is no
//! such choice.
//!
//! An operation that needs only the signs or the shape of a value has an alternative that reads a *stub* of it instead, made by an op
//! without cost behind the value's own; what the stub and the stand-in take is in the alternative's cost.
//!
//! A stage's [policy](crate::CheckpointPolicy) is in the graph: what must be saved cannot run again, what must be recomputed
//! does so in an op of its own (`forced.rs`), and preferences weigh the costs.
//!
//! The order of operations is kept: an op of the graph is a run of consecutive operations. A graph's memory is an upper
//! bound of the engine's: it counts the output of an in-place operation beside its input unless they merged.
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
/// What keeps the graph from being one: a step without operations.
pub(crate) fn lower(trace: &Trace, name: &str) -> Result<Lowered, GraphError> {
    let store_all = trace.store_all();
    let updates = update_phases(trace);
    let large = Large::of(trace, &store_all, &updates);
    let units = units::units(trace, &large, &updates, store_all.iter().max().copied().unwrap_or(0));
    build::build(&Divided::new(trace, &updates, &large, &units), name, store_all)
}
