//! Runs the planners that suit the input and the time, and returns the best plan that passes the checker.
//!
//! Method:
//!
//! 1. If the store-all plan fits, it is the answer: nothing is cheaper (unless an op has a cheaper alternative).
//! 2. The planners whose [role](crate::registry::Role) is quick run first, side by side, so that there is a plan
//!    after milliseconds.
//! 3. Those that are exact for a graph of this size and, if ops have alternatives, those that choose among them get a
//!    fifth of the time each.
//! 4. If none of these finds a plan, those that sometimes need less memory are asked.
//! 5. `search` gets all the time that is left, unless a plan meets a proven bound before. It starts from the best plan so
//!    far and runs no other planner again. If ops have alternatives, it
//!    chooses among them too, and also starts from its own plan without them: so the answer costs no
//!    more than that for the graph without its alternatives, unless the clock cuts one of the two short.
//! 6. The cheapest plan wins, then the one with the lowest peak, then the one found first. It passes through the
//!    [checker](mod@crate::check); if it fails there, the next one takes its place.
//!
//! For a chain, the planners that know chains run in the same way: `store-all`, `chain-dp` in six tenths of the time,
//! `revolve` in one tenth, then `search`, which starts from the plan of `chain-dp`. On long chains `chain-dp` and `revolve`
//! make a coarse plan before a fine one.
//!
//! Plans that the [caller knows](Request::known) take part too.
//!
//! *Monotone in the budget.* A plan for a small budget also fits a larger one, so a planner that remembers
//! what it found ([`Auto::remembering`]) never returns a more expensive plan for a larger budget than it returned for a smaller
//! one. Without memory, as the registry makes it, the same request gives the same plan as far as the clock allows.
//!
//! The lower bound is the best of the bounds that hold for [every schedule](crate::planner::Scope::AllSchedules).
//!
//! Complexity: that of the planners that run; the time limit bounds the long ones.

mod chains;
mod contest;
mod decision;
mod findings;
mod memory;

use std::sync::Arc;

use crate::chain::{Chain, ChainOutcome};
use crate::choice::least_makespan;
use crate::error::PlanError;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::planner::{Outcome, Planner, Request, Status, StopReason};
use findings::Findings;
use memory::Memory;

pub use decision::{Decision, Tried};

type Explain = Arc<dyn Fn(&Decision) + Send + Sync>;

/// The planner `auto`.
#[derive(Clone, Default)]
pub struct Auto {
    explain: Option<Explain>,
    memory: Option<Arc<Memory>>,
    moves: Option<u64>,
}

impl Auto {
    /// The planner's name in the registry.
    pub const NAME: &'static str = "auto";
    /// The planner name that it gives to a plan that the [caller knew](Request::known).
    pub const KNOWN: &'static str = "known";

    /// An `auto` that reuses the plans that it found earlier for the same graph.
    pub fn remembering() -> Self {
        Self { memory: Some(Arc::default()), ..Self::default() }
    }

    /// Limits `search` to this many moves per thread: then the same request gives the same plan as long as no planner
    /// reaches its time limit.
    #[must_use]
    pub fn with_iterations(mut self, moves: u64) -> Self {
        self.moves = Some(moves);
        self
    }

    /// Calls `explain` with each decision, which is logged as well.
    #[must_use]
    pub fn explained(mut self, explain: impl Fn(&Decision) + Send + Sync + 'static) -> Self {
        self.explain = Some(Arc::new(explain));
        self
    }

    fn tell(&self, decision: &Decision) {
        log::info!("auto: {decision}");
        if let Some(explain) = &self.explain {
            explain(decision);
        }
    }
}

