//! Which walks run when, from where and at what temperature.
//!
//! Every thread holds a *ladder* of walks, each at its own fixed temperature, from [`HOT`] to [`COLD`] mean costs of an
//! op in equal ratios (parallel tempering, also called replica exchange: Swendsen & Wang 1986, Geyer 1991). After
//! every [`BATCH`] moves of each, neighbours on the ladder trade temperatures with the probability that keeps both
//! in balance, `min(1, exp(-d))` with `d = (E_cold(b) - E_cold(a)) / T_cold + (E_hot(a) - E_hot(b)) / T_hot`. So hot
//! walks find new valleys, cold ones the floor of each, and there is no cooling schedule to get wrong: one hot
//! annealing run is about as good at its best, but one in three ends in a poor valley.
//!
//! A large graph gets fewer walks on a ladder, since there is time for few moves; with a single walk, the temperature falls from
//! [`LONE`] to [`COLD`] instead. It also falls, from [`BRIEF`], if there is time for fewer than [`FEW_MOVES`]: eight walks that
//! share so few are all far from the floor, and a single one that cools ends closer to it.
//!
//! The solve is cut into rounds. Between them the threads meet: the coldest walk of each thread continues from the best order
//! of all. The last round cools these walks to nothing. With a limit on moves, nothing depends on timing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::anneal::{Copies, Walk};
use super::problem::Problem;
use super::random::Random;
use super::settings::{Settings, Without};
use super::state::State;
use crate::choice::Choice;
use crate::clock::{Moment, together};
use crate::deadline::Deadline;
use crate::guard::grace;
use crate::planner::Request;

/// The parts of the whole solve at which rounds end.
const ROUNDS: [f64; 4] = [0.4, 0.7, 0.93, 1.0];
/// The highest temperature of a ladder, in mean costs of an op.
const HOT: f64 = 1.0;
/// The lowest temperature.
const COLD: f64 = 0.01;
/// Where a lone walk starts.
const LONE: f64 = 0.15;
/// Where the walk of a brief solve starts, and where it ends.
const BRIEF: (f64, f64) = (1.0, 0.05);
/// With fewer moves per thread than this, a solve is brief.
const FEW_MOVES: u64 = 100_000;
/// About how many moves a thread makes in a second.
const MOVES_PER_SECOND: f64 = 500_000.0;
/// Moves of a walk between two trades.
const BATCH: usize = 100;
/// Moves between two checks of the clock: a move in a large graph may take a tenth of a millisecond.
const SLICE: usize = 20;

/// With more ops than this, a thread has a single walk.
pub(super) const MOST_LADDER_OPS: usize = 3000;

/// Whether there is time for so few moves that one walk does better than several.
fn is_brief(request: &Request, moves: Option<u64>) -> bool {
    moves.unwrap_or((request.time_limit.as_secs_f64() * MOVES_PER_SECOND) as u64) < FEW_MOVES
}

/// How many walks a thread has for a graph of this many ops, if the solve is not brief.
fn rungs(ops: usize) -> usize {
    match ops {
        0..=600 => 8,
        601..=1500 => 4,
        1501..=MOST_LADDER_OPS => 2,
        _ => 1,
    }
}

/// What limits a solve, shared by its threads.
pub(super) struct Clock {
    pub start: Moment,
    pub limit: Duration,
    pub moves: Option<u64>,
    pub gap: f64,
    /// The bits of the lower bound proven so far.
    pub bound: AtomicU64,
}

impl Clock {
    /// Starts now, for at most a year.
    pub fn start(request: &Request, moves: Option<u64>) -> Self {
        let limit = request.time_limit.min(Duration::from_secs(86_400 * 365));
        Self { start: Moment::now(), limit, moves, gap: request.gap, bound: AtomicU64::new(0) }
    }

    /// When this share of the time is over.
    pub fn deadline(&self, share: f64) -> Deadline {
        Deadline::after(self.limit.mul_f64(share).saturating_sub(self.start.elapsed()))
    }

    pub fn bound(&self) -> f64 {
        f64::from_bits(self.bound.load(Ordering::Relaxed))
    }

    pub fn raise(&self, bound: f64) {
        self.bound.store(bound.max(self.bound()).to_bits(), Ordering::Relaxed);
    }

    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }

    /// Whether `makespan` is within the requested gap of the bound.
    pub fn is_proven(&self, makespan: f64) -> bool {
        makespan <= self.bound() * (1.0 + self.gap.max(1e-9))
    }

    /// The part of the solve that is over, after `done` moves of this thread.
    fn part(&self, done: u64) -> f64 {
        let time = self.start.elapsed().as_secs_f64() / self.limit.as_secs_f64().max(1e-9);
        self.moves.filter(|_| time < 1.0).map_or(time, |moves| done as f64 / moves.max(1) as f64)
    }
}

/// A cost and the order that has it.
pub(super) type Found = (f64, Vec<Choice>);

