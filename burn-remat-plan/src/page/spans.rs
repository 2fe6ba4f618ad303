//! Which stretches of time belong to which phase and stage.
//!
//! An op that runs again does so for the next op that runs for the first time, and counts towards that op's phase and stage.

use crate::graph::{Graph, OpId, Phase};

use super::model::StageSpan;
use super::run::Run;
use super::texts::Texts;

/// The length of a whole run in the page's own unit of time.
pub(super) const WHOLE: f64 = 1e6;
/// Stages that take less are not shown.
const LEAST: u32 = 2000;
/// Stages nested more deeply than this are not shown.
const DEPTHS: usize = 3;

/// Where each step begins, and the end, in millionths of the whole.
pub(super) fn starts(run: &Run) -> Vec<u32> {
    let whole = run.makespan();
    let mut at = 0.0;
    let scaled = |at: f64| (at / whole * WHOLE).round().min(WHOLE) as u32;
    let mut starts: Vec<u32> = Vec::with_capacity(run.times.len() + 1);
    for time in &run.times {
        starts.push(scaled(at));
        at += time;
    }
    starts.push(WHOLE as u32);
    starts
}

/// For each step, the op for whose first computation it runs.
pub(super) fn leads(graph: &Graph, run: &Run) -> Vec<Option<OpId>> {
    let mut seen = vec![false; graph.ops().len()];
    let first = |op: OpId, seen: &mut Vec<bool>| !std::mem::replace(&mut seen[op], true);
    let firsts: Vec<Option<OpId>> =
        run.plan.steps.iter().map(|step| step.op().filter(|&op| first(op, &mut seen))).collect();
    let mut leads = firsts;
    let mut next = leads.iter().rev().find_map(|&lead| lead);
    for lead in leads.iter_mut().rev() {
        next = lead.or(next);
        *lead = next;
    }
    leads
}

/// Stretches of one phase each.
pub(super) fn phases(graph: &Graph, run: &Run) -> Vec<(u32, u32, Phase)> {
    let phase = |op: OpId| graph.ops()[op].phase;
    stretches(graph, run, phase).into_iter().collect()
}

/// Stretches of one stage each, the outermost first.
pub(super) fn stages(graph: &Graph, run: &Run, texts: &mut Texts) -> Vec<StageSpan> {
    let mut spans = Vec::new();
    for depth in 0..DEPTHS {
        let prefix = |op: OpId| {
            let stage = graph.ops()[op].stage.as_deref()?;
            let end = stage.match_indices('/').nth(depth).map_or(stage.len(), |(at, _)| at);
            (stage.split('/').count() > depth).then_some(&stage[..end])
        };
        for (start, end, path) in stretches(graph, run, prefix) {
            if end - start >= LEAST {
                let name = path.rsplit('/').next().unwrap_or(path);
                let name = texts.index(name.strip_suffix("::forward").unwrap_or(name));
                spans.push(StageSpan { depth, start, end, name });
            }
        }
    }
    spans
}

/// Joins neighbouring steps for which `what` returns the same.
fn stretches<T: PartialEq>(graph: &Graph, run: &Run, what: impl Fn(OpId) -> Option<T>) -> Vec<(u32, u32, T)> {
    let starts = starts(run);
    let mut found: Vec<(u32, u32, T)> = Vec::new();
    for (at, lead) in leads(graph, run).into_iter().enumerate() {
        let (start, end) = (starts[at], starts[at + 1]);
        let Some(what) = lead.and_then(&what).filter(|_| end > start) else { continue };
        match found.last_mut() {
            Some(last) if last.1 == start && last.2 == what => last.1 = end,
            _ => found.push((start, end, what)),
        }
    }
    found
}