impl Planner for Auto {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let mut known = self.memory.as_ref().map_or_else(Vec::new, |memory| memory.recall(graph, request.budget));
        let outcome =
            |plan: &Plan| Outcome::of_plan(Self::KNOWN, graph, plan.clone(), Status::Feasible, StopReason::Heuristic);
        known.extend(request.fitting(graph).map(outcome));
        let mut findings = Findings::new(request, least_makespan(graph), known);
        contest::run(&mut findings, graph, self.moves);
        contest::check_winner(&mut findings, graph, request);
        let (outcome, decision) = findings.outcome(Self::NAME)?;
        if let Some(memory) = &self.memory {
            memory.add(graph, &outcome);
        }
        self.tell(&decision);
        Ok(outcome)
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        let mut findings = Findings::new(request, chain.store_all_makespan(), Vec::new());
        chains::run(&mut findings, chain);
        let (outcome, decision) = findings.outcome(Self::NAME)?;
        self.tell(&decision);
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::generate::{Options, RandomGraphOptions, by_name, random_training_graph};
    use crate::minimum::minimum;
    use crate::planners::StoreAll;
    use crate::simulate::simulate;
    use crate::solve::solve;

    fn quick(budget: u64) -> Request {
        Request { time_limit: Duration::from_millis(200), threads: 1, ..Request::new(budget) }
    }

    #[test]
    fn a_budget_of_the_store_all_peak_is_proved_optimal_at_once() {
        let graph = by_name("vgg16", &Options::default()).unwrap();
        let outcome = solve(&Auto::default(), &graph, &quick(StoreAll::peak(&graph))).unwrap().outcome;
        assert_eq!((outcome.planner.as_str(), outcome.status), ("store-all", Status::Optimal));
        assert_eq!(outcome.makespan, StoreAll::makespan(&graph));
    }

    #[test]
    fn it_is_no_dearer_than_what_it_tried_and_says_what_it_tried() {
        let graph = by_name("unet", &Options { depth: 3, ..Options::default() }).unwrap();
        let said = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&said);
        let auto = Auto::default().explained(move |choice| *slot.lock().unwrap() = Some(choice.clone()));
        let outcome = solve(&auto, &graph, &quick(StoreAll::peak(&graph) / 10 * 9)).unwrap().outcome;
        let choice = said.lock().unwrap().clone().unwrap();
        assert_eq!(choice.winner, outcome.planner);
        let makespans: Vec<f64> = choice.tried.iter().filter_map(|tried| tried.result.clone().ok()).collect();
        assert!(makespans.len() > 1 && makespans.iter().all(|&makespan| outcome.makespan <= makespan), "{choice}");
        assert!(choice.to_string().contains("online"), "{choice}");
    }

    #[test]
    fn it_is_no_dearer_than_a_plan_that_the_caller_knows() {
        let graph = by_name("lstm", &Options { depth: 20, ..Options::default() }).unwrap();
        let least = minimum(&graph);
        let other = minimum(&by_name("linear", &Options::default()).unwrap()).plan;
        for time_limit in [Duration::ZERO, Duration::from_millis(50)] {
            let known = [Plan { steps: Vec::new() }, least.plan.clone(), other.clone()].into();
            let request = Request { time_limit, known, ..quick(least.achieved) };
            let outcome = solve(&Auto::default(), &graph, &request).unwrap().outcome;
            assert!(outcome.makespan <= simulate(&graph, &least.plan).makespan && outcome.peak_bytes <= least.achieved);
            let known_is_too_much = Request { budget: least.lower_bound - 1, ..request };
            assert!(solve(&Auto::default(), &graph, &known_is_too_much).is_err());
        }
    }

    #[test]
    fn with_memory_a_larger_budget_is_never_dearer() {
        for seed in 0..4 {
            let graph = random_training_graph(seed, &RandomGraphOptions::plain(6, 20));
            let auto = Auto::remembering();
            let peak = StoreAll::peak(&graph);
            let makespans: Vec<f64> = (5..=10)
                .filter_map(|tenths| solve(&auto, &graph, &quick(peak * tenths / 10)).ok())
                .map(|solved| solved.outcome.makespan)
                .collect();
            assert!(makespans.is_sorted_by(|a, b| a >= b), "case {seed}: {makespans:?}");
        }
    }

    #[test]
    fn an_infeasible_budget_names_the_smallest_minimum_heard_of() {
        let graph = by_name("linear", &Options::default()).unwrap();
        let Err(PlanError::Infeasible { minimum: Some(minimum), .. }) = Auto::default().solve(&graph, &quick(1)) else {
            panic!("one byte is too little")
        };
        assert!(solve(&Auto::default(), &graph, &quick(minimum)).is_ok());
    }
}
