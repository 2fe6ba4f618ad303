//! Plans that are followed by passes other than those they were made for, or for only a part of them.

mod common;

use std::sync::Arc;

use burn_remat_core::{Action, Asked, Config, Need, Schedule};
use common::{Program, Works, trace_of};

const UNIT: u64 = 256;
const DEPTH: usize = 12;

/// The forward pass through a chain of operations on `parameter`; returns what they have made.
fn forward(program: &mut Program, parameter: u64) -> Vec<u64> {
    let mut made = vec![parameter];
    for kind in 0..DEPTH as u64 {
        made.extend(program.run(1, 100 + kind, Works::New, &[made[made.len() - 1]], &[], &[UNIT]));
    }
    made
}

/// The backward pass through what the chain has made, which it reads in turn.
fn backward(program: &mut Program, mut made: Vec<u64>) -> u64 {
    let mut gradient = program.run(1, 200, Works::New, &[made[DEPTH]], &[], &[UNIT])[0];
    for (kind, id) in made.drain(1..).rev().enumerate() {
        gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
    }
    gradient
}

/// A step in which the program reads a result when the step is over, as metrics do; the result of the previous step is dropped when the step begins.
fn step_with_result(program: &mut Program, parameter: u64, before: Option<u64>) -> u64 {
    program.machine.mark(1);
    before.into_iter().for_each(|id| program.drop_tensor(1, id));
    let made = forward(program, parameter);
    let result = program.run(1, 150, Works::New, &[made[DEPTH]], &[], &[UNIT])[0];
    let gradient = backward(program, made);
    program.read(1, gradient);
    program.drop_tensor(1, gradient);
    result
}

#[test]
fn what_was_wanted_when_a_pass_was_over_is_not_the_first_to_go_again() {
    let before = std::cell::Cell::new(None);
    let trace = trace_of(UNIT, |program, parameter| {
        before.set(Some(step_with_result(program, parameter, before.get())));
    });
    let none = vec![false; trace.storages.len()];
    let plan = Schedule::new(trace, none.clone(), none).storing_all();
    let mut program = Program::new(Config { budget: Asked::Bytes(plan.peak), ..Config::default() });
    program.machine.world_mut().plan = Some(Arc::new(plan));
    let parameter = program.upload(1, UNIT);
    let mut result = None;
    for round in 0..6 {
        // More is held than the plan predicts, so the plan is carried.
        let beside = program.upload(1, UNIT);
        let recomputed = program.machine.counters().recomputed;
        let made = step_with_result(&mut program, parameter, result);
        program.read(1, made);
        program.drop_tensor(1, beside);
        let recomputed = program.machine.counters().recomputed - recomputed;
        assert!(
            round < 2 || recomputed < DEPTH as u64 / 2,
            "round {round}: the whole chain was computed for one result, {recomputed}"
        );
        result = Some(made);
    }
    assert!(program.machine.counters().recomputed > 0, "something had to be evicted");
    assert_eq!(program.machine.counters().steps_over_budget, 0);
}

/// A step whose last operation comes only in some steps, as with gradient accumulation.
fn step_with_more(program: &mut Program, parameter: u64, is_more: bool) {
    program.machine.mark(1);
    let made = forward(program, parameter);
    let mut gradient = backward(program, made);
    if is_more {
        gradient = program.run(1, 300, Works::New, &[gradient], &[gradient], &[UNIT])[0];
    }
    program.read(1, gradient);
    program.drop_tensor(1, gradient);
}

/// A plan that holds the result of the fourth operation: to the end, or until the last operation that reads it.
fn holding_one(is_more: bool) -> Arc<Schedule> {
    let trace = trace_of(UNIT, |program, parameter| step_with_more(program, parameter, is_more));
    let place = trace.ops[3].writes[0];
    let mut holds = vec![false; trace.storages.len()];
    holds[place as usize] = true;
    let mut plan = Schedule::new(trace, holds.clone(), holds);
    if !is_more {
        let last = *plan.uses[place as usize].last().expect("the backward pass reads it") as usize;
        plan.before[last].push(Action::Loosen(place));
        plan.after[last].push(Action::Evict(place));
    }
    plan.peak = 1 << 20;
    Arc::new(plan)
}

#[test]
fn a_plan_in_place_of_another_brings_back_only_what_is_still_of_use() {
    let (short, long) = (holding_one(false), holding_one(true));
    let mut program = Program::new(Config { budget: Asked::Bytes(1 << 20), ..Config::default() });
    let parameter = program.upload(1, UNIT);
    (program.machine.world_mut().plan, program.machine.world_mut().other) = (Some(short), Some(long));
    (0..4).for_each(|round| step_with_more(&mut program, parameter, round > 0));
    program.machine.mark(1);
    assert_eq!(program.machine.world().followed.len(), 3, "longer steps continue with the other plan");
    assert_eq!(program.machine.counters().recomputed, 0, "nothing reads again what the other plan holds to the end");
}

/// A step that reads only the signs of what three operations have made, after others of which the first is of this kind.
fn step_with_signs(program: &mut Program, parameter: u64, kind: u64) {
    program.machine.mark(1);
    let mut held = vec![parameter];
    for kind in [1, 2, 3] {
        held.extend(program.run(1, kind, Works::New, &[held[held.len() - 1]], &[], &[UNIT]));
    }
    let x = held[3];
    for kind in [kind, 6, 7] {
        held.extend(program.run(1, kind, Works::New, &[parameter], &[], &[UNIT]));
    }
    let result = program.run_weakly(1, 8, Works::New, (&[x], Some(x)), &[], &[UNIT])[0];
    held[1..].iter().for_each(|&id| program.drop_tensor(1, id));
    program.read(1, result);
    program.drop_tensor(1, result);
}

/// A plan for such a step that keeps what the first three operations have made, or evicts it and leaves the signs of the last.
fn keeping_three(kind: u64, keeps: bool) -> Arc<Schedule> {
    let trace = trace_of(UNIT, |program, parameter| step_with_signs(program, parameter, kind));
    let made = [0, 1, 2].map(|at: usize| trace.ops[at].writes[0]);
    let none = vec![false; trace.storages.len()];
    let mut decides = none.clone();
    made.iter().for_each(|&place| decides[place as usize] = true);
    let mut plan = Schedule::new(trace, if keeps { decides.clone() } else { none }, decides);
    if !keeps {
        plan.after[2].push(Action::LeaveSubstitute(made[2], Need::Signs, 1));
        plan.after[2].extend(made.map(Action::Evict));
    }
    plan.peak = 8 * UNIT;
    Arc::new(plan)
}

#[test]
fn a_plan_in_place_of_another_leaves_its_substitutes() {
    let mut program = Program::new(Config { budget: Asked::Bytes(8 * UNIT), ..Config::default() });
    let parameter = program.upload(1, UNIT);
    program.machine.world_mut().plan = Some(keeping_three(4, true));
    program.machine.world_mut().other = Some(keeping_three(5, false));
    (0..4).for_each(|_| step_with_signs(&mut program, parameter, 5));
    program.machine.mark(1);
    assert_eq!(program.machine.world().followed.len(), 3);
    assert_eq!(program.machine.counters().recomputed, 0, "the signs are enough");
}
