//! What happens over several steps: budgets that prove too small, shares of the first step, counters, failures.

use crate::common::{ONE, Program, Works};
use burn_remat_core::{Asked, Config};

const UNIT: u64 = 256;

fn config(budget: Asked) -> Config {
    Config { budget, recompute_limit: f64::INFINITY, ..Config::default() }
}

/// The forward pass through a chain of this many operations on `parameter`, and the backward pass, which reads the results in turn.
fn step(program: &mut Program, parameter: u64, depth: u64) {
    program.machine.mark(1);
    let mut saved = vec![parameter];
    for kind in 0..depth {
        let input = saved[saved.len() - 1];
        saved.extend(program.run(1, 100 + kind, Works::New, &[input], &[], &[UNIT]));
    }
    let mut gradient = program.run(1, 200, Works::New, &[saved[saved.len() - 1]], &[], &[UNIT])[0];
    for (kind, id) in saved.drain(1..).rev().enumerate() {
        gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
    }
    program.read(1, gradient);
    program.drop_tensor(1, gradient);
}

fn most_of(program: &mut Program, run: impl FnOnce(&mut Program)) -> u64 {
    program.machine.world_mut().peak = 0;
    run(program);
    program.machine.world().peak
}

#[test]
fn a_burst_is_forgotten_when_it_is_over() {
    let budget = 8 * UNIT;
    let mut program = Program::new(config(Asked::Bytes(budget)));
    let parameter = program.upload(1, UNIT);
    for _ in 0..3 {
        assert!(most_of(&mut program, |program| step(program, parameter, 12)) <= budget);
    }
    let burst = program.run(1, 1, Works::New, &[parameter], &[], &[4 * budget])[0];
    program.drop_tensor(1, burst);
    step(&mut program, parameter, 12);
    for _ in 0..3 {
        assert!(most_of(&mut program, |program| step(program, parameter, 12)) <= budget);
    }
}

#[test]
fn the_floor_is_what_one_operation_needs_and_nothing_that_could_have_gone() {
    // A parameter, and an operation with two inputs and one output.
    let floor = 4 * UNIT;
    let mut program = Program::new(config(Asked::Bytes(2 * UNIT)));
    let parameter = program.upload(1, UNIT);
    for _ in 0..4 {
        step(&mut program, parameter, 12);
    }
    assert_eq!(program.machine.counters().floor.bytes, floor);
    // With this budget, it can be kept.
    let mut program = Program::new(config(Asked::Bytes(floor)));
    let parameter = program.upload(1, UNIT);
    for _ in 0..4 {
        assert!(most_of(&mut program, |program| step(program, parameter, 12)) <= floor);
    }
    assert_eq!(program.machine.counters().steps_over_budget, 0);
}

#[test]
fn what_is_kept_to_compute_something_again_goes_where_nothing_else_can() {
    let mut program = Program::new(config(Asked::Bytes(2 * UNIT)));
    let ids = program.upload(1, UNIT / 8);
    let x = program.run(1, 1, Works::New, &[ids], &[], &[UNIT])[0];
    program.drop_tensor(1, ids);
    assert_eq!(program.machine.holdings().bytes, UNIT + UNIT / 8, "kept, because it is small");
    program.run(1, 2, Works::New, &[x], &[], &[UNIT]);
    assert_eq!(program.machine.world().peak, 2 * UNIT, "what the observer has seen");
}

#[test]
fn what_a_large_root_is_kept_for_is_brought_back_where_that_holds_less() {
    let mut program = Program::new(config(Asked::Bytes(6 * UNIT)));
    let weights = program.upload(1, 4 * UNIT);
    let picture = program.run(1, 1, Works::New, &[weights], &[], &[UNIT])[0];
    let other = program.run(1, 2, Works::New, &[weights], &[], &[2 * UNIT])[0];
    assert!(program.machine.world().content(picture).is_none(), "it is evicted");
    program.drop_tensor(1, other);
    program.drop_tensor(1, weights);
    assert_eq!(program.machine.holdings().bytes, 4 * UNIT, "kept for the image");
    program.run(1, 3, Works::New, &[], &[], &[4 * UNIT]);
    assert_eq!(program.machine.holdings().bytes, 5 * UNIT, "the image and what is new");
    assert_eq!(program.machine.world().peak, 6 * UNIT, "what the observer has seen");
    program.read(1, picture);
}

