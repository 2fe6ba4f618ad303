//! One self-contained HTML page that shows the plans of a graph: memory over time, what happened to each activation, and what other
//! budgets cost.
//!
//! A [`Page`] collects [`Run`]s: the one without evictions, the plan in question, and plans for other budgets. [`Page::html`]
//! reduces them to the JSON data of the page (`model.rs`), which the page's script only draws: memory is divided into bands (`layers.rs`) and time into bins
//! (`bins.rs`), a table says what happens to each value ([`decisions`](crate::decisions)), and each budget gets the cheapest plan that fits (`stops.rs`).
//!
//! Invariants:
//! - The bands of a bin sum to what [`simulate`](crate::simulate()) says is held at its highest step; no bin hides a higher one.
//! - A larger budget never shows a more expensive plan.
//! - The page requests nothing from the network, whatever the names in the graph are, and stays under 2 MB: the number of bins, rows and
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

/// Unit of the costs of a graph.
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

    /// Sets the unit of the costs.
    #[must_use]
    pub fn unit(mut self, unit: CostUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets the time that each op takes when it runs again, if it differs from the graph's costs.
    #[must_use]
    pub fn costs(mut self, costs: Vec<f64>) -> Self {
        self.costs = costs;
        self
    }

    /// Sets the run without evictions, if more is known about it than the graph says.
    #[must_use]
    pub fn store_all(mut self, run: Run) -> Self {
        self.store_all = run;
        self
    }

    /// Sets the plan that the page opens with, and its budget.
    #[must_use]
    pub fn plan(mut self, run: Run, budget: Option<u64>) -> Self {
        self.plan = Some((run, budget));
        self
    }

    /// Adds a plan that stays within another budget.
    #[must_use]
    pub fn budget(mut self, budget: u64, run: Run) -> Self {
        self.tried.push((budget, run));
        self
    }

    /// The page as HTML.
    pub fn html(&self) -> String {
        render::html(&self.data())
    }
}
