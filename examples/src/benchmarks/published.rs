//! The graphs of MONeT's authors: plans compared with the best known costs, and the least memory for 10% more time.

use std::path::Path;
use std::time::Duration;

use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, minimum, simulate};
use serde_json::Value;

use super::Settings;
use super::planners::found;
use super::table::{Cell, Table};
use crate::cli::Outcome;

/// The graphs, with the gigabytes in MONeT's table 1: at 10% more time, and for PyTorch.
const GRAPHS: [(&str, [f64; 2]); 4] =
    [("vgg16", [5.5, 14.1]), ("unet", [5.2, 14.3]), ("mobilenet_v2", [4.8, 14.5]), ("resnet50", [5.7, 15.1])];
/// The time that a plan for the least memory may take, relative to the step without evictions.
const MOST_TIME: f64 = 1.1;

/// `search` and `auto` at the published budgets.
pub(super) fn published(settings: &Settings) -> Outcome<Option<Table>> {
    let Some(folder) = &settings.graphs else { return Ok(None) };
    let limit = if settings.is_quick() { Duration::from_millis(100) } else { Duration::from_secs(10) };
    let mut rows = Vec::new();
    for (name, _) in GRAPHS {
        let graph = Graph::read(folder.join(format!("{name}.graph.json")))?;
        let file = folder.join(format!("{name}.reference.json"));
        for case in cases(&file)? {
            let [search, auto] = ["search", "auto"].map(|name| found(name, &graph, case.budget, limit));
            let (search, auto) = (search?, auto?);
            let makespan = auto.makespan;
            rows.push(vec![
                Cell::text(format!("{name}, {}", case.budget)),
                Cell::cost(Some(case.gurobi)),
                Cell::cost(Some(case.best_known)),
                Cell::cost(search.makespan),
                Cell::cost(makespan),
                Cell::cost(makespan.map(|time| time - case.best_known)),
                Cell::percent(makespan.zip(auto.lower_bound).map(|(time, bound)| time / bound - 1.0)),
            ]);
            if settings.is_quick() {
                break;
            }
        }
    }
    let columns = ["graph, budget in bytes", "Gurobi", "best known", "search", "auto", "auto - best known", "gap"];
    Ok(Some(Table {
        title: "Published graphs",
        about: format!(
            "The training graphs that MONeT's authors published, at their budgets. Costs (unit: 10 us) of the solution that Gurobi found for the \
             integer program, of the best plan known before, and of the plans found in {:.1} s. \"Gap\" is how far `auto` is above the bound that it \
             proves.",
            limit.as_secs_f64()
        ),
        columns: columns.map(str::to_owned).into(),
        rows,
    }))
}

/// One published budget.
struct Case {
    budget: u64,
    gurobi: f64,
    best_known: f64,
}

fn cases(file: &Path) -> Outcome<Vec<Case>> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let missing = |field: &str| wrong(&format_args!("a case has no `{field}`"));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let reference: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    let cases = reference["cases"].as_array().ok_or_else(|| wrong(&"`cases` is missing"))?;
    let case = |case: &Value| {
        let cost = |field: &str| case[field].as_f64().ok_or_else(|| missing(field));
        let budget = case["budget_bytes"].as_u64().ok_or_else(|| missing("budget_bytes"))?;
        Ok(Case { budget, gurobi: cost("gurobi_cost")?, best_known: cost("best_known_cost")? })
    };
    cases.iter().map(case).collect()
}

/// The least memory in which a plan of `search` takes at most 10% longer than the step without evictions.
///
/// Found by bisection between the smallest budget and the peak, to a thousandth of the peak: plans for larger budgets are not more expensive, apart from what
/// a search of a few seconds misses.
pub(super) fn memory(settings: &Settings) -> Outcome<Option<Table>> {
    let Some(folder) = &settings.graphs else { return Ok(None) };
    let (limit, parts) =
        if settings.is_quick() { (Duration::from_millis(20), 8) } else { (Duration::from_secs(2), 1000) };
    let mut rows = Vec::new();
    for (name, [at, of]) in GRAPHS {
        let graph = Graph::read(folder.join(format!("{name}.graph.json")))?;
        let whole = simulate(&graph, &StoreAll::plan(&graph));
        let (mut low, mut high) = (minimum(&graph).achieved, whole.peak_bytes);
        while high - low > whole.peak_bytes / parts {
            let middle = low + (high - low) / 2;
            let makespan = found("search", &graph, middle, limit)?.makespan;
            let is_enough = makespan.is_some_and(|time| time <= MOST_TIME * whole.makespan);
            if is_enough { high = middle } else { low = middle }
        }
        rows.push(vec![
            Cell::text(name),
            Cell::bytes(Some(whole.peak_bytes)),
            Cell::bytes(Some(high)),
            Cell::percent(Some(high as f64 / whole.peak_bytes as f64)),
            Cell::text(format!("{:.0}% ({at} of {of} GB)", 100.0 * at / of)),
        ]);
    }
    let columns = ["graph", "without evictions", "at 10%", "share", "MONeT"];
    Ok(Some(Table {
        title: "Memory for 10% more time",
        about: format!(
            "The smallest budget at which a plan of `search` takes at most 10% longer than the step without evictions, with {:.1} s for each plan, as \
             in MONeT's table 1. MONeT's figures are for networks whose convolutions have several implementations to choose from; in these graphs \
             they have only one.",
            limit.as_secs_f64()
        ),
        columns: columns.map(str::to_owned).into(),
        rows,
    }))
}
