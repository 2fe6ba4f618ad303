//! Runs what suits the input and the time, and returns the best checked plan.
//!
//! Method:
//!
//! 1. Where the store-all plan fits, it is the answer: nothing is cheaper (unless an op has a cheaper alternative).
//! 2. The quick methods run first, so that there is a plan after milliseconds: `online`, the greedy segment heuristics
//!    (on a path `chen-greedy`, else `ap-greedy` and `linear-greedy`).
//! 3. `chain-dp` runs in a part of the time where the graph can be seen as a chain of stages; `checkmate` where the
//!    build has it and the graph is small; `monet` where the build has it and ops have alternatives.
//! 4. Where none of these finds a plan, the remaining planners are asked.
//! 5. `search` gets all the time that is left, unless a plan meets a proven bound before. Where ops have alternatives it
//!    chooses among them too, and starts from the best plan so far and from its own without them: so the answer is no
//!    dearer than that for the graph without its alternatives, where the clock cuts neither short.
//! 6. Every plan passes through the [checker](mod@crate::check); the cheapest wins, then the one with the lowest peak,
//!    then the one found first.
//!
//! For a chain the planners that know chains run in the same way: `store-all`, `chain-dp` in six tenths of the time,
//! `revolve` in one tenth, then `search`, which starts from the plan of `chain-dp`. On long chains both of the former
//! make a coarse plan before a fine one.
//!
//! *Monotone in the budget.* A plan for a small budget is one for a larger budget too, so a planner that remembers
//! what it found ([`Auto::remembering`]) never returns a dearer plan for a larger budget than it returned for a smaller
//! one. Without memory, as the registry makes it, the same request gives the same plan as far as the clock allows.
//!
//! The lower bound is the best that holds for every schedule: that of `search`, or the sum of the cheapest costs.
//!
//! Complexity: that of the planners that run; the time limit bounds the long ones.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::chain::{Chain, ChainOutcome};
use crate::choice::{has_alternatives, least_makespan};
use crate::error::PlanError;
use crate::graph::{Graph, OpId};
use crate::planner::{Outcome, Planner, Progress, Request, Status, StopReason};
use crate::planners::{ChainDp, Revolve, Search, StoreAll, chain_search};
use crate::registry::planner;
use crate::solve::{solve, solve_chain};

/// Up to so many ops the exact MILP is worth its time.
const SMALL: usize = 60;
/// Up to so many ops `chain-dp` takes milliseconds.
const MOST_CHAIN_OPS: usize = 300;

/// Where none of the first planners finds a plan, these may.
const LAST_RESORT: [&str; 7] =
    ["revolve", "ap-sqrt", "linear-sqrt", "chen-sqrt", "feng-huang", "chain-dp", "lp-rounding"];

/// What one planner gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Name of the planner.
    pub planner: &'static str,
    /// The makespan, or why there is none.
    pub result: Result<f64, String>,
}

/// Which plan won, and against what.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Name of the winner.
    pub winner: String,
    /// In the order in which they ran.
    pub tried: Vec<Tried>,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} wins", self.winner)?;
        for (i, tried) in self.tried.iter().enumerate() {
            let (lead, name) = (if i == 0 { ": " } else { ", " }, tried.planner);
            match &tried.result {
                Ok(makespan) => write!(f, "{lead}{name} {makespan}")?,
                Err(why) => write!(f, "{lead}{name} {why}")?,
            }
        }
        Ok(())
    }
}

type Explain = Arc<dyn Fn(&Choice) + Send + Sync>;

/// The planner `auto`.
#[derive(Clone, Default)]
pub struct Auto {
    explain: Option<Explain>,
    /// The graph of the last request and the plans found for it.
    memory: Option<Arc<Mutex<Memory>>>,
    iterations: Option<u64>,
}

#[derive(Default)]
struct Memory {
    graph: Option<Graph>,
    found: Vec<Outcome>,
}

impl Auto {
    /// Name by which the registry knows it.
    pub const NAME: &'static str = "auto";

