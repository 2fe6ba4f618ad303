//! The planners for graphs: one file per algorithm, each with its paper. [`crate::registry`] lists them by name.

pub mod articulation;
pub mod chen;
pub mod feng_huang;
pub mod linearized;
pub mod online;
pub mod search;
mod segments;
pub mod store_all;

pub use articulation::{ApGreedy, ApSqrt};
pub use chen::{ChenGreedy, ChenSqrt};
pub use feng_huang::FengHuang;
pub use linearized::{LinearGreedy, LinearSqrt};
pub use online::Online;
pub use search::Search;
pub use store_all::StoreAll;
