//! Passes, recognised from bytes alone.

use alloc::vec::Vec;

use super::*;

/// Saves ten tensors of ten bytes each from `clock` on, of which the program keeps `kept`. Returns the clock afterwards.
fn forward(passes: &mut Passes, clock: u64) -> u64 {
    (0..10).for_each(|_| passes.computed(10));
    clock + 10
}

/// Releases all but `kept` of what was made from `clock` on. Returns whether the pass is over after each.
fn backward(passes: &mut Passes, made: u64, clock: u64, kept: u64) -> Vec<bool> {
    let gone = (kept..10).rev().map(|at| {
        passes.let_go(Part::Forward, made + at, 10, (clock + 10 - at, 0));
        passes.is_over()
    });
    gone.collect()
}

#[test]
fn a_pass_is_over_when_what_was_saved_is_gone() {
    let mut passes = Passes::default();
    for round in 0..3 {
        let made = 1 + 100 * round;
        let clock = forward(&mut passes, made);
        assert!(!passes.is_over());
        assert_eq!(passes.one(clock, 7), Seed::Begins);
        let over = backward(&mut passes, made, clock, 0);
        assert_eq!(over.iter().filter(|over| **over).count(), 1, "only with the last");
        assert_eq!(passes.seed(), Some(7));
        passes.end(clock + 20, 100);
        assert!(passes.is_quiet() && !passes.is_over());
    }
}

#[test]
fn what_a_program_keeps_is_learned() {
    let mut passes = Passes::default();
    let clock = forward(&mut passes, 1);
    passes.one(clock, 10);
    assert!(backward(&mut passes, 1, clock, 3).iter().all(|over| !over));
    let clock = forward(&mut passes, 100);
    assert_eq!(passes.one(clock, 50), Seed::After(11 + 10 - 3 + 1));
    passes.end(20, 100);
    assert_eq!(passes.seed(), Some(50), "the pass that has begun goes on");
    assert!(backward(&mut passes, 100, clock, 3).last().unwrap());
}

#[test]
fn what_a_program_kept_once_is_unlearned() {
    let mut passes = Passes::default();
    let clock = forward(&mut passes, 1);
    passes.one(clock, 10);
    backward(&mut passes, 1, clock, 3);
    // How many are released before the pass is over; the others are released afterwards.
    let mut pass = |made: u64| {
        let clock = forward(&mut passes, made);
        passes.one(clock, 10);
        let mut until = 0;
        for at in (0..10).rev() {
            passes.let_go(Part::Forward, made + at, 10, (clock + 10 - at, 0));
            until += u64::from(passes.seed().is_some());
            if passes.is_over() {
                passes.end(clock + 11 - at, 100);
            }
        }
        until
    };
    assert_eq!(pass(100), 7, "three are expected to be kept");
    assert_eq!(pass(200), 10, "none was kept");
}

#[test]
fn an_update_shows_that_a_pass_has_been_over() {
    let mut passes = Passes::default();
    let clock = forward(&mut passes, 1);
    passes.one(clock, 10);
    for at in (3..10).rev() {
        let count = 10 - at;
        passes.let_go(Part::Forward, 1 + at, 10, (clock + count, 10 + count as Position));
        if count < 3 {
            // Too much is still held.
            passes.update_parameter(clock + count);
        }
        assert_eq!((passes.is_over(), passes.over()), (false, None), "{count}");
    }
    passes.update_parameter(clock + 20);
    assert_eq!((passes.is_over(), passes.over()), (true, Some(17)), "where the last one was released");
}

#[test]
fn of_two_kinds_in_turns_each_is_known_by_what_it_saves() {
    let mut passes = Passes::default();
    let mut clock = 1;
    // Three in ten tensors are kept of a large pass, none of a small one: how many are released before it is over.
    let mut pass = |count: u64, kept: u64| {
        let made = clock;
        (0..count).for_each(|_| passes.computed(10));
        if let Seed::After(over) = passes.one(made + count, 10) {
            passes.end(over, 100);
        }
        let mut until = 0;
        for at in (kept..count).rev() {
            passes.let_go(Part::Forward, made + at, 10, (made + 2 * count - at, 0));
            until += u64::from(passes.seed().is_some());
            if passes.is_over() {
                passes.end(made + 2 * count - at + 1, 100);
            }
        }
        clock += 2 * count + 10;
        (until, passes.seed().is_some())
    };
    let rounds: Vec<_> = (0..4).map(|_| (pass(10, 3), pass(6, 0))).collect();
    assert_eq!(rounds[0].0, (7, true), "it is not known yet that something is kept");
    assert_eq!(rounds[2..], [((7, false), (6, false)); 2]);
}

#[test]
fn what_the_next_backward_needs_is_of_one_pass_with_it() {
    let mut passes = Passes::default();
    let mut clock = 1;
    // A generator, a discriminator, the backward pass and update of the discriminator, the discriminator once more, and a backward pass through both.
    let mut round = || {
        let (made, seed) = (clock, clock + 20);
        let judge = 0..10;
        let end = |passes: &mut Passes, at: u64| {
            if passes.is_over() {
                passes.end(at, 100)
            }
        };
        forward(&mut passes, made);
        forward(&mut passes, made + 10);
        passes.one(seed, 20);
        for at in judge.clone() {
            passes.let_go(Part::Forward, made + 10 + at, 10, (seed + at, 20));
        }
        passes.update_parameter(seed + 10);
        end(&mut passes, seed + 11);
        let is_cut = passes.seed().is_none();
        let again = forward(&mut passes, seed + 12);
        passes.one(again, 42);
        for at in judge {
            passes.let_go(Part::Forward, seed + 12 + at, 10, (again + at, 42));
            end(&mut passes, again + at + 1);
        }
        for at in (0..10).rev() {
            passes.reads(Part::Forward, made + at, 10);
            passes.let_go(Part::Forward, made + at, 10, (again + 20 - at, 42));
            end(&mut passes, again + 21 - at);
        }
        let seed = passes.seed();
        passes.update_parameter(again + 30);
        clock = again + 40;
        (is_cut, seed, passes.have_gone_on())
    };
    let rounds: Vec<_> = (0..3).map(|_| round()).collect();
    assert_eq!(rounds, [(true, None, true), (false, None, false), (false, None, false)]);
}

#[test]
fn a_one_that_is_no_seed_changes_nothing() {
    let mut passes = Passes::default();
    assert_eq!(passes.one(1, 0), Seed::Nothing, "nothing was computed");
    let clock = forward(&mut passes, 2);
    assert_eq!(passes.one(clock, 10), Seed::Begins, "it looks like a seed");
    let clock = forward(&mut passes, 20);
    assert_eq!(passes.one(clock, 20), Seed::Nothing);
    assert!(backward(&mut passes, 20, clock, 0).iter().all(|over| !over));
    assert!(backward(&mut passes, 2, clock, 0).last().unwrap());
}