    /// An `auto` that takes the plans that it found earlier for the same graph into account.
    pub fn remembering() -> Self {
        Self { memory: Some(Arc::default()), ..Self::default() }
    }

    /// Limits `search` to so many moves per thread: then the same request gives the same plan wherever no planner meets
    /// its time limit.
    #[must_use]
    pub fn with_iterations(mut self, moves: u64) -> Self {
        self.iterations = Some(moves);
        self
    }

    /// Has `explain` called with each choice. The same is logged.
    #[must_use]
    pub fn explained(mut self, explain: impl Fn(&Choice) + Send + Sync + 'static) -> Self {
        self.explain = Some(Arc::new(explain));
        self
    }

    fn tell(&self, choice: &Choice) {
        log::info!("auto: {choice}");
        if let Some(explain) = &self.explain {
            explain(choice);
        }
    }

    fn remembered(&self, graph: &Graph, budget: u64) -> Vec<Outcome> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.graph.as_ref() != Some(graph) {
            *memory = Memory { graph: Some(graph.clone()), found: Vec::new() };
        }
        memory.found.iter().filter(|outcome| outcome.peak_bytes <= budget).cloned().collect()
    }

    fn remember(&self, outcome: &Outcome) {
        if let Some(memory) = &self.memory {
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            let bound_free = Outcome { lower_bound: None, status: Status::Feasible, ..outcome.clone() };
            memory.found.push(bound_free);
        }
    }
}

/// The answers of several planners to one request.
struct Contest<'a> {
    graph: &'a Graph,
    request: &'a Request,
    iterations: Option<u64>,
    start: Instant,
    tried: Vec<Tried>,
    found: Vec<Outcome>,
    /// The smallest feasible budget heard of, with its op.
    minimum: Option<(u64, Option<OpId>)>,
    /// Whether some planner proved that no schedule fits.
    is_proven_infeasible: bool,
    /// Holds for every schedule.
    bound: f64,
}

impl Contest<'_> {
    fn left(&self) -> Duration {
        self.request.time_limit.saturating_sub(self.start.elapsed())
    }

    fn best(&self) -> Option<&Outcome> {
        let order =
            |a: &&Outcome, b: &&Outcome| a.makespan.total_cmp(&b.makespan).then(a.peak_bytes.cmp(&b.peak_bytes));
        self.found.iter().min_by(order)
    }

    /// Whether the best plan meets the bound, to the gap asked for.
    fn is_settled(&self) -> bool {
        self.best().is_some_and(|best| best.makespan <= self.bound * (1.0 + self.request.gap) + 1e-12)
    }

    /// Runs the planner called `name` for at most `limit`, unless the best plan cannot be beaten.
    fn run(&mut self, name: &'static str, limit: Duration) {
        if let Some(planner) = planner(name) {
            self.run_planner(&*planner, limit);
        }
    }

    /// Runs `search`; where it chooses implementations or may find no start of its own, from the best plan so far.
    fn run_search(&mut self, limit: Duration) {
        let helps = |best: &&Outcome| has_alternatives(self.graph) || LAST_RESORT.contains(&best.planner.as_str());
        let best = self.best().filter(helps).and_then(|best| best.plan.clone());
        let search = Search::default().from_plans(best.into_iter().collect());
        let search = self.iterations.iter().fold(search, |search, &moves| search.with_iterations(moves));
        self.run_planner(&search, limit);
    }

    fn run_planner(&mut self, planner: &dyn Planner, limit: Duration) {
        if self.is_settled() {
            return;
        }
        let request = Request { time_limit: limit, ..self.request.clone() };
        let result = match solve(planner, self.graph, &request) {
            Ok(solved) if solved.checked.is_some() => {
                let makespan = solved.outcome.makespan;
                if planner.name() == Search::NAME {
                    self.bound = self.bound.max(solved.outcome.lower_bound.unwrap_or(0.0));
                }
                self.found.push(solved.outcome);
                let incumbent = self.best().map(|best| best.makespan);
                self.request.report(Progress { incumbent, lower_bound: Some(self.bound) });
                Ok(makespan)
            }
            Ok(_) => Err("found none in its time".to_owned()),
            Err(error) => Err(self.note(error)),
        };
        self.tried.push(Tried { planner: planner.name(), result });
    }

    /// Keeps what an error tells of the minimum; says it in few words.
    fn note(&mut self, error: PlanError) -> String {
        match error {
            PlanError::Infeasible { budget, minimum, blocking_op, proven } => {
                self.is_proven_infeasible |= proven;
                let least = self.minimum.map_or(u64::MAX, |(least, _)| least);
                if let Some(bytes) = minimum.filter(|&bytes| bytes > budget && bytes < least) {
                    self.minimum = Some((bytes, blocking_op));
                }
                "needs more memory".to_owned()
            }
            PlanError::Internal { .. } => {
                log::error!("{error}");
                error.to_string()
            }
            PlanError::FeatureMissing { .. } => "is not in this build".to_owned(),
            PlanError::Unsupported { .. } => "does not apply".to_owned(),
        }
    }
}

