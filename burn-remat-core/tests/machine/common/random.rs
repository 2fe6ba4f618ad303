//! Random programs.

use std::collections::BTreeSet;

use burn_remat_core::Kind;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Program, Works};

/// Makes a program follow this many random instructions.
pub fn run(program: Program, seed: u64, length: usize, fails_at: Option<u64>) -> Program {
    run_with(program, seed, length, fails_at, true)
}

/// The same, with a choice whether the program may release what cannot be computed again; if not, it uploads less.
pub fn run_with(mut program: Program, seed: u64, length: usize, fails_at: Option<u64>, roots_go: bool) -> Program {
    let mut roots: BTreeSet<u64> = BTreeSet::new();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    program.machine.world_mut().fails_at = fails_at;
    let threads = 1 + seed % 3;
    for _ in 0..length {
        let thread = rng.random_range(0..threads);
        let alive: Vec<u64> = program.expected.keys().copied().collect();
        let pick = |rng: &mut ChaCha8Rng| alive[rng.random_range(0..alive.len())];
        match rng.random_range(0..20) {
            chosen @ (0 | 1) => {
                let bytes = [64, 128, 256][rng.random_range(0..3)];
                if chosen == 0 || roots_go {
                    roots.insert(program.upload(thread, bytes));
                }
            }
            _ if alive.is_empty() => drop(roots.insert(program.upload(thread, 128))),
            2..=4 => {
                let id = pick(&mut rng);
                if roots_go || !roots.contains(&id) {
                    program.drop_tensor(thread, id);
                }
            }
            5 => {
                let id = pick(&mut rng);
                program.read(thread, id);
            }
            6 if rng.random_range(0..4) == 0 => program.mark(thread),
            _ => {
                let mut inputs = vec![pick(&mut rng)];
                let second = pick(&mut rng);
                if rng.random_bool(0.5) && second != inputs[0] {
                    inputs.push(second);
                }
                let drawn = inputs.iter().copied().filter(|_| rng.random_bool(0.4));
                let last: Vec<u64> = drawn.filter(|id| roots_go || !roots.contains(id)).collect();
                let kind = rng.random_range(1..48);
                let works = works_of(kind);
                let bytes = program.bytes[&inputs[0]];
                let outputs = match (works, rng.random_range(0..6)) {
                    (Works::View | Works::InPlace, _) => vec![bytes],
                    (Works::New, 0) => vec![bytes, 4],
                    _ => vec![[4, 64, 128, 256][rng.random_range(0..4)]],
                };
                let inputs = if works == Works::Random { Vec::new() } else { inputs };
                let last = if works == Works::Random { Vec::new() } else { last };
                let made = program.run(thread, kind, works, &inputs, &last, &outputs);
                if matches!(works, Works::Random | Works::Opaque) {
                    roots.extend(made);
                }
            }
        }
    }
    program
}

/// All operations of one kind work alike.
fn works_of(kind: Kind) -> Works {
    match kind % 12 {
        0 => Works::Random,
        1 => Works::Opaque,
        2 | 3 => Works::View,
        4..=7 => Works::InPlace,
        _ => Works::New,
    }
}
