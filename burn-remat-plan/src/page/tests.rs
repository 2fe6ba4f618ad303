use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::model::{Bins, Data, Kind};
use super::{Page, Run, render, spans};
use crate::decisions::{Decision, activations, decisions};
use crate::generate::{Implementations, Options, Pass, by_name};
use crate::graph::{Alternative, Graph, GraphBuilder, Op, Phase};
use crate::minimum::minimum;
use crate::plan::{Plan, Step};
use crate::planner::Request;
use crate::planners::StoreAll;
use crate::registry::planner;
use crate::sequence::plan_from_order;
use crate::simulate::simulate;
use crate::solve::solve;

/// Graphs of several shapes, small and large, with and without phases, stages and alternatives.
fn graphs() -> Vec<Graph> {
    let options = |depth, seed| Options { depth, seed, pass: Pass::TrainingWithUpdate, ..Options::default() };
    let several = Options { implementations: Implementations::Several, ..options(6, 0) };
    let mut graphs: Vec<Graph> = (0..6).map(|seed| by_name("random", &options(12, seed)).unwrap()).collect();
    graphs.extend(
        [("unet", options(4, 0)), ("gpt", options(3, 0)), ("lstm", options(20, 0)), ("residual", several)]
            .map(|(name, options)| by_name(name, &options).unwrap()),
    );
    graphs.push(by_name("mobilenet", &Options { pass: Pass::Forward, ..Options::default() }).unwrap());
    graphs
}

/// A plan of `graph` by the online policy, for a budget `share` of the way from the minimum to the store-all peak.
fn online(graph: &Graph, share: f64) -> (u64, Run) {
    let (least, most) = (minimum(graph).achieved, StoreAll::peak(graph));
    let budget = least + ((most - least) as f64 * share) as u64;
    let found = solve(&*planner("online").unwrap(), graph, &Request::new(budget));
    let plan = found.ok().and_then(|found| found.outcome.plan).unwrap_or_else(|| minimum(graph).plan);
    (budget, Run::new(graph, "online", plan))
}

/// What each layer holds in a bin.
fn layers_at(bins: &Bins, bin: usize) -> Vec<u64> {
    let last = |changes: &Vec<(usize, u64)>| {
        changes.iter().rev().find(|&&(from, _)| from <= bin).map_or(0, |&(_, bytes)| bytes)
    };
    bins.layers.iter().map(last).collect()
}

#[test]
fn bands_sum_to_the_simulated_memory_and_no_bin_hides_a_higher_step() {
    for graph in graphs() {
        let runs =
            [Run::new(&graph, "store-all", StoreAll::plan(&graph)), online(&graph, 0.2).1, online(&graph, 0.6).1];
        for run in runs {
            let data = Page::new(&graph).plan(run.clone(), None).data();
            let view = &data.views[data.given.unwrap().view];
            let timeline = simulate(&graph, &run.plan);
            let computed = run.plan.steps.iter().zip(&timeline.bytes).filter(|(step, _)| step.op().is_some());
            let mut computed = computed.map(|(_, &bytes)| bytes);
            for (bin, &count) in view.bins.count.iter().enumerate() {
                let start = (bin == 0).then_some(run.start);
                let highest = computed.by_ref().take(count as usize).chain(start).max().unwrap();
                assert_eq!(view.bins.held[bin], highest, "{} bin {bin}", graph.name());
                assert_eq!(layers_at(&view.bins, bin).iter().sum::<u64>(), highest, "{} bin {bin}", graph.name());
            }
            assert_eq!(computed.next(), None, "every computation is in a bin");
            assert_eq!(view.bins.held.iter().max(), Some(&timeline.peak_bytes));
            assert_eq!((view.peak, view.makespan), (timeline.peak_bytes, timeline.makespan));
        }
    }
}

#[test]
fn a_value_that_is_held_has_its_band_and_only_while_it_is_held() {
    let graph = by_name("linear", &Options::default()).unwrap();
    let run = Run::new(&graph, "store-all", StoreAll::plan(&graph));
    let data = Page::new(&graph).data();
    let layer = data.layers.iter().position(|layer| layer.row.is_some()).unwrap();
    let row = &data.rows[data.layers[layer].row.unwrap()];
    let value = graph.values().iter().position(|value| value.name == data.texts[row.name]).unwrap();
    let made = run.plan.steps.iter().position(|step| step.op() == graph.producer(value)).unwrap();
    let gone = run.plan.steps.iter().position(|&step| step == Step::Evict(value)).unwrap();
    let starts = spans::starts(&run);
    let bins = &data.views[0].bins;
    for (bin, &start) in bins.starts.iter().enumerate() {
        let is_held = (starts[made]..starts[gone]).contains(&start);
        assert_eq!(layers_at(bins, bin)[layer], if is_held { row.bytes } else { 0 }, "bin {bin}");
    }
}

