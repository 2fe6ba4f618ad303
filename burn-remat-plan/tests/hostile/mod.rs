//! Valid graphs designed to be difficult: equal sizes, wide ops, no sizes, huge numbers, depth, a thousand readers.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod bytes;

use burn_remat_plan::{Alternative, Graph, GraphBuilder, Op, Phase, ValueId};

/// The kinds of graphs, by name.
pub const KINDS: [&str; 10] =
    ["equal", "wide", "weightless", "huge", "deep", "readers", "skips", "single", "choices", "ladder"];

/// A small source of numbers (xorshift): the same graph for the same seed on every machine.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// A graph of about `size` ops.
pub fn graph(kind: &str, size: usize, seed: u64) -> Graph {
    let mut numbers = Numbers::new(seed);
    let mut builder = GraphBuilder::new(format!("{kind}-{size}-{seed}"));
    let size = size.max(3);
    match kind {
        "equal" | "wide" => wide(&mut builder, &mut numbers, size, kind == "wide"),
        "deep" => training(&mut builder, size / 2, |_| 1, |_| Vec::new()),
        "weightless" => training(&mut builder, size / 2, |at| (at % 7 == 0).into(), |at| vec![at / 2]),
        "skips" => {
            training(&mut builder, size / 2, |at| 1 + at as u64 % 3, |at| vec![at / 2, at / 3, at.saturating_sub(9)])
        }
        "readers" => training(&mut builder, size / 2, |_| 2, |_| vec![0, 1]),
        "ladder" => training(&mut builder, size / 2, |at| 1 << (at % 40), |at| vec![at.saturating_sub(2)]),
        _ => random(&mut builder, &mut numbers, kind, size),
    }
    builder.build().expect("these graphs are valid")
}

/// Values that are all read by the last op, of one size or of a few, and one that does not fit beside them.
fn wide(builder: &mut GraphBuilder, numbers: &mut Numbers, size: usize, mixed: bool) {
    let values: Vec<ValueId> =
        (0..size - 2).map(|_| builder.value(if mixed { 1 + numbers.below(3) as u64 } else { 1 }, "")).collect();
    for &value in &values {
        builder.op(Op::new("", 1.0, vec![], vec![value]));
    }
    let large = builder.value(size as u64 / 2, "");
    builder.op(Op::new("", 1.0, vec![], vec![large]));
    let last = builder.value(0, "");
    builder.op(Op::new("", 1.0, values, vec![last]));
}

/// A chain of `stages` ops and its way back; each op of the chain reads `others` of those before it, too.
fn training(
    builder: &mut GraphBuilder,
    stages: usize,
    bytes: impl Fn(usize) -> u64,
    others: impl Fn(usize) -> Vec<usize>,
) {
    let mut made = vec![builder.value(1, "")];
    for at in 0..stages.max(1) {
        let out = builder.value(bytes(at), "");
        let near = others(at).into_iter().filter(|&other| other < made.len()).map(|other| made[other]);
        let inputs = near.chain([made[made.len() - 1]]).collect();
        builder.op(Op { phase: Some(Phase::Forward), ..Op::new("", 1.0, inputs, vec![out]) });
        made.push(out);
    }
    let mut gradient = made[made.len() - 1];
    for &value in made.iter().rev().skip(1) {
        let out = builder.value(1, "");
        builder.op(Op { phase: Some(Phase::Backward), ..Op::new("", 2.0, vec![value, gradient], vec![out]) });
        gradient = out;
    }
}

/// Ops that read anything: with huge numbers, that run once, or with many implementations.
fn random(builder: &mut GraphBuilder, numbers: &mut Numbers, kind: &str, size: usize) {
    let bytes = |numbers: &mut Numbers| match kind {
        "huge" => i64::MAX as u64 / (2 * size as u64 + 9) - numbers.below(3) as u64,
        _ => numbers.below(9) as u64,
    };
    let mut made = vec![builder.value(bytes(numbers), "")];
    for _ in 0..size {
        let inputs = |numbers: &mut Numbers| -> Vec<ValueId> {
            (0..numbers.below(4)).map(|_| made[numbers.below(made.len())]).collect()
        };
        let cost = if kind == "huge" { 1e300 / size as f64 / size as f64 } else { numbers.below(5) as f64 };
        let read = inputs(numbers);
        let alternatives = if kind == "choices" { numbers.below(5) } else { 0 };
        let alternatives = (0..alternatives).map(|_| Alternative {
            name: String::new(),
            cost: numbers.below(9) as f64,
            inputs: inputs(numbers),
            scratch_bytes: numbers.below(20) as u64,
        });
        let alternatives = alternatives.collect();
        let out = builder.value(bytes(numbers), "");
        let recomputable = kind != "single" || numbers.below(2) == 0;
        builder.op(Op { recomputable, alternatives, ..Op::new("", cost, read, vec![out]) });
        made.push(out);
    }
    let results = (0..3).map(|_| made[numbers.below(made.len())]).collect();
    builder.results(results);
}
