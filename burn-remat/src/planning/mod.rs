//! From a traced step to a plan that the engine follows.
//!
//! Data flows one way: the engine writes a [`Trace`](burn_remat_core::Trace); [`lower`] makes a graph of it; a planner of `burn-remat-plan` plans the
//! graph on a thread of its own (`service`), and is told as large a budget as its plans really keep to ([`Fit`]), unless the cache has the plan already;
//! a [`Schedule`] turns the checked plan into what the engine does between operations.

mod budgets;
mod chosen;
mod compare;
#[cfg(test)]
mod examples;
mod explain;
mod fit;
mod fused;
mod lowering;
mod plain;
mod report;
mod schedule;
mod service;
#[cfg(feature = "show")]
mod show;
mod stages;
mod tight;
mod times;

pub(crate) use budgets::budgets;
pub(crate) use chosen::ChosenPlanner;
pub use compare::CompressionCost;
pub use explain::{ActivationPlan, Explanation};
pub(crate) use fit::Fit;
pub(crate) use fused::shares;
pub(crate) use lowering::lower;
pub use report::{PlanReport, StagePlan};
pub(crate) use service::{Met, Origin, PlanSettings, Plans, Ready, Wait, does_like, hand_over};
#[cfg(feature = "show")]
pub(crate) use show::picture;
