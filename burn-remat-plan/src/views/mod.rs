//! Structure derived from a graph.

pub mod chain_of;
