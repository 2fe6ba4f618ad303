//! Passes are found and planned in programs that neither mark their steps nor update anything.

use std::sync::Arc;

use crate::common::{ONE, Program, Works};
use burn_remat_core::{Action, Asked, CheckpointPolicy, Config, Entered, Left, Schedule, Trace, TracedStorage, replay};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const UNIT: u64 = 1 << 16;
const DEPTH: u64 = 10;
/// Operations of a pass: the forward pass, the seed, the backward pass.
const LENGTH: usize = 2 * DEPTH as usize + 1;

/// Something between two passes that differs from round to round, but begins like a pass.
fn validate(program: &mut Program, parameter: u64, round: u64) {
    for _ in 0..round % 3 {
        let mut x = program.run(1, 100, Works::New, &[parameter], &[], &[UNIT])[0];
        for kind in 1..DEPTH - round % 2 {
            x = program.run(1, 100 + kind, Works::New, &[x], &[x], &[UNIT])[0];
        }
        program.read(1, x);
        program.drop_tensor(1, x);
    }
}

/// A chain of operations on tensors of `unit` bytes. Calls `before` before each. Returns the parameter and the results.
fn forward(program: &mut Program, parameter: u64, unit: u64, mut before: impl FnMut(&mut Program, u64)) -> Vec<u64> {
    let mut saved = vec![parameter];
    for kind in 0..DEPTH {
        before(program, kind);
        let input = saved[saved.len() - 1];
        saved.extend(program.run(1, 100 + kind, Works::New, &[input], &[], &[unit]));
    }
    saved
}

/// A forward and a backward pass as autodiff does them on tensors of `unit` bytes, while the program releases something else. Returns the bytes that the
/// observer counts at its start, and the gradient.
fn pass(program: &mut Program, parameter: u64, unit: u64) -> (u64, u64) {
    let aside = program.upload(1, unit);
    let held = program.machine.world().bytes();
    let saved = forward(program, parameter, unit, |program, kind| {
        if kind == DEPTH / 2 {
            program.drop_tensor(1, aside);
        }
    });
    (held, backward(program, &saved, unit, None))
}

/// The backward pass of what a forward pass has saved, which releases all of it except what is `kept`. Returns the gradient.
fn backward(program: &mut Program, saved: &[u64], unit: u64, kept: Option<u64>) -> u64 {
    let mut gradient = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
    for (kind, &id) in saved[1..].iter().rev().enumerate() {
        let last = if kept == Some(id) { vec![gradient] } else { vec![gradient, id] };
        gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &last, &[unit])[0];
    }
    gradient
}

/// Runs something as a stage with a policy, if there is one.
fn in_stage<T>(program: &mut Program, policy: Option<CheckpointPolicy>, run: impl FnOnce(&mut Program) -> T) -> T {
    if policy.is_some() {
        program.machine.enter_stage(1, Entered { name: 1, number: 1, policy });
    }
    let result = run(program);
    if policy.is_some() {
        program.machine.leave_stage(1);
    }
    result
}

/// Runs rounds, keeping each of the last eight gradients. Returns the observer's bytes at the start of the last pass.
fn train(program: &mut Program, parameter: u64, kept: &mut Vec<u64>, rounds: std::ops::Range<u64>) -> u64 {
    train_under(None, program, parameter, kept, rounds)
}

/// The same, with a policy for every forward pass.
fn train_under(
    policy: Option<CheckpointPolicy>,
    program: &mut Program,
    parameter: u64,
    kept: &mut Vec<u64>,
    rounds: std::ops::Range<u64>,
) -> u64 {
    let mut last = 0;
    for round in rounds {
        in_stage(program, policy, |program| validate(program, parameter, round));
        let (held, gradient) = in_stage(program, policy, |program| pass(program, parameter, UNIT));
        last = held;
        kept.push(gradient);
        if kept.len() > 8 {
            let oldest = kept.remove(0);
            program.drop_tensor(1, oldest);
        }
    }
    last
}

