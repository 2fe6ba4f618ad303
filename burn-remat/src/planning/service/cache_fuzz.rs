//! Stored plans that have been tampered with: there must be no panic, and no wrong plan may be used.
//!
//! A case changes a file in one to three places. In three cases of four it also corrects the digest, so that this does not give the change away. What is
//! accepted is followed step by step, by code that knows nothing of the checker. Complexity: O(size of the file) per case.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use burn_remat_changed::{Numbers, damage, tried};
use burn_remat_plan::format::PlanFile;
use burn_remat_plan::{Graph, Request, Step, solve};
use serde_json::json;

use super::*;
use crate::planning::examples::chain;
use crate::planning::lowering::lower;

/// A step, and the file that holds its plan.
struct Case {
    trace: Arc<Trace>,
    lowered: Lowered,
    file: CacheFile,
    text: String,
}

impl Case {
    fn new() -> Self {
        let trace = Arc::new(chain());
        let lowered = lower(&trace, "test").unwrap();
        let planner = burn_remat_plan::registry::planner("search").unwrap();
        let budget = 12 << 20;
        let request = Request { time_limit: Duration::from_millis(200), threads: 1, ..Request::new(budget) };
        let outcome = solve(&*planner, &lowered.graph, &request).unwrap().outcome;
        assert!(plain_peak(&lowered.graph, &outcome.plan.as_ref().unwrap().steps).unwrap() <= budget);
        let (device, planner) = ("test".to_owned(), "search".to_owned());
        let key = CacheKey { signature: 7, device, budget, planner, planner_version: 1 };
        let file = CacheFile { folder: Folder::inside(Path::new("")), key };
        let entry = file.entry(Duration::from_secs(1), &lowered.graph, &PlanFile::of_outcome(&outcome, 1.0));
        let text = serde_json::to_string(&entry).unwrap();
        Self { trace, lowered, file, text }
    }

    /// Whether a changed file was accepted. If it was, its plan must be right.
    fn check(&self, text: &str) -> bool {
        let Ok(found) = self.file.stored(text, &self.trace, &self.lowered) else { return false };
        // This is done with it next.
        assert!(found.time_limit.checked_mul(2).is_some(), "{text}");
        let peak = plain_peak(&self.lowered.graph, &found.schedule.plan.steps);
        let peak = peak.unwrap_or_else(|wrong| panic!("a wrong plan was taken up: {wrong}\n{text}"));
        assert!(peak <= self.file.key.budget + self.slack(), "it holds {peak} bytes\n{text}");
        true
    }

    /// A graph cannot express a result in the place of an input, so a step may hold one value less than the graph says.
    fn slack(&self) -> u64 {
        self.lowered.graph.values().iter().map(|value| value.bytes).max().unwrap_or_default()
    }
}

/// Follows a plan. Returns the most bytes held at once, or what is wrong with it.
pub fn plain_peak(graph: &Graph, steps: &[Step]) -> Result<u64, String> {
    let bytes = |held: &BTreeSet<usize>| held.iter().map(|&value| graph.values()[value].bytes).sum::<u64>();
    let made: BTreeSet<usize> = graph.ops().iter().flat_map(|op| op.outputs.iter().copied()).collect();
    let mut held: BTreeSet<usize> = (0..graph.values().len()).filter(|value| !made.contains(value)).collect();
    let (mut run, mut peak) = (BTreeSet::new(), 0);
    for (at, step) in steps.iter().enumerate() {
        let Some(number) = step.op() else {
            let Step::Evict(value) = step else { unreachable!() };
            if !held.remove(value) {
                return Err(format!("step {at} evicts {value}, which is not held"));
            }
            continue;
        };
        let op = graph.ops().get(number).ok_or_else(|| format!("step {at} runs an op that does not exist"))?;
        let (inputs, scratch) = match step {
            Step::ComputeAlternative(_, k) => {
                let other = op.alternatives.get(*k).ok_or_else(|| format!("step {at}: no such alternative"))?;
                (&other.inputs, other.scratch_bytes)
            }
            _ => (&op.inputs, op.scratch_bytes),
        };
        if let Some(missing) = inputs.iter().find(|input| !held.contains(input)) {
            return Err(format!("step {at} reads {missing}, which is not held"));
        }
        if !run.insert(number) && !op.recomputable {
            return Err(format!("step {at} runs {number} again"));
        }
        held.extend(&op.outputs);
        peak = peak.max(bytes(&held) + scratch + graph.constant_bytes());
    }
    match graph.results().iter().find(|result| !held.contains(result)) {
        Some(missing) => Err(format!("the result {missing} is not held at the end")),
        None if run.len() < graph.ops().len() => Err("an op never ran".to_owned()),
        None => Ok(peak),
    }
}

/// Texts that occur in plans.
pub const TEXTS: [&str; 10] =
    ["", "+0", "-0", "+1:0", "+1:9", "-3", "+99999999999999999999", "\u{0}", "optimal", "remat-plan/1"];

/// The file with some changes.
fn changed(original: &str, numbers: &mut Numbers) -> String {
    let mut tree = burn_remat_changed::changed(original, &TEXTS, numbers);
    if numbers.below(4) > 0 {
        let entry: Result<Entry, _> = serde_json::from_value(tree.clone());
        if let Ok(entry) = entry {
            tree["digest"] = json!(entry.own_digest());
        }
    }
    damage(tree.to_string(), numbers)
}

fn check(cases: usize) {
    let case = Case::new();
    assert!(case.check(&case.text), "the file itself is accepted");
    let is_accepted = |numbers: &mut Numbers| case.check(&changed(&case.text, numbers));
    let accepted = tried("plans", cases, &mut Numbers::default(), is_accepted);
    // Names, costs and remarks may be changed; steps in another order may be just as good.
    assert!(accepted > 0 && accepted < cases / 2, "{accepted} of {cases}");
}

#[test]
fn a_file_that_somebody_has_been_at_gives_a_right_plan_or_none() {
    check(5_000);
}

#[test]
#[ignore = "10 million files: an hour"]
fn ten_million_files_that_somebody_has_been_at_give_a_right_plan_or_none() {
    check(10_000_000);
}
