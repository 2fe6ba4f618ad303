//! Turns a [`Net`] into a graph, as automatic differentiation would run it.
//!
//! The forward ops come first, in the order of the layers. The backward ops follow in reverse order. A backward op
//! reads the gradient of its layer's output and what its layer saved (inputs, output, both or neither), and writes
//! the gradient of each of its layer's inputs except the network's input. If a layer feeds several others, its
//! gradient arrives in parts, each of which is added as soon as it is available. A sum passes its gradient on in the
//! same storage, so it has no backward op, unless an input is smaller than the sum. Gradients of parameters are part of
//! the constant bytes; a backward op that writes nothing else, or that feeds an update, writes a token of zero bytes.

use super::Pass;
use super::net::{Backward, BackwardVariant, Layer, Net, Node};
use crate::error::GraphError;
use crate::graph::{Alternative, Graph, GraphBuilder, Op, Phase, ValueId};

/// Bytes of one number.
const F32: u64 = 4;

/// Lowers `net` to a graph of the given pass. The loss is the last layer.
///
/// # Errors
///
/// [`GraphError::Empty`] if `net` has no layer besides its input, [`GraphError::TooLarge`] if the sizes do not fit in
/// 63 bits.
pub fn lower(net: &Net, pass: Pass) -> Result<Graph, GraphError> {
    let mut lowering = Lowering::new(net, pass);
    lowering.forward();
    if pass != Pass::Forward {
        lowering.backward();
    }
    lowering.finish()
}

struct Lowering<'a> {
    net: &'a Net,
    pass: Pass,
    builder: GraphBuilder,
    /// The value of each layer's output.
    outputs: Vec<ValueId>,
    /// What each layer computes only for its backward op.
    statistics: Vec<Option<ValueId>>,
    /// The gradient of each layer's output: the sum of the parts that have arrived so far.
    gradients: Vec<Option<ValueId>>,
    /// Tokens of the gradients of parameters, with their layers.
    parameter_gradients: Vec<(Node, ValueId)>,
    results: Vec<ValueId>,
}

impl<'a> Lowering<'a> {
    fn new(net: &'a Net, pass: Pass) -> Self {
        let mut builder = GraphBuilder::new(net.name.clone());
        let copies = if pass == Pass::Forward { 1 } else { 2 };
        builder.constant_bytes(net.parameters().saturating_mul(F32 * copies));
        let gradients = vec![None; net.layers.len()];
        Self {
            net,
            pass,
            builder,
            outputs: Vec::with_capacity(gradients.len()),
            statistics: vec![None; gradients.len()],
            gradients,
            parameter_gradients: Vec::new(),
            results: Vec::new(),
        }
    }

    fn forward(&mut self) {
        for (node, layer) in self.net.layers.iter().enumerate() {
            let output = self.builder.value(layer.bytes, format!("{}.out", layer.name));
            self.outputs.push(output);
            if layer.is_input {
                continue;
            }
            let mut outputs = vec![output];
            if layer.statistics_bytes > 0 {
                let statistics = self.builder.value(layer.statistics_bytes, format!("{}.statistics", layer.name));
                self.statistics[node] = Some(statistics);
                outputs.push(statistics);
            }
            let inputs: Vec<ValueId> = layer.inputs.iter().map(|&input| self.outputs[input]).collect();
            let mut op = Op::new(layer.name.clone(), layer.cost, inputs.clone(), outputs);
            op.scratch_bytes = layer.scratch_bytes;
            op.recomputable = layer.recomputable;
            op.alternatives = layer
                .variants
                .iter()
                .enumerate()
                .map(|(k, variant)| Alternative {
                    name: format!("{}.variant{k}", layer.name),
                    cost: variant.cost,
                    inputs: inputs.clone(),
                    scratch_bytes: variant.scratch_bytes,
                })
                .collect();
            self.push(op, layer, Phase::Forward);
        }
        self.results.extend(self.outputs.last().filter(|_| self.net.layers.len() > 1));
    }

