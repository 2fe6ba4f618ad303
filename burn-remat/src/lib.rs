//! Train any Burn model inside a memory budget stated in bytes.
#![recursion_limit = "256"]

mod backend;
mod budget;
mod config;
mod device;
mod engine;
mod error;
mod planning;
mod rehearse;
mod report;

pub use backend::{BufferId, Remat, RematBackend, RematBridge, RematChannel, RematClient, RematDevice};
pub use budget::{Budget, BudgetError, DisplayBytes};
pub use config::{MemoryProbe, RandomPolicy, RematConfig};
pub use device::{RematExt, random_token, serve};
pub use error::RematError;
pub use planning::PlanReport;
pub use rehearse::{LargestBatch, Needs, largest_batch, minimum_budget};
pub use report::RematReport;
