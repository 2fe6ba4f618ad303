//! Random programs: what they read is what plain Burn would give, bytes are those that an observer counts, and nothing is left.

mod common;

use burn_remat_core::{Asked, Config};
use common::{Program, Works};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A random program of so many instructions.
fn run(seed: u64, length: usize, config: Config, fails_at: Option<u64>) -> Program {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut program = Program::new(config);
    program.machine.world_mut().compresses = seed.is_multiple_of(2);
    program.machine.world_mut().fails_at = fails_at;
    let threads = 1 + seed % 3;
    for _ in 0..length {
        let thread = rng.random_range(0..threads);
        let alive: Vec<u64> = program.expected.keys().copied().collect();
        let pick = |rng: &mut ChaCha8Rng| alive[rng.random_range(0..alive.len())];
        match rng.random_range(0..20) {
            0 | 1 => drop(program.upload(thread, [64, 128, 256][rng.random_range(0..3)])),
            _ if alive.is_empty() => drop(program.upload(thread, 128)),
            2..=4 => {
                let id = pick(&mut rng);
                program.drop_tensor(thread, id);
            }
            5 => {
                let id = pick(&mut rng);
                program.read(thread, id);
            }
            6 if rng.random_range(0..4) == 0 => program.machine.mark(thread),
            _ => {
                let mut inputs = vec![pick(&mut rng)];
                let second = pick(&mut rng);
                if rng.random_bool(0.5) && second != inputs[0] {
                    inputs.push(second);
                }
                let last: Vec<u64> = inputs.iter().copied().filter(|_| rng.random_bool(0.4)).collect();
                // Operations of a kind work alike.
                let kind = rng.random_range(1..48);
                let works = match kind % 12 {
                    0 => Works::Random,
                    1 => Works::Opaque,
                    2 | 3 => Works::View,
                    4..=7 => Works::InPlace,
                    _ => Works::New,
                };
                let bytes = program.bytes[&inputs[0]];
                let outputs = match (works, rng.random_range(0..6)) {
                    (Works::View | Works::InPlace, _) => vec![bytes],
                    (Works::New, 0) => vec![bytes, 4],
                    _ => vec![[4, 64, 128, 256][rng.random_range(0..4)]],
                };
                let inputs = if works == Works::Random { Vec::new() } else { inputs };
                let last = if works == Works::Random { Vec::new() } else { last };
                program.run(thread, kind, works, &inputs, &last, &outputs);
            }
        }
    }
    program
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
