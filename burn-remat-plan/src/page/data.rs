//! Turns runs into the data of the page.

use std::collections::BTreeSet;

use crate::decisions::{activations, decisions, form_of, substitute_of};
use crate::graph::{Graph, ValueId};

use super::layers::Layers;
use super::model::{Data, Given, RowDecision, Stop, View};
use super::rows::{listed, row};
use super::run::Run;
use super::stops::stops;
use super::texts::Names;
use super::{CostUnit, Page, bins, spans};

impl Page<'_> {
    /// Everything that the page shows.
    pub(super) fn data(&self) -> Data {
        let graph = self.graph;
        let given = self.plan.as_ref();
        // Among plans of equal cost, the given one is shown.
        let mut candidates: Vec<&Run> = given.iter().map(|(run, _)| run).collect();
        candidates.push(&self.store_all);
        candidates.extend(self.tried.iter().map(|(_, run)| run));
        // A plan that exceeds its budget counts as a plan for its own peak.
        let given_budget = given.map(|(run, budget)| budget.unwrap_or(0).max(run.peak_bytes()));
        let budgets = self.tried.iter().map(|(budget, _)| *budget).chain(given_budget);
        // A budget above the peak without evictions makes no difference.
        let most = self.store_all.peak_bytes();
        let stops = stops(&candidates, budgets.filter(|&budget| budget < most).chain([most]).collect());
        // The page contains only runs that it shows, the one without evictions first.
        let store_all = usize::from(given.is_some());
        let shown: BTreeSet<usize> = stops.iter().map(|stop| stop.view).chain(given.map(|_| 0)).collect();
        let shown: Vec<usize> =
            [store_all].into_iter().chain(shown.into_iter().filter(|&view| view != store_all)).collect();
        let place = |view: usize| shown.iter().position(|&other| other == view).unwrap_or(0);
        let stops = stops.into_iter().map(|stop| Stop { view: place(stop.view), ..stop }).collect();

        let layers = Layers::of(graph, &self.store_all);
        let listed = listed(graph, &layers.singles());
        let saved = activations(graph);
        let mut names = Names::new(graph);
        let make = |&value: &ValueId| row(graph, value, saved[value], &self.costs, &mut names);
        let rows = listed.values.iter().filter_map(make).collect();
        let described = layers.described(graph, &listed.values, &mut names);
        let views = shown.iter().map(|&at| view(graph, candidates[at], &layers, &listed.values, &mut names)).collect();
        let (ops, texts) = names.into_all();
        Data {
            name: graph.name().to_owned(),
            is_time: self.unit == CostUnit::Nanoseconds,
            ops_in_graph: graph.ops().len(),
            texts,
            ops,
            rows,
            rows_left_out: listed.left_out,
            layers: described,
            views,
            stops,
            given: given.map(|(_, budget)| Given { view: place(0), budget: *budget }),
        }
    }
}

fn view(graph: &Graph, run: &Run, layers: &Layers, rows: &[ValueId], names: &mut Names<'_>) -> View {
    let bins = bins::bins(graph, run, layers, names);
    let mut seen = vec![false; graph.ops().len()];
    let (mut again, mut again_time) = (0, 0.0);
    for (step, time) in run.plan.steps.iter().zip(&run.times) {
        if step.op().is_some_and(|op| std::mem::replace(&mut seen[op], true)) {
            again += 1;
            again_time += time;
        }
    }
    let found = decisions(graph, &run.plan, &run.times);
    let decisions = rows.iter().map(|&value| {
        let found = found[value];
        let maker = graph.producer(value).map(|op| &graph.ops()[op]);
        let form = maker.filter(|_| found.restored > 0).and_then(|op| form_of(graph, op)).map(|(_, form)| form);
        RowDecision {
            again: found.recomputed,
            forms: found.restored,
            form: form.map(|form| names.texts.index(form)),
            spared: found.spared,
            spared_by: found.spared_by.and_then(|by| substitute_of(graph, by)).map(|text| names.texts.index(text)),
            time: found.time,
            idle: found.idle,
        }
    });
    let decisions = decisions.collect();
    View {
        planner: run.planner.clone(),
        peak: run.peak_bytes(),
        makespan: run.makespan(),
        again,
        again_time,
        bins,
        phases: spans::phases(graph, run),
        stages: spans::stages(graph, run, &mut names.texts),
        decisions,
    }
}
