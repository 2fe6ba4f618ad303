//! The smallest feasible budget of a chain, over all schedules.
//!
//! *Lower bound.* The bytes that every schedule holds at some time: [`Terms::least_bytes`].
//!
//! *Upper bound.* The peak of a known plan: the persistent schedule of least memory. Chains of more than 400 stages are
//! first planned in groups of stages. If that needs more than the lower bound, two more schedules are tried: the one
//! that runs forward again from the input for every stage and, up to 1600 stages, the exact persistent minimum.
//!
//! Between the two bounds, the exact search over all schedules bisects, on chains that are short enough for it.
//!
//! Complexity: O(n³) for the upper bound; the search visits a bounded number of states.

use std::time::Duration;

use super::terms::{Grouped, Terms};
use super::{Chain, ChainPlan, StageId, peak_stage, simulate};
use crate::allowance::Allowance;
use crate::planner::Request;
use crate::planners::chain_exact::{Exact, exact};
use crate::planners::chain_persistent::least_persistent;

/// Time limit of the exact search in [`minimum`].
const SEARCH_TIME: Duration = Duration::from_secs(10);

/// The smallest feasible budget of a chain, as found by [`minimum`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChainMinimum {
    /// No schedule fits in less.
    pub lower_bound: u64,
    /// The smallest budget for which a plan is known: the peak of [`plan`](Self::plan).
    pub achieved: u64,
    /// A plan with that peak.
    pub plan: ChainPlan,
    /// The stage at which [`plan`](Self::plan) holds its peak.
    pub peak_stage: StageId,
}

impl ChainMinimum {
    /// Whether `achieved` is proved to be the smallest feasible budget.
    pub fn is_exact(&self) -> bool {
        self.lower_bound == self.achieved
    }
}

/// Finds the smallest feasible budget of `chain`, including the chain's input.
///
/// ```
/// use burn_remat_plan::chain::{self, Chain, ChainStage};
///
/// let stage = ChainStage { forward_cost: 1.0, activation_bytes: 4, saved_bytes: 8, gradient_bytes: 4, ..Default::default() };
/// let minimum = chain::minimum(&Chain::new("three", 4, 4, vec![stage; 3])?);
/// assert!(minimum.is_exact());
/// assert_eq!(minimum.achieved, 24);
/// # Ok::<(), burn_remat_plan::ChainError>(())
/// ```
pub fn minimum(chain: &Chain) -> ChainMinimum {
    minimum_by(chain, Allowance::of_time(SEARCH_TIME))
}

/// [`minimum`], with the exact search within the limits of `request`, whose budget does not count.
pub fn minimum_within(chain: &Chain, request: &Request) -> ChainMinimum {
    minimum_by(chain, request.allowance())
}

/// [`minimum`], with the exact search within `allowance`.
pub(crate) fn minimum_by(chain: &Chain, allowance: Allowance) -> ChainMinimum {
    let terms = Terms::of_chain(chain);
    let mut lower_bound = terms.least_bytes();
    let mut plan = ChainPlan { steps: least_persistent(&terms, lower_bound, allowance.memory) };
    let mut achieved = simulate(chain, &plan).peak_bytes;
    // Only memory matters here, so every operation is free.
    let joined = Grouped::joining_idle(&terms.without_costs());
    let mut probe = lower_bound;
    while lower_bound < achieved {
        match exact(&joined, probe, f64::INFINITY, allowance) {
            Exact::Cheapest(steps) => {
                plan.steps = steps;
                achieved = simulate(chain, &plan).peak_bytes;
            }
            Exact::NoneCheaper { next_budget } => lower_bound = next_budget.min(achieved),
            Exact::Stopped(_) => break,
        }
        probe = lower_bound + (achieved - lower_bound) / 2;
    }
    let peak_stage = peak_stage(chain, &plan);
    ChainMinimum { lower_bound, achieved, plan, peak_stage }
}
