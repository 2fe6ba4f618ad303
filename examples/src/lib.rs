//! The models, data and training steps behind the runnable programs.
#![recursion_limit = "256"]

pub mod bars;
pub mod cli;
pub mod clock;
pub mod comparison;
pub mod data;
pub mod device;
pub mod heap;
#[cfg(feature = "learner")]
pub mod learner;
pub mod models;
pub mod tasks;
pub mod training;

/// The code of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guide.md")]
pub struct Guide;

/// The code of the page on serving, compiled and run.
#[cfg(all(doctest, feature = "serve"))]
#[doc = include_str!("../../docs/serving.md")]
pub struct Serving;

/// The code of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
