//! The models, data and training steps of the example programs.
#![recursion_limit = "256"]

pub mod bare;
pub mod bars;
pub mod benchmarks;
#[cfg(doctest)]
pub mod book;
pub mod by_hand;
pub mod cli;
pub mod clock;
pub mod comparison;
pub mod contenders;
pub mod data;
pub mod device;
pub mod head_to_head;
pub mod heap;
#[cfg(feature = "learner")]
pub mod learner;
pub mod models;
pub mod overhead;
pub mod paired;
pub mod tasks;
pub mod training;
