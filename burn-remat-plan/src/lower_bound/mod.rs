//! A lower bound on the makespan of every schedule within a budget.
//!
//! *Class of schedules.* Everything that [`check`](mod@crate::check) accepts. First computations come in the program's
//! order; apart from that, any op that may run again can do so anywhere, in any order and any number of times, each time
//! with any of its implementations; values can be evicted at any time. So a bound holds for every planner of this crate.
//!
//! Two methods complement each other:
//!
//! - A *relaxation*, described below, weighs all values of large graphs against each other, but may keep a fraction of a
//!   value and ignores what is resident between its moments. It is tight if the budget leaves some room.
//! - A *search of states* ([`state_bound`]) keeps values whole and counts all memory. On graphs of about fifty ops, and
//!   on larger ones near the smallest feasible budget, it is exact or nearly so.
//!
//! *Relaxation.* Choose some *moments*: first computations of ops t1 < t2 < .. . Of a schedule, record only which
//! values are resident while each of these ops runs (`keep`), and which ops run again at least once between two of
//! these moments (`again`). Whatever the schedule does, these 0/1 variables obey:
//!
//! 1. what is resident at a moment, with the outputs and scratch of its op, fits in the budget; the inputs of its op
//!    are resident;
//! 2. a value that is resident at a moment was resident at the moment before, or was computed in between;
//! 3. an op whose first computation lies between two moments has each input kept from the earlier moment or computed
//!    in between; the same holds for an op that runs again and, after the last moment, for a result.
//!
//! The cost is at least that of all first computations plus that of all `again`. Order within an interval, memory
//! between the moments and the number of repeats are ignored; so is integrality, which leaves a linear program. Some
//! integrality is restored: rule 1 is also stated in units of the sizes that account for most of the bytes, with all sizes
//! and the room rounded down to whole units (Gomory 1958, Chvatal 1973), since only whole values are kept.
//!
//! *Bound.* The program is solved approximately by a first-order method (`pdhg.rs`). Any non-negative multipliers `y` of
//! its rows give a valid bound, because the variables lie in a box: `b y - sum max(0, A'y - c)`. So the bound never
//! depends on convergence. Rounding is covered by a margin of 1e-9 of the sum of all magnitudes. Whether something fits
//! is decided in whole bytes.
//!
//! *Levels.* One moment gives a small program that converges at once and is often already tight: a knapsack of values,
//! in which each missing value costs the closure of ops that recomputes it. More moments give a tighter program that
//! converges slowly. The bound tries single moments (the most crowded, and those whose op itself leaves the least room),
//! then 2, 3, 5, .. moments spread over the crowded part, until time is up.
//!
//! *Alternatives.* An op with several implementations has a variable `again` for each, and for its first computation a
//! variable `chosen` for each, one of which is 1; it costs what that implementation costs above the cheapest. Rules 1 and
//! 3 then count the scratch and require the inputs of what is chosen. First computations before the first moment count
//! at their least cost.
//!
//! Complexity: rows, columns and non-zeros are about moments x (ops + uses); one iteration is linear in them.

mod pdhg;
mod relax;
pub mod states;
mod tails;

pub use states::{MOST_OPS, StateEffort, state_bound};

use std::time::Duration;

use crate::deadline::Deadline;
use crate::graph::{Graph, OpId};
use pdhg::Solver;
use relax::Relaxation;

/// How long [`lower_bound`] may work.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Wall-clock limit.
    pub time_limit: Duration,
    /// Approximate limit on the bytes held at once.
    pub bytes: u64,
    /// Limit on the iterations per level; with a generous time limit, it makes the bound reproducible.
    pub iterations: u64,
    /// Stop when the bound reaches this makespan.
    pub enough: f64,
}

impl Effort {
    /// No limits except the time and a quarter of a GiB.
    pub fn time(limit: Duration) -> Self {
        Self { time_limit: limit, bytes: MOST_BYTES, iterations: u64::MAX, enough: f64::INFINITY }
    }
}

/// A lower bound on the makespan of every schedule of `graph` within `budget` bytes.
///
/// If no schedule fits at all, the result may be any number that is at least the cost of running every op once.
///
/// ```
/// use std::time::Duration;
/// use burn_remat_plan::{GraphBuilder, Op, lower_bound::{Effort, lower_bound}};
///
/// let mut builder = GraphBuilder::new("skip");
/// let v: Vec<_> = [10, 1, 10, 1, 1].iter().map(|&bytes| builder.value(bytes, "")).collect();
/// for (i, inputs) in [vec![], vec![v[0]], vec![v[1]], vec![v[2]], vec![v[0], v[3]]].into_iter().enumerate() {
///     builder.op(Op::new("", 1.0, inputs, vec![v[i]]));
/// }
/// let bound = lower_bound(&builder.build()?, 12, Effort::time(Duration::from_millis(200)));
/// assert!(bound > 5.5 && bound <= 6.0); // value 0 must be computed twice
/// # Ok::<(), burn_remat_plan::GraphError>(())
/// ```
pub fn lower_bound(graph: &Graph, budget: u64, effort: Effort) -> f64 {
    let end = Deadline::after(effort.time_limit);
    let half = Effort { time_limit: effort.time_limit / 2, ..effort };
    let relaxed = climb(graph, budget, half, &levels(graph, budget), &mut Vec::new());
    if relaxed >= effort.enough {
        return relaxed;
    }
    let states = StateEffort {
        bytes: usize::try_from(effort.bytes).unwrap_or(usize::MAX),
        states: usize::try_from(effort.iterations).unwrap_or(usize::MAX),
        enough: effort.enough,
        ..StateEffort::time(end.left())
    };
    state_bound(graph, budget, states).max(relaxed)
}

