//! What a planner of your own needs: the trait, the graph that it gets, and the plan that it returns.
//!
//! A [`Planner`] gets a [`Graph`] (the operations of a step in order, with costs in ns, and the values between them, with sizes in bytes) and a
//! [`Request`] (a budget, and limits on time and memory). It answers with an [`Outcome`] that has a [`Plan`]: a list of *compute this op* and *evict this
//! value*. [`plan_from_order`] makes a plan from the order of computations alone, and [`Outcome::of_plan`] fills in what the plan costs. Pass the planner
//! to [`RematConfig::with_planner`](crate::RematConfig::with_planner).
//!
//! A planner cannot harm the training. Every plan is checked before it is followed. If a planner panics, returns an invalid plan, claims a false bound or
//! does not return, the online policy goes on and the report says what was wrong. A planner runs on a thread of its own, on steps that have been seen
//! three times, and more than once for each. Plans are stored on disk by the planner's [name](Planner::name) and [version](Planner::version): choose a
//! unique name, and raise the version when its plans change.
//!
//! The book (`docs/src/own-planner.md`) has a planner that decides by itself. The one below asks two planners of the registry and takes the cheaper plan:
//!
//! ```
//! use std::time::Duration;
//!
//! use burn::tensor::{Device, Tensor};
//! use burn_remat::planner::{Graph, Outcome, PlanError, Planner, Request, planner};
//! use burn_remat::{RematConfig, RematExt};
//!
//! struct CheaperOf(&'static str, &'static str);
//!
//! impl Planner for CheaperOf {
//!     fn name(&self) -> &'static str {
//!         "cheaper-of"
//!     }
//!
//!     fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
//!         let half = Request { time_limit: request.time_limit / 2, ..request.clone() };
//!         let ask = |name| planner(name).ok_or(PlanError::no_plan(request.budget))?.solve(graph, &half);
//!         match (ask(self.0), ask(self.1)) {
//!             (Ok(one), Ok(other)) if one.plan.is_some() && one.makespan <= other.makespan => Ok(one),
//!             (one, Err(_)) => one,
//!             (_, other) => other,
//!         }
//!     }
//! }
//!
//! let config = RematConfig::new("3 MiB").with_planner(CheaperOf("chen-greedy", "online")).without_cache();
//! let device = Device::flex().remat(config)?;
//! for step in 0..12 {
//!     device.remat_mark_step();
//!     let x = Tensor::<2>::full([256, 256], 0.01, &device.clone().autodiff()).require_grad();
//!     (0..16).fold(x, |y, _| (y * 1.1).tanh()).sum().backward();
//!     if step == 6 {
//!         // A real run is long enough; this one would be over before its plan is ready.
//!         device.remat_wait_for_plan(Duration::from_secs(60))?;
//!     }
//! }
//! let report = device.remat_report()?;
//! let plan = report.plan.as_ref().ok_or("no plan")?;
//! assert!(plan.steps_followed > 0 && plan.predicted_peak_bytes <= 3 << 20, "{report}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To try a planner without a device, save the graph of a real step with [`PlanReport::save_graph`](crate::PlanReport::save_graph), read it with
//! [`Graph::read`], and [`solve`](fn@solve) it. `remat-plan` runs the other planners on the same file.

pub use burn_remat_plan::deadline::Deadline;
pub use burn_remat_plan::registry::{PlannerChoice, is_planner, planner};
pub use burn_remat_plan::sequence::{compute_order, plan_from_order};
pub use burn_remat_plan::{
    Alternative, Bound, CheckedPlan, Graph, GraphBuilder, GraphError, Minimum, Op, OpId, Outcome, Phase, Plan,
    PlanError, Planner, Progress, Request, Scope, Solved, Status, Step, StopReason, Timeline, Value, ValueId,
    Violation, Violations, check, minimum_within, simulate, solve, solve_guarded,
};
