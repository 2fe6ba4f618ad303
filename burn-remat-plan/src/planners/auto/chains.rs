//! The planners for chains, one after the other.

use super::findings::Findings;
use crate::chain::{Chain, ChainOutcome, ChainPlan};
use crate::error::PlanError;
use crate::guard::isolated;
use crate::planner::{Planner, Request};
use crate::planners::limited::{Guarded, chain_within_limit};
use crate::planners::{ChainDp, Revolve, Search, StoreAll, chain_search};

/// Shares of the time for `chain-dp` and for `revolve`.
const PERSISTENT_SHARE: f64 = 0.6;
const REVOLVE_SHARE: f64 = 0.1;

/// Asks the planners for chains. `search` continues from what `chain-dp` found, in the time that is left.
pub(super) fn run(findings: &mut Findings<'_, ChainPlan>, chain: &Chain) {
    let solve =
        |planner: &dyn Planner, request: &Request| isolated(planner.name(), || planner.solve_chain(chain, request));
    // None of these planners claims a bound that holds for persistent schedules alone.
    let note =
        |findings: &mut Findings<'_, ChainPlan>, planner: &'static str, answer: Result<ChainOutcome, PlanError>| {
            findings.note(planner, answer.map(ChainOutcome::binding_all));
        };
    note(findings, StoreAll::NAME, solve(&StoreAll, findings.request));
    if !findings.found.is_empty() {
        return;
    }
    let persistent = solve(&Guarded(ChainDp), &findings.within(PERSISTENT_SHARE));
    note(findings, ChainDp::NAME, persistent.clone());
    let short = findings.within(REVOLVE_SHARE);
    note(findings, Revolve::NAME, solve(&Guarded(Revolve), &short));
    let rest = findings.within(1.0);
    let improve = |chain: &Chain, request: &Request| chain_search::improve(Search::NAME, chain, request, persistent);
    let improved = isolated(Search::NAME, || chain_within_limit(Search::NAME, chain, &rest, improve));
    note(findings, Search::NAME, improved);
}
