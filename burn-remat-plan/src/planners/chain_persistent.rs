//! The cheapest persistent schedule of a chain, by dynamic programming: the method of `chain-dp` and `revolve`.
//!
//! Problem: a chain of stages and a memory limit; find the schedule of least cost in which whatever is kept stays kept
//! until its backward use.
//!
//! Method: `C(s, t, m)` is the least cost of carrying stages `s..=t` forward and backward within `m` bytes, where `m`
//! does not include the input of `s` but does include the backward side of `t`. Either `s` saves everything and stays
//! (`F_all`, then `C(s+1, t, m - saved)`, then `B`), or its input is kept and the run goes forward without saving up to
//! the next checkpoint `k` (`C(k, t, m - activation)`, then `C(s, k-1, m)`). Decisions are not stored: the walk back
//! finds them again from the costs. Memory is counted in units: exact ones if the table then stays small, else slots (sizes
//! rounded up, limit rounded down).
//!
//! Speed: the table is filled in tiles that stay in the cache (`chain_tiles`), the innermost loop runs over
//! the memory units of three rows and has no branch, and an option is considered only below the first `m` at which the row
//! costs no more than the option with unlimited memory.
//!
//! Invariants: the plan never needs more than the limit in true bytes. Whether a budget is feasible at all is decided
//! in bytes, not slots, by [`minimum_budget`]; if slots are too coarse for a feasible budget they are refined, and as a
//! last resort the schedule of least memory is returned.
//!
//! Complexity: O(n³ · units) time at worst, 4 · n² · units bytes.
//!
//! Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains" (RR-9302),
//! Theorem 1, Algorithms 1 and 2. Departures: the backward need counts the gradient that `B` writes, as Table 1 says
//! and Theorem 1 omits; a run without saving is charged up to the checkpoint only, not to `t`, which makes a difference if a
//! saved set is smaller than its activation; `F_∅` stops one stage earlier than Algorithm 2 prints, as its cost does.

use super::chain_table::{Choices, Minimum, Run, Table};
use crate::allowance::Allowance;
use crate::chain::terms::{Grouped, Terms};
use crate::chain::{self, Chain, ChainOutcome, ChainPlan, ChainStep, StageId, peak_stage};
use crate::deadline::Deadline;
use crate::error::PlanError;
use crate::memory::default_limit;
use crate::planner::{Progress, Request, Status, StopReason};

/// The fewest memory units of a table in slots: the report's figure.
const SLOTS: usize = 500;
/// A table of up to this many cells is made exact, or given more slots, without a second thought (64 MiB).
pub(super) const EASY_CELLS: usize = 1 << 23;
/// A table never has more cells than this (512 MiB).
const MOST_CELLS: usize = 1 << 26;
/// Longer chains are planned in this many groups of stages.
const MOST_STAGES: usize = 400;
/// On chains up to this length, the least memory is found for single stages if groups need too much.
const MOST_WHOLE_STAGES: usize = 1600;
/// On longer chains, running forward from the input again for every stage is not tried: the plan would be too long to write down.
const MOST_STAGES_FROM_INPUT: usize = 3000;
/// Longer chains are planned in this many groups first, in case there is no time for more.
const QUICK_GROUPS: usize = 100;
/// Groups of a longer chain when only a hint of its cost is wanted.
const COARSE_GROUPS: usize = 40;
/// About how many numbers of a table are evaluated per second, on one thread.
const WEIGHED_PER_SECOND: f64 = 1e9;

/// The smallest budget at which a persistent schedule of `chain` exists, and the stage at which that schedule has its
/// peak. Complexity: O(n³), exact up to 1600 stages, above that for groups of stages. Other schedules may need less: see
/// [`chain::minimum`].
pub fn minimum_budget(chain: &Chain) -> (u64, StageId) {
    let terms = Terms::of_chain(chain);
    let plan = ChainPlan { steps: least_persistent(&terms, terms.least_bytes(), default_limit()) };
    (chain::simulate(chain, &plan).peak_bytes, peak_stage(chain, &plan))
}

/// A persistent schedule of the least memory, or of no more than `enough`, found in about `memory` bytes.
pub(crate) fn least_persistent(terms: &Terms, enough: u64, memory: u64) -> Vec<ChainStep> {
    let grouped = Grouped::of(terms, MOST_STAGES);
    // Without a deadline there is always an answer.
    let least = least_memory(&grouped, Choices::SavedAndInputs, Deadline::NEVER).unwrap_or_else(|| from_input(terms));
    let allowance = Allowance { deadline: Deadline::NEVER, memory, threads: 1 };
    finer(terms, Choices::SavedAndInputs, least, enough, allowance).steps
}

