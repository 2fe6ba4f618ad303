//! The models, data and training loop behind the runnable programs.
#![recursion_limit = "256"]

pub mod data;
pub mod device;
pub mod models;
pub mod training;