impl Contest<'_> {
    fn run_all(&mut self) {
        let whole = self.request.time_limit;
        let ops = self.graph.ops().len();
        for name in [StoreAll::NAME, "online", "chen-greedy", "ap-greedy", "linear-greedy"] {
            if self.left() > whole / 2 {
                self.run(name, whole / 10);
            }
        }
        if ops <= MOST_CHAIN_OPS {
            self.run("chain-dp", whole / 10);
        }
        if ops <= SMALL {
            self.run("checkmate", whole / 5);
        }
        if has_alternatives(self.graph) {
            self.run("monet", whole / 5);
        }
        if self.found.is_empty() && !self.is_proven_infeasible {
            for name in LAST_RESORT {
                self.run(name, whole / 10);
            }
        }
        self.run_search(self.left().max(whole / 10));
    }

    fn outcome(&mut self) -> Result<Outcome, PlanError> {
        let Some(best) = self.best() else {
            let (minimum, blocking_op) = self.minimum.unzip();
            return Err(PlanError::Infeasible {
                budget: self.request.budget,
                minimum,
                blocking_op: blocking_op.flatten(),
                proven: self.is_proven_infeasible,
            });
        };
        let (status, stop_reason) = if !self.is_settled() {
            let in_time = self.left() > Duration::ZERO;
            (Status::Feasible, if in_time { StopReason::Heuristic } else { StopReason::TimeLimit })
        } else if best.makespan <= self.bound {
            (Status::Optimal, StopReason::Proved)
        } else {
            (Status::Optimal, StopReason::Gap)
        };
        Ok(Outcome { status, stop_reason, lower_bound: Some(self.bound), ..best.clone() })
    }
}

impl Planner for Auto {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn solve(&self, graph: &Graph, request: &Request) -> Result<Outcome, PlanError> {
        let found = self.remembered(graph, request.budget);
        let mut contest = Contest {
            graph,
            request,
            iterations: self.iterations,
            start: Instant::now(),
            tried: Vec::new(),
            found,
            minimum: None,
            is_proven_infeasible: false,
            bound: least_makespan(graph),
        };
        contest.run_all();
        let outcome = contest.outcome()?;
        self.remember(&outcome);
        self.tell(&Choice { winner: outcome.planner.clone(), tried: contest.tried });
        Ok(outcome)
    }

    fn solve_chain(&self, chain: &Chain, request: &Request) -> Result<ChainOutcome, PlanError> {
        let mut contest = ChainContest::new(chain, request);
        contest.run_all();
        let outcome = contest.outcome()?;
        self.tell(&Choice { winner: outcome.planner.clone(), tried: contest.tried });
        Ok(outcome)
    }
}

