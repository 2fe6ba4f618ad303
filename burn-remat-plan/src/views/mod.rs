//! Structure derived from a graph: its forward pass, the chain of stages, the graph of stages, and the graph without alternatives.

pub mod chain_of;
pub(crate) mod once;
pub mod passes;
pub(crate) mod plain;
mod saved_sets;
pub(crate) mod stage_options;
mod stage_runs;
pub mod stages_of;

pub use plain::without_alternatives;
