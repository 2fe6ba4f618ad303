//! Indices of operations and values.

/// Index of an operation: its position in execution order, from 0.
pub type OpId = usize;
/// Index of a value, from 0.
pub type ValueId = usize;
