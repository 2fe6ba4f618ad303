//! Plans that are followed by passes other than those they were made for, or for only a part of them.

use std::sync::Arc;

use crate::common::{Program, Works, trace_of};
use burn_remat_core::{Action, Asked, Config, Need, Schedule};

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

/// A step that reads some of what three operations have made, and of the last of these only the signs, after others of which the first is of this kind.
#[derive(Clone, Copy)]
struct Signs {
    kind: u64,
    reads: &'static [usize],
    /// Bytes of each of the three results.
    bytes: u64,
}

impl Signs {
    fn step(self, program: &mut Program, parameter: u64) {
        program.machine.mark(1);
        let mut held = vec![parameter];
        for kind in [1, 2, 3] {
            held.extend(program.run(1, kind, Works::New, &[held[held.len() - 1]], &[], &[self.bytes]));
        }
        let inputs: Vec<u64> = self.reads.iter().map(|&at| held[at]).collect();
        for kind in [self.kind, 6, 7] {
            held.extend(program.run(1, kind, Works::New, &[parameter], &[], &[UNIT]));
        }
        let result = program.run_weakly(1, 8, Works::New, (&inputs, inputs.last().copied()), &[], &[UNIT])[0];
        held[1..].iter().for_each(|&id| program.drop_tensor(1, id));
        program.read(1, result);
        program.drop_tensor(1, result);
    }

    /// A plan that keeps some of the three results, and leaves the signs of one of the others or of none.
    fn keeping(self, kept: [bool; 3], signs: Option<usize>, peak: u64) -> Arc<Schedule> {
        let trace = trace_of(UNIT, |program, parameter| self.step(program, parameter));
        let made = [0, 1, 2].map(|at: usize| trace.ops[at].writes[0]);
        let mut holds = vec![false; trace.storages.len()];
        let mut decides = holds.clone();
        made.iter().for_each(|&place| decides[place as usize] = true);
        made.iter().zip(kept).for_each(|(&place, kept)| holds[place as usize] = kept);
        let mut plan = Schedule::new(trace, holds, decides);
        for (at, &place) in made.iter().enumerate().filter(|&(at, _)| !kept[at]) {
            let leaves = signs.filter(|&signs| signs == at + 1);
            let actions = &mut plan.after[2.min(at + 1)];
            actions.extend(leaves.map(|_| Action::LeaveSubstitute(place, Need::Signs, 1)));
            actions.push(Action::Evict(place));
        }
        plan.peak = peak;
        Arc::new(plan)
    }
}

/// How often something is computed again in three of these steps, which begin with one plan and continue with another.
fn recomputed_between(step: Signs, first: Arc<Schedule>, second: Arc<Schedule>) -> u64 {
    let budget = second.peak;
    let mut program = Program::new(Config { budget: Asked::Bytes(budget), ..Config::default() });
    let parameter = program.upload(1, UNIT);
    (program.machine.world_mut().plan, program.machine.world_mut().other) = (Some(first), Some(second));
    step.step(&mut program, parameter);
    let before = program.machine.counters().recomputed;
    (0..3).for_each(|_| step.step(&mut program, parameter));
    program.machine.mark(1);
    assert_eq!(program.machine.world().followed.len(), 3);
    assert_eq!(program.machine.counters().steps_over_budget, 0);
    program.machine.counters().recomputed - before
}

#[test]
fn a_plan_in_place_of_another_leaves_its_substitutes() {
    let [old, new] = [4, 5].map(|kind| Signs { kind, reads: &[3], bytes: UNIT });
    let peak = 8 * UNIT;
    let (first, second) = (old.keeping([true; 3], None, peak), new.keeping([false; 3], Some(3), peak));
    assert_eq!(recomputed_between(new, first, second), 0, "the signs are enough");
}

#[test]
fn a_plan_in_place_of_another_leaves_its_substitutes_of_what_it_computes_on_the_way() {
    let [old, new] = [4, 5].map(|kind| Signs { kind, reads: &[3, 1], bytes: 8 * UNIT });
    // There is no room for all three results.
    let peak = 24 * UNIT;
    let (first, second) = (old.keeping([false; 3], None, peak), new.keeping([false, false, true], Some(1), peak));
    assert_eq!(recomputed_between(new, first, second), 3 * 3, "the third result, and the signs of the first");
}