fn better<'a>(found: impl Iterator<Item = &'a Found>) -> Option<&'a Found> {
    found.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// The walks of one thread.
struct Ladder<'p, 'g> {
    /// The coldest first.
    walks: Vec<Walk<'p, 'g>>,
    random: Random,
    done: u64,
    sweeps: usize,
    /// Mean cost of an op.
    unit: f64,
    /// The temperatures between which a lone walk cools.
    cooling: (f64, f64),
    /// The part of the solve that was over when the walks began.
    begun: f64,
}

impl<'p, 'g> Ladder<'p, 'g> {
    fn new(walkers: &Walkers<'p, 'g>, seed: u64) -> Self {
        let Walkers { problem, starts, without, most_computations, rungs: count, .. } = *walkers;
        let ops = problem.graph.ops();
        let mut random = Random::new(seed);
        let walks = (0..count)
            .map(|rung| {
                let order = &starts[rung.wrapping_add(seed as usize) % starts.len()];
                let mut walk = Walk::new(State::new(problem, order), random.next());
                walk.without = without;
                walk.most_computations = most_computations;
                if ops.len() > MOST_LADDER_OPS {
                    // There is no time to learn how much it takes to stay within the budget.
                    walk.pressure.weight *= ops.len() as f64;
                    walk.copies = Copies::EachRun;
                }
                walk
            })
            .collect();
        let unit = ops.iter().map(|op| op.cost).sum::<f64>() / ops.len().max(1) as f64;
        // A walk in a large graph has no time to come down from a high temperature.
        let is_large = ops.len() > MOST_LADDER_OPS;
        let cooling = if walkers.is_brief && !is_large { BRIEF } else { (LONE, COLD) };
        Self { walks, random, done: 0, sweeps: 0, unit: unit.max(1e-9), cooling, begun: 0.0 }
    }

    fn heat(&self, rung: usize, part: f64) -> f64 {
        let count = self.walks.len();
        self.unit
            * match count {
                1 => {
                    let (from, to) = self.cooling;
                    from * (to / from).powf((part - self.begun).max(0.0) / (1.0 - self.begun))
                }
                _ => COLD * (HOT / COLD).powf(rung as f64 / (count - 1) as f64),
            }
    }

    fn best(&self) -> Option<&Found> {
        better(self.walks.iter().filter_map(|walk| walk.best.as_ref()))
    }

    fn is_over(&self, clock: &Clock, until: f64) -> bool {
        clock.part(self.done) >= until || self.best().is_some_and(|&(cost, _)| clock.is_proven(cost))
    }

    /// Walks on all rungs until this part of the solve is over.
    fn walk(&mut self, clock: &Clock, until: f64) {
        if self.walks[0].is_stuck() {
            return;
        }
        loop {
            let part = clock.part(self.done);
            for rung in 0..self.walks.len() {
                if self.is_over(clock, until) {
                    return;
                }
                self.batch(rung, self.heat(rung, part), clock);
            }
            self.sweeps += 1;
            for rung in (self.sweeps % 2..self.walks.len() - 1).step_by(2) {
                self.trade(rung);
            }
        }
    }

    /// Makes a batch of moves, or as many as there is time for.
    fn batch(&mut self, rung: usize, heat: f64, clock: &Clock) {
        for _ in 0..BATCH / SLICE {
            self.walks[rung].run(SLICE, heat);
            self.done += SLICE as u64;
            if clock.left().is_zero() {
                return;
            }
        }
    }

    /// Lets a walk trade temperature and weight with the next hotter one.
    fn trade(&mut self, rung: usize) {
        let (cold, hot) = (self.heat(rung, 0.0), self.heat(rung + 1, 0.0));
        let [a, b] = [&self.walks[rung], &self.walks[rung + 1]];
        let gain = |weight: f64| b.energy(weight) - a.energy(weight);
        let delta = gain(a.pressure.weight) / cold - gain(b.pressure.weight) / hot;
        if delta <= 0.0 || self.random.chance((-delta).exp()) {
            self.walks.swap(rung, rung + 1);
            let (a, b) = self.walks.split_at_mut(rung + 1);
            std::mem::swap(&mut a[rung].pressure, &mut b[0].pressure);
        }
    }

    /// Cools the coldest walk to nothing, starting from the best order.
    fn settle(&mut self, clock: &Clock, span: std::ops::Range<f64>) {
        let halfway = (span.start + span.end) / 2.0;
        if !self.is_over(clock, halfway) {
            let done = self.done;
            self.done += self.walks[0].repack(|tried| clock.part(done + tried) >= halfway, || clock.left().is_zero());
        }
        while !self.walks[0].is_stuck() && !self.is_over(clock, span.end) {
            let at = ((clock.part(self.done) - span.start) / (span.end - span.start)).max(0.0);
            self.batch(0, self.unit * 4.0 * self.cooling.1 * 0.02f64.powf(at), clock);
        }
        if let Some((_, order)) = self.best().cloned() {
            self.walks[0].state.load(&order);
            let latest = clock.limit.saturating_add(grace(clock.limit));
            self.walks[0].polish(|| clock.start.elapsed() > latest);
        }
    }
}

