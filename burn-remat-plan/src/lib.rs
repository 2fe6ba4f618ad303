//! Rematerialization planning: which results of a training step to keep and which to compute again.
//!
//! The crate is a pure function of data. A [`Graph`] (operations in execution order, values with sizes) or a
//! [`Chain`] of stages, a budget in bytes and a [`Planner`] give a [`Plan`]: a flat list of steps,
//! *compute this op* and *evict this value*, that never holds more than the budget. It knows nothing about
//! tensors, devices or Burn.
//!
//! Data flows one way: a file or a trace becomes a [`Graph`]; a planner turns it into an [`Outcome`]; [`simulate()`]
//! says what a plan costs; [`check`](check::check), which shares no code with any of them, decides whether it is valid.
//!
//! ```
//! use std::time::Duration;
//!
//! use burn_remat_plan::{Graph, Request, generate, minimum, registry, simulate, solve};
//!
//! // A training step of MobileNet; `Graph::read("graph.json")` reads one of your own.
//! let graph = generate::by_name("mobilenet", &generate::Options::default())?;
//! let least = minimum(&graph).achieved;
//! let request = Request { time_limit: Duration::from_millis(500), ..Request::new(2 * least) };
//! let planner = registry::planner("auto").ok_or("no such planner")?;
//! let solved = solve(&*planner, &graph, &request)?;
//! let plan = solved.checked.ok_or("no plan in time")?;
//! assert!(plan.peak_bytes() <= 2 * least);
//! assert_eq!(simulate(&graph, plan.plan()).makespan, plan.makespan());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The command `remat-plan` does the same with files.
//!
//! [`planners`] has tables that link each planner to its paper, and the papers' equations and algorithms to the code.

mod allowance;
pub mod chain;
pub mod check;
mod choice;
pub mod clock;
pub mod deadline;
pub mod decisions;
pub mod error;
pub mod format;
pub mod frontier;
pub mod generate;
pub mod graph;
mod guard;
mod ids;
pub mod lower_bound;
pub mod memory;
pub mod minimum;
mod need;
#[cfg(feature = "page")]
pub mod page;
pub mod plan;
pub mod planner;
pub mod planners;
pub mod registry;
pub mod sequence;
pub mod simulate;
pub mod solve;
pub mod views;

pub use chain::{Chain, ChainOutcome, ChainPlan, ChainStage, ChainStep};
pub use check::{CheckedPlan, Violation, Violations, check};
pub use error::{ChainError, GraphError, PlanError};
pub use graph::{Alternative, Graph, GraphBuilder, Op, OpId, Phase, Value, ValueId};
pub use minimum::{Minimum, SetBy, minimum, minimum_within};
pub use plan::{Plan, Step};
pub use planner::{AnyPlan, Bound, Checkpoints, Outcome, Planner, Progress, Request, Scope, Status, StopReason};
pub use simulate::{Timeline, simulate};
pub use solve::{Solved, solve, solve_chain, solve_guarded};