#[test]
fn a_share_is_one_of_the_first_step_and_not_of_what_came_before_it() {
    let mut program = Program::new(config(Asked::Share(0.5)));
    let large = program.upload(1, 64 * UNIT);
    program.drop_tensor(1, large);
    let parameter = program.upload(1, UNIT);
    let first = most_of(&mut program, |program| step(program, parameter, 12));
    program.machine.mark(1);
    assert_eq!(program.machine.budget(), Some(first / 2));
}

#[test]
fn starting_the_counters_anew_changes_nothing_else() {
    let log = |resets: bool| {
        let mut program = Program::new(config(Asked::Bytes(6 * UNIT)));
        program.machine.world_mut().logs = true;
        let parameter = program.upload(1, UNIT);
        for _ in 0..4 {
            step(&mut program, parameter, 12);
            if resets {
                program.machine.reset_counters();
            }
        }
        program.machine.world_mut().log.clone()
    };
    assert_eq!(log(false), log(true));
}

#[test]
fn a_mask_that_could_not_be_brought_back_is_not_lost() {
    let mut program = Program::new(config(Asked::Bytes(4 * UNIT)));
    program.machine.world_mut().compresses = true;
    let mask = program.run(1, 12, Works::Random, &[], &[], &[UNIT])[0];
    let x = program.upload(1, UNIT);
    let y = program.run(1, 1, Works::New, &[x], &[], &[3 * UNIT])[0];
    assert!(program.machine.world().content(mask).is_none(), "it is compressed");
    program.drop_tensor(1, y);
    let next = program.machine.world().commands + 1;
    program.machine.world_mut().fails_at = Some(next);
    program.read(1, mask);
    assert!(program.machine.counters().failure.is_some(), "the first attempt fails");
    program.machine.world_mut().fails_at = None;
    program.read(1, mask);
    assert!(program.machine.world().content(mask).is_some());
}

#[test]
fn what_a_forward_has_saved_over_several_steps_can_still_go() {
    let budget = 20 * UNIT;
    let mut program = Program::new(config(Asked::Bytes(budget)));
    let (other, mut parameter) = (program.upload(1, UNIT), program.upload(1, UNIT));
    let mut saved = Vec::new();
    for round in 0..20 {
        // What autodiff holds of another network, whose backward pass comes after five steps of this one.
        let mut input = other;
        for kind in 0..6 {
            input = program.run(1, 300 + kind, Works::New, &[input], &[], &[UNIT])[0];
            saved.push(input);
        }
        parameter = updated(&mut program, parameter, 6, ONE);
        if round % 5 == 4 {
            saved.drain(..).for_each(|id| program.drop_tensor(1, id));
        }
    }
    let counters = program.machine.counters();
    assert!(counters.steps >= 15, "{} steps", counters.steps);
    assert_eq!(counters.steps_over_budget, 0, "floor {}", counters.floor.bytes);
}

#[test]
fn bytes_tell_of_steps_after_a_while_where_no_backward_begins_with_a_single_one() {
    let (rounds, operations) = (1000, 14);
    let mut program = Program::new(config(Asked::Bytes(20 * UNIT)));
    let (frozen, mut parameter) = (program.upload(1, UNIT), program.upload(1, UNIT));
    for _ in 0..rounds {
        program.run(1, 99, Works::New, &[frozen], &[], &[UNIT]).into_iter().for_each(|id| program.drop_tensor(1, id));
        parameter = updated(&mut program, parameter, (operations - 2) / 2, 78);
    }
    let steps = program.machine.counters().steps;
    let before = 8000 / operations + 10;
    assert!((rounds - before..rounds).contains(&steps), "{steps} steps");
}

/// A forward pass of `depth` operations, its backward pass, which begins with one of the kind `first`, and the update. Returns the parameter afterwards.
fn updated(program: &mut Program, parameter: u64, depth: u64, first: u64) -> u64 {
    let mut saved = vec![parameter];
    for kind in 0..depth {
        let input = saved[saved.len() - 1];
        saved.extend(program.run(1, 100 + kind, Works::New, &[input], &[], &[UNIT]));
    }
    let mut gradient = program.run(1, first, Works::New, &[], &[], &[4])[0];
    for (kind, id) in saved.drain(1..).rev().enumerate() {
        gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
    }
    let inputs = [parameter, gradient];
    program.run(1, 400, Works::InPlace, &inputs, &inputs, &[UNIT])[0]
}

