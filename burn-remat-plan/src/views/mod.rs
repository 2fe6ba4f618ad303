//! Structure derived from a graph: phases, cuts, the chain of stages, the graph of stages, and the graph without choice.

pub mod chain_of;
pub mod cuts;
pub(crate) mod plain;
mod saved_sets;
mod split;
pub(crate) mod stage_options;
pub mod stages_of;

pub use cuts::{Segment, articulation_points, segments, separators};
pub use plain::without_alternatives;
pub use split::{Split, split};
