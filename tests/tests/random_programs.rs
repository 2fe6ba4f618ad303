//! Random programs give the same bits as plain Burn through a device, whatever the budget, and leave nothing behind.
//!
//! Bytes are counted by the backend below ([`faulty`]), not by the engine; only with several threads is plain Flex below, because a tensor that is
//! read on one thread while another releases it is lost by Burn's routers, and the counting backend is one. Programs are drawn from a fixed seed, or from
//! `BURN_REMAT_TEST_SEED`; a program that fails is shortened for as long as it still fails, and printed.

mod faulty;
mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn::tensor::Device;
use burn_remat::{AdvancedConfig, RematConfig, RematExt, remat_on};
use burn_remat_examples::device::is_flex;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use faulty::{Faulty, FaultyDevice};
use random::{Instruction, Program, Wire};

/// From more than any program takes down to less than a tensor, in bytes.
const BUDGETS: [&str; 7] = ["unlimited", "1 MiB", "24 KiB", "8 KiB", "4 KiB", "2 KiB", "64"];
const GENEROUS: u64 = 1 << 20;
/// Steps of a program that is planned.
const ROUNDS: usize = 6;

fn seed() -> u64 {
    std::env::var("BURN_REMAT_TEST_SEED").ok().map_or(34, |seed| seed.parse().expect("a number"))
}

fn draw(numbers: &mut ChaCha8Rng, most: usize) -> Vec<Instruction> {
    let length = numbers.random_range(3..most);
    (0..length).map(|_| numbers.random()).collect()
}

/// Two devices with the same budget.
struct Pair {
    /// The counting backends below, if there are any.
    below: Vec<FaultyDevice>,
    devices: [Device; 2],
    budget: &'static str,
    planned: bool,
}

impl Pair {
    /// Each device runs over a backend that counts.
    fn new(budget: &'static str, planned: bool) -> Self {
        let config = RematConfig::new(budget).without_cache();
        let config = if planned {
            config.with_time_limit(Duration::from_millis(5))
        } else {
            config.advanced(AdvancedConfig::without_planning)
        };
        let below = vec![FaultyDevice::new(), FaultyDevice::new()];
        let devices = [0, 1].map(|at: usize| remat_on::<Faulty>(below[at].clone(), config.clone()).unwrap());
        Self { below, devices, budget, planned }
    }

    /// For programs on several threads.
    fn for_threads(budget: &'static str) -> Self {
        let config = RematConfig::new(budget).without_cache().advanced(AdvancedConfig::without_planning);
        let devices = [(), ()].map(|()| Device::flex().remat(config.clone()).unwrap());
        Self { below: Vec::new(), devices, budget, planned: false }
    }

    fn both(&self) -> [&Device; 2] {
        [&self.devices[0], &self.devices[1]]
    }

    /// Restarts counting.
    fn reset(&self) {
        self.devices.iter().for_each(|device| device.remat_reset_report().unwrap());
        self.below.iter().for_each(|below| below.arm(None));
    }

    /// What is wrong with the devices after a program has finished.
    fn complaint(&self) -> Option<String> {
        let of = |(at, device): (usize, &Device)| {
            let report = device.remat_report().unwrap();
            // If nothing else counts, the engine is trusted.
            let (held, peak) =
                self.below.get(at).map_or(((0, 0), report.peak_bytes), |below| (below.held(), below.peak()));
            let budget = report.budget_bytes.unwrap_or(u64::MAX);
            let wrong = [
                (report.failure.is_some(), "it failed"),
                ((report.tensors, report.recipes, report.live_bytes) != (0, 0, 0), "the engine still holds something"),
                (held != (0, 0), "the backend still holds something"),
                (peak > report.peak_bytes, "more was held than the report says"),
                (peak > budget && report.steps_over_budget == 0, "over the budget, and the report does not say so"),
                (budget >= GENEROUS && report.recomputed_operations > 0, "recomputed under a generous budget"),
            ];
            let wrong = wrong.iter().find(|(is_wrong, _)| *is_wrong)?;
            Some(format!("{}: backend {held:?}, peak {peak}: {report}", wrong.1))
        };
        self.devices.iter().enumerate().find_map(of)
    }
}

/// Runs a program once, or as training of several steps.
fn run(instructions: &[Instruction], devices: [&Device; 2], is_training: bool) -> Vec<Vec<u8>> {
    let mut program = Program::new(devices, true, Wire::default());
    if is_training {
        for round in 0..ROUNDS {
            if round == 3 {
                for device in devices {
                    // There is no plan if no two steps are alike: only the bits matter here.
                    let _ = device.remat_wait_for_plan(Duration::from_secs(20));
                }
            }
            devices.iter().for_each(|device| device.remat_mark_step());
            program.run(instructions);
            program.forget();
        }
    } else {
        program.run(instructions);
    }
    program.finish()
}

