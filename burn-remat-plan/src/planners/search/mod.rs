//! Search over general schedules: any value may be evicted and computed again, anywhere and any number of times, and every
//! computation, first or later, may use any implementation of its op; only first computations keep the program's order.
//!
//! 1. *Trivial cases.* If the store-all schedule in the cheapest implementations fits, it is the answer; a budget below
//!    the certified half of [`minimum`](mod@crate::minimum) has no plan.
//! 2. *Small graphs* are solved exactly (`exact.rs`): Dijkstra over resident sets, for up to 60,000 states and 64 values.
//! 3. *Starts* (`seeds.rs`). Constructive passes (`construct.rs`) run the program once and evict by cost, size and next use:
//!    they and the planners that are [quick](crate::registry::Role::Quick) for the graph give a plan that
//!    fits, so that the answer is never worse than what they reach in a tenth of the time. Beyond 300 ops, a table over the chain of
//!    the network's blocks gives another (`spine.rs`). The relaxation behind
//!    [`lower_bound`](mod@crate::lower_bound), at the single moment that says the most, suggests which values to keep there, and
//!    which implementations to choose from there on: following it (`seeds.rs`) gives an order that is nearly optimal and
//!    may be a little over the budget. The relaxation is solved beside the starts, on another thread. If ops have alternatives, the whole search first
//!    plans the graph without them (`joint.rs`), and that plan takes the place of the constructive passes.
//!    Plans that the caller knows are starts too.
//! 4. *Walks* (`anneal.rs`) from all of these, on every thread, at several temperatures that trade places (parallel tempering,
//!    `rounds.rs`); with a fifth of a second or less, a thread has one walk, which cools. A move changes a handful of
//!    computations; updating memory and cost takes time little more than proportional to the change (`state.rs`, `blocks.rs`). If there is a choice, three moves in ten change the
//!    implementation of a computation (`problem.rs` has the *ways* in which an op may run). How much a move may lose is drawn before it is made, so
//!    that a move which is sure to lose more ends early: that halves the time of a move.
//! 5. *Bound.* The last thread first spends up to 30% of the time (10% if it is the only one) on the search of states
//!    and up to 15% on the joint relaxation of several moments, both in [`lower_bound`](mod@crate::lower_bound); with less than
//!    a second, proportionally less. The
//!    search ends when a plan meets the bound.
//!
//! A plan computes every op. So an op that only an alternative reads (one that packs a value, say) runs once even if nothing
//! chooses that alternative; its outputs are then evicted at once.
//!
//! Only orders of computations, each with its implementation, are searched: evictions follow from them (see
//! [`sequence`](mod@crate::sequence)), so nothing is ever resident longer than it is of use.
//!
//! Invariants: a plan is returned only if it fits; if the constructive pass, `revolve`, `chain-dp`, `online` or `minimum`
//! finds one, one is returned. With
//! [`Search::with_iterations`] the plan depends only on graph, budget, seed, threads and known plans as long as the time limit is
//! not reached; with a time limit alone it also depends on the machine. With such a limit on moves, it never costs more than the plan for the
//! graph without its alternatives.
//!
//! Complexity: anytime. Memory O(threads x (ops + uses)) and that of the relaxation (some 60 bytes per entry): if the
//! request allows less, there are fewer threads, and no relaxation.
//!
//! Beyond 3,000 ops a thread has one walk, which begins at the best of these plans, polished, or at the relaxation's order if that is nearly
//! within the budget.
//!
//! Sources: the idea of intervals and of a wider class than Checkmate's problem (9): Bartan et al. 2023 (Moccasin) and this project;
//! parallel tempering: Swendsen & Wang 1986, Geyer 1991. What each part contributes:
//! `cargo run --release --example ablation -- FOLDER`.

mod anneal;
mod blocks;
pub(crate) mod construct;
pub(crate) mod exact;
mod improve;
mod joint;
pub(crate) mod polish;
mod problem;
mod random;
mod rounds;
mod seeds;
mod settings;
pub(crate) mod spine;
mod state;

use super::chain_search;
use super::limited::chain_within_limit;
use crate::chain::{Chain, ChainOutcome};
use crate::choice::{Choice, has_alternatives};
use crate::error::PlanError;
use crate::graph::Graph;
use crate::need::is_too_little;
use crate::planner::{Bound, Outcome, Planner, Request, Status, StopReason};
use crate::sequence::{choices_of, plan_of_choices};
use crate::simulate::simulate;
use exact::{StateLimits, Verdict, exact};
use improve::{Beginning, improve, infeasible};
use seeds::Quick;
use settings::Settings;

pub use settings::Part;

/// The anytime planner over general schedules: see the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Search {
    quick: Quick,
    settings: Settings,
}

impl Search {
    /// The name of the planner.
    pub const NAME: &str = "search";

    /// Limits the search to this many moves per thread: then the same request gives the same plan as long as the time limit
    /// is not reached first.
    #[must_use]
    pub fn with_iterations(mut self, moves: u64) -> Self {
        self.settings.moves = Some(moves);
        self
    }

    /// Leaves out a part, for ablations.
    #[must_use]
    pub fn without(mut self, part: Part) -> Self {
        self.settings.without.add(part);
        self
    }

    /// Skips the quick planners, since the best of their plans is already among the starts.
    pub(super) fn instead_of_quick_planners(mut self) -> Self {
        self.quick = Quick::Asked;
        self
    }
}

/// The most states of the exact search: beyond that, annealing does better.
const STATES: usize = 60_000;
/// The share of the time that the exact search may take.
const EXACT_SHARE: f64 = 0.5;

/// The outcome with a schedule that is proved to be the cheapest of all.
fn proven(graph: &Graph, order: &[Choice]) -> Result<Outcome, PlanError> {
    let plan = plan_of_choices(graph, order);
    let outcome = Outcome::of_plan(Search::NAME, graph, plan, Status::Optimal, StopReason::Proved);
    let bound = Bound::for_all_schedules(outcome.makespan);
    outcome.bounded(Search::NAME, bound)
}

impl Planner for Search {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let deadline = request.deadline();
        let within = |share: f64| Request { time_limit: deadline.left().mul_f64(share), ..request.clone() };
        let cheapest = seeds::cheapest(graph);
        if simulate(graph, &plan_of_choices(graph, &cheapest)).peak_bytes <= request.budget {
            return proven(graph, &cheapest);
        }
        if is_too_little(graph, request.budget) {
            return Err(infeasible(graph, request, true));
        }
        let states = if self.settings.without.exact { 0 } else { STATES };
        let late = deadline.within(request.time_limit.mul_f64(EXACT_SHARE));
        match exact(graph, request.budget, StateLimits::new(states, request.memory_limit, late)) {
            Verdict::Optimal(order) => return proven(graph, &order),
            Verdict::Infeasible => {
                return Err(infeasible(graph, &within(1.0), true));
            }
            Verdict::GaveUp => {}
        }
        let known = request.fitting(graph).map(choices_of).collect();
        let mut start = Beginning { known, quick: Some(self.quick) };
        if has_alternatives(graph) {
            let plain = |graph: &Graph, request: &Request| self.solve(graph, request).ok()?.plan;
            start.known.extend(joint::start(graph, &within(joint::PLAIN_SHARE), plain));
            start.quick = None;
        }
        improve(graph, &within(1.0), self.settings, start)
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        // The result claims to hold for every schedule.
        let solve = |chain: &Chain, request: &Request| chain_search::solve_chain(Self::NAME, chain, request);
        chain_within_limit(Self::NAME, chain, request, solve).map(Outcome::binding_all)
    }
}
