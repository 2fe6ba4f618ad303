//! The plans found earlier for a graph.

use std::sync::{Mutex, PoisonError};

use crate::graph::Graph;
use crate::planner::{Outcome, Status};

/// The graph of the last request and the plans found for it.
#[derive(Default)]
pub(super) struct Memory(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    graph: Option<Graph>,
    found: Vec<Outcome>,
}

impl Memory {
    /// The plans for `graph` that fit in `budget`. Those for another graph are forgotten.
    pub fn recall(&self, graph: &Graph, budget: u64) -> Vec<Outcome> {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.graph.as_ref() != Some(graph) {
            *remembered = Remembered { graph: Some(graph.clone()), found: Vec::new() };
        }
        remembered.found.iter().filter(|outcome| outcome.peak_bytes <= budget).cloned().collect()
    }

    /// Remembers a plan for `graph`, unless plans for another graph have been asked for since. Its bound is dropped: it holds for one budget only.
    pub fn add(&self, graph: &Graph, outcome: &Outcome) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.graph.as_ref() == Some(graph) {
            let unbound = Outcome { lower_bound: None, status: Status::Feasible, ..outcome.clone() };
            remembered.found.push(unbound);
        }
    }
}
