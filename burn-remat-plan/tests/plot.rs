//! The command `remat-plan plot`: the page that it writes, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Chain, ChainStage, Graph};
use serde_json::Value as Json;

/// A folder with a graph, for one test.
fn with_graph(test: &str) -> (PathBuf, Graph) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    let graph = by_name("residual", &Options { depth: 4, ..Options::default() }).unwrap();
    graph.write(folder.join("g.json")).unwrap();
    (folder, graph)
}

/// Runs, and expects the status.
fn run(folder: &Path, status: i32, args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_remat-plan")).current_dir(folder).args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}\n{error}");
    output
}

/// The data in a page.
fn data(folder: &Path, page: &str) -> Json {
    let html = std::fs::read_to_string(folder.join(page)).unwrap();
    let json = html.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_page_shows_the_plan_of_a_file_among_those_of_other_budgets() {
    let (folder, graph) = with_graph("plot-plan");
    run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", "80%", "--out", "p.json"]);
    let limits = ["--time-limit", "0.2", "--points", "4"];
    run(&folder, 0, &[&["plot", "g.json", "p.json", "--budget", "80%", "--out", "p.html"], &limits[..]].concat());
    let data = data(&folder, "p.html");
    let given = &data["given"];
    let peak = StoreAll::peak(&graph);
    assert_eq!(given["budget"], peak * 80 / 100);
    assert_eq!(data["views"][given["view"].as_u64().unwrap() as usize]["planner"], "online");
    assert_eq!(data["views"][0]["peak"], peak);
    let stops = data["stops"].as_array().unwrap();
    assert!(stops.len() >= 4, "{stops:?}");
    assert_eq!(stops.last().unwrap()["budget"], peak);
}

#[test]
fn a_budget_alone_is_planned_and_a_graph_alone_is_enough() {
    let (folder, _) = with_graph("plot-budget");
    let limits = ["--time-limit", "0.2", "--points", "2"];
    run(&folder, 0, &[&["plot", "g.json", "--budget", "70%", "--out", "b.html"], &limits[..]].concat());
    let shown = data(&folder, "b.html");
    let view = &shown["views"][shown["given"]["view"].as_u64().unwrap() as usize];
    assert!(view["peak"].as_u64().unwrap() <= shown["given"]["budget"].as_u64().unwrap());
    run(&folder, 0, &[&["plot", "g.json", "--cost-unit", "other", "--out", "g.html"], &limits[..]].concat());
    let shown = data(&folder, "g.html");
    assert_eq!((&shown["given"], &shown["is_time"]), (&Json::Null, &Json::Bool(false)));
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let (folder, _) = with_graph("plot-refused");
    run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", "80%", "--out", "p.json"]);
    // The plan exceeds this budget.
    run(&folder, 1, &["plot", "g.json", "p.json", "--budget", "10%", "--out", "p.html"]);
    // A plan of another graph.
    by_name("linear", &Options::default()).unwrap().write(folder.join("other.json")).unwrap();
    run(&folder, 1, &["plot", "other.json", "p.json", "--out", "p.html"]);
    run(&folder, 2, &["plot", "g.json", "--out", "no/such/folder/p.html"]);
    run(&folder, 2, &["plot", "-", "-", "--out", "p.html"]);
    let stage = ChainStage { forward_cost: 1.0, saved_bytes: 9, ..ChainStage::default() };
    std::fs::write(folder.join("c.json"), Chain::new("ten", 4, 4, vec![stage; 10]).unwrap().to_json()).unwrap();
    let output = run(&folder, 2, &["plot", "c.json", "--out", "p.html"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("this is a chain"));
    assert!(!folder.join("p.html").exists(), "nothing is left behind");
}
