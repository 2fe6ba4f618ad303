//! Random graphs for tests, generated from a seed, with every feature that a graph may have.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Pass;
use super::lower::lower;
use super::net::{Backward, Net, Node, Shape, Variant};
use crate::graph::{Alternative, Graph, GraphBuilder, Op, ValueId};

/// What a random graph may contain. Each chance is a probability from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomGraphOptions {
    /// Smallest number of ops.
    pub least_ops: usize,
    /// Largest number of ops; for [`random_training_graph`], of forward ops.
    pub most_ops: usize,
    /// Largest value, in bytes.
    pub most_bytes: u64,
    /// Largest cost; costs are whole numbers.
    pub most_cost: u32,
    /// Chance that an op has a second and perhaps a third output.
    pub multi_output: f64,
    /// Chance that an op may run only once.
    pub once_only: f64,
    /// Chance that a size or a cost is zero.
    pub zero: f64,
    /// Chance that an op reads an input of the graph, either a new one or an existing one.
    pub input: f64,
    /// Chance that an op has scratch.
    pub scratch: f64,
    /// Chance, drawn three times, that an op reads one more of the earlier values.
    pub skip: f64,
    /// Chance that an op has an alternative, and then that it has a second one.
    pub alternative: f64,
    /// Chance that a value is a result.
    pub result: f64,
    /// Chance that the graph has constant bytes.
    pub constant: f64,
}

impl Default for RandomGraphOptions {
    /// Everything at once, in graphs of 1 to 12 ops.
    fn default() -> Self {
        Self {
            least_ops: 1,
            most_ops: 12,
            most_bytes: 16,
            most_cost: 9,
            multi_output: 0.15,
            once_only: 0.1,
            zero: 0.1,
            input: 0.2,
            scratch: 0.15,
            skip: 0.2,
            alternative: 0.15,
            result: 0.1,
            constant: 0.3,
        }
    }
}

impl RandomGraphOptions {
    /// The defaults, but with graphs of `least` to `most` ops.
    pub fn ops(least: usize, most: usize) -> Self {
        Self { least_ops: least, most_ops: most, ..Self::default() }
    }

    /// The plainest graphs of `least` to `most` ops: one output each, all recomputable, no zeros, no scratch, no
    /// alternatives, no constants, and the last op's output as the only result.
    pub fn plain(least: usize, most: usize) -> Self {
        Self {
            multi_output: 0.0,
            once_only: 0.0,
            zero: 0.0,
            input: 0.0,
            scratch: 0.0,
            alternative: 0.0,
            result: 0.0,
            constant: 0.0,
            ..Self::ops(least, most)
        }
    }
}

struct Dice<'a> {
    rng: ChaCha8Rng,
    knobs: &'a RandomGraphOptions,
}

impl Dice<'_> {
    fn chance(&mut self, chance: f64) -> bool {
        self.rng.random_bool(chance.clamp(0.0, 1.0))
    }

    fn bytes(&mut self) -> u64 {
        if self.chance(self.knobs.zero) { 0 } else { self.rng.random_range(1..=self.knobs.most_bytes.max(1)) }
    }

    fn cost(&mut self) -> f64 {
        if self.chance(self.knobs.zero) { 0.0 } else { self.rng.random_range(1..=self.knobs.most_cost.max(1)).into() }
    }

    fn scratch(&mut self) -> u64 {
        if self.chance(self.knobs.scratch) { self.bytes() } else { 0 }
    }

    fn ops(&mut self) -> usize {
        let least = self.knobs.least_ops.max(1);
        self.rng.random_range(least..=self.knobs.most_ops.max(least))
    }

    /// An index below `len`; later ones are more likely.
    fn recent(&mut self, len: usize) -> usize {
        let (a, b) = (self.rng.random_range(0..len), self.rng.random_range(0..len));
        a.max(b)
    }
}