/// The bound of the relaxation with only these moments (ascending), for tests and experiments.
pub fn lower_bound_at(graph: &Graph, budget: u64, moments: &[OpId], effort: Effort) -> f64 {
    climb(graph, budget, effort, &[moments.to_vec()], &mut Vec::new())
}

/// What a relaxation with a single moment would keep there: a good start for a search.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    pub moment: OpId,
    /// The fraction (0 to 1) of each value that is kept.
    pub kept: Vec<f64>,
    /// The implementation of each op for its first computation, from the moment on.
    pub first: Vec<usize>,
    /// The implementation of each op when it is computed again after the moment.
    pub again: Vec<usize>,
    pub bound: f64,
}

/// Only the single-moment levels: their bound, and the hints, the tightest first.
pub(crate) fn hints(graph: &Graph, budget: u64, effort: Effort) -> (f64, Vec<Hint>) {
    let mut levels = levels(graph, budget);
    levels.retain(|level| level.len() == 1);
    let mut hints = Vec::new();
    let bound = climb(graph, budget, effort, &levels, &mut hints);
    hints.sort_by(|a, b| b.bound.total_cmp(&a.bound).then(a.moment.cmp(&b.moment)));
    (bound, hints)
}

/// Only the levels with several moments.
pub(crate) fn joint_bound(graph: &Graph, budget: u64, effort: Effort) -> f64 {
    let mut levels = levels(graph, budget);
    levels.retain(|level| level.len() > 1);
    climb(graph, budget, effort, &levels, &mut Vec::new())
}

fn climb(graph: &Graph, budget: u64, effort: Effort, levels: &[Vec<OpId>], hints: &mut Vec<Hint>) -> f64 {
    let end = Deadline::after(effort.time_limit);
    let base = relax::first_computations(graph);
    let whole = states::has_whole_costs(graph);
    let mut best = base;
    for moments in levels {
        if end.passed() || best >= effort.enough {
            break;
        }
        if relax::bytes_of(graph, moments.len()) > effort.bytes {
            continue;
        }
        // No level may use more than a part of the time left.
        let deadline = Deadline::after(end.left().mul_f64(0.35));
        let Some(relaxation) = Relaxation::new(graph, budget, moments, deadline) else { continue };
        if moments.len() > 1 && relaxation.entries() > MOST_ENTRIES {
            break;
        }
        let solved = Solver::new(&relaxation.program).solve(effort.iterations, deadline, effort.enough - base);
        let (gain, solution) = (solved.bound, solved.solution);
        if let [moment] = moments[..] {
            hints.push(Hint {
                moment,
                kept: relaxation.kept(&solution),
                first: relaxation.first(&solution),
                again: relaxation.again(&solution),
                bound: base + gain,
            });
        }
        let mut bound = base + gain;
        if whole && bound.is_finite() {
            // Whole costs give whole makespans.
            bound = (bound - 1e-6 * (1.0 + gain.abs())).ceil();
        }
        log::debug!("lower bound: {} moments, {} entries: {bound}", moments.len(), relaxation.entries());
        best = best.max(bound);
    }
    best
}

/// The sets of moments to try: single ones, the most crowded first, then more at a time.
fn levels(graph: &Graph, budget: u64) -> Vec<Vec<OpId>> {
    let crowded = relax::crowded_moments(graph, budget);
    if crowded.is_empty() {
        return Vec::new();
    }
    let mut singles = relax::spread(&crowded, SINGLES);
    let excess = |op: OpId| crowded.iter().find(|&&(at, _)| at == op).map_or(0, |&(_, excess)| excess);
    singles.sort_by_key(|&op| (std::cmp::Reverse(excess(op)), op));
    let mut levels: Vec<Vec<OpId>> = relax::spread(&crowded, 1).into_iter().map(|op| vec![op]).collect();
    let tight = relax::tight_moments(graph, budget, &crowded);
    levels.extend(tight.iter().map(|&op| vec![op]));
    levels.extend(singles.into_iter().map(|op| vec![op]));
    if !tight.is_empty() {
        let mut both: Vec<OpId> = tight.into_iter().chain(relax::spread(&crowded, 2)).collect();
        both.sort_unstable();
        both.dedup();
        levels.push(both);
    }
    for count in [2, 3, 5, 9, 27, 81] {
        levels.push(relax::spread(&crowded, count));
    }
    levels.dedup();
    levels
}

/// Default limit on the bytes of a bound.
const MOST_BYTES: u64 = 1 << 28;

/// How many moments are tried alone.
const SINGLES: usize = 6;

/// Beyond this size an iteration takes too long to be worth it.
const MOST_ENTRIES: usize = 3_000_000;
