//! `revolve`: checkpoints are inputs of stages only, as in reverse-mode differentiation.
//!
//! Problem: carry a chain backward when all that may be kept between operations is inputs of stages; each stage saves
//! only right before its own backward operation, so every stage but the last runs forward at least twice.
//!
//! Method, heterogeneous: the dynamic program of `chain_persistent` without its saving option, under a
//! budget in bytes. This is the baseline of Beaumont et al. (RR-9302, section 5.3).
//!
//! Method, binomial ([`binomial_schedule`]): all stages are taken as equal and `c` inputs may be kept, the chain's own
//! among them. With `β(c, r) = C(c + r, c)`, a chain of at most `β(c, r)` stages needs no stage to advance more than
//! `r` times. So the next checkpoint goes where the part after it has at most `β(c - 1, r)` stages and the part before
//! it at most `β(c, r - 1)`, for the least `r` that covers the chain; any such place is optimal.
//!
//! The planner returns the cheaper of the two. If the budget allows saving everything, nothing needs to be recomputed,
//! and that is the plan.
//!
//! Complexity: as `chain_persistent`; the binomial schedule takes O(steps).
//!
//! Source: Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26, 2000.

use super::StoreAll;
use super::chain_on_graph;
use super::chain_persistent::solve_chain;
use super::chain_table::Choices;
use crate::chain::{self, Chain, ChainOutcome, ChainPlan, ChainStep};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::planner::{Outcome, Planner, Request, Status, StopReason};

/// Binomial schedules longer than this many times the chain are not tried.
const MOST_RUNS: u128 = 64;

/// The planner `revolve`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Revolve;

impl Revolve {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "revolve";
}

impl Planner for Revolve {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        chain_on_graph::solve(Self::NAME, Choices::InputsOnly, graph, request)
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        if let Ok(outcome) = StoreAll.solve_chain(chain, request) {
            return Ok(ChainOutcome { planner: Self::NAME.to_owned(), ..outcome });
        }
        let best = solve_chain(Self::NAME, Choices::InputsOnly, chain, request)?;
        if best.status == Status::Optimal {
            return Ok(best);
        }
        let binomial = binomial_within(chain, request.budget)
            .map(|plan| ChainOutcome::of_plan(Self::NAME, chain, plan, Status::Feasible, StopReason::Heuristic))
            .filter(|binomial| best.plan.is_none() || binomial.makespan < best.makespan);
        Ok(binomial.map_or(best.clone(), |binomial| ChainOutcome { lower_bound: best.lower_bound, ..binomial }))
    }
}

/// The binomial schedule with about as many checkpoints as fit.
fn binomial_within(chain: &Chain, budget: u64) -> Option<ChainPlan> {
    let n = chain.stages().len();
    let mut checkpoints = n;
    while checkpoints > 0 && advances(n, checkpoints) <= MOST_RUNS * n as u128 {
        let plan = binomial_schedule(n, checkpoints);
        if chain::simulate(chain, &plan).peak_bytes <= budget {
            return Some(plan);
        }
        checkpoints -= 1 + checkpoints / 20;
    }
    None
}

/// `C(c + r, c)`, at most `u128::MAX`.
fn beta(c: usize, r: usize) -> u128 {
    let (least, most) = (c.min(r) as u128, c.max(r) as u128);
    (1..=least).try_fold(1_u128, |product, i| Some(product.checked_mul(most + i)? / i)).unwrap_or(u128::MAX)
}

/// The least `r` with `beta(c, r) >= stages`.
fn repetitions(stages: usize, c: usize) -> usize {
    (0..).find(|&r| beta(c, r) >= stages as u128).unwrap_or(stages)
}

/// Forward runs without saving in the best schedule for equal stages: `r · stages - β(c + 1, r - 1)`.
fn advances(stages: usize, c: usize) -> u128 {
    match repetitions(stages, c) {
        0 => 0,
        r => r as u128 * stages as u128 - beta(c + 1, r - 1),
    }
}

/// Length of the run to the next checkpoint for a chain of at least two stages.
fn advance(stages: usize, c: usize) -> usize {
    if c == 1 {
        return stages - 1;
    }
    let r = repetitions(stages, c);
    let ahead = beta(c, r - 1);
    let behind = stages as u128 - beta(c - 1, r - 1).min(stages as u128 - 1);
    usize::try_from(ahead.min(behind)).map_or(stages - 1, |k| k.clamp(1, stages - 1))
}

/// The schedule with the fewest forward runs for a chain of equal stages, of which `checkpoints` inputs, at least one, may be
/// kept at once. A `checkpoints` of 0 is taken as 1.
///
/// ```
/// use burn_remat_plan::planners::revolve::binomial_schedule;
///
/// let steps: Vec<String> = binomial_schedule(3, 2).steps.iter().map(ToString::to_string).collect();
/// assert_eq!(steps.join(" "), "Fck0 Fck1 Fall2 B2 Fall1 B1 Fall0 B0");
/// ```
pub fn binomial_schedule(stages: usize, checkpoints: usize) -> ChainPlan {
    let mut steps = Vec::new();
    if stages == 0 {
        return ChainPlan { steps };
    }
    let mut stack = vec![(0, stages, checkpoints.max(1))];
    while let Some((s, length, c)) = stack.pop() {
        if length == 1 {
            steps.extend([ChainStep::SaveAll(s), ChainStep::Backward(s)]);
            continue;
        }
        let k = advance(length, c);
        steps.push(ChainStep::KeepInput(s));
        steps.extend((s + 1..s + k).map(ChainStep::Pass));
        stack.push((s, k, c));
        stack.push((s + k, length - k, (c - 1).max(1)));
    }
    ChainPlan { steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit_chain(n: usize) -> Chain {
        let stage = chain::ChainStage { forward_cost: 1.0, activation_bytes: 1, ..Default::default() };
        Chain::new("unit", 1, 0, vec![stage; n]).unwrap()
    }

    /// Fewest advances by the recursion that defines the problem.
    fn fewest(most: usize, c_most: usize) -> Vec<Vec<u128>> {
        let mut table = vec![vec![0; c_most + 1]; most + 1];
        for l in 2..=most {
            table[l][1] = (l * (l - 1) / 2) as u128;
            for c in 2..=c_most {
                table[l][c] = (1..l).map(|k| k as u128 + table[l - k][c - 1] + table[k][c]).min().unwrap();
            }
        }
        table
    }

    #[test]
    fn the_binomial_schedule_is_valid_and_runs_forward_as_rarely_as_can_be() {
        let table = fewest(60, 8);
        for (n, row) in table.iter().enumerate().skip(1) {
            for (c, &fewest) in row.iter().enumerate().skip(1) {
                let plan = binomial_schedule(n, c);
                let chain = unit_chain(n);
                // Each stage also runs once more to save.
                let makespan = chain::simulate(&chain, &plan).makespan;
                assert_eq!(makespan as u128 - n as u128, fewest, "{n} stages, {c} checkpoints");
                assert_eq!(advances(n, c), fewest, "{n} stages, {c} checkpoints");
                // Besides the checkpoints, at most the running input and its output are held.
                assert_eq!(chain::check(&chain, &plan, c as u64 + 2), [], "{n} stages, {c} checkpoints");
            }
        }
    }
}
