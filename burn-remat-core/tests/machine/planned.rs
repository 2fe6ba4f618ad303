//! How the machine follows a plan.

use std::sync::Arc;

use crate::common::{Program, Works, trace_of};
use burn_remat_core::{Action, Asked, Config, Need, Planning, Recording, Schedule, play, replay};

const UNIT: u64 = 256;
const DEPTH: u64 = 12;

/// The forward pass through a chain of operations on `parameter`, then the backward pass, which reads the results in turn; `between` runs between the two.
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
    plan_of(UNIT, |program, parameter| step(program, parameter, |_| {}))
}

/// A plan that keeps the results of the first operations of a step, which works on a parameter of this many bytes.
fn plan_of(bytes: u64, step: impl Fn(&mut Program, u64)) -> Arc<Schedule> {
    let trace = trace_of(bytes, step);
    let is_forward = |made: u32| u64::from(made) < DEPTH;
    let holds: Vec<bool> = trace.storages.iter().map(|storage| storage.made_by.is_some_and(is_forward)).collect();
    let mut plan = Schedule::new(trace.clone(), holds.clone(), holds);
    let last = plan.before.len() - 1;
    plan.before[last].push(Action::ReleaseAll);
    let foreseen = replay(&Arc::new(plan.clone())).expect("machine and observer agree");
    Arc::new(plan.with_foreseen(foreseen))
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
        assert!(followed.held.iter().zip(&plan.foreseen.during).all(|(held, foreseen)| held <= foreseen));
    }
}

/// A step that reads a batch, which is uploaded before the step begins if it is `early`, and otherwise right before it is read.
fn step_with_batch(program: &mut Program, parameter: u64, is_early: bool) {
    let early = is_early.then(|| program.upload(1, UNIT));
    program.machine.mark(1);
    let first = program.run(1, 50, Works::New, &[parameter], &[], &[UNIT])[0];
    let batch = early.unwrap_or_else(|| program.upload(1, UNIT));
    let mut saved = vec![first];
    saved.extend(program.run(1, 51, Works::New, &[first, batch], &[batch], &[UNIT]));
    for kind in 1..DEPTH {
        let input = saved[saved.len() - 1];
        saved.extend(program.run(1, 51 + kind, Works::New, &[input], &[], &[UNIT]));
    }
    saved.into_iter().for_each(|id| program.drop_tensor(1, id));
}

