//! `train` as a user runs it.

use std::process::{Command, Output};

use burn_remat_examples::device::name_under_test;

fn train(arguments: &[&str]) -> Output {
    let mut train = Command::new(env!("CARGO_BIN_EXE_train"));
    if !arguments.contains(&"--device") {
        train.args(["--device", &name_under_test()]);
    }
    train.args(arguments).output().expect("train starts")
}

#[test]
fn train_prints_a_verdict_and_writes_json() {
    let file = std::env::temp_dir().join(format!("burn-remat-train-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let small = ["--model", "cnn", "--batch-size", "8", "--steps", "3", "--budget", "70%", "--json", path];
    let output = train(&small);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("identical to plain Burn's, to the last bit") && text.contains("within the budget"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let keys = [
        "model",
        "device",
        "batch_size",
        "steps",
        "budget_bytes",
        "floor_bytes",
        "peak_bytes",
        "store_all_peak_bytes",
        "step_ms",
        "store_all_step_ms",
        "plain_burn_step_ms",
        "ops",
        "recomputed_ops",
        "losses_identical",
    ];
    assert!(keys.iter().all(|key| !json[key].is_null()), "{json}");
    assert_eq!(json["losses_identical"], true);
    assert!(json["peak_bytes"].as_u64() <= json["budget_bytes"].as_u64());
    assert!(json["recomputed_ops"].as_u64() > Some(0));
}

#[test]
fn train_refuses_what_it_cannot_use_and_says_what_to_do() {
    for (arguments, expected) in [
        (["--budget", "8 XB"], "unit is unknown"),
        (["--budget", "-1"], "negative"),
        (["--budget", "150%"], "unlimited"),
        (["--device", "tpu"], "use flex"),
        (["--images", "/nowhere"], "/nowhere"),
        (["--batch-size", "0"], "batch-size"),
    ] {
        let output = train(&arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_strict_train_below_the_floor_names_the_floor() {
    let output = train(&["--model", "mlp", "--batch-size", "8", "--steps", "2", "--budget", "1 MiB", "--strict"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("below the floor") && text.contains("Set a budget of at least"), "{text}");
}
