//! What a program asked for is written to a file and replayed without the program, with the same plan, bit for bit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{
    PlanReport, RecordedProgram, RecordingError, RematConfig, RematError, RematExt, RematReport, ReplayReport,
};
use burn_remat_examples::device::under_test;
use burn_remat_examples::tasks::Workload;
use burn_remat_examples::training::{Job, ModelKind};

/// A planner that does not depend on the clock.
const PLANNER: &str = "ap-sqrt";
const STEPS: usize = 7;

/// A file that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("burn-remat-{}-{}.jsonl", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Trains on `device`, which has its plan for the last steps.
fn train(model: ModelKind, device: &Device) -> Vec<u32> {
    let run = Job::standard(model, 4, STEPS, 1).unwrap().run(device, |_, _| waits(device));
    run.unwrap().losses.iter().map(|loss| loss.to_bits()).collect()
}

/// On a remat device, waits until there is a plan.
fn waits(device: &Device) {
    if device.remat_report().is_ok() {
        device.remat_wait_for_plan(Duration::from_secs(60)).unwrap();
    }
}

/// Everything that a plan does, in words and to the last bit.
fn in_words(plan: &PlanReport) -> String {
    let numbers = [plan.store_all_ns, plan.predicted_overhead].map(f64::to_bits);
    format!("{numbers:?} {} {:?}\n{}", plan.predicted_peak_bytes, plan.recomputed, plan.explain())
}

/// Runs `train` on a recorded device and replays the recording: the plan must be the same, to the last bit.
fn plays_back(name: &str, train: impl FnOnce(&Device)) -> (RematReport, RecordedProgram, ReplayReport) {
    let file = Scratch::new();
    let device = under_test().remat(RematConfig::new("80%").with_planner(PLANNER).without_cache()).unwrap();
    let recording = device.remat_record(&file.0).unwrap();
    train(&device);
    recording.finish().unwrap();
    let report = device.remat_report().unwrap();

    let recorded = RecordedProgram::read(&file.0).unwrap();
    println!("{name}: {} calls, {} bytes", recorded.calls(), file.text().len());
    assert_eq!(recorded.device(), report.device);
    let replayed = recorded.replay(recorded.config().with_planner(PLANNER)).unwrap();
    let graphs = [&report.plan, &replayed.plan].map(|plan| plan.as_ref().map(|plan| plan.graph().to_json()));
    assert_eq!(recorded.graph().map(|graph| graph.to_json()), graphs[0], "{name}");
    assert_eq!(graphs[0], graphs[1], "{name}");
    assert_eq!((replayed.operations, replayed.steps), (report.operations, report.steps), "{name}");
    assert_eq!((&replayed.failure, replayed.steps_over_budget), (&report.failure, report.steps_over_budget), "{name}");
    assert_eq!(replayed.plan.as_ref().map(in_words), report.plan.as_ref().map(in_words), "{name}");
    (report, recorded, replayed)
}

#[test]
fn a_recording_plays_back_to_the_same_plan_bit_for_bit() {
    for model in [ModelKind::Cnn, ModelKind::Unet] {
        let mut losses = Vec::new();
        let (report, recorded, replayed) = plays_back(model.name(), |device| losses = train(model, device));
        assert_eq!(losses, train(model, &under_test()), "recording must not change results");
        let plan = report.plan.as_ref().unwrap_or_else(|| panic!("no plan: {report}"));

        let again = replayed.plan.as_ref().unwrap_or_else(|| panic!("no plan: {replayed:?}"));
        assert_eq!(again.steps_followed, plan.steps_followed, "{model:?}");
        assert_eq!(again.measured_peak_bytes(), plan.measured_peak_bytes(), "{model:?}");

        // The same program with an ample budget, without running it.
        let ample = RematConfig::new(2 * plan.store_all_peak_bytes).with_planner(PLANNER).without_cache();
        let ample = recorded.replay(ample).unwrap();
        assert_eq!((ample.recomputed_operations, ample.steps_over_budget), (0, 0), "{model:?}");
        assert!(report.recomputed_operations > 0 && ample.peak_bytes > replayed.peak_bytes, "{model:?}");
    }
}

