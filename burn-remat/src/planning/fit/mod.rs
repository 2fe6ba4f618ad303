//! Plans that make full use of a budget.
//!
//! A graph counts more than the engine holds while it follows a plan (see [`replay`](burn_remat_core::replay)), so a planner that keeps to the budget
//! leaves a part of it unused. Here the planner is given a graph that counts less of what is not held (`tight.rs`), and is told a larger budget
//! (`told.rs`). This is raised as long as what its plans really hold is within the true budget: a few quick plans find out how far, and longer searches
//! use the result. Every plan that is handed on keeps to the budget. If none is found that does, the size of the smallest plan takes the place of the
//! budget.

mod ask;
mod least;
mod told;

use std::sync::Arc;
use std::time::Duration;

use burn_remat_core::Trace;
use burn_remat_plan::clock::Moment;
use burn_remat_plan::{Outcome, Plan, Status, StopReason, check};

use super::chosen::ChosenPlanner;
use super::lowering::lower;
use super::plain::with_forms;
use super::schedule::Schedule;
use ask::beside_others;
use told::Search;

pub(crate) use ask::{Found, GOOD_ENOUGH, Planned, Terms, first};
pub(crate) use least::{Fit, LEAST};

/// If both the smallest plan and the online policy exceed the budget, a plan may hold more than either by one part in this many.
pub(crate) const BEYOND: u64 = 32;
/// If the step has other forms, one part in this many of the time goes to plans without them.
const PLAIN_SHARE: u32 = 4;

impl Fit {
    fn without_forms(&self, enough: u64) -> Option<Box<Self>> {
        if self.lowered.forms.small.is_empty() {
            return None;
        }
        let trace = Arc::new(Trace::clone(&self.trace).with_alternatives(|_| false));
        let lowered = lower(&trace, self.lowered.graph.name()).ok()?;
        Self::new(trace, lowered, self.threads, enough).ok().map(Box::new)
    }

    /// Takes over a plan that `planner` made for a step of the same operations. What is found is then no more expensive.
    pub fn with_known(mut self, plan: &Plan, planner: &str) -> Self {
        let graph = &self.lowered.graph;
        // The step may turn out to be another one. Then the plan is of no use.
        self.known = check(graph, plan, u64::MAX).ok().map(|checked| {
            let schedule = Schedule::new(self.trace.clone(), self.lowered.clone(), &checked);
            let outcome = Outcome::of_plan(planner, graph, plan.clone(), Status::Feasible, StopReason::Heuristic);
            (Arc::new(schedule), outcome)
        });
        self
    }

    /// Takes over a plan for this very step. What is found is then no more expensive.
    pub fn beginning_with(self, first: Planned) -> Self {
        Self { known: Some(first), ..self }
    }

    /// Takes over a plan that `planner` made for the same step without other forms. What is found is then no more expensive.
    pub fn with_plain(self, plan: &Plan, planner: &str) -> Self {
        Self { known: self.of_plain(plan, planner), ..self }
    }

    /// The cheapest plan that the planner finds.
    pub fn best(&self, planner: &ChosenPlanner, budget: u64, limit: Duration) -> Option<Planned> {
        let mut best = None;
        self.run(&Terms { planner, budget, limit }, |found| {
            if let Found::Plan(schedule, outcome) = found {
                best = Some((schedule, outcome.clone()));
            }
        });
        best
    }

    /// Searches until the time is up or nothing better can be expected, and hands on what it finds.
    pub fn run(&self, terms: &Terms<'_>, found: impl FnMut(Found<'_>)) {
        beside_others(|| self.search(terms, found));
    }

    fn search(&self, terms: &Terms<'_>, mut found: impl FnMut(Found<'_>)) {
        let start = Moment::now();
        let plain = self.plain(terms);
        let known = self.known.iter().chain(&plain).filter(|(schedule, _)| schedule.peak <= terms.budget);
        let known = known.min_by(|a, b| a.1.makespan.total_cmp(&b.1.makespan));
        let keeps = self.fallback.peak <= terms.budget || known.is_some();
        if !keeps {
            found(Found::Plan(self.fallback.clone(), &self.smallest));
        }
        if let Some((schedule, outcome)) = known {
            found(Found::Plan(schedule.clone(), outcome));
        }
        let (least, _) = self.floor();
        let target = if keeps { terms.budget } else { terms.budget.max(least + least / BEYOND) };
        let mut search = Search::new(self, terms, target, known.map(|(_, outcome)| outcome), found);
        search.through_budgets(start);
        let Search { mut found, best, defect, bound, .. } = search;
        // If the planner is broken, the online policy does better than the smallest plan.
        if best.is_infinite() && keeps && defect.is_none() {
            found(Found::Plan(self.fallback.clone(), &self.smallest));
        }
        if let (Some((schedule, outcome)), Some(bound)) = (known, bound)
            && outcome.makespan <= best
        {
            let outcome = Outcome { lower_bound: Some(bound.min(outcome.makespan)), ..outcome.clone() };
            found(Found::Plan(schedule.clone(), &outcome));
        }
        if let Some(defect) = defect {
            // Reported once more, because plans that came later have cleared it.
            found(Found::Problem(defect));
        }
    }

    /// A plan without other forms, if the step has any. Because of it, more choices never make a step more expensive, however short the search.
    fn plain(&self, terms: &Terms<'_>) -> Option<Planned> {
        let plain = self.plain.get_or_init(|| self.without_forms(terms.budget));
        let fit = plain.as_deref().filter(|fit| fit.floor().0 <= terms.budget)?;
        let mut best = None;
        let terms = Terms { limit: terms.limit / PLAIN_SHARE, ..*terms };
        fit.run(&terms, |found| {
            if let Found::Plan(schedule, outcome) = found {
                best = Some((schedule, outcome.planner.clone()));
            }
        });
        let (schedule, planner) = best?;
        self.of_plain(&schedule.plan, &planner)
    }

    /// A plan that `planner` made for the same step without other forms.
    fn of_plain(&self, plan: &Plan, planner: &str) -> Option<Planned> {
        let plan = with_forms(&self.lowered, plan)?;
        let checked = check(&self.lowered.graph, &plan, u64::MAX).ok()?;
        let schedule = Schedule::new(self.trace.clone(), self.lowered.clone(), &checked);
        let outcome = Outcome::of_plan(planner, &self.lowered.graph, plan, Status::Feasible, StopReason::Heuristic);
        Some((Arc::new(schedule), outcome))
    }
}
