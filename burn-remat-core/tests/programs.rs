//! Random programs: what they read is what plain Burn would give, bytes are those that an observer counts, and nothing is left.

mod common;

use burn_remat_core::{Asked, Config};
use common::Program;
use common::random;

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
    for seed in 0..600_u64 {
        let bytes = [1, 600, 1200, 2400, u64::MAX / 2][seed as usize % 5];
        let config = Config { reseed: seed.is_multiple_of(7), ..budget(bytes) };
        finish(run(seed, 200, config, None));
    }
}

#[test]
fn the_budget_is_kept_wherever_something_could_go() {
    for seed in 0..600_u64 {
        let bytes = 600 + 100 * (seed % 10);
        let program = finish(run(seed, 120, budget(bytes), None));
        let (peak, floor) = (program.machine.world().peak, program.machine.counters().floor.bytes);
        assert!(peak <= bytes.max(floor), "seed {seed}: {peak} bytes of {bytes}, floor {floor}");
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