/// The answers of several planners to one request for a chain.
struct ChainContest<'a> {
    chain: &'a Chain,
    request: &'a Request,
    start: Instant,
    tried: Vec<Tried>,
    found: Vec<ChainOutcome>,
    /// The smallest feasible budget heard of, with its stage.
    minimum: Option<(u64, Option<OpId>)>,
    /// Whether it is proved that no schedule fits.
    proven: bool,
    /// Holds for every schedule.
    bound: f64,
}

impl<'a> ChainContest<'a> {
    fn new(chain: &'a Chain, request: &'a Request) -> Self {
        let bound = chain.store_all_makespan();
        let (tried, found) = (Vec::new(), Vec::new());
        Self { chain, request, start: Instant::now(), tried, found, minimum: None, proven: false, bound }
    }

    fn left(&self) -> Duration {
        self.request.time_limit.saturating_sub(self.start.elapsed())
    }

    fn within(&self, time_limit: Duration) -> Request {
        Request { time_limit, ..self.request.clone() }
    }

    /// `search` goes on from what `chain-dp` found, in the time that is left.
    fn run_all(&mut self) {
        self.note(StoreAll::NAME, solve_chain(&StoreAll, self.chain, self.request));
        if !self.found.is_empty() {
            return;
        }
        let whole = self.request.time_limit;
        let persistent = solve_chain(&ChainDp, self.chain, &self.within(whole * 6 / 10));
        self.note(ChainDp::NAME, persistent.clone());
        let short = self.within(self.left().min(whole / 10));
        self.note(Revolve::NAME, solve_chain(&Revolve, self.chain, &short));
        let rest = self.within(self.left());
        self.note(Search::NAME, chain_search::improve(Search::NAME, self.chain, &rest, persistent));
    }

    fn note(&mut self, planner: &'static str, answer: Result<ChainOutcome, PlanError>) {
        let result = match answer {
            Ok(outcome) => {
                self.bound = self.bound.max(outcome.lower_bound.unwrap_or(0.0));
                let makespan = outcome.makespan;
                self.found.push(outcome);
                let incumbent = self.best().map(|best| best.makespan);
                self.request.report(Progress { incumbent, lower_bound: Some(self.bound) });
                Ok(makespan)
            }
            Err(PlanError::Infeasible { minimum, blocking_op, proven, .. }) => {
                self.proven |= proven;
                let least = self.minimum.map_or(u64::MAX, |(least, _)| least);
                if let Some(bytes) = minimum.filter(|&bytes| bytes < least) {
                    self.minimum = Some((bytes, blocking_op));
                }
                Err("needs more memory".to_owned())
            }
            Err(error) => {
                log::error!("{error}");
                Err(error.to_string())
            }
        };
        self.tried.push(Tried { planner, result });
    }

    fn best(&self) -> Option<&ChainOutcome> {
        self.found.iter().min_by(|a, b| a.makespan.total_cmp(&b.makespan))
    }

    /// `chain-dp` and `revolve` call the optimum of their class optimal; here the word is for all schedules.
    fn outcome(&self) -> Result<ChainOutcome, PlanError> {
        let Some(best) = self.best().cloned() else {
            let (budget, proven) = (self.request.budget, self.proven);
            let (minimum, blocking_op) = self.minimum.unzip();
            return Err(PlanError::Infeasible { budget, minimum, blocking_op: blocking_op.flatten(), proven });
        };
        let (status, stop_reason) = if best.makespan <= self.bound {
            (Status::Optimal, StopReason::Proved)
        } else if self.left().is_zero() {
            (Status::Feasible, StopReason::TimeLimit)
        } else {
            (Status::Feasible, StopReason::Heuristic)
        };
        Ok(ChainOutcome { status, stop_reason, lower_bound: Some(self.bound.min(best.makespan)), ..best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Knobs, Options, by_name, random_training_graph};

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
    fn with_memory_a_larger_budget_is_never_dearer() {
        for seed in 0..4 {
            let graph = random_training_graph(seed, &Knobs::plain(6, 20));
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