/// A random valid graph, without phases. Its ops read mostly recent values and occasionally older ones. Sizes and
/// costs are small whole numbers, so that sums are exact. The same seed and knobs give the same graph.
///
/// # Panics
///
/// If the knobs allow sizes that do not fit in 63 bits.
pub fn random_graph(seed: u64, knobs: &RandomGraphOptions) -> Graph {
    let mut dice = Dice { rng: ChaCha8Rng::seed_from_u64(seed), knobs };
    let mut builder = GraphBuilder::new(format!("random-{seed}"));
    if dice.chance(knobs.constant) {
        builder.constant_bytes(dice.bytes());
    }
    let mut values: Vec<ValueId> = Vec::new();
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut last = Vec::new();
    for id in 0..dice.ops() {
        if dice.chance(knobs.input) || (values.is_empty() && dice.chance(0.5)) {
            let old = (!inputs.is_empty() && dice.chance(0.3)).then(|| inputs[dice.recent(inputs.len())]);
            let input = old.unwrap_or_else(|| builder.value(dice.bytes(), format!("in{}", inputs.len())));
            inputs.push(input);
            values.push(input);
        }
        let mut reads = Vec::new();
        if !values.is_empty() {
            reads.push(values[values.len() - 1]);
            for _ in 0..3 {
                if dice.chance(knobs.skip) {
                    reads.push(values[dice.recent(values.len())]);
                }
            }
        }
        let mut outputs = vec![builder.value(dice.bytes(), format!("v{id}"))];
        while outputs.len() < 3 && dice.chance(knobs.multi_output) {
            outputs.push(builder.value(dice.bytes(), format!("v{id}.{}", outputs.len())));
        }
        let mut op = Op::new(format!("op{id}"), dice.cost(), reads, outputs.clone());
        op.scratch_bytes = dice.scratch();
        op.recomputable = !dice.chance(knobs.once_only);
        while op.alternatives.len() < 2 && dice.chance(knobs.alternative) {
            let mut reads = op.inputs.clone();
            if !values.is_empty() && dice.chance(0.4) {
                reads = vec![values[dice.recent(values.len())]];
            }
            op.alternatives.push(Alternative {
                name: format!("op{id}.{}", op.alternatives.len()),
                cost: dice.cost(),
                inputs: reads,
                scratch_bytes: dice.scratch(),
            });
        }
        builder.op(op);
        values.extend(&outputs);
        last = outputs;
    }
    let mut results: Vec<ValueId> = values.into_iter().filter(|_| dice.chance(knobs.result)).collect();
    // Usually, the outputs of the last op are the results; sometimes there are none.
    if results.is_empty() && (knobs.result == 0.0 || dice.chance(0.9)) {
        results = last;
    }
    builder.results(results);
    builder.build().expect("the generator builds valid graphs while its sizes fit in 63 bits")
}

