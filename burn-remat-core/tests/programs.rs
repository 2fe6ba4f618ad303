//! Random programs: what they read is what plain Burn would give, bytes are those that an observer counts, and nothing is left.

mod common;

use burn_remat_core::{Asked, Config};
use common::Program;
use common::random;

fn run(seed: u64, length: usize, config: Config, fails_at: Option<u64>) -> Program {
    let mut program = Program::new(config);
    if let Asked::Bytes(bytes) = config.budget {
        program.machine.world_mut().budget = Some(bytes);
    }
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
    let mut over = 0;
    for seed in 0..600_u64 {
        let bytes = 600 + 100 * (seed % 10);
        let program = finish(run(seed, 120, budget(bytes), None));
        let (world, floor) = (program.machine.world(), program.machine.counters().floor.bytes);
        // The observer's own finding: it knows the program and what is held, and asks the machine nothing.
        assert_eq!(world.idle, 0, "seed {seed}: {} bytes of {bytes} were held, floor {floor}", world.peak);
        assert!(world.peak <= bytes.max(floor), "seed {seed}: {} bytes of {bytes}, floor {floor}", world.peak);
        over += u64::from(world.peak > bytes);
    }
    assert!((60..540).contains(&over), "{over} of 600 budgets were too small");
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
