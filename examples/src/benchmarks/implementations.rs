//! Implementations of operations chosen together with what is recomputed, or afterwards.

use std::time::Duration;

use burn_remat_plan::generate::{Implementations, Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::views::without_alternatives;
use burn_remat_plan::{Graph, Plan, Step, simulate};

use super::Settings;
use super::planners::found;
use super::table::{Cell, Table};
use crate::cli::Outcome;

/// Plans generated steps whose operations have several implementations: without these, with cheaper ones put in afterwards, and with both chosen together.
pub(super) fn implementations(settings: &Settings) -> Outcome<Table> {
    let quick = (&["mobilenet"][..], &[60][..], Duration::from_millis(100));
    let full = (&["mobilenet", "resnet50", "densenet161"][..], &[60, 40][..], Duration::from_secs(10));
    let (names, shares, limit) = if settings.is_quick() { quick } else { full };
    let mut rows = Vec::new();
    for name in names {
        let implementations = Implementations::Several;
        let graph = by_name(name, &Options { batch: 32, implementations, ..Options::default() })?;
        let plain = without_alternatives(&graph);
        let whole = simulate(&plain, &StoreAll::plan(&plain));
        let (ops, choices) = (graph.ops().len(), graph.ops().iter().filter(|op| !op.alternatives.is_empty()).count());
        for share in shares {
            let budget = whole.peak_bytes / 100 * share;
            let solved = |name: &str, graph: &Graph| found(name, graph, budget, limit);
            let before = solved("auto", &plain)?;
            let (monet, together) = (solved("monet", &graph)?, solved("auto", &graph)?);
            let share_of = |makespan: Option<f64>| Cell::percent(makespan.map(|time| time / whole.makespan - 1.0));
            let afterwards = before.plan.as_ref().map(|plan| cheaper_afterwards(&graph, plan, budget));
            rows.push(vec![
                Cell::text(format!("{name} ({ops} ops, {choices} with a choice), {share}%")),
                share_of(before.makespan),
                share_of(afterwards),
                share_of(monet.makespan),
                share_of(together.makespan),
                share_of(together.lower_bound),
            ]);
        }
    }
    let columns = ["graph, budget", "without", "afterwards", "monet", "auto", "at least"];
    Ok(Table {
        title: "Implementations chosen together with recomputation",
        about: format!(
            "Generated steps, batch 32, whose convolutions, batch normalizations and ReLUs have alternatives: faster algorithms with workspace, or \
             backward ops that read the output in place of the input. How much faster they are is assumed, not measured, so this compares planners, \
             not hardware. The figures are the time added to the step with its default implementations, planned in {:.1} s: by `auto` without \
             alternatives, with cheaper ones put into that plan afterwards wherever they fit, and with recomputation and implementations chosen \
             together.",
            limit.as_secs_f64()
        ),
        columns: columns.map(str::to_owned).into(),
        rows,
    })
}

/// Puts into each step the cheapest implementation that reads no more and leaves the plan within the budget.
fn cheaper_afterwards(graph: &Graph, plan: &Plan, budget: u64) -> f64 {
    let mut plan = plan.clone();
    for at in 0..plan.steps.len() {
        let Step::Compute(id) = plan.steps[at] else { continue };
        let op = &graph.ops()[id];
        let reads_no_more = |k: usize| op.alternatives[k].inputs.iter().all(|value| op.inputs.contains(value));
        let mut others: Vec<usize> = (0..op.alternatives.len()).filter(|&k| reads_no_more(k)).collect();
        others.sort_by(|&a, &b| op.alternatives[a].cost.total_cmp(&op.alternatives[b].cost));
        for k in others.into_iter().filter(|&k| op.alternatives[k].cost < op.cost) {
            plan.steps[at] = Step::ComputeAlternative(id, k);
            if simulate(graph, &plan).peak_bytes <= budget {
                break;
            }
            plan.steps[at] = Step::Compute(id);
        }
    }
    simulate(graph, &plan).makespan
}
