//! Every example, run for a few steps as a newcomer would: offline, under a memory budget.

use std::process::Command;

use burn_remat_examples::device::{is_flex, name_under_test};

/// Runs an example and checks that it succeeds, and prints the report of its device or a table.
fn runs(name: &str, program: &str, ends_with: &str) -> String {
    runs_with(name, program, &[], ends_with)
}

/// The same with more arguments.
fn runs_with(name: &str, program: &str, more: &[&str], ends_with: &str) -> String {
    let arguments = ["--quick", "--device", &name_under_test()];
    let output = Command::new(program).args(arguments).args(more).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} --quick failed:\n{text}\n{errors}");
    assert!(text.contains(ends_with), "{name} --quick did not print `{ends_with}`:\n{text}\n{errors}");
    text.into_owned()
}

#[test]
fn every_example_runs() {
    // One after the other, because each uses both cores.
    runs("mnist", env!("CARGO_BIN_EXE_mnist"), "\npeak ");
    // With a quarter of its batch, to take a quarter of its time.
    let smaller = ["--batch-size", "8", "--budget", "12MiB"];
    runs_with("custom-training-loop", env!("CARGO_BIN_EXE_custom-training-loop"), &smaller, "\npeak ");
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

#[test]
fn adapters_are_trained_saved_and_merged() {
    if !is_flex("adapters_are_trained_saved_and_merged", "a software driver takes minutes for its hundreds of kernels")
    {
        return;
    }
    let file = std::env::temp_dir().join(format!("burn-remat-fine-tuning-{}.json", std::process::id()));
    let json = file.to_str().unwrap();
    for base in [None, Some("--quantized")] {
        let arguments: Vec<&str> = ["--json", json].into_iter().chain(base).collect();
        runs_with("fine-tuning", env!("CARGO_BIN_EXE_fine-tuning"), &arguments, "\npeak ");
        let told: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        std::fs::remove_file(&file).unwrap();
        let of = |value: &serde_json::Value, key: &str| {
            value[key].as_f64().unwrap_or_else(|| panic!("no number `{key}`: {told:#}"))
        };
        let number = |key| of(&told, key);
        let (plain, store_all, budgeted) = (&told["plain_burn"], &told["store_all"], &told["budgeted"]);

        assert_eq!(told["quantized"], base.is_some());
        assert_eq!((&budgeted["losses"], &told["identical"]), (&plain["losses"], &true.into()), "{told:#}");
        assert!(of(budgeted, "peak_bytes") <= of(budgeted, "budget_bytes"), "{told:#}");
        assert!(of(budgeted, "budget_bytes") < 0.7 * of(store_all, "peak_bytes"), "{told:#}");
        assert!(of(budgeted, "recomputed_ops") > 0.0, "{told:#}");
        assert!(number("loss_after") < number("loss_before"), "{told:#}");
        assert_eq!(told["checkpoint_identical"], true, "{told:#}");
        // Rounding is a few parts in ten million; a merge that omits an adapter is as wrong as that adapter is large.
        assert!(number("merged_difference") <= 1e-4 * number("largest_output"), "{told:#}");
        assert!(number("adapters_change") >= 1e-2 * number("largest_output"), "{told:#}");
    }
}

#[test]
fn remat_and_checkpointing_by_hand_compute_what_plain_burn_does() {
    if !is_flex(
        "remat_and_checkpointing_by_hand_compute_what_plain_burn_does",
        "it measures the heap and runs only on Flex",
    ) {
        return;
    }
    let file = std::env::temp_dir().join(format!("burn-remat-compare-{}.json", std::process::id()));
    let arguments = ["--quick", "--model", "vit", "--rounds", "2", "--json", file.to_str().unwrap()];
    let output = Command::new(env!("CARGO_BIN_EXE_compare")).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
    let told: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();

    let results = told["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|result| &result["model"]).collect::<Vec<_>>(), ["vit"]);
    for result in results {
        let rows = result["rows"].as_array().unwrap();
        let [plain, _balanced, by_hand, ..] = &rows[..] else { panic!("{result:#}") };
        assert_eq!(rows.iter().filter(|row| row["is_remat"] == true).count(), 3, "{result:#}");
        // No block of this model shares a parameter with another: by hand too, nothing is added in another order.
        for row in rows {
            assert_eq!((&row["losses"], &row["digest"]), (&plain["losses"], &plain["digest"]), "{result:#}");
        }
        let of = |row: &serde_json::Value, key: &str| {
            row[key].as_f64().unwrap_or_else(|| panic!("no number `{key}`: {result:#}"))
        };
        // In models so small, the engine's own records are as large as the tensors, so the heap is meaningful only for runs without an engine.
        assert!(of(by_hand, "heap_peak_bytes") < 0.8 * of(plain, "heap_peak_bytes"), "{result:#}");
        for row in [plain, by_hand] {
            // The heap contains what is counted, and little else.
            let share = of(row, "tensor_peak_bytes") / of(row, "heap_peak_bytes");
            assert!((0.5..1.05).contains(&share), "{share}: {result:#}");
        }
    }
}
