//! What fails loses nothing else, keeps nothing, and is told.

use crate::common::{Asked, Program, Works};
use burn_remat_core::Config;

/// An operation that reads a tensor that is not here, and another, which it releases.
fn asks_for_the_unknown(program: &mut Program, output: u64) {
    let x = program.upload(1, 40);
    let (inputs, outputs) = (vec![x, 999], vec![(output, 8)]);
    let asked = Asked { kind: 1, works: Works::New, inputs, weak: None, last: vec![x], outputs };
    program.machine.operation(1, &asked.operation());
}

#[test]
fn an_operation_on_a_tensor_that_is_not_here_keeps_none_of_the_others() {
    let mut program = Program::new(Config::default());
    asks_for_the_unknown(&mut program, 500);
    program.machine.dropped(1, 500);
    let holdings = program.machine.holdings();
    assert_eq!((holdings.bytes, holdings.tensors, program.machine.world().bytes()), (0, 0, 0));
}

#[test]
fn a_failure_that_comes_again_is_told_again() {
    let mut program = Program::new(Config::default());
    for output in [500, 501] {
        asks_for_the_unknown(&mut program, output);
        let told = program.machine.take_failure(1).expect("it has just failed");
        assert!(told.contains("999"), "{told}");
        assert_eq!(program.machine.take_failure(1), None);
    }
}

#[test]
fn threads_that_never_ask_do_not_keep_others_from_learning() {
    let mut program = Program::new(Config::default());
    for thread in 1..1000 {
        let asked =
            Asked { kind: thread, works: Works::New, inputs: vec![999], weak: None, last: vec![], outputs: vec![] };
        program.machine.operation(thread, &asked.operation());
    }
    assert!(program.machine.take_failure(999).is_some());
}

#[test]
fn a_recomputation_that_fails_loses_only_what_was_evicted() {
    let mut program = Program::new(Config { budget: burn_remat_core::Asked::Bytes(250), ..Config::default() });
    let x = program.upload(1, 10);
    let both = program.run(1, 1, Works::New, &[x], &[], &[20, 150]);
    let other = program.run(1, 2, Works::New, &[x], &[], &[160])[0];
    program.drop_tensor(1, other);
    let is_there = |program: &Program, id| program.machine.world().content(id).is_some();
    assert!(is_there(&program, both[0]) && !is_there(&program, both[1]), "the large result was evicted");
    let world = program.machine.world_mut();
    world.fails_at = Some(world.commands + 1);
    let read = program.machine.read(1, both[1], false, |machine| Ok(machine.world().content(both[1])));
    assert_eq!(read.unwrap_err().to_string(), "planted");
    // The same run makes this one, which was there before.
    let read = program.machine.read(1, both[0], false, |machine| Ok(machine.world().content(both[0])));
    assert_eq!(read.unwrap(), Some(program.expected[&both[0]]));
    program.check();
}
