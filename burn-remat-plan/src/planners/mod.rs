//! The planners for graphs: one file per algorithm, each with its paper. [`crate::registry`] lists them by name.

pub mod articulation;
pub mod auto;
pub mod chain_dp;
mod chain_exchange;
mod chain_on_graph;
pub(crate) mod chain_search;
mod chain_table;
mod chain_tiles;
#[cfg(feature = "highs")]
pub mod checkmate;
pub mod chen;
pub mod feng_huang;
mod incumbent;
#[cfg(feature = "highs")]
mod limited;
pub mod linearized;
#[cfg(feature = "highs")]
pub mod lp_rounding;
#[cfg(not(feature = "highs"))]
mod missing_feature;
#[cfg(feature = "highs")]
pub mod monet;
pub mod online;
pub mod revolve;
pub mod search;
mod segments;
pub mod store_all;

pub use articulation::{ApGreedy, ApSqrt};
pub use auto::Auto;
pub use chain_dp::ChainDp;
#[cfg(feature = "highs")]
pub use checkmate::Checkmate;
pub use chen::{ChenGreedy, ChenSqrt};
pub use feng_huang::FengHuang;
pub use linearized::{LinearGreedy, LinearSqrt};
#[cfg(feature = "highs")]
pub use lp_rounding::LpRounding;
#[cfg(not(feature = "highs"))]
pub use missing_feature::MissingFeature;
#[cfg(feature = "highs")]
pub use monet::Monet;
pub use online::Online;
pub use revolve::Revolve;
pub use search::Search;
pub use store_all::StoreAll;