fn start(budget: u64) -> (Program, u64) {
    let mut program = Program::new(Config { budget: Asked::Bytes(budget), ..Config::default() });
    program.machine.world_mut().traces = true;
    let parameter = program.upload(1, UNIT);
    (program, parameter)
}

#[test]
fn a_pass_is_written_down_alike_whatever_comes_between() {
    let (mut program, parameter) = start(1 << 30);
    let mut kept = Vec::new();
    train(&mut program, parameter, &mut kept, 0..20);
    let mut seen: Vec<Trace> = Vec::new();
    for round in 20..26 {
        let held = train(&mut program, parameter, &mut kept, round..round + 1);
        let trace = program.machine.world_mut().trace.take().expect("a pass was traced");
        assert!(trace.is_pass);
        assert_eq!((trace.ops.len(), trace.held_at_start), (LENGTH, held), "round {round}");
        seen.push(trace);
    }
    assert!(seen.iter().all(|trace| trace.signature() == seen[0].signature()));
}

/// A plan for passes on tensors of [`UNIT`] bytes that keeps the results of the first operations, and evicts the rest of what the forward pass makes until
/// the backward pass reads it.
fn plan() -> Arc<Schedule> {
    plan_under(None)
}

fn plan_under(policy: Option<CheckpointPolicy>) -> Arc<Schedule> {
    let (mut program, parameter) = start(1 << 30);
    train_under(policy, &mut program, parameter, &mut Vec::new(), 0..20);
    let trace = Arc::new(program.machine.world_mut().trace.take().expect("a pass was traced"));
    let kept = |at: u32| at < 5;
    let holds: Vec<bool> = trace.storages.iter().map(|storage| storage.made_by.is_some_and(kept)).collect();
    let made = |storage: &TracedStorage| storage.made_by.is_some_and(|at| u64::from(at) < DEPTH - 1);
    let decides: Vec<bool> = trace.storages.iter().map(made).collect();
    let mut plan = Schedule::new(trace.clone(), holds.clone(), decides.clone());
    for (place, storage) in trace.storages.iter().enumerate().filter(|(place, _)| decides[*place] && !holds[*place]) {
        let next = plan.uses[place][0] as usize;
        assert_eq!(Some(next as u32), storage.made_by.map(|at| at + 1), "the next forward operation reads it");
        plan.after[next].push(Action::Evict(place as u32));
    }
    let foreseen = replay(&Arc::new(plan.clone())).expect("machine and observer agree");
    Arc::new(plan.with_foreseen(foreseen))
}

#[test]
fn a_pass_is_followed_whatever_comes_between() {
    // A forward pass between two steps also uses a policy, which a plan tells apart by the number of its stage.
    for policy in [None, Some(CheckpointPolicy::PreferSave)] {
        let (mut program, parameter) = start(1 << 30);
        let mut kept = Vec::new();
        train_under(policy, &mut program, parameter, &mut kept, 0..20);
        program.machine.world_mut().plan = Some(plan_under(policy));
        train_under(policy, &mut program, parameter, &mut kept, 20..40);
        let world = program.machine.world();
        assert_eq!((world.left.len(), world.followed.len()), (0, 20), "{policy:?}");
        assert!(world.followed.iter().all(|followed| followed.deviation == 0 && !followed.carried), "{policy:?}");
    }
}

#[test]
fn a_pass_is_traced_however_much_comes_before_it() {
    let (mut program, parameter) = start(1 << 30);
    for _ in 0..3 {
        for _ in 0..120_000 {
            let text = program.run(1, 400, Works::New, &[parameter], &[], &[4])[0];
            program.drop_tensor(1, text);
        }
        let (_, gradient) = pass(&mut program, parameter, UNIT);
        program.drop_tensor(1, gradient);
    }
    program.run(1, 300, Works::New, &[], &[], &[4]);
    let trace = program.machine.world_mut().trace.take().expect("a pass was traced");
    assert!(trace.is_pass);
    assert_eq!(trace.ops.len(), LENGTH);
}

