//! One self-contained HTML page that shows the plans of a graph: memory over time, what became of each activation, and what other
//! budgets cost.
//!
//! A [`Page`] collects [`Run`]s: the one without evictions, the plan in question, and plans for other budgets. [`Page::html`]
//! reduces them to what the page holds as JSON (`model.rs`), to which its script adds nothing but drawing: memory is divided into bands
//! (`layers.rs`) and time into bins (`bins.rs`), a table says what becomes of each value ([`decisions`](crate::decisions)), and each budget gets the cheapest
//! plan that fits (`stops.rs`).
//!
//! Invariants:
//! - The bands of a bin sum to what [`simulate`](crate::simulate()) says is held at its highest step; no bin hides a higher one.
//! - A larger budget never shows a dearer plan.
//! - The page asks no network for anything, whatever the names in the graph are, and stays under 2 MB: the number of bins, rows and
//!   letters of a name are limited.
//!
//! Complexity: O(steps + uses) for each run, times the number of bands for each bin.

mod bins;
mod data;
mod layers;
mod model;
mod render;
mod rows;
mod run;
mod spans;
mod stops;
#[cfg(test)]
mod tests;
mod texts;

pub use run::Run;

use crate::graph::Graph;
use crate::planners::StoreAll;

/// What the costs of a graph are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CostUnit {
    /// Nanoseconds, as in graphs of measured steps.
    #[default]
    Nanoseconds,
    /// Something else: numbers are shown as they are.
    Other,
}

/// The plans to be shown; see the [module](self).
///
/// ```
/// use burn_remat_plan::page::{Page, Run};
/// use burn_remat_plan::{Request, generate, minimum, registry, solve};
///
/// let graph = generate::by_name("linear", &generate::Options::default())?;
/// let least = minimum(&graph);
/// let planner = registry::planner("online").ok_or("no such planner")?;
/// let found = solve(&*planner, &graph, &Request::new(2 * least.achieved))?.outcome;
/// let page = Page::new(&graph)
///     .plan(Run::new(&graph, &found.planner, found.plan.ok_or("no plan")?), Some(2 * least.achieved))
///     .budget(least.achieved, Run::new(&graph, "minimum", least.plan));
/// assert!(page.html().starts_with("<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Page<'a> {
    graph: &'a Graph,
    unit: CostUnit,
    /// Time to run each op again.
    costs: Vec<f64>,
    store_all: Run,
    plan: Option<(Run, Option<u64>)>,
    tried: Vec<(u64, Run)>,
}

impl<'a> Page<'a> {
    /// A page that shows only what is held without evictions.
    pub fn new(graph: &'a Graph) -> Self {
        Self {
            graph,
            unit: CostUnit::default(),
            costs: graph.ops().iter().map(|op| op.cost).collect(),
            store_all: Run::new(graph, StoreAll::NAME, StoreAll::plan(graph)),
            plan: None,
            tried: Vec::new(),
        }
    }

    /// Says what the costs are.
    #[must_use]
    pub fn unit(mut self, unit: CostUnit) -> Self {
        self.unit = unit;
        self
    }

    /// The time that each op takes where it runs again, if the graph's costs are not that.
    #[must_use]
    pub fn costs(mut self, costs: Vec<f64>) -> Self {
        self.costs = costs;
        self
    }

    /// The run without evictions, if more is known of it than the graph says.
    #[must_use]
    pub fn store_all(mut self, run: Run) -> Self {
        self.store_all = run;
        self
    }

    /// The plan that the page opens with, and its budget.
    #[must_use]
    pub fn plan(mut self, run: Run, budget: Option<u64>) -> Self {
        self.plan = Some((run, budget));
        self
    }

    /// Adds a plan for another budget, which it keeps.
    #[must_use]
    pub fn budget(mut self, budget: u64, run: Run) -> Self {
        self.tried.push((budget, run));
        self
    }

    /// The page.
    pub fn html(&self) -> String {
        render::html(&self.data())
    }
}
