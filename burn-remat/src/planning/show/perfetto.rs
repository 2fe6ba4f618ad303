//! A planned step in the Trace Event Format, which Perfetto and `chrome://tracing` open.
//!
//! There is one process with two threads and two counters. The first thread has a slice for each operation that the program asked for, as long as its
//! measured time, and slices for what runs again before it. The second has the passages through stages, nested. The counters are the bytes held during
//! each operation (as measured in the last step that followed the plan, otherwise as predicted) and the budget.
//!
//! Time begins with the step. It adds up the times that were measured operation by operation, so the gaps between operations are missing. Complexity:
//! O(operations + steps of the plan).
//!
//! The format: "Trace Event Format", Google, <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use std::ops::Range;

use burn_remat_core::Position;
use burn_remat_plan::{Phase, Step};
use serde_json::{Value as Json, json};

use crate::planning::report::PlanReport;
use crate::planning::schedule::Schedule;
use crate::planning::stages::Staged;
use crate::planning::times::{firsts, times};

/// Numbers of the process and its threads. They only group the events.
const PROCESS: u32 = 1;
const OPERATIONS: u32 = 1;
const STAGES: u32 = 2;

/// The trace as JSON.
pub fn trace(report: &PlanReport) -> Json {
    let schedule = &report.schedule;
    let mut timeline = Timeline::new(schedule);
    timeline.run();
    let Timeline { mut events, spans, now, .. } = timeline;
    let end = us(now);
    let held = if report.measured.len() == spans.len() { &report.measured[..] } else { &schedule.foreseen.during };
    for (span, bytes) in spans.iter().zip(held) {
        events.push(counter("held", us(span.start), *bytes));
    }
    if let Some(budget) = report.budget {
        events.extend([0.0, end].map(|ts| counter("budget", ts, budget)));
    }
    events.extend(stages(schedule, &spans));
    let names = [("process_name", 0, "one training step"), ("thread_name", OPERATIONS, "operations")];
    let stages = ("thread_name", STAGES, "stages");
    events.extend(names.into_iter().chain([stages]).map(|(what, thread, name)| {
        json!({ "name": what, "ph": "M", "pid": PROCESS, "tid": thread, "ts": 0, "args": { "name": name } })
    }));
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

fn counter(name: &str, ts: f64, bytes: u64) -> Json {
    json!({ "name": name, "ph": "C", "pid": PROCESS, "ts": ts, "args": { "bytes": bytes } })
}

/// A time in ns in the unit of the format, us, rounded to a fraction in which sums of floating-point numbers are exact. Readers add a slice's start and
/// duration, and the sum must be the start of the next slice.
fn us(ns: f64) -> f64 {
    const PARTS: f64 = 1024.0;
    (ns / 1000.0 * PARTS).round() / PARTS
}

/// Places the steps of a plan on a timeline, in ns.
struct Timeline<'a> {
    schedule: &'a Schedule,
    events: Vec<Json>,
    /// When each operation of the step runs first.
    spans: Vec<Range<f64>>,
    now: f64,
}

impl<'a> Timeline<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        Self { schedule, events: Vec::new(), spans: Vec::with_capacity(schedule.trace.ops.len()), now: 0.0 }
    }

    fn run(&mut self) {
        let schedule = self.schedule;
        let (lowered, plan) = (&schedule.lowered, &schedule.plan);
        let (firsts, times) = (firsts(lowered, plan), times(schedule, plan));
        for ((&step, is_first), ns) in plan.steps.iter().zip(firsts).zip(times) {
            let Some(op) = step.op() else { continue };
            if is_first && !lowered.again[op] {
                self.first_run(op, ns);
            } else {
                self.again(step, op, ns);
            }
        }
        // Operations that are part of no op take no time.
        let now = self.now;
        self.spans.resize(schedule.trace.ops.len(), now..now);
    }

    /// The operations of an op, which take `ns` together.
    fn first_run(&mut self, op: usize, ns: f64) {
        let lowered = &self.schedule.lowered;
        let trace = &self.schedule.trace;
        let range = lowered.ranges[op].clone();
        let own: f64 = trace.ops[range.start as usize..range.end as usize].iter().map(|op| op.cost_ns as f64).sum();
        let scale = if own > 0.0 { ns / own } else { 0.0 };
        let phase = match lowered.graph.ops()[op].phase {
            Some(Phase::Forward) => "forward",
            Some(Phase::Backward) => "backward",
            Some(Phase::Update) => "update",
            None => "operation",
        };
        for position in range {
            let ns = trace.ops[position as usize].cost_ns as f64 * scale;
            let args = json!({
                "operation": position,
                "stage": trace.stage_name(trace.ops[position as usize].visit),
                "bytes made": self.made(position),
            });
            self.spans.push(self.now..self.now + ns);
            self.slice(trace.name(position), phase, ns, args);
        }
    }

    /// An op that runs again, or restores a value from another form.
    fn again(&mut self, step: Step, op: usize, ns: f64) {
        let graph = &self.schedule.lowered.graph;
        let about = &graph.ops()[op];
        let name = match step {
            Step::ComputeAlternative(_, k) => &about.alternatives[k].name,
            _ => &about.name,
        };
        let bytes: u64 = about.outputs.iter().map(|&value| graph.bytes(value)).sum();
        let args = json!({ "stage": about.stage, "bytes made": bytes });
        let at = self.events.len();
        self.slice(&format!("again: {name}"), "recomputed", ns, args);
        // A colour of its own in chrome://tracing; Perfetto colours by name.
        self.events[at]["cname"] = json!("terrible");
    }

    fn slice(&mut self, name: &str, category: &str, ns: f64, args: Json) {
        self.events.push(json!({
            "name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": OPERATIONS,
            "ts": us(self.now), "dur": us(self.now + ns) - us(self.now), "args": args,
        }));
        self.now += ns;
    }

    /// Bytes of new buffers that an operation makes.
    fn made(&self, position: Position) -> u64 {
        let trace = &self.schedule.trace;
        let places = trace.ops[position as usize].writes.iter().map(|&place| &trace.storages[place as usize]);
        places.filter(|storage| storage.made_by == Some(position)).map(|storage| storage.bytes).sum()
    }
}

