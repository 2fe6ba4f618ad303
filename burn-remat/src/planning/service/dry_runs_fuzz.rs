//! Files of dry runs that have been tampered with: there must be no panic, and no plan that is wrong for the step beside it.
//!
//! As in `cache_fuzz.rs`, but here the step is in the file too, and may be changed like its plan. Complexity: O(size of the file) per case.

use std::path::Path;

use burn_remat_changed::{Numbers, changed, damage, tried};

use super::*;
use crate::planning::examples::chain;
use crate::planning::fit::Fit;
use crate::planning::service::cache::fuzz::{TEXTS, plain_peak};

/// Files in no particular folder.
fn disk() -> DryRuns {
    let of = For { device: "test".to_owned(), planner: "auto".to_owned(), planner_version: 1 };
    DryRuns { folder: Folder::inside(Path::new("")), of }
}

/// A file with two ways, which have the same step.
fn whole() -> String {
    let trace = Arc::new(chain());
    let lowered = lower(&trace, "test").unwrap();
    let least = Fit::new(trace, lowered, Some(1), 0).unwrap().least();
    disk().written(&vec![vec![least.clone()], vec![least]]).unwrap()
}

/// How many plans were accepted. They must be right.
fn accepted(text: &str) -> usize {
    let Ok(ways) = disk().read(text) else { return 0 };
    for (plan, _) in ways.iter().flatten() {
        let peak = plain_peak(&plan.lowered.graph, &plan.plan.steps);
        peak.unwrap_or_else(|wrong| panic!("a wrong plan was taken up: {wrong}\n{text}"));
    }
    ways.iter().flatten().count()
}

/// The file with some changes in one line, and in three cases of four with a digest that fits the changes.
fn edited(original: &str, numbers: &mut Numbers) -> String {
    let mut lines: Vec<String> = original.lines().map(str::to_owned).collect();
    let at = numbers.below(lines.len());
    lines[at] = changed(&lines[at], &TEXTS, numbers).to_string();
    if numbers.below(4) > 0
        && let Ok(mut head) = serde_json::from_str::<Head>(&lines[0])
    {
        let steps: String = lines[1..].iter().flat_map(|line| ["\n", line]).collect();
        head.digest = head.own_digest(&steps);
        lines[0] = serde_json::to_string(&head).unwrap();
    }
    damage(lines.join("\n"), numbers)
}

fn check_files(cases: usize) {
    let whole = whole();
    assert_eq!(whole.lines().count(), 2, "a step is written once");
    assert_eq!(accepted(&whole), 2, "the file itself is accepted");
    let is_accepted = |numbers: &mut Numbers| accepted(&edited(&whole, numbers)) > 0;
    let taken = tried("dry runs", cases, &mut Numbers::default(), is_accepted);
    // Times, names and remarks may be changed.
    assert!(taken > 0 && taken < cases / 2, "{taken} of {cases}");
}

#[test]
fn a_dry_run_that_somebody_has_been_at_gives_right_plans_or_none() {
    check_files(3_000);
}

#[test]
#[ignore = "a million files: half an hour"]
fn a_million_dry_runs_that_somebody_has_been_at_give_right_plans_or_none() {
    check_files(1_000_000);
}
