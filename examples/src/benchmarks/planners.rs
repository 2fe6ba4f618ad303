//! Planners on graphs: what their plans cost at shares of the peak.

use std::path::Path;
use std::time::Duration;

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, Request, registry, simulate, solve};

use super::Settings;
use super::table::{Cell, Table};
use crate::cli::Outcome;

/// Compared in this order; the lower bound is that of the last.
const PLANNERS: [&str; 8] =
    ["chen-sqrt", "chen-greedy", "revolve", "chain-dp", "hlo-remat", "online", "search", "auto"];
/// Generated training steps, with their batch sizes.
const GRAPHS: [(&str, u64); 7] =
    [("vgg16", 256), ("unet416x608", 32), ("mobilenet", 256), ("resnet50", 256), ("vit", 16), ("gpt", 8), ("lstm", 8)];

/// Plans generated training steps, and those of a folder, with several planners.
pub(super) fn planners(settings: &Settings) -> Outcome<Table> {
    let (names, shares, limit) = if settings.is_quick() {
        (&GRAPHS[1..2], &[75][..], Duration::from_millis(100))
    } else {
        (&GRAPHS[..], &[75, 60, 50, 40][..], Duration::from_secs(10))
    };
    let generated = |&(name, batch): &(&str, u64)| by_name(name, &Options { batch, ..Options::default() });
    let mut graphs = names.iter().map(generated).collect::<Result<Vec<_>, _>>()?;
    if let Some(folder) = &settings.graphs {
        graphs.extend(read(folder)?);
    }
    let mut rows = Vec::new();
    for graph in &graphs {
        let whole = simulate(graph, &StoreAll::plan(graph));
        for share in shares {
            let budget = whole.peak_bytes * share / 100;
            let mut row = vec![Cell::text(format!("{} ({} ops), {share}%", graph.name(), graph.ops().len()))];
            let mut bound = None;
            for name in PLANNERS {
                let found = overhead(name, graph, budget, limit, whole.makespan)?;
                row.push(Cell::percent(found.overhead));
                bound = found.lower_bound;
            }
            row.push(Cell::percent(bound));
            rows.push(row);
        }
    }
    Ok(Table {
        title: "Planners",
        about: format!(
            "Overhead of the plans that planners find in {:.1} s, at a share of the peak without evictions; `-`: no plan within the budget, or the planner does \
             not apply. \"At least\" is the lower bound that `auto` proves for every plan. Graphs are generated training steps whose costs are FLOPs{}.",
            limit.as_secs_f64(),
            if settings.graphs.is_some() { ", and those of the folder that was given" } else { "" }
        ),
        columns: ["graph, budget"].into_iter().chain(PLANNERS).chain(["at least"]).map(str::to_owned).collect(),
        rows,
    })
}

/// What a planner found, as shares of the time without evictions.
struct Found {
    overhead: Option<f64>,
    lower_bound: Option<f64>,
}

fn overhead(name: &str, graph: &Graph, budget: u64, limit: Duration, makespan: f64) -> Outcome<Found> {
    let planner = registry::planner(name).ok_or_else(|| format!("there is no planner `{name}`"))?;
    let request = Request { time_limit: limit, ..Request::new(budget) };
    let share = |time: f64| (time / makespan - 1.0).max(0.0);
    // A budget that is too small, or a graph that the planner does not take, leaves the cell empty.
    let solved = solve(&*planner, graph, &request).ok();
    Ok(Found {
        overhead: solved.as_ref().and_then(|solved| solved.checked.as_ref()).map(|plan| share(plan.makespan())),
        lower_bound: solved.and_then(|solved| solved.outcome.lower_bound).map(share),
    })
}

/// The graphs of a folder, by the names of their files.
fn read(folder: &Path) -> Outcome<Vec<Graph>> {
    let wrong = |error: std::io::Error| format!("--graphs {}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(wrong)?;
    let mut files = entries.map(|entry| Ok(entry.map_err(wrong)?.path())).collect::<Result<Vec<_>, String>>()?;
    files.retain(|file| file.to_string_lossy().ends_with(".graph.json"));
    files.sort();
    if files.is_empty() {
        return Err(format!("--graphs {}: there is no file `*.graph.json`", folder.display()).into());
    }
    files.iter().map(|file| Graph::read(file).map_err(|error| format!("{}: {error}", file.display()).into())).collect()
}
