//! Random programs: what they read is what plain Burn would give, bytes are those that an observer counts, and nothing is left at the end.

use crate::common::{Program, naive, random};
use burn_remat_core::{Asked, Asking, Config};

fn run(seed: u64, length: usize, config: Config, fails_at: Option<u64>) -> Program {
    let mut program = Program::new(config);
    program.machine.world_mut().compresses = seed.is_multiple_of(2);
    random::run(program, seed, length, fails_at)
}

fn finish(mut program: Program) -> Program {
    for id in program.expected.keys().copied().collect::<Vec<_>>() {
        program.read(0, id);
    }
    for id in program.expected.keys().copied().collect::<Vec<_>>() {
        program.drop_tensor(0, id);
    }
    let holdings = program.machine.holdings();
    assert_eq!((holdings.bytes, holdings.tensors, holdings.recipes), (0, 0, 0), "something is left");
    assert_eq!(program.machine.world().sizes(), (0, 0, 0), "the driver keeps something");
    program
}

fn budget(bytes: u64) -> Config {
    Config { budget: Asked::Bytes(bytes), recompute_limit: f64::INFINITY, ..Config::default() }
}

#[test]
fn random_programs_read_what_plain_burn_gives_and_leave_nothing() {
    // In the last two, at a step boundary, bringing one tensor back releases what another depends on.
    check((0..600).chain([13_650, 26_740]));
}

#[test]
#[ignore = "60,000 programs: a minute in release mode"]
fn sixty_thousand_random_programs_read_what_plain_burn_gives_and_leave_nothing() {
    check(600..60_600);
}

fn check(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let bytes = [1, 600, 1200, 2400, u64::MAX / 2][seed as usize % 5];
        let config = Config { reseed: seed.is_multiple_of(7), ..budget(bytes) };
        finish(run(seed, 200, config, None));
    }
}

/// How many single-threaded programs hold more than a policy that keeps nothing, out of how many; and the highest ratio of the two.
fn beyond_naive(seeds: u64, length: usize, roots_go: bool) -> (u32, u32, f64) {
    let (mut beyond, mut count, mut most) = (0, 0, 0.0_f64);
    // One in three runs on one thread.
    for seed in (0..seeds).step_by(3) {
        let go = |bytes: u64| random::run_with(Program::new(budget(bytes)), seed, length, None, roots_go);
        let program = go(u64::MAX / 2);
        // A marked step ends with everything that is alive brought back.
        if program.asked.iter().any(|asking| matches!(asking, Asking::Mark { .. })) {
            continue;
        }
        let naive = naive::most(&program.asked);
        let program = go(naive);
        let peak = program.machine.world().peak;
        finish(program);
        count += 1;
        beyond += u32::from(peak > naive);
        most = most.max(peak as f64 / naive as f64);
    }
    (beyond, count, most)
}

#[test]
fn the_budget_is_kept_wherever_a_policy_that_keeps_nothing_keeps_it() {
    for length in [20, 60, 120] {
        let (beyond, count, most) = beyond_naive(6000, length, false);
        println!("length {length}: {beyond} of {count} over the budget, factor {most:.2}");
        // An operation may look like an update, and what is alive is brought back then.
        assert!(count >= 300 && 40 * beyond <= count && most <= 1.25, "{beyond} of {count} over it, factor {most:.2}");
        // If a program releases what cannot be computed again, what was made from it may take its place, and be larger.
        let (beyond, count, most) = beyond_naive(6000, length, true);
        println!("length {length}, roots released: {beyond} of {count} over the budget, factor {most:.2}");
        assert!(count >= 300 && 2 * beyond <= count && most <= 2.0, "{beyond} of {count} over it, factor {most:.2}");
    }
}

#[test]
fn a_failure_at_any_command_loses_nothing_else() {
    for seed in 0..20 {
        let commands = run(seed, 80, budget(700), None).machine.world().commands;
        for fails_at in 1..=commands {
            finish(run(seed, 80, budget(700), Some(fails_at)));
        }
    }
}