/// A stage that is open.
struct Open {
    name: String,
    since: f64,
}

/// Slices for the passages through stages, nested as the stages are.
fn stages(schedule: &Schedule, spans: &[Range<f64>]) -> Vec<Json> {
    let trace = &schedule.trace;
    let mut events = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let (mut before, mut until) = (0, 0.0);
    let mut close = |open: &mut Vec<Open>, depth: usize, until: f64| {
        for Open { name, since } in open.drain(depth..).rev() {
            events.push(json!({
                "name": name, "cat": "stage", "ph": "X", "pid": PROCESS, "tid": STAGES,
                "ts": us(since), "dur": us(until) - us(since),
            }));
        }
    };
    for (op, span) in trace.ops.iter().zip(spans) {
        if op.visit != before {
            let path = trace.path(op.visit).map_or("", |path| path);
            let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
            let mut common = open.iter().zip(&names).take_while(|(open, name)| open.name == **name).count();
            // Another passage through the same stage.
            if common == names.len() && common == open.len() {
                common = common.saturating_sub(1);
            }
            close(&mut open, common, until);
            open.extend(names[common..].iter().map(|&name| Open { name: name.to_owned(), since: span.start }));
            before = op.visit;
        }
        until = span.end;
    }
    close(&mut open, 0, until);
    events
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::planning::chosen::ChosenPlanner;
    use crate::planning::examples::chain;
    use crate::planning::fit::Fit;
    use crate::planning::lowering::lower;

    /// A plan of the chain at its smallest budget, all of it in stages.
    fn schedule() -> Arc<Schedule> {
        let mut trace = chain();
        trace.visits = ["model", "model/block", "model/block", "model"].map(Into::into).to_vec();
        for (at, op) in trace.ops.iter_mut().enumerate() {
            op.visit = [1, 2, 2, 3, 3, 1, 4, 4][at / 2];
        }
        let trace = Arc::new(trace.with_alternatives(|_| false));
        let lowered = lower(&trace, "test").unwrap();
        let fit = Fit::new(trace, lowered, Some(1), 0).unwrap();
        fit.best(&ChosenPlanner::auto(), fit.floor().0, Duration::from_millis(500)).unwrap().0
    }

    #[test]
    fn every_operation_has_a_slice_one_after_the_other_and_what_runs_again_has_its_own() {
        let schedule = schedule();
        let mut timeline = Timeline::new(&schedule);
        timeline.run();
        let number = |event: &Json, key: &str| event[key].as_f64().unwrap();
        let mut now = 0.0;
        for event in &timeline.events {
            assert_eq!(number(event, "ts"), now, "{event}");
            now = number(event, "ts") + number(event, "dur");
        }
        assert!((now * 1000.0 - schedule.makespan).abs() < 0.5, "{now} us");
        let of = |again: bool| timeline.events.iter().filter(move |event| (event["cat"] == "recomputed") == again);
        let runs = schedule.plan.steps.iter().filter(|step| step.op().is_some()).count();
        assert_eq!(of(true).count(), runs - schedule.lowered.graph.ops().len());
        assert!(of(true).count() > 0 && of(true).all(|event| event["cname"] == "terrible"));
        let operations: Vec<u64> = of(false).map(|event| event["args"]["operation"].as_u64().unwrap()).collect();
        assert_eq!(operations, (0..schedule.trace.ops.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn stages_are_nested_and_passages_told_apart() {
        let schedule = schedule();
        let spans: Vec<Range<f64>> = (0..schedule.trace.ops.len()).map(|at| at as f64..at as f64 + 1.0).collect();
        let found: Vec<(String, f64, f64)> = stages(&schedule, &spans)
            .iter()
            .map(|event| {
                let time = |key: &str| event[key].as_f64().unwrap() * 1000.0;
                (event["name"].as_str().unwrap().to_owned(), time("ts").round(), time("dur").round())
            })
            .collect();
        let expected = [("block", 2.0, 4.0), ("block", 6.0, 4.0), ("model", 0.0, 12.0), ("model", 12.0, 4.0)];
        assert_eq!(found, expected.map(|(name, ts, dur)| (name.to_owned(), ts, dur)));
    }
}