/// The trace of a pass of this size when there is no plan.
fn written_down(unit: u64) -> Trace {
    let (mut program, parameter) = start(1 << 30);
    for _ in 0..12 {
        let (_, gradient) = pass(&mut program, parameter, unit);
        program.drop_tensor(1, gradient);
    }
    program.run(1, 300, Works::New, &[], &[], &[4]);
    program.machine.world_mut().trace.take().expect("a pass was traced")
}

/// The first operation in the trace of a pass that has this many layers and begins with something small.
fn first_of(layers: u64) -> u64 {
    let (mut program, parameter) = start(1 << 30);
    for _ in 0..12 {
        let mean = program.run(1, 99, Works::New, &[parameter], &[], &[UNIT / 128])[0];
        let mut saved = program.run(1, 100, Works::New, &[parameter, mean], &[], &[UNIT]);
        for _ in 0..layers {
            let input = saved[saved.len() - 1];
            saved.extend(program.run(1, 101, Works::New, &[input], &[], &[UNIT]));
        }
        let mut gradient = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
        saved.insert(1, mean);
        for id in saved.into_iter().rev() {
            gradient = program.run(1, 201, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
        }
        program.drop_tensor(1, gradient);
    }
    program.run(1, 300, Works::New, &[], &[], &[4]);
    program.machine.world_mut().trace.take().expect("a pass was traced").ops[0].kind
}

#[test]
fn passes_that_begin_alike_begin_with_the_same_operation_however_long_they_are() {
    assert_eq!([2, 10, 50, 250].map(first_of), [100; 4]);
}

#[test]
fn a_plan_is_carried_to_other_sizes() {
    let plan = plan();
    // What the plan needs for its own size. It is to be kept at all other sizes too.
    let budget = plan.peak;
    let (mut program, parameter) = start(budget);
    program.machine.world_mut().plan = Some(plan);
    let sizes = [UNIT, UNIT / 2, UNIT + 4096, UNIT / 4, 2 * UNIT, UNIT, UNIT / 3, UNIT * 5 / 4];
    for unit in sizes.into_iter().cycle().take(40) {
        program.machine.world_mut().peak = 0;
        let recomputed = program.machine.counters().recomputed;
        let (_, gradient) = pass(&mut program, parameter, unit);
        program.drop_tensor(1, gradient);
        assert!(program.machine.world().peak <= budget, "{unit}: {} of {budget}", program.machine.world().peak);
        let recomputed = program.machine.counters().recomputed - recomputed;
        match unit {
            UNIT => assert!(recomputed > 0, "the plan evicts something"),
            _ if unit < UNIT / 2 => assert_eq!(recomputed, 0, "everything that is saved fits"),
            _ => {}
        }
    }
    program.run(1, 300, Works::New, &[], &[], &[4]);
    let world = program.machine.world();
    assert_eq!((world.left.len(), world.followed.len()), (0, 40));
    for (followed, unit) in world.followed.iter().zip(sizes.into_iter().cycle()) {
        assert_eq!((followed.carried, followed.deviation), (unit != UNIT, 0), "{unit}");
        let Some(trace) = followed.trace.as_ref().filter(|_| unit != UNIT) else { continue };
        let expected = written_down(unit);
        assert_eq!(trace.signature(), expected.signature(), "{unit}");
        // The tensor that no operation reads (the last one) keeps the size of the plan.
        let last = expected.storages.len() - 1;
        assert_eq!(
            (&trace.storages[..last], &trace.tensors[..last]),
            (&expected.storages[..last], &expected.tensors[..last])
        );
        let costs = |trace: &Trace| trace.ops.iter().map(|op| op.cost_ns).collect::<Vec<_>>();
        assert_eq!(costs(trace), costs(&expected), "{unit}");
    }
    assert!(world.followed.iter().filter(|followed| followed.trace.is_some()).count() >= 30);
}

#[test]
fn what_the_program_keeps_of_a_pass_hides_none() {
    let (mut program, parameter) = start(1 << 30);
    let mut logged = None;
    for _ in 0..30 {
        let mut saved = forward(&mut program, parameter, UNIT, |_, _| {});
        let mut gradient = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
        for (kind, id) in saved.drain(1..).rev().enumerate() {
            // The activation in the middle is kept until the next one comes.
            let kept = kind as u64 == DEPTH / 2;
            let last: &[u64] = if kept { &[gradient] } else { &[gradient, id] };
            let next = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], last, &[UNIT])[0];
            gradient = next;
            if let Some(before) = kept.then(|| logged.replace(id)).flatten() {
                program.drop_tensor(1, before);
            }
        }
        program.drop_tensor(1, gradient);
    }
    let trace = program.machine.world_mut().trace.take().expect("a pass was traced");
    assert!(trace.is_pass && program.machine.counters().steps >= 15, "{}", program.machine.counters().steps);
}

