//! `train` as a user runs it, and `benchmarks` as a contributor does.

use std::path::Path;
use std::process::{Command, Output};

use burn_remat_examples::device::{is_flex, name_under_test};
use burn_remat_plan::generate::{self, Options};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::simulate;
use serde_json::{Map, Value, json};

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
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
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

/// For each table, by its name in the JSON file, columns that must have figures.
const FIGURES: [(&str, &[&str]); 11] = [
    ("ways", &["tensors", "heap", "wall time", "steps over budget"]),
    ("steps", &["plain Burn", "group of one", "ample budget", "100%"]),
    ("operations", &["added", "of that the engine"]),
    ("budgets", &["in bytes", "tensors", "heap", "steps over budget", "identical"]),
    ("compression", &["none", "mask-bits", "exact", "all"]),
    ("forecasts", &["needs", "minimum", "with it", "overhead predicted", "most held"]),
    ("throughput", &["plain Burn", "remat", "tensors"]),
    ("planners", &["auto", "online"]),
    ("implementations", &["without", "afterwards", "monet", "auto"]),
    ("published", &["Gurobi", "search", "auto", "gap"]),
    ("memory", &["at 10%", "share", "MONeT"]),
];

/// Replaces the folder of published graphs, which is not in the repository: small graphs with those names, with the costs of a plan without evictions.
fn write_graphs(folder: &Path) {
    for name in ["vgg16", "unet", "mobilenet_v2", "resnet50"] {
        let graph = generate::by_name("residual", &Options { depth: 4, ..Options::default() }).unwrap();
        let whole = simulate(&graph, &StoreAll::plan(&graph));
        let case = json!({
            "budget_bytes": whole.peak_bytes, "gurobi_cost": whole.makespan, "best_known_cost": whole.makespan,
        });
        std::fs::write(folder.join(format!("{name}.graph.json")), graph.to_json()).unwrap();
        std::fs::write(folder.join(format!("{name}.reference.json")), json!({ "cases": [case] }).to_string()).unwrap();
    }
}

#[test]
fn a_quick_run_writes_every_table_as_json_and_as_markdown() {
    if !is_flex("a_quick_run_writes_every_table_as_json_and_as_markdown", "it measures Flex") {
        return;
    }
    let whole = std::env::temp_dir().join(format!("burn-remat-benchmarks-{}", std::process::id()));
    let (folder, graphs, page) = (whole.join("out"), whole.join("graphs"), whole.join("PAGE.md"));
    std::fs::create_dir_all(&graphs).unwrap();
    write_graphs(&graphs);
    let places = FIGURES.map(|(name, _)| format!("<!-- table {name} -->\n<!-- end of {name} -->\n"));
    std::fs::write(&page, places.concat()).unwrap();
    let mut benchmarks = Command::new(env!("CARGO_BIN_EXE_benchmarks"));
    benchmarks.arg("--quick").arg("--out").arg(&folder).arg("--graphs").arg(&graphs).arg("--page").arg(&page);
    let output = benchmarks.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |file: String| std::fs::read_to_string(folder.join(file)).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    let mut tables = Map::new();
    for (name, columns) in FIGURES {
        let (json, markdown) = (read(format!("{name}.json")), read(format!("{name}.md")));
        let json: Value = serde_json::from_str(&json).unwrap();
        let date = json["machine"]["date"].as_str().unwrap();
        assert!(markdown.contains(&format!("Measured on {date}")), "{markdown}");
        assert!(json["machine"]["processors"].as_u64() > Some(0), "{json:#}");
        // A heading, a line of columns and a rule.
        for begin in ["## ", "| --- |"] {
            assert_eq!(markdown.lines().filter(|line| line.starts_with(begin)).count(), 1, "{markdown}");
        }
        assert!(page.contains(markdown.trim()), "{page}");
        let rows = json["rows"].as_array().unwrap();
        for column in columns {
            assert!(rows.iter().any(|row| !row[column].is_null()), "{name} has no `{column}`: {json:#}");
        }
        tables.insert(name.to_owned(), json);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2 * FIGURES.len());
    std::fs::remove_dir_all(&whole).unwrap();

    // What was trained under a budget kept to it, and computed the same.
    assert_eq!(tables["steps"]["rows"][0]["identical"], "yes");
    let [plain, smallest] = [0, 1].map(|at| &tables["budgets"]["rows"][at]);
    assert_eq!(smallest["identical"], "yes");
    assert!(smallest["tensors"].as_u64() < plain["tensors"].as_u64(), "{smallest:#}");
    let forecast = &tables["forecasts"]["rows"][0];
    assert!(forecast["minimum"].as_u64() < forecast["needs"].as_u64(), "{forecast:#}");
    let batch = |name: &str| forecast[name].as_u64().unwrap();
    assert!(batch("with it") > batch("largest batch without rematerialization"), "{forecast:#}");
}