#[test]
fn a_long_plan_is_cut_into_few_bins_and_a_short_one_keeps_its_steps() {
    let graph = by_name("lstm", &Options { depth: 100, ..Options::default() }).unwrap();
    let data = Page::new(&graph).data();
    let count = data.views[0].bins.starts.len();
    assert!(graph.ops().len() > 4000 && (200..=801).contains(&count), "{count} bins");
    let graph = by_name("vgg16", &Options::default()).unwrap();
    let bins = Page::new(&graph).data().views.remove(0).bins;
    let alone = bins.count.iter().filter(|&&count| count == 1).count();
    assert!(alone * 2 > graph.ops().len(), "{alone} of {} ops have a bin of their own", graph.ops().len());
}

#[test]
fn a_page_of_five_thousand_ops_is_under_two_megabytes() {
    let options = Options { depth: 50, pass: Pass::TrainingWithUpdate, ..Options::default() };
    let generated = by_name("gpt-elementary", &options).unwrap();
    assert!(generated.ops().len() > 5000);
    // With very long names.
    let long = |name: &str| format!("{}/{name}", "a/very/long/path/".repeat(8));
    let mut builder = GraphBuilder::new(long("graph"));
    generated.values().iter().for_each(|value| _ = builder.value(value.bytes, long(&value.name)));
    for op in generated.ops() {
        builder.op(Op { name: long(&op.name), stage: op.stage.as_deref().map(long), ..op.clone() });
    }
    builder.results(generated.results().to_vec());
    let graph = builder.build().unwrap();
    let mut page = Page::new(&graph);
    // Twelve plans, each cheaper than the one before, so that all are shown.
    let most = StoreAll::peak(&graph);
    for share in 0..12_u32 {
        let plan = recomputing(&graph, 12 - share);
        let peak = simulate(&graph, &plan).peak_bytes;
        page = page.budget(peak.max(most / 24 * u64::from(12 + share)), Run::new(&graph, "test", plan));
    }
    let (data, html) = (page.data(), page.html());
    assert!(data.views.len() >= 8, "{} views", data.views.len());
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
}

/// A plan that computes `rank` in 13 ops of the forward pass again, right before the backward pass reads them.
fn recomputing(graph: &Graph, rank: u32) -> Plan {
    let mut order = Vec::new();
    for (id, op) in graph.ops().iter().enumerate() {
        let again = |&value: &usize| {
            let maker = graph.producer(value)?;
            let may = graph.ops()[maker].recomputable && graph.ops()[maker].phase == Some(Phase::Forward);
            (may && op.phase == Some(Phase::Backward) && maker % 13 < rank as usize).then_some(maker)
        };
        let makers: BTreeSet<usize> = op.inputs.iter().filter_map(again).collect();
        for maker in makers {
            // Its own inputs are still resident, because they are kept until their last use.
            order.push(maker);
        }
        order.push(id);
    }
    plan_from_order(graph, &order)
}

#[test]
fn names_of_any_kind_stay_text() {
    let evil =
        ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u{2028}\"'\\", "{{script}}", "</title>&amp;"];
    let mut builder = GraphBuilder::new(evil.concat());
    let mut last = None;
    for name in evil {
        let value = builder.value(8, name);
        let mut op = Op::new(name, 1.0, last.into_iter().collect(), vec![value]);
        op.stage = Some(name.to_owned());
        builder.op(op);
        last = Some(value);
    }
    let graph = builder.build().unwrap();
    let page = Page::new(&graph).html();
    let plain = Page::new(&by_name("linear", &Options::default()).unwrap()).html();
    for mark in ["<script", "</script", "<!--", "</title", "alert(1)</"] {
        assert_eq!(page.matches(mark).count(), plain.matches(mark).count(), "{mark}");
    }
    let json = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Json = serde_json::from_str(json).unwrap();
    assert_eq!(data["name"], evil.concat());
    let texts: Vec<&str> = data["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(evil.iter().all(|name| texts.contains(name)), "{texts:?}");
}

