//! A valid graph from any bytes: for fuzzers, and for tests that draw the bytes at random.
//!
//! The first bytes choose palettes of sizes and costs. Each further three bytes are a piece of the graph: its form, about how many ops it has,
//! and the seed of its details. So a byte more or less changes a part of the graph and leaves the rest as it is.
//!
//! Invariants: sizes and costs go up to what a graph may have (`GraphBuilder::build`) and never beyond; there is at least one
//! op and at most [`MOST_OPS`].

use burn_remat_plan::{Alternative, Graph, GraphBuilder, Op, Phase, ValueId};

use super::Numbers;

/// No graph has more ops than this.
const MOST_OPS: usize = 2500;
/// No op has more alternatives than this.
const MOST_ALTERNATIVES: usize = 4;
/// The most bytes of all values together. With scratch and constant bytes, each at most half of it, it is the most that a graph may have.
const MOST_BYTES: u64 = (1 << 62) - 1;
/// The most that an implementation may cost: all of them, once more per op than there are ops, still have a finite sum.
const MOST_COST: f64 = f64::MAX / (2 * (MOST_ALTERNATIVES + 1) * (MOST_OPS + 1) * (MOST_OPS + 1)) as f64;

/// The graph of `bytes`, which its name spells out.
pub fn from_bytes(bytes: &[u8]) -> Graph {
    let head = |at: usize| bytes.get(at).copied().unwrap_or_default();
    let mut pieces = Pieces {
        builder: GraphBuilder::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        sizes: head(0),
        costs: head(1),
        habits: head(2),
        made: Vec::new(),
        ops: 0,
        bytes_left: MOST_BYTES,
    };
    let mut numbers = Numbers::new(head(3).into());
    for _ in 0..head(3) % 4 {
        pieces.value(&mut numbers);
    }
    if head(4) % 8 == 0 {
        let constant = pieces.size(&mut numbers).min(MOST_BYTES / 2);
        pieces.builder.constant_bytes(constant);
    }
    for piece in bytes.get(5..).unwrap_or_default().chunks(3) {
        let [form, count, seed] = [0, 1, 2].map(|at| piece.get(at).copied().unwrap_or_default());
        pieces.add(form, usize::from(count), seed.into());
    }
    if pieces.ops == 0 {
        pieces.any_op(&mut Numbers::new(0));
    }
    pieces.results(&mut numbers, head(4) / 8);
    pieces.builder.build().expect("bytes make valid graphs")
}

struct Pieces {
    builder: GraphBuilder,
    sizes: u8,
    costs: u8,
    /// Bit by bit: what ops may be, besides plain.
    habits: u8,
    made: Vec<ValueId>,
    ops: usize,
    bytes_left: u64,
}

impl Pieces {
    /// Adds a piece of ops: one more than `count / 16` for a `count` below 192, else from about ten to a thousand.
    fn add(&mut self, form: u8, count: usize, seed: u64) {
        let mut numbers = Numbers::new(seed);
        let count = match count {
            0..192 => 1 + count / 16,
            192..248 => count - 180,
            _ => 1 << (count - 245),
        };
        match form % 7 {
            0 => self.chain(&mut numbers, count),
            1 => self.way_back(&mut numbers, count),
            2 => self.readers(&mut numbers, count),
            3 => self.wide(&mut numbers, count),
            4 => self.layers(&mut numbers, count),
            _ => (0..count).for_each(|_| self.any_op(&mut numbers)),
        }
    }

    /// Each reads the one before, and now and then one from far back.
    fn chain(&mut self, numbers: &mut Numbers, count: usize) {
        let every = 1 + numbers.below(5);
        for at in 0..count {
            let far = (at % every == 1).then(|| self.any_value(numbers)).flatten();
            let inputs = self.made.last().copied().into_iter().chain(far).collect();
            self.op(numbers, inputs, 1);
        }
    }

    /// Each reads the gradient of the one before and an activation, the last one first.
    fn way_back(&mut self, numbers: &mut Numbers, count: usize) {
        let from = self.made.len();
        for at in (from.saturating_sub(count)..from).rev() {
            let inputs = vec![self.made[at], self.made[self.made.len() - 1]];
            self.op(numbers, inputs, 1);
        }
    }

    /// All read one value.
    fn readers(&mut self, numbers: &mut Numbers, count: usize) {
        let read = self.any_value(numbers);
        for _ in 0..count {
            self.op(numbers, read.into_iter().collect(), 1);
        }
    }

    /// One reads all, some of them twice, and a value that existed before.
    fn wide(&mut self, numbers: &mut Numbers, count: usize) {
        let from = self.made.len();
        for _ in 0..count {
            self.op(numbers, Vec::new(), 1);
        }
        let before = self.any_value(numbers);
        let inputs = self.made[from..].iter().copied().chain(before).collect();
        self.op(numbers, inputs, 1);
    }