/// What was traced in each round of a program that holds the output of a pass longer, in every fourth round until the next update.
fn held_longer(rehearsing: bool) -> Vec<Option<Trace>> {
    let mut program = Program::new(Config { budget: Asked::Bytes(1 << 30), rehearsing, ..Config::default() });
    program.machine.world_mut().traces = true;
    let mut parameter = program.upload(1, UNIT);
    let rounds = (0..40).map(|round| {
        let saved = forward(&mut program, parameter, UNIT, |_, _| {});
        let output = saved[DEPTH as usize];
        let gradient = backward(&mut program, &saved, UNIT, Some(output));
        let is_late = round % 4 == 3;
        if !is_late {
            program.drop_tensor(1, output);
        }
        let change = program.run(1, 301, Works::New, &[gradient], &[gradient], &[UNIT])[0];
        let inputs = [parameter, change];
        parameter = program.run(1, 302, Works::New, &inputs, &inputs, &[UNIT])[0];
        if is_late {
            program.drop_tensor(1, output);
        }
        program.run(1, 303, Works::New, &[parameter], &[], &[4]);
        program.machine.world_mut().trace.take()
    });
    rounds.collect()
}

#[test]
fn a_pass_that_is_seen_to_end_late_begins_where_it_began() {
    for (round, trace) in held_longer(false).into_iter().enumerate().skip(20) {
        let trace = trace.expect("a pass was traced");
        assert_eq!((trace.is_pass, trace.ops[0].kind), (true, 100), "round {round}: {}", trace.ops.len());
    }
}

#[test]
fn what_a_rehearsal_plans_is_what_training_does() {
    let rounds = held_longer(true).into_iter().zip(held_longer(false));
    for (round, (seen, trained)) in rounds.enumerate().skip(20) {
        let (seen, trained) = (seen.expect("a stretch was traced").planned_part(), trained.expect("and a pass"));
        let kinds = |trace: &Trace| trace.ops.iter().map(|op| op.kind).collect::<Vec<_>>();
        assert_eq!(kinds(&seen), kinds(&trained), "round {round}");
    }
}

#[test]
fn a_pass_is_not_over_while_the_backward_needs_what_stands_for_something_saved() {
    // A matrix product first transposes what it has saved; a normalization first normalizes it.
    for first in [Works::View, Works::New] {
        check_end_after(first);
    }
}

/// The backward pass of each layer first makes something else of what was saved.
fn check_end_after(first: Works) {
    let (mut program, parameter) = start(1 << 30);
    for _ in 0..12 {
        let mut saved = forward(&mut program, parameter, UNIT, |_, _| {});
        let mut gradient = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
        for (kind, id) in saved.drain(1..).rev().enumerate() {
            let turned = program.run(1, 400, first, &[id], &[id], &[UNIT])[0];
            let inputs = [gradient, turned];
            gradient = program.run(1, 201 + kind as u64, Works::New, &inputs, &inputs, &[UNIT])[0];
        }
        program.drop_tensor(1, gradient);
    }
    program.run(1, 300, Works::New, &[], &[], &[4]);
    let trace = program.machine.world_mut().trace.take().expect("a pass was traced");
    // Forward pass, seed, and two operations for each layer: the last of them reads what was made first.
    assert_eq!((trace.is_pass, trace.ops.len()), (true, 3 * DEPTH as usize + 1));
    assert_eq!(trace.ops[0].kind, 100);
}

