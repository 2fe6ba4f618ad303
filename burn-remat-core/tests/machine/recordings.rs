//! A recording played without the program: the machine decides and traces the same.

use std::sync::Arc;

use crate::common::random::run;
use crate::common::{Program, Works};
use burn_remat_core::{
    Asked, Asking, Config, Limits, Made, Misfit, OperationCall, Planning, Recording, TensorFacts, Trace, play,
};

/// Keeps the traces of steps.
#[derive(Default)]
struct Steps(Vec<Trace>);

impl Planning for Steps {
    fn is_on(&self) -> bool {
        true
    }

    fn is_settled(&self) -> bool {
        false
    }

    fn observe(&mut self, trace: Trace, _structure: u64, _limits: Limits) -> bool {
        self.0.push(trace);
        false
    }
}

fn recorded(asked: Vec<Asking>) -> Arc<Recording> {
    Arc::new(Recording::of(asked).unwrap_or_else(|(at, misfit)| panic!("call {at}: {misfit}")))
}

#[test]
fn a_random_program_is_played_back_to_the_same_decisions_bytes_and_steps() {
    let mut any = 0;
    for seed in 0..300_u64 {
        let budget = Asked::Bytes(600 + 200 * (seed % 8));
        let config = Config { budget, recompute_limit: f64::INFINITY, ..Config::default() };
        let mut program = Program::new(config);
        program.machine.world_mut().traces = true;
        let program = run(program, seed, 200, None);
        let recording = recorded(program.asked.clone());
        let played = play(&recording, config, Steps::default(), |_| {});
        let (was, is) = (program.machine.counters(), played.counters());
        assert_eq!((is.peak.bytes, is.evictions, is.recomputed), (was.peak.bytes, was.evictions, was.recomputed));
        assert_eq!(played.holdings(), program.machine.holdings(), "seed {seed}");
        assert_eq!(played.world().bytes(), program.machine.world().bytes(), "seed {seed}");
        let Steps(traces) = &played.world().planning;
        assert_eq!(traces.iter().map(Trace::signature).collect::<Vec<_>>(), program.machine.world().signatures);
        assert_eq!(traces.last(), program.machine.world().trace.as_ref(), "seed {seed}");
        any += is.recomputed;
    }
    assert!(any > 1000, "only {any} operations were recomputed");
}

#[test]
fn under_another_budget_it_decides_otherwise_and_traces_the_same() {
    let mut program = Program::new(Config::default());
    let parameter = program.upload(1, 256);
    for _ in 0..4 {
        program.mark(1);
        let mut saved = vec![parameter];
        for kind in 0..8 {
            saved.extend(program.run(1, 100 + kind, Works::New, &[saved[saved.len() - 1]], &[], &[256]));
        }
        let mut gradient = program.run(1, 200, Works::New, &[saved[8]], &[], &[256])[0];
        for (kind, id) in saved.drain(1..).rev().enumerate() {
            gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[256])[0];
        }
        program.drop_tensor(1, gradient);
    }
    program.mark(1);
    let recording = recorded(program.asked);
    let within = |budget| play(&recording, Config { budget, ..Config::default() }, Steps::default(), |_| {});
    let (ample, tight) = (within(Asked::Bytes(10_000)), within(Asked::Bytes(1600)));
    assert_eq!((ample.counters().recomputed, ample.counters().peak.bytes), (0, 11 * 256));
    assert!(tight.counters().recomputed > 0 && tight.counters().peak.bytes <= 1600, "{:?}", tight.counters());
    let last = |machine: &burn_remat_core::Machine<burn_remat_core::Player<Steps>>| {
        machine.world().planning.0.last().cloned().expect("steps were traced")
    };
    assert_eq!(last(&ample), last(&tight));
}

#[test]
fn what_does_not_fit_is_refused_with_its_call_and_field() {
    let tensor = |id| TensorFacts { id, shape: 1, bytes: 64, buffer_bytes: 64 };
    let upload = |id| Asking::Upload { thread: 1, tensor: tensor(id), made: Made::New(64) };
    let copies = |made: Vec<Made>, input: u64, output: u64| {
        let inputs = vec![burn_remat_core::Input { id: input, last: false, once: true }];
        Asking::Operation(OperationCall { inputs, outputs: vec![tensor(output)], made, ..OperationCall::default() })
    };
    let refused = |asked: Vec<Asking>| Recording::of(asked).unwrap_err();
    let field = |asked: Vec<Asking>| refused(asked).1.field;
    assert!(Recording::of([upload(1), copies(vec![Made::View(0)], 1, 2)]).is_ok());
    assert_eq!(field(vec![upload(1), copies(vec![Made::View(0)], 7, 2)]), "operation.inputs");
    assert_eq!(field(vec![upload(1), copies(vec![Made::View(1)], 1, 2)]), "operation.made");
    assert_eq!(field(vec![upload(1), copies(vec![], 1, 2)]), "operation.made");
    assert_eq!(field(vec![upload(1), copies(vec![Made::New(64)], 1, 1)]), "operation.outputs");
    assert_eq!(field(vec![upload(1), upload(1)]), "upload.tensor.id");
    let dropped = Asking::Drop { thread: 1, tensor: 1 };
    let reason = "is not an existing tensor";
    assert_eq!(refused(vec![upload(1), dropped.clone(), dropped]), (2, Misfit { field: "drop.tensor", reason }));
}