/// All examples and models: some take long to plan.
#[test]
#[ignore = "minutes"]
fn recordings_of_all_examples_play_back_to_the_same_plan() {
    let fails = |workload: &Workload| {
        let train = |device: &Device| workload.train(device, 4, STEPS, |_| waits(device)).unwrap();
        let replayed = catch_unwind(AssertUnwindSafe(|| plays_back(workload.name, train)));
        replayed.map(|(report, ..)| println!("{}: the same plan: {}", workload.name, report.plan.is_some())).is_err()
    };
    let differ: Vec<&str> = Workload::ALL.iter().filter(|workload| fails(workload)).map(|known| known.name).collect();
    assert!(differ.is_empty(), "replayed differently: {differ:?}");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_says_why() {
    let file = Scratch::new();
    assert!(matches!(under_test().remat_record(&file.0), Err(RematError::NotRemat { .. })));
    let device = under_test().remat("64 MiB").unwrap();
    let refused = |path: &std::path::Path| device.remat_record(path).unwrap_err().to_string();
    assert!(refused(std::path::Path::new("/nowhere/at/all.jsonl")).contains("/nowhere/at/all.jsonl"));
    let recording = device.remat_record(&file.0).unwrap();
    assert!(refused(&file.0).contains("recorded already"));
    drop(recording);
    let x = burn::tensor::Tensor::<1>::ones([8], &device);
    assert!(refused(&file.0).contains("has been used"));
    drop(x);
    // It ended before anything was requested.
    assert_eq!(RecordedProgram::read(&file.0).unwrap().calls(), 0);
}

#[test]
fn a_file_that_is_wrong_is_told_by_line_and_field() {
    let file = Scratch::new();
    let device = under_test().remat("64 MiB").unwrap();
    let recording = device.remat_record(&file.0).unwrap();
    let _stage = device.remat_stage("stage \"one\"");
    let x = burn::tensor::Tensor::<2>::ones([8, 8], &device);
    assert_eq!(x.clone().matmul(x).sum().into_scalar::<f32>(), 512.0);
    recording.finish().unwrap();
    let text = file.text();
    assert!(RecordedProgram::parse(&text).is_ok() && text.lines().all(|line| line.starts_with('{')), "{text}");

    let wrong = |from: &str, to: &str| match RecordedProgram::parse(&text.replacen(from, to, 1)) {
        Err(RecordingError::Line { line, field, reason }) => (line, field, reason),
        other => panic!("{from} -> {to}: {other:?}"),
    };
    let (line, field, reason) = wrong("remat-recording/1", "remat-recording/9");
    assert_eq!((line, &*field), (1, "format"));
    assert!(reason.contains("remat-recording/9"), "{reason}");
    assert_eq!(&wrong("\"budget\":\"67108864\"", "\"budget\":\"much\"").1, "budget");
    // The first operation is in the line after the stage's.
    let (line, field, reason) = wrong("\"ns\":", "\"ns\":\"soon\",\"later\":");
    assert_eq!((line, &*field), (3, "operation.ns"), "{reason}");
    let (line, field, _) = wrong("\"outputs\":[", "\"inputs\":[{\"id\":7,\"last\":false,\"once\":true}],\"outputs\":[");
    assert_eq!((line, &*field), (3, "operation.inputs"));
    assert_eq!(wrong("{\"operation\"", "{\"oration\"").0, 3);
    assert_eq!(wrong("\"shape\":", "\"form\":").1, "operation.outputs[0].form");
    let whole = text.lines().count();
    let Err(RecordingError::Line { line, .. }) = RecordedProgram::parse(text.trim_end().trim_end_matches('}')) else {
        panic!("a truncated line was read");
    };
    assert_eq!(line, whole);
    assert!(matches!(RecordedProgram::parse(""), Err(RecordingError::Line { line: 1, .. })));
    assert!(matches!(RecordedProgram::read("/nowhere/at/all.jsonl"), Err(RecordingError::File(_))));
}
