//! The readers of `remat-graph/1` and `remat-plan/1`: what they accept survives writing, and they name what they refuse.

use burn_remat_plan::format::{FormatError, PlanFile, tag};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, GraphError, Plan, Request, Status, solve};
use proptest::prelude::*;

const GOOD: &str = r#"{"format":"remat-graph/1","name":"n","constant_bytes":7,
"values":[{"bytes":4,"name":"x"},{"bytes":8},{"bytes":16,"name":"z"}],
"ops":[{"name":"f","cost":1.5,"inputs":[0],"outputs":[1],"scratch_bytes":3,"recomputable":false,"phase":"forward","stage":"s"},
{"cost":0.1,"inputs":[1,0],"outputs":[2],"phase":"backward","alternatives":[{"name":"g2","cost":9,"inputs":[1],"scratch_bytes":2}]}],
"results":[2]}"#;

fn message(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from} is not in the sample");
    Graph::from_json(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn a_graph_survives_writing_and_reading() {
    let graph = Graph::from_json(GOOD).unwrap();
    assert_eq!((graph.name(), graph.constant_bytes(), graph.results()), ("n", 7, &[2][..]));
    assert_eq!(graph.ops()[1].inputs, [0, 1]);
    assert!(!graph.ops()[0].recomputable && graph.ops()[1].recomputable);
    assert_eq!(graph.ops()[1].alternatives[0].scratch_bytes, 2);
    assert_eq!(Graph::from_json(&graph.to_json()).unwrap(), graph);
}

#[test]
fn results_default_to_the_outputs_of_the_last_op() {
    let text = GOOD.replace(",\n\"results\":[2]", "");
    assert_eq!(Graph::from_json(&text).unwrap(), Graph::from_json(GOOD).unwrap());
}

#[test]
fn errors_name_the_field() {
    assert!(message("\"bytes\":8", "\"bytes\":-8").contains("values[1].bytes"));
    assert!(message("\"bytes\":8", "\"bytes\":8.5").contains("values[1].bytes"));
    assert!(message("\"bytes\":8", "\"bytes\":18446744073709551616").contains("values[1].bytes"));
    assert!(message("\"bytes\":8", "\"bytes\":9223372036854775807").contains("2^63"));
    assert!(message("\"bytes\":8", "\"bites\":8").contains("`values[1].bites`: unknown field `bites`"));
    assert!(message("\"bytes\":8", "").contains("`values[1]`: missing field `bytes`"));
    assert!(message("\"cost\":1.5", "\"cost\":-1.5").contains("ops[0].cost"));
    assert!(message("\"cost\":1.5", "\"cost\":1e999").contains("ops[0].cost"));
    assert!(message("\"cost\":1.5", "\"cost\":1e308").contains("ops[..].cost"));
    assert!(message("\"cost\":1.5", "\"cost\":null").contains("ops[0].cost"));
    assert!(message("\"cost\":9", "\"cost\":-9").contains("ops[1].alternatives[0].cost"));
    assert!(message("\"inputs\":[1,0]", "\"inputs\":[1,3]").contains("ops[1].inputs"));
    assert!(message("\"outputs\":[2]", "\"outputs\":[1]").contains("ops[1].outputs"));
    assert!(message("\"results\":[2]", "\"results\":[3]").contains("results"));
    assert!(message("\"inputs\":[0]", "\"inputs\":[2]").contains("cycle"));
    assert!(message("\"inputs\":[0]", "\"inputs\":[1]").contains("cycle"));
    assert!(message("\"phase\":\"forward\"", "\"phase\":\"sideways\"").contains("ops[0].phase"));
    assert!(message("\"name\":\"n\"", "\"colour\":\"n\"").contains("colour"));
}

#[test]
fn another_format_is_called_that() {
    let error = Graph::from_json(&GOOD.replace("remat-graph/1", "remat-graph/2")).unwrap_err();
    assert_eq!(error.to_string(), "`format` is `remat-graph/2`, not `remat-graph/1`");
    let chain = r#"{"format":"remat-chain/1","stages":[]}"#;
    assert!(matches!(Graph::from_json(chain), Err(GraphError::Format(FormatError::Tag { .. }))));
    assert!(tag("{}").unwrap_err().to_string().contains("missing field `format`"));
    assert!(tag(r#"{"format":3}"#).unwrap_err().to_string().contains("format"));
}

#[test]
fn what_is_no_json_is_refused_with_its_place() {
    for text in ["", " ", "nonsense", "[1", "null", "3", "{", "\u{0}", &GOOD[..GOOD.len() - 1], &format!("{GOOD}x")] {
        let error = Graph::from_json(text).unwrap_err();
        assert!(matches!(error, GraphError::Format(FormatError::Json { .. })), "{text}: {error}");
        assert!(error.to_string().contains("line"), "{error}");
    }
    assert!(Graph::from_json(&"[".repeat(100_000)).is_err());
    let empty = r#"{"format":"remat-graph/1","values":[],"ops":[]}"#;
    assert_eq!(Graph::from_json(empty).unwrap_err(), GraphError::Empty);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Graph::read("/no/such/file.json").unwrap_err();
    assert!(error.to_string().starts_with("/no/such/file.json: "), "{error}");
}

#[test]
fn a_plan_survives_writing_and_reading() {
    let graph = Graph::from_json(GOOD).unwrap();
    let solved = solve(&StoreAll, &graph, &Request::new(1000)).unwrap();
    let file = PlanFile::of_outcome(&solved.outcome, 1.6);
    let read = PlanFile::from_json(&file.to_json()).unwrap();
    assert_eq!(read, file);
    assert_eq!(read.plan().unwrap(), solved.outcome.plan.unwrap());
    assert_eq!((read.status, read.overhead, read.peak_bytes), (Some(Status::Optimal), Some(0.0), Some(35)));
}

#[test]
fn an_infeasible_plan_file_holds_the_minimum_and_the_op() {
    let error = solve(&StoreAll, &Graph::from_json(GOOD).unwrap(), &Request::new(10)).unwrap_err();
    let file = PlanFile::of_infeasible("store-all", &error).unwrap();
    assert_eq!((file.minimum_budget, file.blocking_op), (Some(35), Some(1)));
    assert_eq!(PlanFile::from_json(&file.to_json()).unwrap().plan().unwrap(), Plan::default());
}

#[test]
fn a_bad_step_is_named() {
    let file = |steps: &str| PlanFile::from_json(&format!(r#"{{"format":"remat-plan/1","steps":{steps}}}"#));
    assert_eq!(file(r#"["+0","-0","+1:2"]"#).unwrap().plan().unwrap().steps.len(), 3);
    for bad in ["", "+", "-", "3", "+-3", "++3", "+1:", "+ 1", "+99999999999999999999", "é", "+1:é"] {
        let error = file(&format!(r#"["+0","{bad}"]"#)).unwrap().plan().unwrap_err();
        assert!(error.to_string().starts_with("`steps[1]`: "), "{error}");
    }
    assert!(file(r#"["+0",7]"#).unwrap_err().to_string().contains("steps[1]"));
    assert!(file("null").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_are_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = Graph::from_json(&text);
        let _ = PlanFile::from_json(&text);
    }

    /// Valid JSON with a few bytes replaced: most stay JSON, many stay graphs.
    #[test]
    fn a_mutated_graph_is_never_a_panic_and_what_is_accepted_survives(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), "[-0-9a-z{}\\[\\]\",:.]{0,3}"), 1..4),
    ) {
        let mut text = GOOD.to_owned();
        for (at, with) in edits {
            let at = at.index(text.len());
            text.replace_range(at..=at, &with);
        }
        if let Ok(graph) = Graph::from_json(&text) {
            prop_assert_eq!(&Graph::from_json(&graph.to_json()).unwrap(), &graph);
            let _ = solve(&StoreAll, &graph, &Request::new(20));
        }
    }

    /// A number of the file replaced by any other: indices out of range, cycles, sizes beyond 63 bits.
    #[test]
    fn a_mutated_number_is_never_a_panic(at in any::<proptest::sample::Index>(), number in any::<i64>(), small in 0..4_i64) {
        let digits: Vec<usize> = (0..GOOD.len()).filter(|&i| GOOD.as_bytes()[i].is_ascii_digit()).collect();
        let at = digits[at.index(digits.len())];
        for number in [number, small] {
            let mut text = GOOD.to_owned();
            text.replace_range(at..=at, &number.to_string());
            if let Ok(graph) = Graph::from_json(&text) {
                let _ = solve(&StoreAll, &graph, &Request::new(u64::MAX));
            }
        }
    }

    #[test]
    fn costs_survive_to_the_last_bit(cost in 0.0..1e12_f64) {
        let text = GOOD.replacen("1.5", &format!("{cost:?}"), 1);
        let graph = Graph::from_json(&text).unwrap();
        prop_assert_eq!(graph.ops()[0].cost.to_bits(), cost.to_bits());
        prop_assert_eq!(Graph::from_json(&graph.to_json()).unwrap().ops()[0].cost.to_bits(), cost.to_bits());
    }
}

#[test]
fn a_cycle_through_an_alternative_names_the_alternative() {
    let message = |alternative: &str, last: &str| {
        let text = format!(
            r#"{{"format": "remat-graph/1", "values": [{{"bytes": 1}}, {{"bytes": 1}}, {{"bytes": 1}}], "ops": [
                {{"cost": 1, "inputs": [], "outputs": [0]}},
                {{"cost": 1, "inputs": [0], "outputs": [1], "alternatives": [{{"cost": 1, "inputs": [{alternative}]}}]}},
                {{"cost": 1, "inputs": [{last}], "outputs": [2]}}]}}"#
        );
        Graph::from_json(&text).unwrap_err().to_string()
    };
    assert!(message("2", "1").starts_with("cycle: `ops[1].alternatives[0].inputs` contains value 2"));
    assert!(message("2", "0").starts_with("`ops[1].alternatives[0].inputs` contains value 2, which op 2"));
}
