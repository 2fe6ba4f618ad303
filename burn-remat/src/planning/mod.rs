//! From a traced step to a plan that the engine follows.
//!
//! Data flows one way: the engine writes a [`Trace`](burn_remat_core::Trace); [`lower`](lower::lower) makes a graph of it; a planner of
//! `burn-remat-plan` plans the graph on a thread of its own ([`Plans`]), told as large a budget as its plans really keep
//! to ([`Fit`]), or the [cache](cache) has the plan already; a [`Schedule`] turns the checked plan into what the engine
//! does between operations.

mod asked;
mod budgets;
mod cache;
mod chosen;
mod compare;
#[cfg(test)]
mod examples;
mod explain;
mod fit;
mod forced;
mod fused;
mod lower;
mod plain;
mod plans;
mod report;
mod schedule;
#[cfg(feature = "show")]
mod show;
mod stages;
mod times;

pub(crate) use budgets::budgets;
pub(crate) use chosen::ChosenPlanner;
pub use compare::AlternativesPlan;
pub use explain::{ActivationPlan, Explanation};
pub(crate) use fit::Fit;
pub(crate) use fused::shares;
pub(crate) use lower::lower;
pub(crate) use plans::{Origin, PlanSettings, Plans, Wait};
pub use report::{PlanReport, StagePlan};
pub(crate) use schedule::Schedule;
#[cfg(feature = "show")]
pub(crate) use show::picture;