/// A pass through these layers, each of its own kind or all of one, with a head; `extra` adds a loss on the output.
fn pass_through(program: &mut Program, parameters: &[u64], layers: &[usize], kind: impl Fn(usize) -> u64, extra: bool) {
    let mut saved = vec![(99, parameters[0])];
    for &layer in layers {
        let input = saved[saved.len() - 1].1;
        let made = program.run(1, kind(layer), Works::New, &[input, parameters[layer]], &[], &[UNIT])[0];
        saved.push((kind(layer), made));
    }
    let (_, output) = saved[saved.len() - 1];
    let mut losses = program.run(1, 90, Works::New, &[output, parameters[0]], &[], &[UNIT]);
    if extra {
        losses.extend(program.run(1, 91, Works::New, &[output], &[], &[UNIT]));
    }
    let one = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
    let mut gradient = program.run(1, 92, Works::New, &[one, losses[0]], &[one, losses[0]], &[UNIT])[0];
    if let Some(&loss) = losses.get(1) {
        gradient = program.run(1, 93, Works::New, &[gradient, loss], &[gradient, loss], &[UNIT])[0];
    }
    for (kind, id) in saved.drain(1..).rev() {
        gradient = program.run(1, 200 + kind, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
    }
    program.read(1, gradient);
    program.drop_tensor(1, gradient);
}

/// A schedule for a pass through these layers, with nothing planned yet.
fn known(parameters: usize, layers: &[usize], kind: impl Fn(usize) -> u64) -> Schedule {
    let (mut program, _) = start(1 << 30);
    let parameters: Vec<u64> = (0..parameters).map(|_| program.upload(1, 16)).collect();
    (0..12).for_each(|_| pass_through(&mut program, &parameters, layers, &kind, false));
    program.run(1, 300, Works::New, &[], &[], &[4]);
    let trace = program.machine.world_mut().trace.take().expect("a pass was traced");
    let none = vec![false; trace.storages.len()];
    let mut known = Schedule::new(Arc::new(trace), none.clone(), none);
    known.peak = known.trace.peak();
    known
}

#[test]
fn a_pass_that_goes_over_to_what_is_known_of_another_keeps_to_the_budget() {
    const LAYERS: usize = 12;
    let kind = |layer: usize| 100 + layer as u64;
    let (short, long): (Vec<usize>, Vec<usize>) = ((0..4).collect(), (0..LAYERS).collect());
    let budget = 9 * UNIT;
    let (short, other) = (known(LAYERS, &short, kind), known(LAYERS, &long, kind));
    assert!(short.peak < budget && other.peak > budget, "{} and {}", short.peak, other.peak);
    let (mut program, _) = start(budget);
    let parameters: Vec<u64> = (0..LAYERS).map(|_| program.upload(1, 16)).collect();
    (program.machine.world_mut().plan, program.machine.world_mut().other) =
        (Some(Arc::new(short)), Some(Arc::new(other)));
    for round in 0..40 {
        program.machine.world_mut().peak = 0;
        pass_through(&mut program, &parameters, &long, kind, false);
        let held = program.machine.world().peak;
        assert!(held <= budget, "round {round}: {held}");
    }
    assert!(program.machine.world().followed.len() >= 20, "{}", program.machine.world().followed.len());
}

#[test]
fn a_plan_is_mended_where_a_pass_skips_layers_or_has_another_loss() {
    const LAYERS: usize = 12;
    for (is_uniform, budget) in [(false, 10), (true, 10), (false, 8), (true, 8)] {
        let kind = |layer: usize| if is_uniform { 100 } else { 100 + layer as u64 };
        let whole: Vec<usize> = (0..LAYERS).collect();
        let known = known(LAYERS, &whole, kind);
        let (mut program, _) = start(budget * UNIT);
        let parameters: Vec<u64> = (0..LAYERS).map(|_| program.upload(1, 16)).collect();
        program.machine.world_mut().plan = Some(Arc::new(known));
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut left = 0;
        for round in 0..300 {
            let layers: Vec<usize> = whole.iter().copied().filter(|_| rng.random_range(0..8) != 0).collect();
            program.machine.world_mut().peak = 0;
            pass_through(&mut program, &parameters, &layers, kind, round % 3 == 0);
            let held = program.machine.world().peak;
            assert!(held <= budget * UNIT, "{is_uniform}, {budget}, round {round}: {held}");
            if round == 200 {
                left = program.machine.world().left.len();
            }
        }
        let world = program.machine.world();
        // One that differs from the second operation on may not be a pass at all.
        let later = world.left[left..].iter().filter(|why| !matches!(why, Left::Differs { at: 1, .. }));
        assert_eq!(later.count(), 0, "{is_uniform}, {budget}: none of the last hundred leaves its plan");
        let mended = world.followed.iter().filter(|followed| followed.mended.is_some()).count();
        assert!(mended > 150 && world.followed.len() > 200, "{mended} of {}", world.followed.len());
        assert!(world.followed.iter().all(|followed| followed.mended.is_none() || followed.trace.is_none()));
    }
}

/// Rounds of a network that learns beside another one; autodiff holds what up to five rounds of the other have made. Returns the observer's bytes at the start
/// of the last pass, and how many of them were saved in earlier rounds.
fn beside_another(program: &mut Program, roots: [u64; 2], rounds: u64) -> (u64, u64) {
    let (mut saved, mut last) = (Vec::new(), (0, 0));
    for round in 0..rounds {
        let before = saved.len() as u64 * UNIT;
        let mut input = roots[1];
        for kind in 0..4 {
            input = program.run(1, 300 + kind, Works::New, &[input], &[], &[UNIT])[0];
            saved.push(input);
        }
        let (held, gradient) = pass(program, roots[0], UNIT);
        last = (held, before);
        program.drop_tensor(1, gradient);
        if round % 5 == 4 {
            saved.drain(..).for_each(|id| program.drop_tensor(1, id));
        }
    }
    last
}

#[test]
fn what_another_network_has_saved_gives_way_to_a_plan() {
    let (mut program, parameter) = start(1 << 26);
    let roots = [parameter, program.upload(1, UNIT)];
    let (held, before) = beside_another(&mut program, roots, 20);
    let trace = program.machine.world_mut().trace.take().expect("a pass was traced");
    assert_eq!((trace.is_pass, trace.ops.len()), (true, LENGTH));
    assert_eq!((trace.held_at_start, trace.yielding), (held - before, before));

    // There is room for what one round has saved, but not for five.
    let none = vec![false; trace.storages.len()];
    let mut plan = Schedule::new(Arc::new(trace), none.clone(), none);
    plan.peak = plan.trace.peak();
    let budget = plan.peak + UNIT;
    let (mut program, parameter) = start(budget);
    (program.machine.world_mut().plan, program.machine.world_mut().sure) = (Some(Arc::new(plan)), true);
    let roots = [parameter, program.upload(1, UNIT)];
    beside_another(&mut program, roots, 20);
    let world = program.machine.world();
    assert!(world.followed.len() >= 15, "{}", world.followed.len());
    assert!(world.peak <= budget, "{} of {budget}", world.peak);
    assert!(world.followed.iter().all(|followed| !followed.carried), "the plan has the room that it needs");
    assert_eq!(program.machine.counters().recomputed, 0, "nothing that is evicted is needed again");
}