/// Plans `chain` within `choices` for the planner called `name`.
pub(crate) fn solve_chain(
    name: &'static str,
    choices: Choices,
    chain: &Chain,
    request: &Request,
) -> Result<ChainOutcome, PlanError> {
    let terms = Terms::of_chain(chain);
    let found = solve_terms(&terms, choices, request, EASY_CELLS).map_err(|shortage| PlanError::Infeasible {
        budget: request.budget,
        minimum: Some(shortage.minimum),
        blocking_op: Some(peak_stage(chain, &ChainPlan { steps: shortage.steps })),
        proven: request.budget < terms.least_bytes(),
    })?;
    let Some(found) = found else { return Ok(ChainOutcome::without_plan(name, None)) };
    let plan = ChainPlan { steps: found.steps };
    let mut outcome = ChainOutcome::of_plan(name, chain, plan, found.status, found.stop_reason);
    // The optimum of a class is no bound for schedules outside it.
    outcome.lower_bound = Some(chain.store_all_makespan().min(outcome.makespan));
    Ok(outcome)
}

/// A schedule and what is known of it.
#[derive(Debug)]
pub(crate) struct Found {
    pub steps: Vec<ChainStep>,
    pub status: Status,
    pub stop_reason: StopReason,
}

impl Found {
    fn proved(steps: Vec<ChainStep>) -> Self {
        Self { steps, status: Status::Optimal, stop_reason: StopReason::Proved }
    }

    fn feasible(steps: Vec<ChainStep>, stop_reason: StopReason) -> Self {
        Self { steps, status: Status::Feasible, stop_reason }
    }
}

/// No schedule fits; this one needs the least memory.
#[derive(Debug)]
pub(crate) struct Shortage {
    pub minimum: u64,
    pub steps: Vec<ChainStep>,
}

/// The schedule of least memory; `None` if the deadline comes first.
fn least_memory(grouped: &Grouped, choices: Choices, deadline: Deadline) -> Option<Shortage> {
    let terms = &grouped.terms;
    let minimum = Minimum::of(terms, choices, deadline)?;
    // What is held before the first step counts too.
    let bytes = minimum.get(0, terms.len() - 1).max(terms.gradient[terms.len() - 1]);
    Some(Shortage { minimum: terms.activation[0] + bytes, steps: grouped.expand(&minimum.schedule(terms, choices)) })
}

/// The schedule of least memory for a few groups of stages, which takes a few milliseconds.
fn coarse_least(terms: &Terms, choices: Choices) -> Option<Shortage> {
    least_memory(&Grouped::of(terms, QUICK_GROUPS), choices, Deadline::NEVER)
}

/// The schedule of least memory; `None` if the deadline comes first.
pub(super) fn least_memory_schedule(terms: &Terms, choices: Choices, deadline: Deadline) -> Option<Vec<ChainStep>> {
    least_memory(&Grouped::of(terms, MOST_STAGES), choices, deadline).map(|least| least.steps)
}

/// The schedule that keeps only the input and runs forward from it again for every stage: that of least memory if all
/// stages are alike.
fn from_input(terms: &Terms) -> Shortage {
    let mut run = Run::from(terms, 0);
    let mut need = terms.gradient[terms.len() - 1].max(terms.save_need(0, 0));
    for _ in 1..terms.len() {
        let (t, way, _) = run.step();
        need = need.max(terms.gradient[t] + way).max(terms.activation[t] + terms.save_need(t, t));
    }
    let to_stage = |t: StageId| {
        let way = (0..t).map(|i| if i == 0 { ChainStep::KeepInput(0) } else { ChainStep::Pass(i) });
        way.chain([ChainStep::SaveAll(t), ChainStep::Backward(t)])
    };
    Shortage { minimum: terms.activation[0] + need, steps: (0..terms.len()).rev().flat_map(to_stage).collect() }
}

/// A schedule of less memory than `least`, which is for groups of stages, if that needs more than `enough`.
fn finer(terms: &Terms, choices: Choices, mut least: Shortage, enough: u64, allowance: Allowance) -> Shortage {
    let n = terms.len();
    if n > MOST_STAGES && n <= MOST_STAGES_FROM_INPUT && least.minimum > enough {
        least = std::cmp::min_by_key(least, from_input(terms), |shortage| shortage.minimum);
    }
    if n > MOST_STAGES && n <= MOST_WHOLE_STAGES && least.minimum > enough && Minimum::bytes_of(n) <= allowance.memory {
        least = least_memory(&Grouped::of(terms, n), choices, allowance.deadline).unwrap_or(least);
    }
    least
}

/// The cheaper of `steps` and `other`, if there is another.
fn cheaper(terms: &Terms, steps: Vec<ChainStep>, other: Option<Vec<ChainStep>>) -> Vec<ChainStep> {
    let cost = terms.cost_of(&steps);
    other.filter(|other| terms.cost_of(other) < cost).unwrap_or(steps)
}

/// A schedule in few groups and slots: at most about a fiftieth of the work of the whole table.
fn quick_steps(
    terms: &Terms,
    choices: Choices,
    request: &Request,
    (groups, limit): (usize, u64),
    deadline: Deadline,
) -> Option<Vec<ChainStep>> {
    let grouped = Grouped::of(terms, groups);
    let slots = SLOTS.min(cells_in_memory(request) / pairs(groups));
    let unit = limit.div_ceil(slots.max(1) as u64).max(1);
    let scaled = grouped.terms.in_units(unit);
    let table = Table::fill(&scaled, choices, (limit / unit) as usize, request.threads, deadline)?;
    table.schedule().map(|steps| grouped.expand(&steps))
}

