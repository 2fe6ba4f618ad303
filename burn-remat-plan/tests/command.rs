//! The command `remat-plan`, run as a program: what it prints, what it writes, how it ends.

mod chain_support;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use burn_remat_plan::format::PlanFile;
use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::registry::planners;
use burn_remat_plan::{Chain, ChainStage, Graph, Status};
use chain_support::equal_stages;

/// An empty folder for one test, by its name.
fn folder(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("command").join(test);
    // Of an earlier run.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn remat_plan(folder: &PathBuf, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remat-plan")).current_dir(folder).args(args).output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Runs, and expects the status.
fn run(folder: &PathBuf, status: i32, args: &[&str]) -> Output {
    let output = remat_plan(folder, args);
    assert_eq!(output.status.code(), Some(status), "{args:?}\n{}\n{}", out(&output), err(&output));
    assert!(!err(&output).contains("panicked"), "{args:?}: {}", err(&output));
    output
}

fn with_graph(test: &str) -> (PathBuf, Graph) {
    let folder = folder(test);
    let graph = by_name("residual", &Options { depth: 4, ..Options::default() }).unwrap();
    graph.write(folder.join("g.json")).unwrap();
    (folder, graph)
}

fn with_chain(test: &str) -> (PathBuf, Chain) {
    let folder = folder(test);
    let chain = equal_stages("ten", 10);
    std::fs::write(folder.join("c.json"), chain.to_json()).unwrap();
    (folder, chain)
}

#[test]
fn list_names_every_planner_with_its_source() {
    let folder = folder("list");
    let output = run(&folder, 0, &["list"]);
    for entry in planners() {
        assert!(out(&output).contains(entry.name) && out(&output).contains(entry.source), "{}", entry.name);
    }
}

#[test]
fn solve_writes_a_plan_that_check_accepts_and_one_byte_less_refuses() {
    let (folder, _) = with_graph("solve");
    let output = run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", "90%", "--out", "p.json"]);
    assert_eq!(out(&output), "");
    let text = std::fs::read_to_string(folder.join("p.json")).unwrap();
    let file = PlanFile::from_json(&text).unwrap();
    assert_eq!((file.planner.as_str(), file.status), ("online", Some(Status::Feasible)));
    let peak = file.peak_bytes.unwrap();
    let output = run(&folder, 0, &["check", "g.json", "p.json", "--budget", &peak.to_string()]);
    assert!(out(&output).starts_with("valid: "), "{}", out(&output));
    let output = run(&folder, 1, &["check", "g.json", "p.json", "--budget", &(peak - 1).to_string()]);
    assert!(out(&output).contains("1 more than the budget"), "{}", out(&output));
}

#[test]
fn json_on_standard_output_is_the_plan_file_and_nothing_else() {
    let (folder, graph) = with_graph("json");
    let args = ["solve", "g.json", "--planner", "store-all", "--budget", "100%", "--json", "--out", "p.json"];
    let output = run(&folder, 0, &args);
    assert_eq!(out(&output), std::fs::read_to_string(folder.join("p.json")).unwrap());
    let file = PlanFile::from_json(out(&output)).unwrap();
    assert_eq!(file.plan().unwrap(), StoreAll::plan(&graph));
    assert_eq!((file.overhead, file.peak_bytes), (Some(0.0), Some(StoreAll::peak(&graph))));
}

#[test]
fn the_summary_tells_budget_peak_and_makespan() {
    let (folder, _) = with_graph("summary");
    let output = run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", "95%"]);
    for word in ["planner", "budget", "peak", "makespan", "overhead", "steps"] {
        assert!(out(&output).contains(word), "{word}: {}", out(&output));
    }
}

#[test]
fn an_infeasible_budget_ends_with_3_and_tells_the_minimum_and_the_op() {
    let (folder, graph) = with_graph("infeasible");
    let output = run(&folder, 3, &["solve", "g.json", "--planner", "online", "--budget", "1000", "--json"]);
    let file = PlanFile::from_json(out(&output)).unwrap();
    assert_eq!(file.status, Some(Status::Infeasible));
    let (minimum, op) = (file.minimum_budget.unwrap(), file.blocking_op.unwrap());
    assert!(err(&output).contains(&minimum.to_string()) && err(&output).contains(&graph.ops()[op].name));
    run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", &minimum.to_string()]);
    std::fs::write(folder.join("none.json"), out(&output)).unwrap();
    let output = run(&folder, 1, &["check", "g.json", "none.json", "--budget", "1000"]);
    assert!(err(&output).contains("contains no plan"), "{}", err(&output));
}

#[test]
fn budgets_that_are_none_end_with_2() {
    let (folder, _) = with_graph("budgets");
    for budget in ["0", "-1", "", "0%", "-5%", "abc", "1.5", "9223372036854775809", "99999999999999999999"] {
        let output = run(&folder, 2, &["solve", "g.json", "--planner", "online", "--budget", budget]);
        assert!(err(&output).contains("--budget"), "{budget}: {}", err(&output));
    }
    run(&folder, 2, &["solve", "g.json", "--planner", "online"]);
    run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", "150%"]);
    run(&folder, 0, &["solve", "g.json", "--planner", "online", "--budget", "9223372036854775808"]);
}

#[test]
fn options_that_are_none_end_with_2() {
    let (folder, _) = with_graph("options");
    let base = ["solve", "g.json", "--planner", "online", "--budget", "90%"];
    for option in [
        ["--time-limit", "0"],
        ["--time-limit", "nan"],
        ["--time-limit", "1e300"],
        ["--gap", "inf"],
        ["--gap", "-1"],
        ["--threads", "0"],
        ["--memory-limit", "0"],
        ["--memory-limit", "1.5"],
        ["--seed", "x"],
    ] {
        run(&folder, 2, &[&base[..], &option[..]].concat());
    }
    let output = run(&folder, 2, &["solve", "g.json", "--planner", "nobody", "--budget", "90%"]);
    assert!(err(&output).contains("store-all"), "{}", err(&output));
    run(&folder, 2, &["no-such-command"]);
    run(&folder, 2, &[]);
    run(&folder, 0, &["--help"]);
    run(&folder, 0, &["--version"]);
}

#[test]
fn files_that_are_none_end_with_2_and_name_the_file_and_the_field() {
    let (folder, graph) = with_graph("files");
    let good = graph.to_json();
    let cases = [
        ("empty.json", String::new()),
        ("text.json", "hello".to_owned()),
        ("tag.json", good.replacen("remat-graph/1", "remat-graph/9", 1)),
        ("untagged.json", good.replacen("\"format\"", "\"form\"", 1)),
        ("key.json", good.replacen("\"cost\"", "\"price\"", 1)),
        ("negative.json", good.replacen("\"bytes\":", "\"bytes\":-", 1)),
        ("empty_graph.json", r#"{"format":"remat-graph/1","values":[],"ops":[]}"#.to_owned()),
        ("plan.json", r#"{"format":"remat-plan/1","steps":[]}"#.to_owned()),
    ];
    for (name, text) in cases {
        std::fs::write(folder.join(name), text).unwrap();
        for args in [vec!["show", name], vec!["minimum", name], vec!["solve", name, "--planner", "store-all"]] {
            let output = run(&folder, 2, &args);
            assert!(err(&output).contains(name), "{}", err(&output));
        }
    }
    std::fs::write(folder.join("bytes.json"), [0xff, 0xfe, 0x00]).unwrap();
    run(&folder, 2, &["show", "bytes.json"]);
    run(&folder, 2, &["show", "missing.json"]);
    run(&folder, 2, &["show", "."]);
    let output = run(&folder, 2, &["show", "key.json"]);
    assert!(err(&output).contains("ops[0].price"), "{}", err(&output));
    run(&folder, 2, &["solve", "g.json", "--planner", "store-all", "--out", "no/such/folder/p.json"]);
}

#[test]
fn check_tells_violations_and_false_claims() {
    let (folder, _) = with_graph("violations");
    std::fs::write(folder.join("p.json"), r#"{"format":"remat-plan/1","steps":["+0","-999","+1"]}"#).unwrap();
    let output = run(&folder, 1, &["check", "g.json", "p.json", "--budget", "100%"]);
    assert!(out(&output).contains("step 1: evicts value 999"), "{}", out(&output));
    assert!(out(&output).contains("op 2 was never computed"), "{}", out(&output));
    std::fs::write(folder.join("p.json"), r#"{"format":"remat-plan/1","steps":["+0","minus"]}"#).unwrap();
    let output = run(&folder, 2, &["check", "g.json", "p.json", "--budget", "100%"]);
    assert!(err(&output).contains("steps[1]"), "{}", err(&output));
    run(&folder, 0, &["solve", "g.json", "--planner", "store-all", "--out", "p.json"]);
    let all = run(&folder, 1, &["check", "g.json", "p.json", "--budget", "1", "--all"]);
    let output = run(&folder, 1, &["check", "g.json", "p.json", "--budget", "1"]);
    let (first, _) = out(&output).rsplit_once("and ").unwrap();
    assert!(out(&all).starts_with(first) && first.lines().count() == 20, "{first}");
    let text = std::fs::read_to_string(folder.join("p.json")).unwrap();
    std::fs::write(folder.join("p.json"), text.replacen("\"peak_bytes\":", "\"peak_bytes\":1", 1)).unwrap();
    let output = run(&folder, 1, &["check", "g.json", "p.json", "--budget", "100%"]);
    assert!(out(&output).contains("peak_bytes"), "{}", out(&output));
}

#[test]
fn chains_are_solved_checked_and_shown() {
    let (folder, chain) = with_chain("chains");
    let args = ["solve", "c.json", "--planner", "chain-dp", "--budget", "70%", "--out", "p.json"];
    run(&folder, 0, &args);
    let budget = (chain.store_all_peak() * 7 / 10).to_string();
    run(&folder, 0, &["check", "c.json", "p.json", "--budget", &budget]);
    run(&folder, 1, &["check", "c.json", "p.json", "--budget", "20"]);
    assert!(out(&run(&folder, 0, &["show", "c.json"])).contains("stages        10"));
    let output = run(&folder, 0, &["minimum", "c.json"]);
    let minimum = out(&output).split(' ').next().unwrap().to_owned();
    run(&folder, 0, &["solve", "c.json", "--planner", "chain-dp", "--budget", &minimum]);
    // A graph planner says what to use instead.
    let output = run(&folder, 2, &["solve", "c.json", "--planner", "online", "--budget", "70%"]);
    assert!(err(&output).contains("chain-dp"), "{}", err(&output));
}

#[test]
fn the_minimum_is_feasible_and_named_with_its_values() {
    let (folder, graph) = with_graph("minimum");
    let output = run(&folder, 0, &["minimum", "g.json"]);
    let minimum: u64 = out(&output).split(' ').next().unwrap().parse().unwrap();
    assert!(minimum <= StoreAll::peak(&graph));
    assert!(out(&output).contains("resident together while op"), "{}", out(&output));
    run(&folder, 0, &["solve", "g.json", "--planner", "search", "--budget", &minimum.to_string(), "--time-limit", "3"]);
}

#[test]
fn generate_writes_what_show_reads() {
    let folder = folder("generate");
    run(&folder, 0, &["generate", "vgg16", "--batch", "2", "--out", "v.json"]);
    let output = run(&folder, 0, &["show", "v.json"]);
    assert!(out(&output).contains("vgg16-b2") && out(&output).contains("conv1_1"), "{}", out(&output));
    let output = run(&folder, 0, &["generate", "linear", "--depth", "3", "--pass", "forward"]);
    assert!(Graph::from_json(out(&output)).is_ok());
    run(&folder, 2, &["generate", "nothing"]);
    run(&folder, 2, &["generate", "vgg16", "--batch", "0"]);
    run(&folder, 2, &["generate", "vgg16", "--batch", "99999999999999"]);
}

#[test]
fn sweep_writes_a_table_and_a_picture() {
    let (folder, _) = with_graph("sweep");
    let args = [
        "sweep",
        "g.json",
        "--planners",
        "store-all,online,chen-sqrt",
        "--points",
        "5",
        "--csv",
        "s.csv",
        "--svg",
        "s.svg",
    ];
    let output = run(&folder, 0, &args);
    assert_eq!(out(&output), "");
    let csv = std::fs::read_to_string(folder.join("s.csv")).unwrap();
    assert!(csv.starts_with("planner,budget_bytes,"));
    let rows = |name: &str| csv.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((rows("store-all,"), rows("online,")), (5, 5));
    let svg = std::fs::read_to_string(folder.join("s.svg")).unwrap();
    for text in ["<svg", "online", "infeasible", "overhead", "budget ("] {
        assert!(svg.contains(text), "{text}");
    }
    let output = run(&folder, 0, &["sweep", "g.json", "--planners", "online", "--points", "3"]);
    assert_eq!(out(&output).lines().count(), 4);
    run(&folder, 2, &["sweep", "g.json", "--planners", "online,nobody"]);
    run(&folder, 2, &["sweep", "g.json", "--planners", "online", "--points", "1"]);
}

#[test]
fn a_chain_can_be_swept() {
    let (folder, _) = with_chain("chain_sweep");
    let output = run(&folder, 0, &["sweep", "c.json", "--planners", "chain-dp,revolve", "--points", "4"]);
    assert!(out(&output).lines().count() >= 5, "{}", out(&output));
}

#[test]
fn nothing_but_errors_goes_to_standard_error_in_a_pipe() {
    let (folder, _) = with_graph("quiet");
    let args = ["solve", "g.json", "--planner", "search", "--budget", "90%", "--time-limit", "2.5"];
    let output = run(&folder, 0, &args);
    assert_eq!(err(&output), "");
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    let (folder, _) = with_graph("pipe");
    let unread = |args: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_remat-plan"))
            .current_dir(&folder)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        child.wait_with_output().unwrap()
    };
    let output = unread(&["generate", "linear", "--depth", "5000"]);
    assert_eq!((err(&output), output.status.code()), ("", Some(0)));
    // What else the command does, and its status, stay the same.
    let solve =
        ["solve", "g.json", "--planner", "store-all", "--budget", "100%", "--json", "--out", "read_by_nobody.json"];
    assert_eq!(unread(&solve).status.code(), Some(0));
    assert_eq!(unread(&["check", "g.json", "read_by_nobody.json", "--budget", "1"]).status.code(), Some(1));
    assert_eq!(
        unread(&["solve", "g.json", "--planner", "store-all", "--budget", "1", "--json"]).status.code(),
        Some(3)
    );
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_that_is_not_there_yet_stays_a_link() {
    let (folder, _) = with_graph("link");
    std::os::unix::fs::symlink("target.json", folder.join("link.json")).unwrap();
    run(&folder, 0, &["solve", "g.json", "--planner", "store-all", "--budget", "100%", "--out", "link.json"]);
    assert!(folder.join("link.json").is_symlink());
    assert!(std::fs::read_to_string(folder.join("target.json")).unwrap().contains("remat-plan/1"));
}

#[test]
fn a_dash_reads_standard_input() {
    let (folder, _) = with_graph("stdin");
    let file = std::fs::File::open(folder.join("g.json")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_remat-plan")).args(["show", "-"]).stdin(file).output().unwrap();
    assert!(output.status.success() && out(&output).contains("store-all"));
}

#[test]
fn what_cannot_be_written_is_told_before_the_work() {
    let (folder, _) = with_graph("unwritable");
    let sweep = ["sweep", "g.json", "--planners", "store-all"];
    for option in [["--csv", "no/such/folder/s.csv"], ["--svg", "no/such/folder/s.svg"], ["--csv", "."]] {
        let output = run(&folder, 2, &[&sweep[..], &option[..]].concat());
        assert!(err(&output).contains(option[1]), "{}", err(&output));
    }
    // The table is written before the picture, if there is one.
    let table = folder.join("table.csv");
    std::fs::remove_file(&table).ok();
    run(&folder, 2, &[&sweep[..], &["--csv", "table.csv", "--svg", "no/such/folder/s.svg"]].concat());
    assert!(!table.exists(), "it worked first");
    // Work would find that a byte is too little, which ends otherwise.
    let solve = ["solve", "g.json", "--planner", "store-all", "--budget", "1"];
    run(&folder, 3, &solve);
    let output = run(&folder, 2, &[&solve[..], &["--out", "no/such/folder/p.json"]].concat());
    assert!(err(&output).contains("no/such/folder"), "{}", err(&output));
    let args =
        ["solve", "g.json", "--planner", "store-all", "--budget", "80%", "--time-limit", "x", "--out", "left.json"];
    run(&folder, 2, &args);
    assert!(!folder.join("left.json").exists());
}

#[test]
fn planners_that_this_build_lacks_are_marked_and_refused_at_once() {
    let (folder, _) = with_graph("lacking");
    let lacking: Vec<&str> =
        planners().iter().filter(|entry| entry.planner().missing_feature().is_some()).map(|entry| entry.name).collect();
    let list = run(&folder, 0, &["list"]);
    assert_eq!(out(&list).matches("not in this build").count(), lacking.len());
    for name in lacking {
        // Before the graph is read, which is not there.
        let output = run(&folder, 2, &["sweep", "none.json", "--planners", &format!("search,{name}")]);
        assert!(err(&output).contains(name) && !err(&output).contains("none.json"), "{}", err(&output));
    }
}

#[test]
fn the_graph_of_a_recording_is_planned_and_one_without_is_refused() {
    let (folder, _) = with_graph("recorded");
    let graph = std::fs::read_to_string(folder.join("g.json")).unwrap();
    let graph: serde_json::Value = serde_json::from_str(&graph).unwrap();
    let asked = "{\"format\":\"remat-recording/1\"}\n{\"mark\":{\"thread\":1}}\n";
    std::fs::write(folder.join("r.jsonl"), format!("{asked}{}\n", serde_json::json!({ "graph": graph }))).unwrap();
    let solved = |file: &str| {
        let output = run(&folder, 0, &["solve", file, "--planner", "hlo-remat", "--budget", "80%", "--json"]);
        PlanFile::from_json(out(&output)).unwrap().plan().unwrap()
    };
    assert_eq!(solved("r.jsonl"), solved("g.json"));
    std::fs::write(folder.join("r.jsonl"), asked).unwrap();
    let output = run(&folder, 2, &["minimum", "r.jsonl"]);
    assert!(err(&output).contains("has no graph"), "{}", err(&output));
}

#[test]
fn texts_that_break_off_and_lists_are_called_so() {
    let (folder, _) = with_graph("broken");
    let graph = r#"{"format":"remat-graph/1","values":[[]],"ops":[]}"#;
    for (text, told) in
        [("{", "the text ends in the middle"), ("[]", "this is a list"), ("", "the text ends"), (graph, "`values[0]`")]
    {
        std::fs::write(folder.join("b.json"), text).unwrap();
        let output = run(&folder, 2, &["show", "b.json"]);
        assert!(err(&output).contains(told), "{text}: {}", err(&output));
        assert!(!["`?`", "struct", "Tagged"].iter().any(|word| err(&output).contains(word)), "{}", err(&output));
    }
    let output = run(&folder, 2, &["check", "-", "-", "--budget", "1"]);
    assert!(err(&output).contains("standard input"), "{}", err(&output));
}

#[test]
fn the_minimum_of_a_chain_is_exact_and_what_is_not_proved_is_no_solution() {
    let folder = folder("chain_minimum");
    let stage = |forward_cost: f64, sizes: [u64; 3], scratch: [u64; 2]| ChainStage {
        forward_cost,
        backward_cost: 1.0,
        activation_bytes: sizes[0],
        saved_bytes: sizes[1],
        gradient_bytes: sizes[2],
        forward_scratch_bytes: scratch[0],
        backward_scratch_bytes: scratch[1],
    };
    // Persistent schedules need 19 bytes, others 18.
    let stages = vec![
        stage(3.0, [1, 3, 2], [0, 0]),
        stage(0.5, [5, 6, 5], [8, 0]),
        stage(1.0, [2, 4, 2], [0, 0]),
        stage(3.0, [0, 1, 0], [0, 0]),
        stage(0.5, [0, 2, 0], [4, 3]),
    ];
    let chain = Chain::new("five", 1, 5, stages).unwrap();
    std::fs::write(folder.join("five.json"), chain.to_json()).unwrap();
    let output = run(&folder, 0, &["minimum", "five.json"]);
    assert!(out(&output).starts_with("18 (18 B), exact: set by stage "), "{}", out(&output));
    let status = |planner: &str, budget: &str, code: i32| {
        let output = run(&folder, code, &["solve", "five.json", "--planner", planner, "--budget", budget, "--json"]);
        PlanFile::from_json(out(&output)).unwrap().status
    };
    assert_eq!(status("search", "18", 0), Some(Status::Optimal));
    assert_eq!(status("chain-dp", "18", 3), Some(Status::NoSolution));
    assert_eq!(status("auto", "17", 3), Some(Status::Infeasible));
}