#[test]
fn a_page_asks_the_network_for_nothing() {
    let page = Page::new(&by_name("unet", &Options::default()).unwrap()).html();
    let without_namespaces = page.replace("\"http://www.w3.org/2000/svg\"", "");
    for way in
        ["http:", "https:", "//www", "@import", "url(", "fetch(", "XMLHttpRequest", "import(", "WebSocket", " src="]
    {
        assert!(!without_namespaces.contains(way), "{way}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn a_larger_budget_never_shows_a_dearer_plan() {
    let graph = by_name("residual", &Options::default()).unwrap();
    let least = minimum(&graph);
    let peak = StoreAll::peak(&graph);
    let (budget, cheap) = online(&graph, 0.5);
    // The plan given for the larger budget is the most expensive of all.
    let page = Page::new(&graph)
        .budget(budget, cheap.clone())
        .budget(budget + (peak - budget) / 2, Run::new(&graph, "minimum", least.plan.clone()))
        .budget(least.achieved, Run::new(&graph, "minimum", least.plan.clone()))
        .budget(least.achieved - 1, Run::new(&graph, "minimum", least.plan));
    let data = page.data();
    let budgets: Vec<u64> = data.stops.iter().map(|stop| stop.budget).collect();
    assert_eq!(budgets, [least.achieved, budget, budget + (peak - budget) / 2, peak]);
    for stop in &data.stops {
        assert!(data.views[stop.view].peak <= stop.budget);
    }
    for pair in data.stops.windows(2) {
        assert!(data.views[pair[1].view].makespan <= data.views[pair[0].view].makespan);
    }
    assert_eq!(data.views[data.stops[2].view].makespan, cheap.makespan());
}

#[test]
fn the_given_plan_is_shown_even_where_a_cheaper_one_is_known() {
    let graph = by_name("residual", &Options::default()).unwrap();
    let least = minimum(&graph);
    let peak = StoreAll::peak(&graph);
    let dear = Run::new(&graph, "given", least.plan);
    let given_budget = peak - 1;
    let (budget, cheap) = online(&graph, 0.5);
    let data = Page::new(&graph).plan(dear.clone(), Some(given_budget)).budget(budget, cheap).data();
    let given = data.given.as_ref().unwrap();
    assert_eq!((data.views[given.view].planner.as_str(), given.budget), ("given", Some(given_budget)));
    let stop = data.stops.iter().find(|stop| stop.budget == given_budget).unwrap();
    assert!(data.views[stop.view].makespan < dear.makespan());
    assert_eq!(data.views[0].planner, "store-all");
    // A plan that exceeds its budget is shown with that budget, and on the slider with its own peak.
    let data = Page::new(&graph).plan(dear.clone(), Some(dear.peak_bytes() - 1)).data();
    assert_eq!(data.given.unwrap().budget, Some(dear.peak_bytes() - 1));
    assert_eq!(data.stops[0].budget, dear.peak_bytes());
}

/// x -> a -> b -> c, then d reads c and a, e reads d and b, and may read the signs of b instead.
fn small() -> Graph {
    let mut builder = GraphBuilder::new("small");
    let value = |builder: &mut GraphBuilder, name: &str| builder.value(8, name);
    let x = value(&mut builder, "x");
    let [packed, a, b, signs, c, d, e] =
        ["a packed", "a", "b", "b signs", "c", "d", "e"].map(|name| value(&mut builder, name));
    let op = |name: &str, cost: f64, inputs: Vec<usize>, outputs: Vec<usize>, phase: Phase| Op {
        phase: Some(phase),
        stage: Some(format!("model/{}", if phase == Phase::Forward { "in" } else { "out" })),
        ..Op::new(name, cost, inputs, outputs)
    };
    builder.op(op("a", 4.0, vec![x], vec![packed], Phase::Forward));
    builder.op(op("a from offload", 1.0, vec![packed], vec![a], Phase::Forward));
    builder.op(op("b", 2.0, vec![a], vec![b], Phase::Forward));
    builder.op(op("b signs", 0.0, vec![b], vec![signs], Phase::Forward));
    builder.op(op("c", 3.0, vec![b], vec![c], Phase::Forward));
    builder.op(op("d", 1.0, vec![a, c], vec![d], Phase::Backward));
    let mut last = op("e", 1.0, vec![b, d], vec![e], Phase::Backward);
    let (name, inputs) = ("e from signs".to_owned(), vec![signs, d]);
    last.alternatives.push(Alternative { name, cost: 1.5, inputs, scratch_bytes: 0 });
    builder.op(last);
    builder.build().unwrap()
}

fn plan(steps: &str) -> Plan {
    Plan { steps: steps.split_whitespace().map(|step| step.parse().unwrap()).collect() }
}

#[test]
fn decisions_say_how_a_value_came_back() {
    let graph = small();
    let value = |name: &str| graph.values().iter().position(|value| value.name == name).unwrap();
    // `a` is restored so that `b` can be recomputed, and a second time for `d`; `b` is recomputed once for `c`, and evicted
    // unread the second time; `e` needs only its signs.
    let steps = plan("+0 +1 +2 +3 -2 +4 -5 -3 +1 +2 +4 -3 -2 +1 +5 +2 -3 +6:0");
    crate::check::check(&graph, &steps, u64::MAX).unwrap();
    let run = Run::new(&graph, "test", steps.clone());
    let found = decisions(&graph, &steps, &run.times);
    let a = found[value("a")];
    assert_eq!((a.restored, a.recomputed, a.time), (2, 0, 2.0));
    let b = found[value("b")];
    assert_eq!((b.recomputed, b.restored, b.spared, b.spared_by), (1, 0, 1, Some((6, 0))));
    assert_eq!(b.time, 2.0);
    assert_eq!((found[value("c")].recomputed, found[value("c")].time), (1, 3.0));
    let d = Decision { idle: 0.0, ..found[value("d")] };
    assert_eq!(d, Decision::default());
    // `b` needs `a` at once, and `d` needs it twelve units later; only `d` needs `c`.
    assert_eq!((a.idle, found[value("c")].idle), (12.0, 7.0));

    let data = Page::new(&graph).plan(run, None).data();
    let view = &data.views[data.given.unwrap().view];
    let decision = |name: &str| {
        let at = data.rows.iter().position(|row| data.texts[row.name] == name).unwrap();
        view.decisions[at]
    };
    assert_eq!(decision("a").form.map(|form| data.texts[form].as_str()), Some("offload"));
    assert_eq!(decision("b").spared_by.map(|by| data.texts[by].as_str()), Some("signs"));
    assert_eq!((view.again, view.again_time), (5, 9.0));
    let row = data.rows.iter().find(|row| data.texts[row.name] == "a").unwrap();
    assert_eq!(data.texts[data.ops[row.op].name], "a", "not the op that unpacks");
}

#[test]
fn what_runs_again_counts_to_the_phase_and_stage_for_which_it_does() {
    let graph = small();
    let run = Run::new(&graph, "test", plan("+0 +1 +2 +3 +4 -2 +1 +5 +6"));
    // 4 + 1 + 2 + 0 + 3 forward, then 1 again, 1 and 1.
    let turn = (10.0 / 13.0 * spans::WHOLE).round() as u32;
    let whole = spans::WHOLE as u32;
    assert_eq!(spans::phases(&graph, &run), [(0, turn, Phase::Forward), (turn, whole, Phase::Backward)]);
    let mut texts = super::texts::Texts::default();
    let stages = spans::stages(&graph, &run, &mut texts);
    let found: Vec<_> = stages.iter().map(|span| (span.depth, span.start, span.end, span.name)).collect();
    let (model, inner, outer) = (texts.index("model"), texts.index("in"), texts.index("out"));
    assert_eq!(found, [(0, 0, whole, model), (1, 0, turn, inner), (1, turn, whole, outer)]);
}

#[test]
fn a_device_that_holds_less_than_the_graph_says_is_shown_as_it_is() {
    let graph = small();
    let run = Run::new(&graph, "test", StoreAll::plan(&graph));
    let (peak, count) = (run.peak_bytes(), run.plan.steps.len());
    let timed = run.clone().on_device(vec![2.0; count], &vec![peak - 3; count]);
    assert_eq!((timed.peak_bytes(), timed.makespan()), (peak - 3, 2.0 * count as f64));
    let roomy = run.clone().on_device(run.times.clone(), &vec![u64::MAX; count]);
    assert_eq!((roomy.peak_bytes(), roomy.held), (peak, run.held));
}

#[test]
fn rows_are_the_largest_that_backward_reads_and_some_others() {
    let graph = by_name("gpt-elementary", &Options { depth: 20, ..Options::default() }).unwrap();
    let data: Data = Page::new(&graph).data();
    assert!(data.rows.is_sorted_by(|a, b| a.bytes >= b.bytes));
    let saved = data.rows.iter().filter(|row| row.is_saved).count();
    let all = activations(&graph).iter().filter(|&&reads| reads).count();
    assert_eq!(saved + data.rows_left_out.0, all);
    assert!(data.rows_left_out.0 > 0 && data.rows.iter().any(|row| row.kind == Kind::Gradient));
    // A forward pass alone has no backward pass that reads anything, so all of its values count.
    let graph = by_name("linear", &Options { pass: Pass::Forward, ..Options::default() }).unwrap();
    assert!(Page::new(&graph).data().rows.iter().all(|row| row.is_saved));
}

#[test]
fn a_graph_without_costs_has_a_time_nevertheless() {
    let mut builder = GraphBuilder::new("");
    let values: Vec<usize> = (0..4).map(|_| builder.value(1, "")).collect();
    builder.op(Op::new("", 0.0, vec![], vec![values[0]]));
    for pair in values.windows(2) {
        builder.op(Op::new("", 0.0, vec![pair[0]], vec![pair[1]]));
    }
    let graph = builder.build().unwrap();
    let data = Page::new(&graph).data();
    assert_eq!(data.views[0].bins.starts, [0, 250_000, 500_000, 750_000]);
    assert!(!render::json(&data).contains("null,null"));
    assert!(data.texts.contains(&"op 2".to_owned()));
}