/// A step of layers that share a parameter and add to their input, in place as a backend does it. The accumulated gradient of the parameter is updated
/// in place, and so is the gradient that is passed on.
fn residual_step(program: &mut Program, parameter: u64, depth: u64) -> u64 {
    let mut state = program.upload(1, UNIT);
    let mut saved = Vec::new();
    for _ in 0..depth {
        let inner = program.run(1, 100, Works::New, &[state, parameter], &[], &[UNIT])[0];
        let outer = program.run(1, 101, Works::New, &[inner], &[], &[UNIT])[0];
        state = program.run(1, 102, Works::InPlace, &[state, outer], &[state], &[UNIT])[0];
        saved.push([inner, outer]);
    }
    program.drop_tensor(1, state);
    let seed = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
    let mut gradient = program.run(1, 200, Works::New, &[seed], &[seed], &[UNIT])[0];
    let mut sum = None;
    for [inner, outer] in saved.into_iter().rev() {
        let part = program.run(1, 201, Works::New, &[gradient, outer], &[outer], &[UNIT])[0];
        let own = program.run(1, 202, Works::New, &[part, inner], &[inner], &[UNIT])[0];
        gradient = program.run(1, 203, Works::InPlace, &[gradient, part], &[gradient, part], &[UNIT])[0];
        sum = Some(match sum {
            None => own,
            Some(sum) => program.run(1, 204, Works::InPlace, &[sum, own], &[sum, own], &[UNIT])[0],
        });
    }
    program.drop_tensor(1, gradient);
    let inputs = [parameter, sum.expect("there are layers")];
    program.run(1, 400, Works::InPlace, &inputs, &inputs, &[UNIT])[0]
}

#[test]
fn layers_that_add_in_place_are_no_steps_and_keep_to_the_budget_from_the_first_on() {
    let (depth, rounds) = (8, 6);
    let budget = 12 * UNIT;
    let mut program = Program::new(config(Asked::Bytes(budget)));
    let mut parameter = program.upload(1, UNIT);
    for _ in 0..rounds {
        let most = most_of(&mut program, |program| parameter = residual_step(program, parameter, depth));
        assert!(most <= budget, "{} units", most / UNIT);
    }
    let counters = program.machine.counters();
    // The end of the last one has not been seen.
    assert!((1..rounds).contains(&counters.steps), "{} steps", counters.steps);
    assert!(counters.recomputed > 0);
}

#[test]
fn a_share_is_known_after_a_few_backwards_where_nothing_is_updated() {
    let mut program = Program::new(config(Asked::Share(0.5)));
    let parameter = program.upload(1, UNIT);
    for _ in 0..4 {
        let mut saved = vec![parameter];
        for kind in 0..12 {
            let input = saved[saved.len() - 1];
            saved.extend(program.run(1, 100 + kind, Works::New, &[input], &[], &[UNIT]));
        }
        let mut gradient = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
        for (kind, id) in saved.drain(1..).rev().enumerate() {
            gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
        }
        program.drop_tensor(1, gradient);
    }
    let budget = program.machine.budget().expect("a share of what the first passes held");
    assert!((6 * UNIT..8 * UNIT).contains(&budget), "{budget} bytes");
}

/// Which operations of a step can run again, according to its trace under this budget. The program releases the batch before the backward pass.
fn recordable(budget: u64) -> Vec<bool> {
    let mut program = Program::new(config(Asked::Bytes(budget)));
    program.machine.world_mut().traces = true;
    for _ in 0..4 {
        program.machine.mark(1);
        let mut saved = vec![program.upload(1, UNIT)];
        for kind in 0..12 {
            let input = saved[saved.len() - 1];
            saved.extend(program.run(1, 100 + kind, Works::New, &[input], &[], &[UNIT]));
        }
        let mut gradient = program.run(1, 200, Works::New, &[saved[12]], &[], &[UNIT])[0];
        program.drop_tensor(1, saved[0]);
        // What was made from the batch first is read first.
        for (kind, &id) in saved[1..].iter().enumerate() {
            gradient = program.run(1, 201 + kind as u64, Works::New, &[gradient, id], &[gradient, id], &[UNIT])[0];
        }
        program.read(1, gradient);
        program.drop_tensor(1, gradient);
    }
    program.machine.mark(1);
    let trace = program.machine.world_mut().trace.take().expect("a step was traced");
    trace.ops.iter().map(|op| op.recordable).collect()
}

#[test]
fn what_can_run_again_is_the_same_whatever_was_evicted() {
    let all = vec![true; 25];
    assert_eq!(recordable(1 << 30), all);
    assert_eq!(recordable(7 * UNIT), all);
}
