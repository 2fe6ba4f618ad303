//! What an optimizer computes: in place, from gradients that are used once, into what it keeps from step to step.

use crate::common::{ONE, Program, Works};
use burn_remat_core::{Asked, Config};

const UNIT: u64 = 256;
const DEPTH: u64 = 40;

fn limited(budget: u64) -> Program {
    Program::new(Config { budget: Asked::Bytes(budget), recompute_limit: f64::INFINITY, ..Config::default() })
}

/// A weight, and the two averages that an optimizer keeps for it.
struct Weight {
    id: u64,
    units: u64,
    averages: Option<[u64; 2]>,
}

impl Weight {
    fn new(program: &mut Program, units: u64) -> Self {
        Self { id: program.upload(1, units * UNIT), units, averages: None }
    }

    /// An average is updated with something made from the gradient.
    fn average(&self, program: &mut Program, before: Option<u64>, kind: u64, part: u64) -> u64 {
        let size = [self.units * UNIT];
        let Some(before) = before else { return part };
        let faded = program.run(1, kind, Works::InPlace, &[before], &[before], &size)[0];
        program.run(1, kind + 1, Works::InPlace, &[faded, part], &[faded, part], &size)[0]
    }

    fn update(&mut self, program: &mut Program, gradient: u64) {
        let size = [self.units * UNIT];
        let part = program.run(1, 300, Works::New, &[gradient], &[], &size)[0];
        let first = self.average(program, self.averages.map(|averages| averages[0]), 310, part);
        let part = program.run(1, 301, Works::InPlace, &[gradient], &[gradient], &size)[0];
        let second = self.average(program, self.averages.map(|averages| averages[1]), 320, part);
        let change = program.run(1, 302, Works::New, &[first, second], &[], &size)[0];
        self.id = program.run(1, 303, Works::InPlace, &[self.id, change], &[self.id, change], &size)[0];
        self.averages = Some([first, second]);
    }
}

/// Two layers; the gradient of the first is computed from the batch when everything that the forward pass has saved is gone.
fn step(program: &mut Program, weights: &mut [Weight; 2]) {
    let [inner, outer] = &*weights;
    let batch = program.upload(1, UNIT);
    let hidden = program.run(1, 100, Works::New, &[batch, inner.id], &[], &[UNIT])[0];
    let out = program.run(1, 101, Works::New, &[hidden, outer.id], &[], &[UNIT])[0];
    let seed = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
    let down = program.run(1, 200, Works::New, &[seed, out], &[seed, out], &[UNIT])[0];
    let of_outer = program.run(1, 201, Works::New, &[hidden, down], &[], &[outer.units * UNIT])[0];
    let down = program.run(1, 202, Works::New, &[down, outer.id], &[down], &[UNIT])[0];
    let down = program.run(1, 203, Works::InPlace, &[down, hidden], &[down, hidden], &[UNIT])[0];
    let of_inner = program.run(1, 204, Works::New, &[batch, down], &[batch, down], &[inner.units * UNIT])[0];
    for (weight, gradient) in weights.iter_mut().zip([of_inner, of_outer]) {
        weight.update(program, gradient);
    }
}

/// What happened in a step.
#[derive(Debug)]
struct Done {
    peak: u64,
    /// Bytes that are held after it in addition to what the program holds.
    beside: u64,
    recomputed: u64,
}

fn train(program: &mut Program, steps: usize) -> Vec<Done> {
    let mut weights = [8, 4].map(|units| Weight::new(program, units));
    let mut done = Vec::new();
    for _ in 0..steps {
        program.machine.world_mut().peak = 0;
        let before = program.machine.counters().recomputed;
        step(program, &mut weights);
        let own: u64 = program.expected.keys().map(|id| program.bytes[id]).sum();
        let (world, recomputed) = (program.machine.world(), program.machine.counters().recomputed - before);
        done.push(Done { peak: world.peak, beside: world.bytes() - own, recomputed });
    }
    done
}

#[test]
fn what_an_optimizer_keeps_needs_nothing_of_the_steps_before() {
    let done = train(&mut limited(100 * UNIT), 12);
    // The batches of the first two steps, and the gradients with respect to these.
    assert!(done.iter().all(|step| step.beside <= 4 * UNIT), "{done:?}");
}

#[test]
fn a_budget_of_what_a_program_takes_is_enough_for_it() {
    let plain = train(&mut Program::new(Config::default()), 8);
    let most = plain.iter().map(|step| step.peak).max().expect("there are steps");
    let done = train(&mut limited(most), 8);
    assert!(done[2..].iter().all(|step| step.peak <= most && step.recomputed == 0), "{done:?} of {most}");
}

/// A pass through `DEPTH` layers, each of which reads one of the two weights. Returns the gradient of the input.
fn gradient_of(program: &mut Program, weights: &[Weight; 2], input: u64) -> u64 {
    let mut saved = vec![input];
    for kind in 0..DEPTH {
        let weight = &weights[kind as usize % 2];
        let before = saved[saved.len() - 1];
        let out = program.run(1, 100 + kind, Works::New, &[before, weight.id], &[], &[UNIT])[0];
        saved.extend(program.run(1, 120 + kind, Works::InPlace, &[out, before], &[out], &[UNIT]));
    }
    let mut gradient = program.run(1, ONE, Works::New, &[], &[], &[4])[0];
    for (kind, id) in saved.drain(1..).enumerate().rev() {
        let weight = &weights[kind % 2];
        let last = [gradient, id];
        gradient = program.run(1, 200 + kind as u64, Works::New, &[gradient, id, weight.id], &last, &[UNIT])[0];
    }
    gradient
}

/// A batch is changed by its own gradients, pass after pass, and then used for training.
fn attack(program: &mut Program, weights: &mut [Weight; 2]) {
    let clean = program.upload(1, UNIT);
    let mut batch = clean;
    for _ in 0..4 {
        let gradient = gradient_of(program, weights, batch);
        let change = program.run(1, 400, Works::InPlace, &[gradient], &[gradient], &[UNIT])[0];
        let last = if batch == clean { vec![change] } else { vec![batch, change] };
        batch = program.run(1, 401, Works::InPlace, &[batch, change], &last, &[UNIT])[0];
    }
    let gradient = gradient_of(program, weights, batch);
    let parts = [8, 4].map(|units| program.run(1, 402, Works::New, &[gradient, batch], &[], &[units * UNIT])[0]);
    for id in [gradient, batch, clean] {
        program.drop_tensor(1, id);
    }
    for (weight, part) in weights.iter_mut().zip(parts) {
        weight.update(program, part);
    }
}

#[test]
fn what_is_made_of_gradients_needs_no_pass_that_is_over() {
    let run = |config| {
        let mut program = Program::new(config);
        program.machine.world_mut().traces = true;
        let mut weights = [8, 4].map(|units| Weight::new(&mut program, units));
        for round in 0..10 {
            if round == 5 {
                program.machine.world_mut().peak = 0;
            }
            attack(&mut program, &mut weights);
        }
        (program.machine.world().peak, program.machine.counters().recomputed)
    };
    let (most, _) = run(Config::default());
    let budget = most * 7 / 10;
    let limited = Config { budget: Asked::Bytes(budget), recompute_limit: f64::INFINITY, ..Config::default() };
    let (held, recomputed) = run(limited);
    assert!(held <= budget, "{held} of {budget}");
    // At most as often as every layer has run.
    assert!(recomputed <= 50 * 2 * DEPTH, "{recomputed} operations of {}", 50 * 3 * DEPTH);
}
