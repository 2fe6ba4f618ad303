//! Where a search that chooses implementations starts: at the plan of one that does not choose.
//!
//! Choosing pays with memory or time what recomputation would pay otherwise, so the best plan without choice is a good
//! place to start, and a search that starts there is never dearer than it. With a limit on moves that plan is exactly the
//! one that `search` finds for the graph without its alternatives; with a time limit it has [`PLAIN_SHARE`] of the time.
//!
//! Before the walks, cheaper implementations go in wherever they fit.
//!
//! Where the default implementations do not fit the budget, those of the least working set may.

use std::time::Instant;

use super::{Search, seeds};
use crate::choice::Choice;
use crate::graph::Graph;
use crate::minimum::is_too_little;
use crate::planner::{Planner, Request};
use crate::sequence::order_of;
use crate::views::plain::Plain;

/// The share of the time in which implementations are not chosen.
pub(super) const PLAIN_SHARE: f64 = 0.4;

/// A schedule that fits in the request's budget, found within its time limit as far as a single attempt allows.
pub(super) fn start(search: &Search, graph: &Graph, request: &Request) -> Option<Vec<Choice>> {
    let end = Instant::now() + request.time_limit;
    let plain = Plain::new(graph, |_| 0);
    if !is_too_little(&plain.graph, request.budget) {
        let search = Search { starts: Vec::new(), ..search.clone() };
        // Its bound holds without choice alone.
        let request = Request { progress: None, ..request.clone() };
        if let Some(plan) = search.solve(&plain.graph, &request).ok().and_then(|outcome| outcome.plan) {
            return Some(plain.choices(&order_of(&plan)));
        }
    }
    let lightest = Plain::lightest(graph);
    seeds::feasible(&lightest.graph, request, end).map(|order| lightest.choices(&order))
}
