//! The planners for graphs: one file per algorithm, each with its paper. [`crate::registry`] lists them by name.

pub mod store_all;

pub use store_all::StoreAll;
