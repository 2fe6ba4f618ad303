//! Compares the floor with the least that any schedule can do with, found by trying all schedules of programs of up to eight operations.

use std::collections::BinaryHeap;

use crate::common::{Program, Works};
use burn_remat_core::{Asked, Config};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
enum Event {
    Upload(u64),
    Run(Vec<usize>, u64),
    Drop(usize),
}

fn random(seed: u64) -> Vec<Event> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let size = |rng: &mut ChaCha8Rng| 10 * rng.random_range(1..6_u64);
    let mut events = vec![Event::Upload(size(&mut rng)), Event::Upload(size(&mut rng))];
    let (mut alive, mut count) = (vec![0, 1], 2);
    for _ in 0..8 {
        let mut inputs: Vec<usize> = (0..2).map(|_| alive[rng.random_range(0..alive.len())]).collect();
        inputs.dedup();
        events.push(Event::Run(inputs, size(&mut rng)));
        alive.push(count);
        count += 1;
        if alive.len() > 2 && rng.random_bool(0.4) {
            events.push(Event::Drop(alive.swap_remove(rng.random_range(0..alive.len()))));
        }
    }
    events
}

/// The lowest peak of any schedule: operations may run again whenever their inputs are there, results of operations may be released at any
/// time, and an upload when the program has dropped it.
fn least(events: &[Event]) -> u64 {
    let made: Vec<(&[usize], u64)> = events
        .iter()
        .filter_map(|event| match event {
            Event::Upload(bytes) => Some((&[][..], *bytes)),
            Event::Run(inputs, bytes) => Some((&inputs[..], *bytes)),
            Event::Drop(_) => None,
        })
        .collect();
    let bytes = |there: u32| -> u64 { (0..made.len()).filter(|k| there >> k & 1 == 1).map(|k| made[k].1).sum() };
    let has = |there: u32, inputs: &[usize]| inputs.iter().all(|&input| there >> input & 1 == 1);
    let mut best = std::collections::HashMap::new();
    // Fewest bytes first.
    let mut open = BinaryHeap::from([(std::cmp::Reverse(0_u64), 0_usize, 0_u32)]);
    while let Some((std::cmp::Reverse(most), at, there)) = open.pop() {
        if at == events.len() {
            return most;
        }
        if best.insert((at, there), most).is_some() {
            continue;
        }
        let count = events[..at].iter().filter(|event| !matches!(event, Event::Drop(_))).count();
        let dropped = |k: usize| events[..at].iter().any(|event| matches!(event, Event::Drop(gone) if *gone == k));
        let mut go = |at: usize, there: u32| open.push((std::cmp::Reverse(most.max(bytes(there))), at, there));
        match &events[at] {
            Event::Drop(_) => go(at + 1, there),
            Event::Upload(_) => go(at + 1, there | 1 << count),
            Event::Run(inputs, _) if has(there, inputs) => go(at + 1, there | 1 << count),
            Event::Run(..) => {}
        }
        for (k, (inputs, _)) in made.iter().enumerate().take(count) {
            let is_upload = inputs.is_empty();
            if there >> k & 1 == 1 && (!is_upload || dropped(k)) {
                go(at, there & !(1 << k));
            } else if there >> k & 1 == 0 && !is_upload && has(there, inputs) {
                go(at, there | 1 << k);
            }
        }
    }
    unreachable!("the program itself is a schedule")
}

fn run(events: &[Event], budget: u64) -> Program {
    let config = Config { budget: Asked::Bytes(budget), recompute_limit: f64::INFINITY, ..Config::default() };
    let mut program = Program::new(config);
    let mut ids = Vec::new();
    for (kind, event) in (1..).zip(events) {
        match event {
            Event::Upload(bytes) => ids.push(program.upload(1, *bytes)),
            Event::Run(inputs, bytes) => {
                let inputs: Vec<u64> = inputs.iter().map(|&input| ids[input]).collect();
                ids.extend(program.run(1, kind, Works::New, &inputs, &[], &[*bytes]));
            }
            Event::Drop(k) => program.drop_tensor(1, ids[*k]),
        }
    }
    program
}

#[test]
fn the_floor_is_no_less_than_the_least_that_would_do() {
    let (mut exact, mut kept, count) = (0, 0, 300);
    for seed in 0..count {
        let events = random(seed);
        let least = least(&events);
        let hopeless = run(&events, 1);
        let floor = hopeless.machine.counters().floor.bytes;
        assert!(floor >= least, "seed {seed}: a floor of {floor}, but no schedule does with less than {least}");
        exact += u64::from(floor == least);
        kept += u64::from(run(&events, floor).machine.world().peak <= floor);
    }
    println!("of {count} floors {exact} are the lowest peak of any schedule, and {kept} are kept as budgets");
    // The online policy does not look ahead: its floor is an upper bound, and another run may evict differently.
    assert!(2 * exact >= count && 100 * kept >= 95 * count, "{exact} exact, {kept} kept of {count}");
}
