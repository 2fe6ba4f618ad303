//! A lower bound on what is spent from a moment on, whatever is resident then: the relaxation with only that moment.
//!
//! The relaxation counts only repeats after its first moment, so it bounds what is spent from there on. Its
//! multipliers say more: by how much the bound rises if a value is not resident at the moment (`Tail::regrets`, the
//! price of the variable `keep` above its cost, which is what fixing it at zero adds to the bound that the multipliers
//! prove). The searches of `states` use both.

use std::time::Duration;

use super::pdhg::Solver;
use super::relax::{self, Relaxation};
use crate::deadline::Deadline;
use crate::graph::{Graph, OpId};

/// What is spent from a moment on.
pub(super) struct Tail {
    /// How many first computations are done before what the bound counts.
    pub done: usize,
    pub bound: f64,
    /// By value: how much larger the bound is if the value is not resident at the moment. Several values add up.
    pub regrets: Vec<f64>,
}

fn tail(graph: &Graph, budget: u64, moment: OpId, iterations: u64, deadline: Deadline) -> Option<Tail> {
    let relaxation = Relaxation::new(graph, budget, &[moment], deadline)?;
    let solver = Solver::new(&relaxation.program);
    let solved = solver.solve(iterations, deadline, f64::INFINITY);
    let regrets = relaxation.regrets(&solver.regrets(&solved));
    // The bound includes the choice of an implementation for the op of the moment itself.
    let chooses = !graph.ops()[moment].alternatives.is_empty();
    Some(Tail { done: moment + usize::from(!chooses), bound: solved.bound, regrets })
}

/// The tails of some crowded moments, each within `iterations` and `bytes`: the latest first, as many as `limit` allows.
pub(super) fn tails(graph: &Graph, budget: u64, iterations: u64, bytes: u64, limit: Duration) -> Vec<Tail> {
    let deadline = Deadline::after(limit);
    if relax::bytes_of(graph, 1) > bytes {
        return Vec::new();
    }
    let crowded = relax::crowded_moments(graph, budget);
    if crowded.is_empty() {
        return Vec::new();
    }
    let mut moments = relax::spread(&crowded, TAILS);
    moments.extend(relax::tight_moments(graph, budget, &crowded));
    moments.sort_unstable();
    moments.dedup();
    let count = moments.len();
    let tail_of = |(number, moment): (usize, OpId)| {
        let part = deadline.left() * 2 / (count - number).max(2) as u32;
        tail(graph, budget, moment, iterations, Deadline::after(part))
    };
    let in_time = |_: &(usize, OpId)| !deadline.passed();
    moments.into_iter().rev().enumerate().take_while(in_time).filter_map(tail_of).collect()
}

/// About how many moments get a tail.
const TAILS: usize = 24;