    fn backward(&mut self) {
        let last = self.net.layers.len() - 1;
        for node in (1..self.net.layers.len()).rev() {
            let layer = &self.net.layers[node];
            let gradient = self.gradients[node];
            if gradient.is_none() && node != last {
                continue; // nothing that leads to the loss reads this layer, or it needs no gradient
            }
            match (layer.backward, gradient) {
                (Backward::Shared, Some(gradient)) => {
                    for &input in &layer.inputs {
                        self.arrive(input, gradient);
                    }
                }
                (Backward::Spread, Some(gradient)) => {
                    for &input in &layer.inputs {
                        let is_small = self.net.layers[input].bytes < layer.bytes;
                        let part = if is_small { self.added_up(node, input, gradient) } else { gradient };
                        self.arrive(input, part);
                    }
                }
                _ => self.backward_op(node, gradient),
            }
        }
    }

    /// The gradient of an input that the sum `node` broadcasts.
    fn added_up(&mut self, node: Node, input: Node, gradient: ValueId) -> ValueId {
        let (layer, to) = (&self.net.layers[node], &self.net.layers[input]);
        if !to.needs_gradient {
            return gradient;
        }
        let part = self.builder.value(to.bytes, format!("{}.grad:{}", to.name, layer.name));
        let op = Op::new(format!("{}.grad", layer.name), (layer.bytes / F32) as f64, vec![gradient], vec![part]);
        self.push(op, layer, Phase::Backward);
        part
    }

    fn backward_op(&mut self, node: Node, gradient: Option<ValueId>) {
        let layer = &self.net.layers[node];
        // The last layer, the loss, starts from the constant 1. If it is a sum, it has saved nothing, so its own output is read.
        let (reads_inputs, reads_output) = match layer.backward {
            Backward::Op { reads_inputs, reads_output } => (reads_inputs, reads_output),
            Backward::Shared | Backward::Spread => (false, true),
        };
        let outputs = &self.outputs;
        let reads = |reads_inputs: bool, reads_output: bool| -> Vec<ValueId> {
            let inputs = layer.inputs.iter().filter(|_| reads_inputs).map(|&input| outputs[input]);
            let kept = inputs.chain(reads_output.then(|| outputs[node])).chain(self.statistics[node]);
            gradient.into_iter().chain(kept).collect()
        };
        let inputs = match &layer.saves {
            None => reads(reads_inputs, reads_output),
            Some(saved) => reads(false, false).into_iter().chain(saved.iter().map(|&node| outputs[node])).collect(),
        };
        let variants: Vec<(&BackwardVariant, Vec<ValueId>)> = layer
            .backward_variants
            .iter()
            .map(|variant| (variant, reads(variant.reads_inputs, variant.reads_output)))
            .collect();
        let mut distinct = layer.inputs.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let parts: Vec<(Node, ValueId)> = distinct
            .into_iter()
            .filter(|&input| self.net.layers[input].needs_gradient)
            .map(|input| {
                let name = format!("{}.grad:{}", self.net.layers[input].name, layer.name);
                (input, self.builder.value(self.net.layers[input].bytes, name))
            })
            .collect();
        let mut outputs: Vec<ValueId> = parts.iter().map(|&(_, part)| part).collect();
        if parts.is_empty() || (layer.parameters > 0 && self.pass == Pass::TrainingWithUpdate) {
            let token = self.builder.value(0, format!("{}.weights.grad", layer.name));
            outputs.push(token);
            self.parameter_gradients.push((node, token));
        }
        let reads_network_input = layer.inputs.iter().any(|&input| !self.net.layers[input].needs_gradient);
        let saved = if reads_network_input { layer.input_gradient_cost } else { 0.0 };
        let mut op = Op::new(format!("{}.grad", layer.name), layer.backward_cost - saved, inputs, outputs);
        op.scratch_bytes = layer.scratch_bytes;
        for (variant, inputs) in variants {
            op.alternatives.push(Alternative {
                name: format!("{}.{}", op.name, variant.name),
                cost: op.cost * variant.cost_factor,
                inputs,
                scratch_bytes: variant.scratch_bytes,
            });
        }
        self.push(op, layer, Phase::Backward);
        for (input, part) in parts {
            self.arrive(input, part);
        }
    }

