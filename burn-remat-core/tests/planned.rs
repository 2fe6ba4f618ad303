//! While a plan is followed.

mod common;

use std::sync::Arc;

use burn_remat_core::{Action, Asked, Config, Schedule, replay};
use common::{Program, Works};

const UNIT: u64 = 256;
const DEPTH: u64 = 12;

/// Forward through a chain of operations on `parameter`, and backward, which reads the results in turn; `between` comes between the two.
fn step(program: &mut Program, parameter: u64, between: impl FnOnce(&mut Program)) {
    program.machine.mark(1);
    let mut saved = vec![parameter];
    for kind in 0..DEPTH {
        let input = saved[saved.len() - 1];
        saved.extend(program.run(1, 100 + kind, Works::New, &[input], &[], &[UNIT]));
    }
    between(program);
    let mut gradient = program.run(1, 200, Works::New, &[saved[saved.len() - 1]], &[], &[UNIT])[0];
    for (kind, id) in saved.drain(1..).rev().enumerate() {
        gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
    }
    program.read(1, gradient);
    program.drop_tensor(1, gradient);
}

/// A plan that keeps what the forward pass has made.
fn keeps_all() -> Arc<Schedule> {
    let mut program = Program::new(Config { budget: Asked::Bytes(1 << 20), rehearsing: true, ..Config::default() });
    program.machine.world_mut().traces = true;
    let parameter = program.upload(1, UNIT);
    (0..3).for_each(|_| step(&mut program, parameter, |_| {}));
    program.machine.mark(1);
    let trace = Arc::new(program.machine.world_mut().trace.take().expect("the step was written down"));
    let is_forward = |made: u32| u64::from(made) < DEPTH;
    let holds: Vec<bool> = trace.storages.iter().map(|storage| storage.made_by.is_some_and(is_forward)).collect();
    let mut plan = Schedule::new(trace.clone(), holds.clone(), holds);
    let last = plan.before.len() - 1;
    plan.before[last].push(Action::ReleaseAll);
    let foreseen = replay(&Arc::new(plan.clone())).expect("machine and observer say the same");
    plan.peak = foreseen.during.iter().copied().max().unwrap_or(0);
    plan.foreseen = foreseen.during;
    for (actions, bytes) in plan.after.iter_mut().zip(foreseen.after).take(last) {
        actions.push(Action::Check(bytes));
    }
    Arc::new(plan)
}

fn following(plan: &Arc<Schedule>, budget: u64) -> (Program, u64) {
    let mut program = Program::new(Config { budget: Asked::Bytes(budget), ..Config::default() });
    program.machine.world_mut().plan = Some(plan.clone());
    let parameter = program.upload(1, UNIT);
    step(&mut program, parameter, |_| {});
    (program, parameter)
}

#[test]
fn what_is_held_is_what_the_machine_has_foreseen() {
    let plan = keeps_all();
    let (mut program, parameter) = following(&plan, plan.peak);
    (0..3).for_each(|_| step(&mut program, parameter, |_| {}));
    program.machine.mark(1);
    let world = program.machine.world();
    assert_eq!((world.left.len(), world.followed.len()), (0, 3));
    for followed in &world.followed {
        assert_eq!(followed.deviation, 0);
        assert!(followed.held.iter().zip(&plan.foreseen).all(|(held, foreseen)| held <= foreseen));
    }
}

#[test]
fn whoever_is_not_in_the_plan_gets_room_from_what_it_uses_last() {
    let plan = keeps_all();
    let (mut program, parameter) = following(&plan, plan.peak);
    for thread in [1, 2] {
        program.machine.world_mut().peak = 0;
        step(&mut program, parameter, |program| {
            let upload = program.upload(thread, 5 * UNIT);
            program.read(thread, upload);
            program.drop_tensor(thread, upload);
        });
        assert!(program.machine.world().peak <= plan.peak, "thread {thread}: {}", program.machine.world().peak);
    }
    assert_eq!(program.machine.counters().steps_over_budget, 0);
    assert!(program.machine.counters().recomputed > 0, "what had to go comes back");
}
