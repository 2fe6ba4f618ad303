//! Every example, run for a few steps as a newcomer would: offline, under a memory budget.

use std::process::Command;

use burn_remat_examples::device::name_under_test;

/// Runs an example and checks that it ends well, with the report of its device or a table.
fn runs(name: &str, program: &str, ends_with: &str) -> String {
    let arguments = ["--quick", "--device", &name_under_test()];
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} --quick failed:\n{text}\n{errors}");
    assert!(text.contains(ends_with), "{name} --quick printed no `{ends_with}`:\n{text}\n{errors}");
    text.into_owned()
}

#[test]
fn every_example_runs() {
    // One after the other: each takes both cores.
    runs("mnist", env!("CARGO_BIN_EXE_mnist"), "\npeak ");
    runs("custom-training-loop", env!("CARGO_BIN_EXE_custom-training-loop"), "\npeak ");
    runs("text-classification", env!("CARGO_BIN_EXE_text-classification"), "\npeak ");
    runs("text-generation", env!("CARGO_BIN_EXE_text-generation"), "\npeak ");
    runs("image-segmentation", env!("CARGO_BIN_EXE_image-segmentation"), "\npeak ");
    runs("wgan", env!("CARGO_BIN_EXE_wgan"), "\npeak ");
    runs("modern-lstm", env!("CARGO_BIN_EXE_modern-lstm"), "\npeak ");
    let forecast = runs("forecast", env!("CARGO_BIN_EXE_forecast"), "time added");
    assert!(forecast.contains("needs ") && !forecast.contains("not measured"), "{forecast}");
    let trained: Vec<&str> = forecast.lines().filter(|line| line.starts_with("trained ")).collect();
    assert!(trained.len() >= 2 && trained.iter().all(|line| line.contains(": 0 over budget")), "{forecast}");
    runs("larger-batches", env!("CARGO_BIN_EXE_larger-batches"), "x  ");
    let table = runs("gpu-bench", env!("CARGO_BIN_EXE_gpu-bench"), "remat, 33%");
    assert!(!table.contains(" other"), "a run under a budget computed something else:\n{table}");
}