    /// Adds `part` to the gradient of a layer's output.
    fn arrive(&mut self, node: Node, part: ValueId) {
        let layer = &self.net.layers[node];
        if !layer.needs_gradient {
            return; // no one needs the gradient of an input or a mask
        }
        self.gradients[node] = Some(match self.gradients[node] {
            None => part,
            Some(before) => {
                let sum = self.builder.value(layer.bytes, format!("{}.grad", layer.name));
                let cost = (layer.bytes / F32) as f64;
                let op = Op::new(format!("{}.grad.add", layer.name), cost, vec![before, part], vec![sum]);
                self.push(op, layer, Phase::Backward);
                sum
            }
        });
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        let tokens = std::mem::take(&mut self.parameter_gradients);
        if self.pass == Pass::TrainingWithUpdate {
            for (node, token) in tokens {
                let layer = &self.net.layers[node];
                let done = self.builder.value(0, format!("{}.weights", layer.name));
                // Gradient descent with momentum: about four operations per parameter. It changes state, so it runs only once.
                let mut op =
                    Op::new(format!("{}.update", layer.name), 4.0 * layer.parameters as f64, vec![token], vec![done]);
                op.recomputable = false;
                self.push(op, layer, Phase::Update);
                self.results.push(done);
            }
        } else {
            self.results.extend(tokens.iter().map(|&(_, token)| token));
        }
        let Self { mut builder, results, .. } = self;
        builder.results(results);
        builder.build()
    }

    fn push(&mut self, mut op: Op, layer: &Layer, phase: Phase) {
        op.phase = Some(phase);
        op.stage = Some(layer.stage.clone());
        self.builder.op(op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::net::{Activation, Shape, window};

    fn tiny() -> Net {
        let mut net = Net::new("tiny", 1, Shape { channels: 2, height: 4, width: 4 });
        let a = net.conv("a", 0, 2, window(1, 1), Activation::Relu);
        let b = net.conv("b", a, 2, window(1, 1), Activation::None);
        let c = net.add("c", a, b);
        net.loss(c);
        net
    }

    fn lines(graph: &Graph) -> Vec<String> {
        let names = |values: &[ValueId]| {
            values.iter().map(|&value| graph.values()[value].name.as_str()).collect::<Vec<_>>().join(" ")
        };
        graph.ops().iter().map(|op| format!("{}: {} -> {}", op.name, names(&op.inputs), names(&op.outputs))).collect()
    }

    #[test]
    fn the_backward_pass_reads_what_automatic_differentiation_saves() {
        let graph = lower(&tiny(), Pass::Training).unwrap();
        assert_eq!(
            lines(&graph),
            [
                "a: input.out -> a.out",
                "b: a.out -> b.out",
                "c: a.out b.out -> c.out",
                "loss: c.out -> loss.out",
                "loss.grad: c.out -> c.grad:loss",
                "b.grad: a.out c.grad:loss -> a.grad:b",
                "a.grad.add: c.grad:loss a.grad:b -> a.grad",
                "a.grad: input.out a.out a.grad -> a.weights.grad",
            ]
        );
        // Weights and biases: two layers of 2 * 2 + 2, with their gradients, four bytes each.
        assert_eq!(graph.constant_bytes(), 2 * 2 * 6 * 4);
        // The first layer needs no gradient of the image, which saves half of the multiply-adds.
        assert_eq!(graph.ops()[7].cost, f64::from(4 * 2 * 16 * 2 + 32 - 2 * 2 * 16 * 2));
    }

    #[test]
    fn an_update_runs_once_per_layer_with_parameters() {
        let graph = lower(&tiny(), Pass::TrainingWithUpdate).unwrap();
        let updates: Vec<&Op> = graph.ops().iter().filter(|op| op.phase == Some(Phase::Update)).collect();
        assert_eq!(updates.iter().map(|op| op.name.as_str()).collect::<Vec<_>>(), ["b.update", "a.update"]);
        assert!(updates.iter().all(|op| !op.recomputable));
    }
}
