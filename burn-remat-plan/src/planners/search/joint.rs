//! Where a search that chooses implementations starts: at the plan of a search that does not choose.
//!
//! Alternatives trade memory for time, as recomputation does, so the best plan without a choice is a good
//! place to start, and a search that starts there never returns a more expensive one. With a limit on moves, that plan is
//! exactly the one that `search` finds for the graph without its alternatives; with a time limit, it gets [`PLAIN_SHARE`] of the time.
//!
//! Before the walks, cheaper implementations are used wherever they fit.
//!
//! If the default implementations do not fit the budget, those with the smallest working set may.

use super::seeds::{self, Quick};
use crate::choice::Choice;
use crate::graph::Graph;
use crate::need::is_too_little;
use crate::plan::Plan;
use crate::planner::Request;
use crate::sequence::compute_order;
use crate::views::plain::Plain;

/// The share of the time in which implementations are not chosen.
pub(super) const PLAIN_SHARE: f64 = 0.4;

/// A schedule that fits in the request's budget. `solve` plans graphs without alternatives.
pub(super) fn start(
    graph: &Graph,
    request: &Request,
    solve: impl FnOnce(&Graph, &Request) -> Option<Plan>,
) -> Option<Vec<Choice>> {
    // A bound for the graph without alternatives holds for that graph only, so it is not reported.
    let request = Request { progress: None, ..request.clone() };
    let plain = Plain::new(graph, |_| 0);
    if !is_too_little(&plain.graph, request.budget)
        && let Some(plan) = solve(&plain.graph, &request)
    {
        return Some(plain.choices(&compute_order(&plan)));
    }
    let lightest = Plain::lightest(graph);
    seeds::feasible(&lightest.graph, &request, Quick::Ask).map(|order| lightest.choices(&order))
}
