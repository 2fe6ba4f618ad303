//! Graphs, plans and chains in altered files: each is refused, or is as good as any other. Nothing panics, and no plan is
//! accepted that cannot be followed.
//!
//! What is accepted is written, read again, planned, and checked. Complexity: O(size of the file) per case, and a few planners.

use std::collections::BTreeSet;
use std::time::Duration;

use burn_remat_changed::{Numbers, changed, damage, tried};
use burn_remat_plan::chain::{self, Chain, ChainStage};
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::{Search, StoreAll};
use burn_remat_plan::registry::planner;
use burn_remat_plan::{Graph, PlanError, Request, Step, check, solve};

/// Strings that occur in such files.
const TEXTS: [&str; 14] = [
    "",
    "+0",
    "-0",
    "+1:0",
    "+99999999999999999999",
    "-3",
    "\u{0}",
    "forward",
    "backward",
    "optimal",
    "remat-graph/1",
    "remat-plan/1",
    "remat-chain/1",
    "d_0",
];

/// The name and the text of a file, and what to do with a changed text; `false` if it is refused.
type Kind<'a> = (&'a str, String, Box<dyn Fn(&str, &mut Numbers) -> bool + 'a>);

fn request(budget: u64) -> Request {
    Request { time_limit: Duration::from_millis(2), threads: 1, memory_limit: 8 << 20, ..Request::new(budget) }
}

/// A budget to plan for, of a graph or chain that takes `most` without a budget and at least `least`.
fn budget(least: u64, most: u64, numbers: &mut Numbers) -> u64 {
    [0, 1, least, least / 2 + most / 2, most, u64::MAX][numbers.below(6)]
}

fn accept_graph(text: &str, numbers: &mut Numbers) -> bool {
    let Ok(graph) = Graph::from_json(text) else { return false };
    assert_eq!(Graph::from_json(&graph.to_json()).unwrap(), graph, "{text}");
    let most = StoreAll::peak(&graph);
    let name = ["store-all", "online", "ap-sqrt", "search"][numbers.below(4)];
    match solve(&*planner(name).unwrap(), &graph, &request(budget(most / 4, most, numbers))) {
        // No plan that fits was found, or there is none.
        Ok(_) | Err(PlanError::Infeasible { .. } | PlanError::Overdue { .. }) => {}
        Err(error) => panic!("{name}: {error}\n{text}"),
    }
    true
}

/// Follows a plan independently: every input is held when it is read, and every op has run at the end.
fn follow(graph: &Graph, steps: &[Step]) -> Result<(), String> {
    let made: BTreeSet<usize> = graph.ops().iter().flat_map(|op| op.outputs.iter().copied()).collect();
    let mut held: BTreeSet<usize> = (0..graph.values().len()).filter(|value| !made.contains(value)).collect();
    let mut run = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Evict(value) if held.remove(&value) => {}
            Step::Evict(value) => return Err(format!("step {at} evicts {value}, which is not held")),
            Step::Compute(op) | Step::ComputeAlternative(op, _) => {
                let op_inputs = &graph.ops()[op].inputs;
                if let Some(missing) = op_inputs.iter().find(|input| !held.contains(input)) {
                    return Err(format!("step {at} reads {missing}, which is not held"));
                }
                held.extend(&graph.ops()[op].outputs);
                run.insert(op);
            }
        }
    }
    if run.len() < graph.ops().len() { Err("an op never ran".to_owned()) } else { Ok(()) }
}

fn accept_plan(graph: &Graph, text: &str) -> bool {
    let Ok(file) = PlanFile::from_json(text) else { return false };
    let Ok(plan) = file.plan() else { return false };
    let Ok(checked) = check(graph, &plan, u64::MAX) else { return false };
    follow(graph, &checked.plan().steps).unwrap_or_else(|wrong| panic!("a wrong plan was accepted: {wrong}\n{text}"));
    true
}

fn accept_chain(text: &str, numbers: &mut Numbers) -> bool {
    let Ok(chain) = Chain::from_json(text) else { return false };
    assert_eq!(Chain::from_json(&chain.to_json()).unwrap(), chain, "{text}");
    let least = chain::minimum(&chain).achieved;
    let name = ["chain-dp", "revolve", "search"][numbers.below(3)];
    match planner(name).unwrap().solve_chain(&chain, &request(budget(least, least.saturating_mul(2), numbers))) {
        Ok(_) | Err(PlanError::Infeasible { .. } | PlanError::Overdue { .. }) => {}
        Err(error) => panic!("{name}: {error}\n{text}"),
    }
    true
}

fn check_files(cases: usize) {
    let graph = by_name("residual", &Options { depth: 2, ..Options::default() }).unwrap();
    let most = StoreAll::peak(&graph);
    let outcome =
        solve(&Search::default().with_iterations(1000), &graph, &Request::new(most / 10 * 9)).unwrap().outcome;
    let plan = PlanFile::of_outcome(&outcome, 1.0).to_json();
    assert!(accept_plan(&graph, &plan), "the plan itself is accepted");
    let stage = |k: u64| ChainStage {
        forward_cost: 3.0 + k as f64,
        backward_cost: 5.0,
        activation_bytes: 50 + 10 * k,
        saved_bytes: 200 - 20 * k,
        gradient_bytes: 50,
        ..ChainStage::default()
    };
    let chain = Chain::new("stages", 50, 50, (0..6).map(stage).collect()).unwrap();
    let kinds: [Kind; 3] = [
        ("graphs", graph.to_json(), Box::new(accept_graph)),
        ("plans", plan, Box::new(|text, _| accept_plan(&graph, text))),
        ("chains", chain.to_json(), Box::new(accept_chain)),
    ];
    let mut numbers = Numbers::default();
    for (name, original, accept) in &kinds {
        let accepted = tried(name, cases, &mut numbers, |numbers| {
            let text = damage(changed(original, &TEXTS, numbers).to_string(), numbers);
            accept(&text, numbers)
        });
        assert!(accepted > 0 && accepted < cases, "{accepted} of {cases} {name}");
    }
}

#[test]
fn a_file_that_somebody_has_been_at_is_refused_or_as_good_as_any() {
    check_files(1_000);
}

#[test]
#[ignore = "3 million files: ten minutes in release"]
fn a_million_files_of_each_kind_are_refused_or_as_good_as_any() {
    check_files(1_000_000);
}
