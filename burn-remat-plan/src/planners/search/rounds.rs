//! Who walks when, from where and how hot.
//!
//! The time (or the moves) of a solve is cut into rounds. In each round every thread anneals from [`ROUNDS`]`.heat` down
//! to [`COLD`]; even threads hotter than odd ones. The first round starts from the hint of the lower bound, or from a
//! feasible order; the others from the best order that any thread has found, so that a late round is a local search
//! around it. Threads meet only between rounds: with a limit on moves the result does not depend on timing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::anneal::{Walk, Without};
use super::state::{Problem, State};
use crate::graph::OpId;

struct Round {
    /// The part of the whole at which the round ends.
    until: f64,
    /// Start temperature in mean costs of an op, for even and odd threads.
    heat: [f64; 2],
}

const ROUNDS: [Round; 4] = [
    Round { until: 0.5, heat: [1.0, 0.15] },
    Round { until: 0.7, heat: [0.15, 0.05] },
    Round { until: 0.9, heat: [0.1, 0.25] },
    Round { until: 1.0, heat: [0.03, 0.06] },
];
/// Final temperature of a round.
const COLD: f64 = 0.004;
/// Moves between two looks at the clock.
const BATCH: usize = 256;

/// What limits a solve, shared by its threads.
pub(super) struct Clock {
    pub start: Instant,
    pub limit: Duration,
    pub moves: Option<u64>,
    pub gap: f64,
    /// The bits of the lower bound proven so far.
    pub bound: AtomicU64,
}

impl Clock {
    pub fn bound(&self) -> f64 {
        f64::from_bits(self.bound.load(Ordering::Relaxed))
    }

    pub fn raise(&self, bound: f64) {
        self.bound.store(bound.max(self.bound()).to_bits(), Ordering::Relaxed);
    }

    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }

    /// Whether `makespan` is within the gap asked for.
    pub fn is_proven(&self, makespan: f64) -> bool {
        makespan <= self.bound() * (1.0 + self.gap.max(1e-9))
    }

    /// The part of the solve that is over, after `done` moves of this thread.
    fn part(&self, done: u64) -> f64 {
        let time = self.start.elapsed().as_secs_f64() / self.limit.as_secs_f64().max(1e-9);
        self.moves.map_or(0.0, |moves| done as f64 / moves.max(1) as f64).max(time)
    }
}

/// A cost and the order that has it.
pub(super) type Found = (f64, Vec<OpId>);

/// Walks with `threads` threads, the first round from `starts` in turn. `aside` runs on the last thread before it
/// walks; `report` hears of the best cost after each round.
pub(super) fn walk(
    problem: &Problem<'_>,
    clock: &Clock,
    starts: &[Vec<OpId>],
    (seed, threads, without): (u64, usize, Without),
    aside: impl Fn() + Sync,
    report: impl Fn(f64),
) -> Option<Found> {
    let mut walks: Vec<(Walk<'_, '_>, u64)> = (0..threads)
        .map(|thread| {
            // The hint to the cooler threads, and to a lone one.
            let start = &starts[if threads == 1 { 0 } else { (thread + 1) % starts.len() }];
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(thread as u64);
            let mut walk = Walk::new(State::new(problem, start), seed);
            walk.without = without;
            (walk, 0)
        })
        .collect();
    let mut best: Option<Found> = None;
    for (number, round) in ROUNDS.iter().enumerate() {
        let begin = number.checked_sub(1).map_or(0.0, |before| ROUNDS[before].until);
        std::thread::scope(|scope| {
            for (thread, (walk, done)) in walks.iter_mut().enumerate() {
                let (best, aside) = (&best, &aside);
                let last = thread + 1 == threads;
                scope.spawn(move || {
                    if number == 0 && last {
                        aside();
                    }
                    if number > 0
                        && let Some((_, order)) = best
                    {
                        walk.state.load(order);
                    }
                    // A lone thread starts from the hint, and warm rather than hot.
                    let heat = if threads == 1 && number == 0 { 0.3 } else { round.heat[thread % 2] };
                    anneal(walk, done, clock, begin..round.until, heat);
                });
            }
        });
        let found = walks.iter().filter_map(|(walk, _)| walk.best.clone());
        best = best.into_iter().chain(found).min_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((cost, _)) = best {
            report(cost);
        }
    }
    log::debug!(
        "search: {} moves, best {:?}",
        walks.iter().map(|walk| walk.1).sum::<u64>(),
        best.as_ref().map(|b| b.0)
    );
    best
}

fn anneal(walk: &mut Walk<'_, '_>, done: &mut u64, clock: &Clock, span: std::ops::Range<f64>, heat: f64) {
    if walk.is_stuck() {
        return;
    }
    let ops = walk.state.problem.graph.ops();
    let mean = ops.iter().map(|op| op.cost).sum::<f64>() / ops.len() as f64;
    loop {
        let at = ((clock.part(*done) - span.start) / (span.end - span.start)).max(0.0);
        if at >= 1.0 || walk.best.as_ref().is_some_and(|&(cost, _)| clock.is_proven(cost)) {
            break;
        }
        walk.run(BATCH, (mean * heat * (COLD / heat).powf(at)).max(1e-12));
        *done += BATCH as u64;
    }
    if let Some((_, order)) = walk.best.clone() {
        walk.state.load(&order);
        walk.polish();
    }
}