#[test]
fn what_comes_earlier_or_later_than_in_the_traced_step_is_foreseen() {
    for is_early in [false, true] {
        let plan = plan_of(UNIT, |program, parameter| step_with_batch(program, parameter, is_early));
        let mut program = Program::new(Config { budget: Asked::Bytes(1 << 20), ..Config::default() });
        program.machine.world_mut().plan = Some(plan);
        let parameter = program.upload(1, UNIT);
        program.machine.mark(1);
        for round in 0..4 {
            step_with_batch(&mut program, parameter, (round % 2 == 0) == is_early);
        }
        program.machine.mark(1);
        let deviations: Vec<u64> = program.machine.world().followed.iter().map(|followed| followed.deviation).collect();
        assert_eq!(deviations, [0; 4], "{is_early}");
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
    assert!(program.machine.counters().recomputed > 0, "what had to be evicted comes back");
}

#[test]
fn what_is_held_beside_a_plan_from_its_midst_on_leaves_it_less_room() {
    let plan = keeps_all();
    for thread in [1, 2] {
        let (mut program, parameter) = following(&plan, plan.peak);
        let mut held = None;
        step(&mut program, parameter, |program| held = Some(program.upload(thread, 2 * UNIT)));
        held.into_iter().for_each(|id| program.drop_tensor(thread, id));
        step(&mut program, parameter, |_| {});
        program.machine.mark(1);
        let world = program.machine.world();
        assert!(world.peak <= plan.peak, "thread {thread}: {} of {}", world.peak, plan.peak);
        assert_eq!(program.machine.counters().steps_over_budget, 0);
        assert!(program.machine.counters().recomputed > 0, "what had to be evicted comes back");
        let carried: Vec<bool> = world.followed.iter().map(|followed| followed.carried).collect();
        assert_eq!(carried, [true, false], "thread {thread}: only while something else is held");
    }
}

#[test]
fn a_plan_keeps_to_the_budget_where_more_is_held_when_it_begins() {
    let plan = keeps_all();
    let (mut program, parameter) = following(&plan, plan.peak);
    for round in 0..3 {
        // As a replay buffer would.
        program.upload(1, UNIT);
        step(&mut program, parameter, |_| {});
        let peak = program.machine.world().peak;
        assert!(peak <= plan.peak, "round {round}: {peak} of {}", plan.peak);
    }
    program.machine.mark(1);
    assert_eq!(program.machine.counters().steps_over_budget, 0);
    assert!(program.machine.world().left.is_empty());
}

#[test]
fn nothing_is_held_for_a_program_that_has_ended_within_a_plan() {
    let plan = keeps_all();
    let (mut program, parameter) = following(&plan, plan.peak);
    program.machine.mark(1);
    let mut made = vec![parameter];
    for kind in 0..DEPTH / 2 {
        made.extend(program.run(1, 100 + kind, Works::New, &[made[made.len() - 1]], &[], &[UNIT]));
    }
    let last = made.pop();
    made.into_iter().for_each(|id| program.drop_tensor(1, id));
    assert!(program.machine.holdings().bytes > 2 * UNIT, "the plan keeps what was made");
    last.into_iter().for_each(|id| program.drop_tensor(1, id));
    let left = program.machine.holdings();
    assert_eq!((left.bytes, left.tensors, left.recipes), (0, 0, 0));
}

/// A gradient at the end of a chain, which an optimizer reads in some steps.
fn step_with_gradient(program: &mut Program, parameter: u64, is_optimized: bool) -> u64 {
    program.machine.mark(1);
    let mut made = parameter;
    for kind in 0..DEPTH {
        let next = program.run(1, 100 + kind, Works::New, &[made], &[], &[UNIT])[0];
        if made != parameter {
            program.drop_tensor(1, made);
        }
        made = next;
    }
    let gradient = program.run(1, 200, Works::New, &[made], &[], &[UNIT])[0];
    program.drop_tensor(1, made);
    if is_optimized {
        let rate = program.run(1, 300, Works::New, &[parameter], &[], &[UNIT])[0];
        let change = program.run(1, 301, Works::New, &[gradient, rate], &[], &[UNIT])[0];
        program.read(1, change);
        [rate, change].into_iter().for_each(|id| program.drop_tensor(1, id));
    }
    gradient
}

#[test]
fn what_a_plan_has_given_up_for_a_while_comes_back_before_what_it_holds_goes() {
    let trace = trace_of(UNIT, |program, parameter| {
        let gradient = step_with_gradient(program, parameter, true);
        program.drop_tensor(1, gradient);
    });
    let (last, gradient) = (DEPTH as usize - 1, DEPTH as usize);
    let place = |op: usize| trace.ops[op].writes[0];
    let mut holds = vec![false; trace.storages.len()];
    holds[place(last) as usize] = true;
    let mut plan = Schedule::new(trace.clone(), holds.clone(), holds);
    plan.after[gradient].push(Action::Evict(place(gradient)));
    plan.before[gradient + 2].extend([Action::Recompute([place(gradient)][..].into()), Action::ReleaseAll]);
    plan.peak = 1 << 20;
    let mut program = Program::new(Config { budget: Asked::Bytes(4 * UNIT), ..Config::default() });
    program.machine.world_mut().plan = Some(Arc::new(plan));
    let parameter = program.upload(1, UNIT);
    for _ in 0..2 {
        let gradient = step_with_gradient(&mut program, parameter, true);
        program.drop_tensor(1, gradient);
    }
    let gradient = step_with_gradient(&mut program, parameter, false);
    program.machine.mark(1);
    program.read(1, gradient);
    let world = program.machine.world();
    assert_eq!((world.followed.len(), world.left.len()), (1, 1), "the last step ends before its plan does");
    assert_eq!(program.machine.counters().recomputed, 2, "one operation in each step, not the chain");
}

/// The forward pass through a chain; the program keeps the results until the end.
fn keeping_step(program: &mut Program, parameter: u64) {
    program.machine.mark(1);
    let mut made = vec![parameter];
    for kind in 0..4 {
        made.extend(program.run(1, 1 + kind, Works::New, &[made[made.len() - 1]], &[], &[UNIT]));
    }
    program.read(1, made[4]);
    made.drain(1..).for_each(|id| program.drop_tensor(1, id));
}

/// If a pass switches to a plan for other sizes, storages that the plan has given up are the first to be evicted. Gradients that come later are not.
#[test]
fn what_has_not_been_made_yet_is_not_given_up() {
    let trace = trace_of(UNIT, keeping_step);
    let made: Vec<u32> = trace.ops.iter().map(|op| op.writes[0]).collect();
    let (none, decides) =
        (vec![false; trace.storages.len()], trace.storages.iter().map(|storage| storage.made_by.is_some()).collect());
    let plan = Schedule::new(trace, none.clone(), decides);
    assert_eq!(plan.given_up(2, &none).collect::<Vec<_>>(), made[..2]);
    assert_eq!(plan.given_up(4, &none).collect::<Vec<_>>(), made);
}

#[test]
fn what_comes_back_behind_the_last_operation_is_foreseen_too() {
    let trace = trace_of(UNIT, keeping_step);
    let places: Vec<u32> = trace.ops.iter().map(|op| op.writes[0]).collect();
    let none = vec![false; trace.storages.len()];
    let mut plan = Schedule::new(trace, none.clone(), none);
    // Only one at a time, until all are wanted.
    plan.after[1].push(Action::Evict(places[0]));
    plan.after[2].push(Action::Evict(places[1]));
    plan.after[3].extend([Action::Evict(places[2]), Action::Recompute(places[..3].into())]);
    let foreseen = replay(&Arc::new(plan.clone())).expect("machine and observer agree").during;
    let most = foreseen.iter().copied().max().unwrap_or(0);
    plan.peak = most;
    let mut program = Program::new(Config { budget: Asked::Bytes(1 << 20), ..Config::default() });
    let parameter = program.upload(1, UNIT);
    program.machine.world_mut().plan = Some(Arc::new(plan));
    (0..3).for_each(|_| keeping_step(&mut program, parameter));
    program.machine.mark(1);
    let world = program.machine.world();
    assert_eq!((world.left.len(), world.followed.len()), (0, 2));
    assert!(program.machine.counters().recomputed > 0);
    assert_eq!(most, world.peak, "what the observer has seen");
    assert_eq!(world.followed.iter().map(|followed| followed.held.iter().copied().max()).max(), Some(Some(world.peak)));
}

/// The forward pass through several operations, of which the second needs only the signs of the first result.
fn weak_step(program: &mut Program, parameter: u64, last_kind: u64, unit: u64) {
    program.mark(1);
    let x = program.run(1, 1, Works::New, &[parameter], &[], &[unit])[0];
    let y = program.run_weakly(1, 2, Works::New, (&[x], Some(x)), &[], &[unit])[0];
    let z = program.run(1, 3, Works::New, &[parameter], &[], &[unit])[0];
    let w = program.run(1, last_kind, Works::New, &[parameter], &[], &[unit])[0];
    program.read(1, y);
    [x, y, z, w].into_iter().for_each(|id| program.drop_tensor(1, id));
}

/// A plan for such a step in which the first result leaves its signs and is evicted after the third operation; so is the second result if `both`.
fn leaves_signs(both: bool) -> Arc<Schedule> {
    let trace = trace_of(UNIT, |program, parameter| weak_step(program, parameter, 4, UNIT));
    let (x, y) = (trace.ops[0].writes[0], trace.ops[1].writes[0]);
    let none = vec![false; trace.storages.len()];
    let mut plan = Schedule::new(trace, none.clone(), none);
    plan.after[2] = vec![Action::LeaveSubstitute(x, Need::Signs, 1), Action::Evict(x)];
    plan.after[2].extend(both.then_some(Action::Evict(y)));
    plan.peak = 4 * UNIT;
    Arc::new(plan)
}

#[test]
fn what_has_left_a_substitute_serves_when_the_plan_is_left() {
    let mut program = Program::new(Config { budget: Asked::Bytes(1 << 10), ..Config::default() });
    let parameter = program.upload(1, UNIT);
    program.machine.world_mut().plan = Some(leaves_signs(true));
    weak_step(&mut program, parameter, 4, UNIT);
    // The last operation is not the planned one. What is read then is computed from the signs.
    weak_step(&mut program, parameter, 5, UNIT);
    assert_eq!(program.machine.world().left.len(), 1);
    assert_eq!(program.machine.counters().failure, None);
    assert_eq!(program.machine.counters().recomputed, 1, "one operation, not both");
}

#[test]
fn there_is_room_for_what_is_built_from_a_substitute() {
    // What is read when the plan has been left takes itself and the tensor built from the signs, next to the parameter and two results.
    let mut program = Program::new(Config { budget: Asked::Bytes(5 * UNIT), ..Config::default() });
    program.machine.world_mut().builds = true;
    let parameter = program.upload(1, UNIT);
    program.machine.world_mut().plan = Some(leaves_signs(true));
    for last_kind in [4, 5] {
        weak_step(&mut program, parameter, last_kind, UNIT);
    }
    assert!(program.machine.counters().recomputed > 0);
    assert_eq!((program.machine.counters().steps_over_budget, program.machine.is_over_budget()), (0, false));
    assert!(program.machine.world().peak <= 5 * UNIT, "what the observer has seen");
}

#[test]
fn no_substitute_is_left_where_there_is_no_room_for_both() {
    // The plan is carried to another size, at which the budget is full when the last operation asks for room.
    const SIZE: u64 = 300;
    let mut program = Program::new(Config { budget: Asked::Bytes(4 * SIZE), ..Config::default() });
    let parameter = program.upload(1, SIZE);
    program.machine.world_mut().plan = Some(leaves_signs(false));
    for _ in 0..6 {
        weak_step(&mut program, parameter, 4, SIZE);
    }
    program.machine.mark(1);
    assert!(program.machine.counters().evictions >= 6);
    assert!(program.machine.world().followed.iter().any(|followed| followed.carried), "the plan was carried");
    assert_eq!(program.machine.world().peak, 4 * SIZE, "what the observer has seen");
}

/// All steps follow one plan.
struct Given(Arc<Schedule>);

impl Planning for Given {
    fn is_on(&self) -> bool {
        true
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn next(&self) -> Option<Arc<Schedule>> {
        Some(self.0.clone())
    }
}

#[test]
fn a_program_that_was_recorded_without_a_plan_goes_by_one_as_if_it_ran() {
    let plan = leaves_signs(true);
    let ran = |plan: Option<&Arc<Schedule>>| {
        let mut program = Program::new(Config { rehearsing: plan.is_none(), ..Config::default() });
        (program.machine.world_mut().plan, program.machine.world_mut().traces) = (plan.cloned(), plan.is_none());
        let parameter = program.upload(1, UNIT);
        (0..4).for_each(|_| weak_step(&mut program, parameter, 4, UNIT));
        program.mark(1);
        program
    };
    let recording = Recording::of(ran(None).asked).expect("the requests are consistent");
    let played = play(&Arc::new(recording), Config::default(), Given(plan.clone()), |_| {});
    let live = ran(Some(&plan));
    let (was, is) = (live.machine.counters(), played.counters());
    assert_eq!((is.evictions, is.recomputed), (was.evictions, was.recomputed));
    assert_eq!(is.recomputed, 3, "what needs only the signs, in each planned step");
}

/// Operations on large tensors, with the given numbers of operations on small ones before, between and after them; one of the large operations reads what
/// the small ones have made. If the number between is odd, a large tensor is inspected too.
fn glued_step(program: &mut Program, parameter: u64, glue: [usize; 3]) {
    const LARGE: u64 = 1 << 20;
    let small = |program: &mut Program, count: usize| {
        let mut score = program.run(1, 50, Works::New, &[], &[], &[8])[0];
        for at in 0..count {
            score = program.run(1, 51 + at as u64 % 2, Works::New, &[score], &[score], &[8 + 8 * (at as u64 % 3)])[0];
        }
        score
    };
    program.machine.mark(1);
    let score = small(program, glue[0]);
    let x = program.run(1, 1, Works::New, &[parameter], &[], &[LARGE])[0];
    let y = program.run(1, 2, Works::New, &[x, score], &[score], &[LARGE])[0];
    let score = small(program, glue[1]);
    program.read(1, score);
    if glue[1] % 2 == 1 {
        let mean = program.run(1, 60, Works::New, &[x], &[], &[8])[0];
        program.read(1, mean);
        program.drop_tensor(1, mean);
    }
    let z = program.run(1, 3, Works::New, &[y], &[], &[LARGE])[0];
    let w = program.run(1, 4, Works::New, &[z, x], &[z, x], &[LARGE])[0];
    let last = small(program, glue[2]);
    program.read(1, w);
    [y, w, score, last].into_iter().for_each(|id| program.drop_tensor(1, id));
}

#[test]
fn a_plan_is_followed_whatever_is_done_on_small_tensors() {
    let plan = plan_of(1 << 20, |program, parameter| glued_step(program, parameter, [2, 2, 2]));
    let mut program = Program::new(Config { budget: Asked::Bytes(plan.peak + 4096), ..Config::default() });
    program.machine.world_mut().plan = Some(plan.clone());
    let parameter = program.upload(1, 1 << 20);
    program.machine.mark(1);
    let steps = [[2, 2, 2], [0, 2, 5], [7, 0, 1], [3, 9, 0], [1, 1, 1], [2, 2, 2]];
    steps.into_iter().for_each(|glue| glued_step(&mut program, parameter, glue));
    program.machine.mark(1);
    let world = program.machine.world();
    // The first mark begins a step that ends at once.
    assert!(world.left.len() <= 1, "{:?}", world.left);
    assert_eq!(world.followed.len(), steps.len());
    assert!(world.followed.iter().all(|followed| followed.deviation <= 64), "no more than is small");
    assert_eq!(program.machine.counters().recomputed, 0);
}

/// A plan for a step with such an operation between forward and backward pass. Of the forward results it keeps every third one, starting at `first`, and
/// the last; the others are computed again when the backward pass needs the last of them.
fn keeps_every_third(kind: u64, first: u64) -> Arc<Schedule> {
    let trace = trace_of(UNIT, |program, parameter| step_of(program, parameter, kind));
    let place = |op: u64| trace.ops[op as usize].writes[0];
    let holds: Vec<bool> =
        trace.storages.iter().map(|storage| storage.made_by.is_some_and(|made| u64::from(made) < DEPTH)).collect();
    let mut plan = Schedule::new(trace.clone(), holds.clone(), holds);
    let last_reader = |place| trace.ops.iter().rposition(|reader| reader.reads.contains(&place)).unwrap();
    let mut gone = Vec::new();
    for op in 0..DEPTH {
        plan.after[last_reader(place(op))].push(Action::Loosen(place(op)));
        if op % 3 != first && op < DEPTH - 1 {
            plan.after[op as usize + 1].push(Action::Evict(place(op)));
            gone.push(place(op));
        } else if let Some(&last) = gone.last() {
            plan.before[last_reader(last)].push(Action::Recompute(std::mem::take(&mut gone).into()));
        }
    }
    let foreseen = replay(&Arc::new(plan.clone())).expect("machine and observer agree");
    Arc::new(plan.with_foreseen(foreseen))
}

/// A step with an operation of this kind on the parameter between forward and backward pass.
fn step_of(program: &mut Program, parameter: u64, kind: u64) {
    step(program, parameter, |program| {
        let made = program.run(1, kind, Works::New, &[parameter], &[], &[UNIT])[0];
        program.drop_tensor(1, made);
    });
}

#[test]
fn a_plan_that_takes_over_has_what_it_keeps_and_keeps_to_the_budget() {
    let (plan, other) = (keeps_every_third(400, 0), keeps_every_third(401, 1));
    let budget = plan.peak.max(other.peak);
    let mut program = Program::new(Config { budget: Asked::Bytes(budget), ..Config::default() });
    (program.machine.world_mut().plan, program.machine.world_mut().other) = (Some(plan), Some(other));
    let parameter = program.upload(1, UNIT);
    (0..2).for_each(|_| step_of(&mut program, parameter, 400));
    let before = program.machine.counters().recomputed;
    step_of(&mut program, parameter, 401);
    program.machine.mark(1);
    let world = program.machine.world();
    assert_eq!((world.followed.len(), world.left.len()), (2, 0), "{:?}", world.left);
    assert!(world.peak <= budget, "{} of {budget} bytes", world.peak);
    // What the first plan has evicted and the second one keeps, once, and what the second one evicts for a while.
    let again = program.machine.counters().recomputed - before;
    assert!(again <= DEPTH, "{again} operations were recomputed");
}