/// A random training step: a random forward graph of single-output layers that ends in a loss, and its backward pass,
/// lowered like the networks. Phases and stages are set. `multi_output`, `input` and `result` have no effect.
///
/// # Panics
///
/// If the knobs allow sizes that do not fit in 63 bits.
pub fn random_training_graph(seed: u64, knobs: &RandomGraphOptions) -> Graph {
    let mut dice = Dice { rng: ChaCha8Rng::seed_from_u64(seed), knobs };
    let one = Shape { channels: 1, height: 1, width: 1 };
    let mut net = Net::new("random-training", 1, one);
    net.name = format!("random-training-{seed}");
    net.layers[0].bytes = dice.bytes();
    let count = dice.ops();
    let mut unread: Vec<Node> = Vec::new();
    for k in 0..count {
        let mut inputs = vec![k];
        for _ in 0..3 {
            if dice.chance(knobs.skip) {
                inputs.push(dice.recent(k + 1));
            }
        }
        if k + 1 == count {
            inputs.append(&mut unread); // the loss reads whatever no other layer reads
        }
        inputs.sort_unstable();
        inputs.dedup();
        unread.retain(|node| !inputs.contains(node));
        unread.push(k + 1);
        let backward = match dice.rng.random_range(0..6) {
            0 if k + 1 < count => Backward::Shared,
            kind => Backward::Op { reads_inputs: kind % 2 == 0 || k + 1 == count, reads_output: kind > 3 },
        };
        if k % 3 == 0 {
            net.stage(format!("stage{}", k / 3));
        }
        let node = net.push(&format!("op{k}"), &inputs, one, 0.0, backward);
        let variants = if dice.chance(knobs.alternative) {
            vec![Variant { cost: dice.cost(), scratch_bytes: dice.scratch() }]
        } else {
            Vec::new()
        };
        let layer = &mut net.layers[node];
        layer.bytes = dice.bytes();
        layer.cost = dice.cost();
        layer.backward_cost = dice.cost();
        layer.scratch_bytes = dice.scratch();
        layer.recomputable = !dice.chance(knobs.once_only);
        layer.parameters = u64::from(dice.chance(knobs.constant));
        layer.variants = variants;
    }
    lower(&net, Pass::Training).expect("the generator builds valid graphs while its sizes fit in 63 bits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Phase;

    #[test]
    fn the_same_seed_gives_the_same_graph() {
        let knobs = RandomGraphOptions::default();
        assert_eq!(random_graph(3, &knobs), random_graph(3, &knobs));
        assert_eq!(random_training_graph(3, &knobs), random_training_graph(3, &knobs));
    }

    #[test]
    fn a_thousand_graphs_hold_every_feature() {
        let graphs: Vec<Graph> = (0..1000).map(|seed| random_graph(seed, &RandomGraphOptions::default())).collect();
        let any_op = |test: &dyn Fn(&Op) -> bool| graphs.iter().flat_map(Graph::ops).any(test);
        assert!(any_op(&|op| op.outputs.len() > 1));
        assert!(any_op(&|op| op.inputs.len() > 2));
        assert!(any_op(&|op| op.inputs.is_empty()));
        assert!(any_op(&|op| !op.recomputable));
        assert!(any_op(&|op| op.cost == 0.0));
        assert!(any_op(&|op| op.scratch_bytes > 0));
        assert!(any_op(&|op| op.alternatives.iter().any(|other| other.inputs != op.inputs)));
        assert!(graphs.iter().any(|graph| graph.results().len() > 2));
        assert!(graphs.iter().any(|graph| graph.results().is_empty()));
        assert!(graphs.iter().any(|graph| graph.inputs().any(|value| graph.is_result(value))));
        assert!(graphs.iter().any(|graph| graph.constant_bytes() > 0));
        assert!(graphs.iter().any(|graph| graph.values().iter().any(|value| value.bytes == 0)));
        assert!(graphs.iter().any(|graph| graph.ops().len() == 1));
    }

    #[test]
    fn plain_graphs_are_plain() {
        for seed in 0..200 {
            let graph = random_graph(seed, &RandomGraphOptions::plain(2, 8));
            assert!((2..=8).contains(&graph.ops().len()));
            assert!(graph.ops().iter().all(|op| op.recomputable && op.outputs.len() == 1 && op.cost > 0.0));
            assert_eq!(graph.results(), graph.ops()[graph.ops().len() - 1].outputs);
        }
    }

    #[test]
    fn random_training_steps_have_a_backward_pass() {
        for seed in 0..500 {
            let graph = random_training_graph(seed, &RandomGraphOptions::ops(2, 10));
            assert!(graph.ops().iter().any(|op| op.phase == Some(Phase::Backward)), "seed {seed}");
            let last_forward = graph.ops().iter().rposition(|op| op.phase == Some(Phase::Forward)).unwrap();
            let first_backward = graph.ops().iter().position(|op| op.phase == Some(Phase::Backward)).unwrap();
            assert!(last_forward < first_backward);
        }
    }
}
