//! The planners for graphs, one after the other or side by side.

use super::findings::Findings;
use crate::check::check;
use crate::choice::has_alternatives;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::planner::Request;
use crate::planners::Search;
use crate::planners::ask::{ask, ask_one};
use crate::registry::{Entry, Role, composed, simple};

/// Shares of the time: for all quick planners, and for those that are asked if these find nothing; for one of these
/// planners; for one that is exact or chooses implementations.
const QUICK_SHARE: f64 = 0.2;
const ONE_QUICK_SHARE: f64 = 0.1;
const LONG_SHARE: f64 = 0.2;

/// Asks the planners in turn, until time is up or the best plan reaches the bound.
pub(super) fn run(findings: &mut Findings<'_, Plan>, graph: &Graph, moves: Option<u64>) {
    let ops = graph.ops().len();
    ask_all(findings, graph, |entry| entry.is_quick(ops));
    for entry in simple().iter().chain(composed()).filter(|entry| is_worth_long(entry, graph)) {
        if !findings.is_settled() && !findings.deadline.passed() {
            let answer = ask_one(&*entry.planner(), graph, &findings.within(LONG_SHARE));
            findings.note(answer.planner, answer.result);
        }
    }
    if !findings.has_answer() && !findings.is_proven_infeasible {
        ask_all(findings, graph, |entry| entry.is_last_resort(ops));
    }
    if !findings.is_settled() {
        let known = findings.best().and_then(|best| best.plan.clone()).into_iter().collect();
        let search = Search::default().instead_of_quick_planners();
        let search = moves.iter().fold(search, |search, &moves| search.with_iterations(moves));
        let answer = ask_one(&search, graph, &Request { known, ..findings.within(1.0) });
        findings.note(answer.planner, answer.result);
    }
}

/// The answers of all planners that are `wanted`.
fn ask_all(findings: &mut Findings<'_, Plan>, graph: &Graph, wanted: impl Fn(&Entry) -> bool) {
    let entries: Vec<&Entry> = simple().iter().chain(composed()).filter(|entry| wanted(entry)).collect();
    let until = findings.deadline.within(findings.request.time_limit.mul_f64(QUICK_SHARE));
    for answer in ask(&entries, graph, &findings.within(ONE_QUICK_SHARE), until) {
        findings.note(answer.planner, answer.result);
    }
}

fn is_worth_long(entry: &Entry, graph: &Graph) -> bool {
    match entry.role {
        Role::Exact { most_ops } => graph.ops().len() <= most_ops,
        Role::Chooses => has_alternatives(graph),
        Role::Quick { .. } | Role::Frugal | Role::Alone => false,
    }
}

/// Drops plans until the best one is valid: planners are not trusted, but only the winner is worth checking.
pub(super) fn check_winner(findings: &mut Findings<'_, Plan>, graph: &Graph, request: &Request) {
    while let Some(best) = findings.best() {
        let checked = best.plan.as_ref().map(|plan| check(graph, plan, request.budget));
        let honest = |peak: u64, makespan: f64| (peak, makespan) == (best.peak_bytes, best.makespan);
        match checked {
            Some(Ok(checked)) if honest(checked.peak_bytes(), checked.makespan()) => return,
            Some(Err(violations)) => log::error!("{}: {violations}", best.planner),
            _ => log::error!("{}: its plan does not have the peak and makespan that it claims", best.planner),
        }
        let wrong = best.clone();
        findings.found.retain(|outcome| *outcome != wrong);
        for tried in findings.tried.iter_mut().filter(|tried| tried.planner == wrong.planner) {
            tried.result = Err("gave no valid plan".to_owned());
        }
    }
}
