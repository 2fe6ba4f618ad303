//! Planners on graphs: what their plans cost at shares of the peak.

use std::time::Duration;

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, Plan, Request, minimum, registry, simulate, solve};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;

/// Compared in this order; the lower bound is that of the last one. `checkmate` is included in a build with HiGHS.
const PLANNERS: [&str; 10] = [
    "chen-sqrt",
    "chen-greedy",
    "revolve",
    "chain-dp",
    "min-cut",
    "hlo-remat",
    "online",
    "checkmate",
    "search",
    "auto",
];
/// Generated training steps, with their batch sizes.
const GRAPHS: [(&str, u64); 7] =
    [("vgg16", 256), ("unet416x608", 32), ("mobilenet", 256), ("resnet50", 256), ("vit", 16), ("gpt", 8), ("lstm", 8)];

/// Plans generated training steps with several planners, from the smallest budget upwards.
pub(super) fn planners(settings: &Settings) -> Outcome<Table> {
    let (names, shares, limit) = if settings.is_quick() {
        (&GRAPHS[1..2], &[75][..], Duration::from_millis(100))
    } else {
        (&GRAPHS[..], &[40, 50, 60, 75][..], Duration::from_secs(10))
    };
    let compared = || PLANNERS.into_iter().filter(|name| registry::planner(name).is_some());
    let mut rows = Vec::new();
    for &(name, batch) in names {
        let graph = by_name(name, &Options { batch, ..Options::default() })?;
        let whole = simulate(&graph, &StoreAll::plan(&graph));
        let least = minimum(&graph).achieved;
        let above = shares.iter().map(|share| whole.peak_bytes / 100 * share).filter(|&budget| budget > least);
        for budget in [least].into_iter().chain(above) {
            let share = 100.0 * budget as f64 / whole.peak_bytes as f64;
            let mut row = vec![Cell::text(format!("{} ({} ops), {share:.0}%", graph.name(), graph.ops().len()))];
            let mut bound = None;
            for name in compared() {
                let found = found(name, &graph, budget, limit)?;
                let added = |time: f64| (time / whole.makespan - 1.0).max(0.0);
                row.push(Cell::percent(found.makespan.map(added)));
                bound = found.lower_bound.map(added);
            }
            row.push(Cell::percent(bound));
            rows.push(row);
        }
    }
    Ok(Table {
        title: "Planners side by side",
        about: format!(
            "Overhead of the plans that planners find in {:.1} s. Budgets are shares of the peak without evictions, beginning with the smallest for \
             which a plan is known. `-`: no plan within the budget, or the planner does not apply. \"At least\" is the lower bound that `auto` proves \
             for every plan. Graphs are generated training steps; costs are FLOPs, computed from the published shapes.",
            limit.as_secs_f64()
        ),
        columns: ["graph, budget"].into_iter().chain(compared()).chain(["at least"]).map(str::to_owned).collect(),
        rows,
    })
}

/// The result of a planner.
pub(super) struct Found {
    /// A plan within the budget.
    pub(super) plan: Option<Plan>,
    /// The time of the plan, as the checker counts it.
    pub(super) makespan: Option<f64>,
    /// No plan within the budget takes less time than this, if that is proved.
    pub(super) lower_bound: Option<f64>,
}

/// The plan of the planner called `name`. There is none if the budget is too small or the planner does not apply to the graph.
pub(super) fn found(name: &str, graph: &Graph, budget: u64, limit: Duration) -> Outcome<Found> {
    let planner = registry::planner(name).ok_or_else(|| format!("there is no planner `{name}`"))?;
    let request = Request { time_limit: limit, ..Request::new(budget) };
    let solved = solve(&*planner, graph, &request).ok();
    let checked = solved.as_ref().and_then(|solved| solved.checked.as_ref());
    Ok(Found {
        makespan: checked.map(|plan| plan.makespan()),
        plan: checked.and(solved.as_ref()).and_then(|solved| solved.outcome.plan.clone()),
        lower_bound: solved.and_then(|solved| solved.outcome.lower_bound),
    })
}