/// Who walks.
pub(super) struct Walkers<'p, 'g> {
    problem: &'p Problem<'g>,
    starts: &'p [Vec<Choice>],
    without: Without,
    seed: u64,
    threads: usize,
    is_brief: bool,
    /// Walks per thread.
    rungs: usize,
    /// The most computations of one order.
    most_computations: usize,
}

/// About how many bytes a walk takes for each computation of its order, and for each op and value of the graph.
const BYTES_PER_COMPUTATION: u64 = 160;
const BYTES_PER_NODE: u64 = 96;
/// A walk may make its order longer than the longest start, but not without limit.
const MOST_GROWTH: u64 = 8;

impl<'p, 'g> Walkers<'p, 'g> {
    /// As many as the request has threads, and memory for their orders.
    pub fn new(problem: &'p Problem<'g>, starts: &'p [Vec<Choice>], request: &Request, settings: &Settings) -> Self {
        let (ops, values) = (problem.graph.ops().len(), problem.graph.values().len());
        let longest = starts.iter().map(Vec::len).max().unwrap_or(ops).max(ops) as u64;
        let is_brief = is_brief(request, settings.moves);
        let rungs = if settings.without.ladder || is_brief { 1 } else { rungs(ops) };
        let walks = rungs as u64;
        let fixed = BYTES_PER_NODE * (ops + values) as u64;
        let least = walks * (fixed + BYTES_PER_COMPUTATION * longest);
        let memory = request.memory_limit / 2;
        let threads = (memory / least.max(1)).clamp(1, request.threads.clamp(1, 64) as u64);
        let each = (memory / threads / walks).saturating_sub(fixed) / BYTES_PER_COMPUTATION;
        let most = each.clamp(longest, longest.saturating_mul(MOST_GROWTH));
        let most_computations = usize::try_from(most).unwrap_or(usize::MAX);
        let (without, seed, threads) = (settings.without, request.seed, threads as usize);
        Self { problem, starts, without, seed, threads, is_brief, rungs, most_computations }
    }

    /// Runs the walks. `aside` runs on the last thread before it walks or, with a limit on moves, before all walks; `report` gets the best
    /// cost after each round.
    pub fn walk(&self, clock: &Clock, aside: impl Fn() + Sync, report: impl Fn(f64)) -> Option<Found> {
        let seed_of = |thread: usize| self.seed.wrapping_mul(1_000_003).wrapping_add(thread as u64);
        let mut ladders: Vec<Ladder<'_, '_>> =
            (0..self.threads).map(|thread| Ladder::new(self, seed_of(thread))).collect();
        let begun = clock.part(0).min(0.9);
        ladders.iter_mut().for_each(|ladder| ladder.begun = begun);
        let mut best: Option<Found> = None;
        if clock.moves.is_some() {
            // The moment at which a bound is known must not depend on timing.
            aside();
        }
        for (number, &until) in ROUNDS.iter().enumerate() {
            let round = |(thread, ladder): (usize, &mut Ladder<'_, '_>)| {
                if number == 0 && thread + 1 == self.threads && clock.moves.is_none() {
                    aside();
                }
                if let Some((_, order)) = &best {
                    ladder.walks[0].state.load(order);
                }
                match number + 1 == ROUNDS.len() {
                    false => ladder.walk(clock, until),
                    true => ladder.settle(clock, ROUNDS[number - 1]..until),
                }
            };
            together(ladders.iter_mut().enumerate(), round).for_each(drop);
            best = better(best.iter().chain(ladders.iter().filter_map(Ladder::best))).cloned();
            if let Some((cost, _)) = best {
                report(cost);
            }
        }
        let moves: u64 = ladders.iter().map(|ladder| ladder.done).sum();
        log::debug!("search: {moves} moves, best {:?}", best.as_ref().map(|b| b.0));
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Options, by_name};

    #[test]
    fn every_seed_has_a_start_and_little_memory_means_few_threads() {
        let graph = by_name("linear", &Options::default()).unwrap();
        let problem = Problem::new(&graph, 1 << 40);
        let order: Vec<Choice> = (0..graph.ops().len()).map(Choice::default_of).collect();
        let starts = [order.clone(), order.clone()];
        let request =
            |seed: u64, memory_limit: u64| Request { seed, memory_limit, threads: 4, ..Request::new(1 << 40) };
        let walkers = Walkers::new(&problem, &starts, &request(u64::MAX, u64::MAX), &Settings::default());
        assert_eq!((walkers.threads, walkers.most_computations), (4, 8 * order.len()));
        for thread in 0..4 {
            Ladder::new(&walkers, u64::MAX - thread);
        }
        let walkers = Walkers::new(&problem, &starts, &request(0, 0), &Settings::default());
        assert_eq!((walkers.threads, walkers.most_computations), (1, order.len()));
    }
}
