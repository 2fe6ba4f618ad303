//! Structure derived from a graph: phases, cuts, and the chain of stages.

pub mod chain_of;
pub mod cuts;
mod split;

pub use cuts::{Segment, articulation_points, segments, separators};
pub use split::{Split, split};
