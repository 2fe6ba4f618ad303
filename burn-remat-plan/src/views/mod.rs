//! Structure derived from a graph: phases, cuts, the chain of stages, and the graph of stages.

pub mod chain_of;
pub mod cuts;
mod saved_sets;
mod split;
pub mod stages_of;

pub use cuts::{Segment, articulation_points, segments, separators};
pub use split::{Split, split};
