//! Recordings and budgets that somebody has edited: each is refused with its line and field, or is played back like any other. Nothing panics.
//!
//! A case changes a recording in one to three places, in a line or in the list of lines. What is accepted is replayed under a budget from one byte
//! to unlimited, and occasionally planned. Complexity: O(calls) per case.

mod small;

use burn_remat::{AdvancedConfig, Budget, RecordedProgram, RecordingError, RematConfig, RematExt};
use burn_remat_changed::{Numbers, change, change_list, damage, tried};
use burn_remat_examples::device::{is_flex, under_test};
use burn_remat_plan::generate::{Options, by_name};
use serde_json::Value;

/// Text that occurs in recordings.
const TEXTS: [&str; 8] = ["", "unlimited", "1", "60%", "80% free", "remat-recording/1", "stage", "\u{0}"];

/// The recording of a small training run, with a graph in the last line, as if it had been planned.
fn recorded() -> String {
    let path = std::env::temp_dir().join(format!("burn-remat-files-{}.jsonl", std::process::id()));
    let config = RematConfig::new("75%").advanced(AdvancedConfig::without_planning);
    let device = under_test().remat(config).unwrap();
    let recording = device.remat_record(&path).unwrap();
    small::ALL[0].1(&device, 7).unwrap();
    recording.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let graph = by_name("linear", &Options { depth: 3, ..Options::default() }).unwrap().to_json();
    format!("{text}{{\"graph\":{}}}\n", serde_json::from_str::<Value>(&graph).unwrap())
}

fn changed(lines: &[&str], numbers: &mut Numbers) -> String {
    let mut lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
    for _ in 0..=numbers.below(3) {
        if numbers.below(4) == 0 {
            change_list(&mut lines, String::new(), numbers);
        } else if let at = numbers.below(lines.len())
            && let Some(line) = lines.get_mut(at)
            && let Ok(mut tree) = serde_json::from_str::<Value>(line)
        {
            change(&mut tree, &TEXTS, numbers);
            *line = tree.to_string();
        }
    }
    damage(lines.join("\n"), numbers)
}

/// Whether a changed recording was accepted. If so, it is also played back.
fn accepts(text: &str, numbers: &mut Numbers) -> bool {
    let recorded = match RecordedProgram::parse(text) {
        Ok(recorded) => recorded,
        Err(RecordingError::Line { line, field, reason }) => {
            assert!(line <= text.lines().count().max(1) && !field.is_empty() && !reason.is_empty(), "{text}");
            return false;
        }
        Err(error) => panic!("{error}\n{text}"),
    };
    let budget = [1, 2_000, 8_000, 40_000, 1 << 62][numbers.below(5)];
    let config = match numbers.below(50) {
        0 => RematConfig::new(budget).with_planner("ap-sqrt"),
        _ => RematConfig::new(budget).advanced(AdvancedConfig::without_planning),
    };
    let replayed = recorded.replay(config.without_cache()).unwrap();
    let operations = text.lines().filter(|line| line.trim_start().starts_with("{\"operation\"")).count();
    assert_eq!(replayed.operations, operations as u64, "{text}");
    true
}

fn check(cases: usize) {
    if !is_flex("changed recordings", "what is recorded is the same on all devices") {
        return;
    }
    let text = recorded();
    let lines: Vec<&str> = text.lines().collect();
    let mut numbers = Numbers::default();
    assert!(accepts(&text, &mut numbers), "the recording itself is accepted");
    assert!(RecordedProgram::parse(&text).unwrap().graph().is_some(), "the last line is a graph");
    let what = format!("recordings of {} lines", lines.len());
    let accepted = tried(&what, cases, &mut numbers, |numbers| accepts(&changed(&lines, numbers), numbers));
    assert!(accepted > 0 && accepted < cases, "{accepted} of {cases}");
}

#[test]
fn a_recording_that_somebody_has_been_at_is_refused_or_played_back() {
    check(500);
}

#[test]
#[ignore = "a million files: hours"]
fn a_million_recordings_that_somebody_has_been_at_are_refused_or_played_back() {
    check(1_000_000);
}

#[test]
fn a_budget_that_somebody_has_been_at_is_refused_or_is_written_as_it_is_read() {
    let parts = [
        "8",
        "0",
        ".",
        "5",
        "-",
        "e9",
        " ",
        "GiB",
        "MiB",
        "kB",
        "B",
        "%",
        " free",
        "unlimited",
        "99999999999",
        "∞",
        "NaN",
        "inf",
        "\n",
    ];
    let (mut numbers, mut accepted) = (Numbers::default(), 0);
    for _ in 0..100_000 {
        let text: String = (0..=numbers.below(5)).map(|_| parts[numbers.below(parts.len())]).collect();
        let text = damage(text, &mut numbers);
        let Ok(budget) = text.parse::<Budget>() else { continue };
        accepted += 1;
        let written = budget.to_string();
        let again: Budget = written.parse().unwrap_or_else(|error| panic!("{text:?} is written {written:?}: {error}"));
        assert_eq!(again.to_string(), written, "{text:?}");
    }
    assert!(accepted > 1_000, "{accepted} were accepted");
}