    /// Pairs, each reading both of the pair before.
    fn layers(&mut self, numbers: &mut Numbers, count: usize) {
        for _ in 0..count.div_ceil(2) {
            let inputs: Vec<ValueId> = self.made.iter().rev().take(2).copied().collect();
            self.op(numbers, inputs.clone(), 1);
            self.op(numbers, inputs, 1);
        }
    }

    /// Reads and makes anything, or nothing.
    fn any_op(&mut self, numbers: &mut Numbers) {
        let inputs = self.any_values(numbers, 4);
        let outputs = [1, 1, 1, 0, 2, 3][numbers.below(6)];
        self.op(numbers, inputs, outputs);
    }

    fn any_value(&self, numbers: &mut Numbers) -> Option<ValueId> {
        (!self.made.is_empty()).then(|| self.made[numbers.below(self.made.len())])
    }

    fn any_values(&self, numbers: &mut Numbers, most: usize) -> Vec<ValueId> {
        (0..numbers.below(most)).filter_map(|_| self.any_value(numbers)).collect()
    }

    /// Whether an op has the habit of this bit, as few ops do.
    fn is_now(&self, habit: u8, numbers: &mut Numbers) -> bool {
        self.habits >> habit & 1 == 1 && numbers.below(4) == 0
    }

    fn op(&mut self, numbers: &mut Numbers, inputs: Vec<ValueId>, outputs: usize) {
        if self.ops == MOST_OPS {
            return;
        }
        let recomputable = !self.is_now(0, numbers);
        let scratch_bytes = if self.is_now(1, numbers) { self.size(numbers).min(MOST_BYTES / 2) } else { 0 };
        let mut alternatives = Vec::new();
        if self.is_now(2, numbers) {
            for _ in 0..numbers.below(MOST_ALTERNATIVES + 1) {
                let (cost, inputs) = (self.cost(numbers), self.any_values(numbers, 4));
                let scratch_bytes = self.size(numbers).min(MOST_BYTES / 2);
                alternatives.push(Alternative { name: String::new(), cost, inputs, scratch_bytes });
            }
        }
        let phase = match self.habits >> 3 & 3 {
            0 | 1 => None,
            2 => Some(if self.ops < 20 { Phase::Forward } else { Phase::Backward }),
            _ => [None, Some(Phase::Forward), Some(Phase::Backward), Some(Phase::Update)][numbers.below(4)],
        };
        let stage = self.is_now(5, numbers).then(|| format!("stage{}", self.ops / 4));
        let cost = self.cost(numbers);
        let outputs = (0..outputs).map(|_| self.value(numbers)).collect();
        let plain = Op::new("", cost, inputs, outputs);
        self.builder.op(Op { scratch_bytes, recomputable, phase, stage, alternatives, ..plain });
        self.ops += 1;
    }

    fn value(&mut self, numbers: &mut Numbers) -> ValueId {
        let bytes = self.size(numbers).min(self.bytes_left);
        self.bytes_left -= bytes;
        let value = self.builder.value(bytes, "");
        self.made.push(value);
        value
    }

    fn size(&self, numbers: &mut Numbers) -> u64 {
        let share = MOST_BYTES / (4 * MOST_OPS) as u64;
        let palette = if self.sizes < 240 { self.sizes % 10 } else { numbers.below(10) as u8 };
        match palette {
            0 => 1,
            1 => 0,
            2 => numbers.below(9) as u64,
            3 => share,
            4 => share - numbers.below(3) as u64,
            // More digits than a float holds.
            5 => (1 << 53) + numbers.below(5) as u64,
            6 => 1 << numbers.below(50),
            7 => self.bytes_left / 2,
            8 => u64::from(numbers.below(12) == 0) * 1000 + 1,
            _ => 100 + numbers.below(100) as u64,
        }
    }

    fn cost(&self, numbers: &mut Numbers) -> f64 {
        let palette = if self.costs < 240 { self.costs % 10 } else { numbers.below(10) as u8 };
        let number = numbers.below(9) as f64;
        match palette {
            0 => 1.0,
            1 => 0.0,
            2 => number,
            3 => number / 7.0,
            4 => MOST_COST,
            5 => MOST_COST / (1.0 + number),
            // The smallest numbers that there are.
            6 => number * f64::from_bits(1),
            7 => [1.0, 1e17][usize::from(number == 0.0)],
            8 => number * 1e-9,
            _ => 2f64.powi(numbers.below(60) as i32),
        }
    }

    fn results(&mut self, numbers: &mut Numbers, which: u8) {
        match which % 3 {
            // The outputs of the last op.
            0 => {}
            1 => {
                let results = self.any_values(numbers, 4);
                self.builder.results(results);
            }
            _ => {
                self.builder.results(self.made.iter().rev().take(2).copied().collect());
            }
        }
    }
}
