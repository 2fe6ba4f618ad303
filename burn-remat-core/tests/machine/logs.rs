//! What the machine commands, in words: the cases that matter, one after the other. Operations are named by their kind: `op3` is of kind 3.

use std::sync::Arc;

use crate::common::{Program, Works, trace_of};
use burn_remat_core::{Action, Asked, Config, Schedule};

const UNIT: u64 = 256;

/// A program with a budget of this many units, which logs what it does.
fn within(units: u64) -> Program {
    let config = Config { budget: Asked::Bytes(units * UNIT), recompute_limit: f64::INFINITY, ..Config::default() };
    let mut program = Program::new(config);
    program.machine.world_mut().logs = true;
    program
}

/// The result of an operation of this kind on `input`, and as large as it.
fn run(program: &mut Program, kind: u64, input: u64) -> u64 {
    program.run(1, kind, Works::New, &[input], &[], &[UNIT])[0]
}

/// What was commanded since the last call.
fn told(program: &mut Program) -> String {
    std::mem::take(&mut program.machine.world_mut().log).join("\n")
}

#[test]
fn what_goes_first_is_cheap_and_long_unused_and_comes_back_with_what_it_rests_on() {
    let mut program = within(5);
    let x = program.upload(1, UNIT);
    let mut chain = vec![x];
    for kind in 1..=6 {
        chain.push(run(&mut program, kind, chain[chain.len() - 1]));
    }
    insta::assert_snapshot!(told(&mut program), @r"
    run op1
    run op2
    run op3
    run op4
    run op5
    evict op1
    run op6
    evict op3
    ");
    program.read(1, chain[3]);
    insta::assert_snapshot!(told(&mut program), @r"
    evict op5
    recompute op3
    ");
}

#[test]
fn what_the_program_lets_go_of_stays_computable_for_what_rests_on_it() {
    let mut program = within(3);
    let x = program.upload(1, UNIT);
    let y = run(&mut program, 1, x);
    let z = run(&mut program, 2, y);
    program.drop_tensor(1, y);
    let other = run(&mut program, 3, x);
    let last = run(&mut program, 4, other);
    program.drop_tensor(1, other);
    program.drop_tensor(1, last);
    program.read(1, z);
    insta::assert_snapshot!(told(&mut program), @r"
    run op1
    run op2
    run op3
    run op4
    evict op2
    recompute op1
    recompute op2
    ");
}

#[test]
fn a_parameter_that_is_replaced_takes_its_history_with_it() {
    let mut program = within(4);
    let mut parameter = program.upload(1, UNIT);
    let y = run(&mut program, 1, parameter);
    // The update takes over the parameter: what was made from the old one is kept.
    parameter = program.run(1, 4, Works::InPlace, &[parameter], &[parameter], &[UNIT])[0];
    let z = run(&mut program, 3, parameter);
    let w = run(&mut program, 9, z);
    run(&mut program, 10, w);
    program.read(1, y);
    insta::assert_snapshot!(told(&mut program), @r"
    run op1
    run op4
    run op3
    run op9
    run op10
    evict op3
    ");
}

#[test]
fn a_mask_is_compressed_and_not_drawn_again() {
    let mut program = within(4);
    program.machine.world_mut().compresses = true;
    let mask = program.run(1, 12, Works::Random, &[], &[], &[UNIT])[0];
    let x = program.upload(1, UNIT);
    let y = program.run(1, 1, Works::New, &[x], &[], &[3 * UNIT])[0];
    program.drop_tensor(1, y);
    program.read(1, mask);
    insta::assert_snapshot!(told(&mut program), @r"
    run op12
    run op1
    compress op12
    op1 needs 1025 of 1024
    ");
}

#[test]
fn what_fails_is_told_where_it_is_read() {
    let mut program = within(3);
    let x = program.upload(1, UNIT);
    let y = run(&mut program, 1, x);
    let z = run(&mut program, 2, x);
    run(&mut program, 3, z);
    let next = program.machine.world().commands + 1;
    program.machine.world_mut().fails_at = Some(next);
    program.read(1, y);
    program.machine.world_mut().fails_at = None;
    insta::assert_snapshot!(told(&mut program), @r"
    run op1
    run op2
    run op3
    evict op1
    evict op2
    recompute op1
    failed: planted
    ");
}

/// Three results computed from a parameter, which are read in reverse order; the last operation is of this kind.
fn step(program: &mut Program, parameter: u64, last_kind: u64) {
    program.machine.mark(1);
    let x = run(program, 1, parameter);
    let y = run(program, 2, x);
    let z = program.run(1, 3, Works::New, &[y, x], &[y], &[UNIT])[0];
    let w = program.run(1, last_kind, Works::New, &[z, x], &[z, x], &[UNIT])[0];
    program.read(1, w);
    program.drop_tensor(1, w);
}

#[test]
fn a_plan_is_followed_and_left_where_another_operation_comes() {
    let trace = trace_of(UNIT, |program, parameter| step(program, parameter, 4));
    let (x, none) = (trace.ops[0].writes[0], vec![false; trace.storages.len()]);
    let mut plan = Schedule::new(trace, none.clone(), none);
    // The first result is evicted when the second is there, though there is room, and is computed again for the third.
    plan.after[1] = vec![Action::Evict(x)];
    plan.peak = 64;

    let mut program = within(64);
    let parameter = program.upload(1, UNIT);
    program.machine.world_mut().plan = Some(Arc::new(plan));
    step(&mut program, parameter, 4);
    told(&mut program);
    step(&mut program, parameter, 4);
    insta::assert_snapshot!(told(&mut program), @r"
    step ends
    run op1
    run op2
    evict op1
    run op3
    recompute op1
    run op4
    ");
    step(&mut program, parameter, 5);
    insta::assert_snapshot!(told(&mut program), @r"
    step ends
    run op1
    run op2
    evict op1
    run op3
    recompute op1
    run op5
    ");
    assert_eq!(program.machine.world().left.len(), 1);
}