/// The schedule that saves every stage.
fn saving_all(stages: usize) -> Vec<ChainStep> {
    (0..stages).map(ChainStep::SaveAll).chain((0..stages).rev().map(ChainStep::Backward)).collect()
}

/// A schedule in very few groups, found in a few milliseconds: its cost shows about what the whole table would find.
pub(super) fn coarse_steps(terms: &Terms, choices: Choices, request: &Request) -> Option<Vec<ChainStep>> {
    let limit = request.budget.checked_sub(terms.activation[0])?;
    quick_steps(terms, choices, request, (COARSE_GROUPS, limit), request.deadline())
}

/// Rows of a table.
fn pairs(stages: usize) -> usize {
    stages * (stages + 1) / 2
}

/// The most cells for which there is memory besides everything else that is held.
fn cells_in_memory(request: &Request) -> usize {
    let cells = request.memory_limit / 4 * 3 / size_of::<f64>() as u64;
    usize::try_from(cells).unwrap_or(usize::MAX).min(MOST_CELLS)
}

/// About the most cells that can be filled in half of the request's time.
fn cells_in_time(request: &Request, stages: usize) -> usize {
    let weighed_per_cell = 4.0 + stages as f64 / 3.0;
    (request.time_limit.as_secs_f64() / 2.0 * WEIGHED_PER_SECOND / weighed_per_cell) as usize
}

/// The cheapest schedule of `terms` within the request's budget; `None` if time runs out before it is known whether there is one.
/// The table has up to `easy_cells` cells, if there is time, wherever that makes it finer than [`SLOTS`].
pub(crate) fn solve_terms(
    terms: &Terms,
    choices: Choices,
    request: &Request,
    easy_cells: usize,
) -> Result<Option<Found>, Shortage> {
    let allowance = request.allowance();
    let deadline = allowance.deadline;
    let grouped = Grouped::of(terms, MOST_STAGES);
    let Some(least) = least_memory(&grouped, choices, deadline) else {
        let coarse = coarse_least(terms, choices).filter(|least| least.minimum <= request.budget);
        return Ok(coarse.map(|least| Found::feasible(least.steps, StopReason::TimeLimit)));
    };
    if least.minimum > request.budget {
        let least = finer(terms, choices, least, request.budget, allowance);
        if least.minimum > request.budget {
            return Err(least);
        }
        return Ok(Some(Found::feasible(least.steps, StopReason::Heuristic)));
    }
    let n = grouped.terms.len();
    let peak = grouped.terms.store_all_peak();
    if choices == Choices::SavedAndInputs && peak <= request.budget {
        return Ok(Some(Found::proved(saving_all(terms.len()))));
    }
    // With inputs only, nothing beyond every activation and one saved set is ever of use.
    let most = grouped.terms.activation.iter().sum::<u64>().saturating_add(peak);
    let limit = request.budget.min(most) - grouped.terms.activation[0];
    let pairs = pairs(n);
    let most_cells = cells_in_memory(request);
    let easy_cells = easy_cells.min(cells_in_time(request, n)).max(SLOTS * pairs).min(most_cells);
    let common = grouped.terms.common_unit();
    let exact = usize::try_from(limit / common).ok().filter(|&units| units <= easy_cells / pairs);
    let quick = || quick_steps(terms, choices, request, (QUICK_GROUPS, limit), deadline);
    let quick = (n > QUICK_GROUPS).then(quick).flatten();
    let mut stop_reason = StopReason::Heuristic;
    let mut slots = exact.unwrap_or(easy_cells / pairs);
    while slots > 0 {
        let unit = if exact.is_some() { common } else { limit.div_ceil(slots as u64).next_multiple_of(common) };
        let scaled = grouped.terms.in_units(unit);
        let table = Table::fill(&scaled, choices, (limit / unit) as usize, request.threads, deadline);
        let Some(table) = table else {
            stop_reason = StopReason::TimeLimit;
            break;
        };
        if let Some(steps) = table.schedule() {
            let steps = cheaper(terms, grouped.expand(&steps), quick);
            request.report(Progress { incumbent: Some(terms.cost_of(&steps)), lower_bound: None });
            let proved = exact.is_some() && n == terms.len();
            return Ok(Some(if proved { Found::proved(steps) } else { Found::feasible(steps, StopReason::Heuristic) }));
        }
        // A feasible budget, but slots of this size are too coarse to see it.
        slots = slots.saturating_mul(2);
        if slots.saturating_mul(pairs) > most_cells {
            break;
        }
    }
    let steps = cheaper(terms, least.steps, quick);
    Ok(Some(Found::feasible(steps, stop_reason)))
}