/// What is wrong with `work` on a pair of devices.
fn fault_of(pair: &Pair, expected: &[Vec<u8>], work: impl FnOnce([&Device; 2]) -> Vec<Vec<u8>>) -> Option<String> {
    pair.reset();
    let seen = catch_unwind(AssertUnwindSafe(|| work(pair.both())));
    match seen {
        Err(_) => Some("it panicked".to_owned()),
        Ok(seen) if seen != expected => Some("it reads different bits".to_owned()),
        Ok(_) => {
            // What a plan holds for the rest of its step is released when the step ends.
            pair.devices.iter().filter(|_| pair.planned).for_each(|device| device.remat_mark_step());
            pair.complaint()
        }
    }
}

/// What is wrong with a program under a budget. Plain Flex is one device; a move between two devices copies what was a view, and sums over the
/// copy may add in another order. So if two stock groups of one give different bits, the remat devices, which are also groups, must give those.
fn fault(program: &[Instruction], pair: &Pair) -> Option<String> {
    let plain = Device::flex();
    let expected = run(program, [&plain, &plain], pair.planned);
    let fault = |expected: &[Vec<u8>]| fault_of(pair, expected, |devices| run(program, devices, pair.planned));
    let wrong = fault(&expected)?;
    let [first, second] = groups();
    let of_group = run(program, [&first, &second], pair.planned);
    if of_group == expected {
        return Some(wrong);
    }
    println!("two stock groups differ from one plain device");
    fault(&of_group)
}

/// Two stock groups of one, the same each time, because a group lives as long as the process.
fn groups() -> [Device; 2] {
    static GROUPS: OnceLock<[Device; 2]> = OnceLock::new();
    let group = |()| Device::group_options(&[Device::flex()]).init().expect("a group of one");
    GROUPS.get_or_init(|| [(), ()].map(group)).clone()
}

/// A shorter program that fails in the same way, on fresh devices: halves, quarters and so on are removed while they are not needed.
fn shorter(program: &[Instruction], pair: &Pair, wrong: &str) -> Vec<Instruction> {
    let kind = wrong.split(':').next();
    let mut program = program.to_vec();
    let mut size = program.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < program.len() {
            let mut less = program.clone();
            less.drain(at..(at + size).min(program.len()));
            let found = fault(&less, &Pair::new(pair.budget, pair.planned));
            if found.is_some_and(|found| found.split(':').next() == kind) {
                program = less;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    program
}

fn check(programs: usize, longest: usize, planned_every: usize) {
    let mut numbers = ChaCha8Rng::seed_from_u64(seed());
    let pairs = BUDGETS.map(|budget| Pair::new(budget, false));
    let mut planned = BUDGETS.map(|budget| Pair::new(budget, true));
    for number in 0..programs {
        let program = draw(&mut numbers, longest);
        let at = number % BUDGETS.len();
        let is_planned = number % planned_every == 0;
        for pair in [Some(&pairs[at]), is_planned.then_some(&planned[at])].into_iter().flatten() {
            if let Some(wrong) = fault(&program, pair) {
                let short = shorter(&program, pair, &wrong);
                let (budget, planned) = (pair.budget, pair.planned);
                panic!("program {number} of seed {} at {budget}, planned: {planned}: {wrong}\n{short:?}", seed());
            }
        }
        if number % 500 == 499 {
            println!("{} programs", number + 1);
            // Plans are kept for as long as their device lives.
            planned = BUDGETS.map(|budget| Pair::new(budget, true));
        }
    }
}

/// Several programs at once on the same devices; each passes some of its tensors to the next. Returns what each reads, in their order.
fn run_at_once(programs: &[Vec<Instruction>], devices: [&Device; 2]) -> Vec<Vec<u8>> {
    let mut from = None;
    let mut wires = Vec::new();
    for _ in programs {
        let (to, next) = channel();
        wires.push(Wire { to: Some(to), from: from.replace(next) });
    }
    let run = |program: &[Instruction], wire| {
        let mut running = Program::new(devices, false, wire);
        running.run(program);
        running.finish()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            programs.iter().zip(wires).map(|(program, wire)| scope.spawn(move || run(program, wire))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a program on a thread of its own")).collect()
    })
}

fn check_at_once(rounds: usize) {
    let mut numbers = ChaCha8Rng::seed_from_u64(seed() + 1);
    // On Burn's own groups: see `fault`.
    let [first, second] = groups();
    let pairs = BUDGETS.map(Pair::for_threads);
    for round in 0..rounds {
        let programs: Vec<_> = (0..2 + round % 3).map(|_| draw(&mut numbers, 60)).collect();
        let expected = run_at_once(&programs, [&first, &second]);
        let pair = &pairs[round % BUDGETS.len()];
        if let Some(wrong) = fault_of(pair, &expected, |devices| run_at_once(&programs, devices)) {
            panic!("round {round} of seed {} at {}: {wrong}\n{programs:?}", seed(), pair.budget);
        }
    }
}

/// One test after the other, because the process has only one generator of random numbers.
#[test]
fn random_programs_read_the_same_bits_under_any_budget() {
    if is_flex("random_programs_read_the_same_bits_under_any_budget", "the backend that counts runs over Flex") {
        check(300, 60, 5);
        check_at_once(60);
    }
}

#[test]
#[ignore = "10,000 programs, a quarter of them planned, and 2,000 rounds on several threads: about half an hour"]
fn ten_thousand_random_programs_read_the_same_bits_under_any_budget() {
    check(10_000, 160, 4);
    check_at_once(2_000);
}
