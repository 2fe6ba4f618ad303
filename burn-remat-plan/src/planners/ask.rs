//! Asks several planners at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::clock::together;
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::guard::isolated;
use crate::planner::{Outcome, Planner, Request};
use crate::registry::Entry;

/// What a planner answered.
pub(super) struct Answer {
    pub planner: &'static str,
    pub result: Result<Outcome, PlanError>,
}

/// The answer of one planner; a panic is an error like any other.
pub(super) fn ask_one(planner: &dyn Planner, graph: &Graph, request: &Request) -> Answer {
    Answer { planner: planner.name(), result: isolated(planner.name(), || planner.solve(graph, request)) }
}

/// The answers of planners to `request`, in the order of `entries`, found with as many threads as it allows. After
/// `deadline`, no further planner is asked. Their progress is not reported.
pub(super) fn ask(entries: &[&Entry], graph: &Graph, request: &Request, deadline: Deadline) -> Vec<Answer> {
    let workers = request.threads.clamp(1, entries.len().max(1));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = entries.get(at).filter(|_| !deadline.passed()) else { return answers };
            let time_limit = request.time_limit.min(deadline.left());
            let threads = (request.threads / workers).max(1);
            let memory_limit = request.memory_limit / workers as u64;
            let request = Request { time_limit, threads, memory_limit, progress: None, ..request.clone() };
            let planner = entry.planner();
            if planner.missing_feature().is_none() {
                answers.push((at, ask_one(&*planner, graph, &request)));
            }
        }
    };
    let mut answers: Vec<_> = together(0..workers, |_| work()).flatten().collect();
    answers.sort_by_key(|&(at, _)| at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
