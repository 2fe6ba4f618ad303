//! Layers of token networks: linear maps, norms, activations, attention and dropout.
//!
//! A sequence has the shape `[d_model, seq, 1]`, attention scores `[heads, seq, seq]`; an image is a sequence to those
//! layers that treat every position alike. What each backward op reads is what automatic differentiation saves: the
//! input of a linear map, input and statistics of a norm, the output of a softmax, the input of a GELU, the mask of a
//! dropout. Flash attention (Dao et al. 2022) saves query, key, value, output and one sum per row, and its backward op
//! computes the scores again.
//!
//! With [`Kernels::Elementary`], norms, softmax, GELU, dropout and the split into heads are several ops each, as in a
//! framework that has no kernel for them, with the values that these ops save.

use super::net::{Backward, Kernels, Net, Node, Shape, window};

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Scores, softmax and weighted sum are separate ops.
    Plain,
    /// One op that does not store the scores.
    Flash,
}

/// Settings of an attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Number of heads.
    pub heads: u64,
    /// How it is computed.
    pub attention: Attention,
    /// The mask of the scores, if there is one.
    pub mask: Option<Node>,
    /// Whether dropout is applied to the softmax.
    pub dropout: bool,
}

impl Net {
    /// An elementwise or reducing layer with `flops` per element of the largest of its output and inputs, whose
    /// backward op reads the outputs of `saves`.
    fn plain(&mut self, name: &str, inputs: &[Node], shape: Shape, flops: f64, saves: Vec<Node>) -> Node {
        let most = inputs.iter().map(|&input| self.shape(input).elements()).max().unwrap_or(0);
        let work = flops * most.max(shape.elements()) as f64;
        let node = self.push(name, inputs, shape, work, Backward::Op { reads_inputs: false, reads_output: false });
        self.layers[node].saves = Some(saves);
        node
    }

    /// The index that the next layer will get.
    fn next(&self) -> Node {
        self.layers.len()
    }

    /// A table of `vocabulary` rows, indexed by token, with `more` further weights that are added (positions).
    pub fn embedding(&mut self, name: &str, tokens: Node, vocabulary: u64, d_model: u64, more: u64) -> Node {
        let shape = Shape { channels: d_model, ..self.shape(tokens) };
        let node = self.plain(name, &[tokens], shape, 1.0, vec![tokens]);
        self.layers[node].parameters = vocabulary * d_model + more;
        node
    }

    /// A linear map of the channels at every position, with bias.
    pub fn linear(&mut self, name: &str, x: Node, units: u64) -> Node {
        let node = self.linear_no_bias(name, x, units);
        self.layers[node].parameters += units;
        node
    }

    /// The same without bias.
    pub fn linear_no_bias(&mut self, name: &str, x: Node, units: u64) -> Node {
        let from = self.shape(x);
        let shape = Shape { channels: units, ..from };
        let macs = from.channels as f64 * shape.elements() as f64;
        self.weighted(name, x, shape, macs, from.channels * units, super::net::Activation::None)
    }

    /// A linear map that uses the weights of another layer.
    pub fn linear_shared(&mut self, name: &str, x: Node, units: u64) -> Node {
        let node = self.linear_no_bias(name, x, units);
        self.layers[node].parameters = 0;
        node
    }

    /// Normalization of every position over its channels, with scale and shift.
    pub fn layer_norm(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        let row = Shape { channels: 1, ..shape };
        let node = if self.kernels == Kernels::Fused {
            self.norm(name, x, row.elements())
        } else {
            let mean = self.plain(&format!("{name}.mean"), &[x], row, 1.0, vec![]);
            let centered =
                self.push(&format!("{name}.center"), &[x, mean], shape, shape.elements() as f64, Backward::Spread);
            let square = self.plain(&format!("{name}.square"), &[centered], shape, 1.0, vec![centered]);
            let variance = self.plain(&format!("{name}.variance"), &[square], row, 1.0, vec![]);
            let deviation = self.plain(&format!("{name}.deviation"), &[variance], row, 3.0, vec![self.next()]);
            let normal =
                self.plain(&format!("{name}.normal"), &[centered, deviation], shape, 1.0, vec![centered, deviation]);
            self.plain(&format!("{name}.affine"), &[normal], shape, 2.0, vec![normal])
        };
        self.layers[node].parameters = 2 * shape.channels;
        node
    }

    /// Normalization of each of `groups` groups of channels over the image, with scale and shift.
    pub fn group_norm(&mut self, name: &str, x: Node, groups: u64) -> Node {
        let node = self.norm(name, x, groups);
        self.layers[node].parameters = 2 * self.shape(x).channels;
        node
    }

    /// One op that keeps mean and deviation of every group.
    fn norm(&mut self, name: &str, x: Node, groups: u64) -> Node {
        let node = self.plain(name, &[x], self.shape(x), 5.0, vec![x]);
        self.layers[node].backward_cost *= 2.0;
        self.layers[node].statistics_bytes = groups.saturating_mul(self.batch).saturating_mul(8);
        node
    }

    /// GELU, computed with the error function.
    pub fn gelu(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        if self.kernels == Kernels::Fused {
            return self.plain(name, &[x], shape, 8.0, vec![x]);
        }
        let scaled = self.plain(&format!("{name}.scale"), &[x], shape, 1.0, vec![]);
        let erf = self.plain(&format!("{name}.erf"), &[scaled], shape, 8.0, vec![scaled]);
        let above = self.push(&format!("{name}.plus_one"), &[erf], shape, shape.elements() as f64, Backward::Shared);
        let product = self.product(&format!("{name}.product"), x, above);
        self.plain(&format!("{name}.half"), &[product], shape, 1.0, vec![])
    }

    /// SiLU: its backward op reads the input.
    pub fn silu(&mut self, name: &str, x: Node) -> Node {
        self.plain(name, &[x], self.shape(x), 5.0, vec![x])
    }

    /// Sigmoid or hyperbolic tangent: its backward op reads the output.
    pub fn squash(&mut self, name: &str, x: Node) -> Node {
        self.plain(name, &[x], self.shape(x), 4.0, vec![self.next()])
    }

    /// Half of the channels times the GELU of the other half.
    pub fn gated_gelu(&mut self, name: &str, x: Node) -> Node {
        let from = self.shape(x);
        self.plain(name, &[x], Shape { channels: from.channels / 2, ..from }, 9.0, vec![x])
    }

    /// Elementwise product.
    pub fn product(&mut self, name: &str, a: Node, b: Node) -> Node {
        self.plain(name, &[a, b], self.shape(a), 1.0, vec![a, b])
    }

    /// Sum of a layer and a smaller one that is broadcast to its shape.
    pub fn add_spread(&mut self, name: &str, x: Node, small: Node) -> Node {
        let shape = self.shape(x);
        self.push(name, &[x, small], shape, shape.elements() as f64, Backward::Spread)
    }

    /// A copy of a part of a layer: its backward op reads only the gradient.
    pub fn select(&mut self, name: &str, x: Node, shape: Shape) -> Node {
        self.plain(name, &[x], shape, 1.0, vec![])
    }

    /// A random layer: it may be computed only once and needs no gradient.
    fn random(&mut self, name: &str, shape: Shape, bytes_each: u64) -> Node {
        let node = self.push(name, &[], shape, shape.elements() as f64, Backward::Shared);
        let layer = &mut self.layers[node];
        layer.bytes = shape.elements().saturating_mul(self.batch).saturating_mul(bytes_each);
        layer.recomputable = false;
        layer.needs_gradient = false;
        node
    }

    /// Dropout: a random mask of one byte per element (four with elementary kernels), and the product with it.
    pub fn dropout(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        let fused = self.kernels == Kernels::Fused;
        let mask = self.random(&format!("{name}.mask"), shape, if fused { 1 } else { 4 });
        let kept = self.plain(name, &[x, mask], shape, 2.0, vec![mask]);
        if fused { kept } else { self.plain(&format!("{name}.scale"), &[kept], shape, 1.0, vec![]) }
    }

    fn softmax(&mut self, name: &str, x: Node) -> Node {
        let shape = self.shape(x);
        if self.kernels == Kernels::Fused {
            return self.plain(name, &[x], shape, 5.0, vec![self.next()]);
        }
        let row = Shape { width: 1, ..shape };
        let most = self.plain(&format!("{name}.max"), &[x], row, 1.0, vec![]);
        self.layers[most].needs_gradient = false;
        let shifted = self.push(&format!("{name}.shift"), &[x, most], shape, shape.elements() as f64, Backward::Spread);
        let exp = self.plain(&format!("{name}.exp"), &[shifted], shape, 4.0, vec![self.next()]);
        let sum = self.plain(&format!("{name}.sum"), &[exp], row, 1.0, vec![]);
        self.plain(&format!("{name}.divide"), &[exp, sum], shape, 1.0, vec![exp, sum])
    }

    /// A product of two activations with `macs` multiply-adds per sequence, twice that backward.
    fn matmul(&mut self, name: &str, [a, b]: [Node; 2], shape: Shape, macs: f64) -> Node {
        let node = self.plain(name, &[a, b], shape, 0.0, vec![a, b]);
        let cost = 2.0 * macs * self.batch as f64;
        (self.layers[node].cost, self.layers[node].backward_cost) = (cost, 2.0 * cost);
        node
    }

    /// Attention of `query` to `key` and `value`, with the heads concatenated again at the end.
    pub fn attention(&mut self, name: &str, [query, key, value]: [Node; 3], heads: Heads) -> Node {
        if heads.attention == Attention::Flash {
            return self.flash(name, [query, key, value], heads);
        }
        let (from, to) = (self.shape(query), self.shape(key));
        let macs = from.channels as f64 * from.height as f64 * to.height as f64;
        let mut split = [query, key, value];
        if self.kernels == Kernels::Elementary {
            for (part, x) in ["query", "key", "value"].into_iter().zip(&mut split) {
                *x = self.plain(&format!("{name}.{part}.heads"), &[*x], self.shape(*x), 1.0, vec![]);
            }
        }
        let [query, key, value] = split;
        let scores = Shape { channels: heads.heads, height: from.height, width: to.height };
        let mut x = self.matmul(&format!("{name}.scores"), [query, key], scores, macs);
        x = self.plain(&format!("{name}.scale"), &[x], scores, 1.0, vec![]);
        if let Some(mask) = heads.mask {
            x = self.plain(&format!("{name}.masked"), &[x, mask], scores, 1.0, vec![mask]);
        }
        x = self.softmax(&format!("{name}.softmax"), x);
        if heads.dropout {
            x = self.dropout(&format!("{name}.drop"), x);
        }
        x = self.matmul(&format!("{name}.weighted"), [x, value], from, macs);
        if self.kernels == Kernels::Elementary {
            x = self.plain(&format!("{name}.merge"), &[x], from, 1.0, vec![]);
        }
        x
    }

    /// One op; with dropout, it reads the generator's state, from which the backward op draws the same random numbers.
    fn flash(&mut self, name: &str, [query, key, value]: [Node; 3], heads: Heads) -> Node {
        let (from, to) = (self.shape(query), self.shape(key));
        let one = Shape { channels: 1, height: 1, width: 1 };
        let seed = heads.dropout.then(|| self.random(&format!("{name}.seed"), one, 16));
        let mut inputs = vec![query, key, value];
        inputs.extend(seed);
        let saves = inputs.iter().copied().chain([self.next()]).collect();
        let node = self.plain(name, &inputs, from, 0.0, saves);
        let macs = from.channels as f64 * from.height as f64 * to.height as f64;
        let scores = (heads.heads * from.height * to.height) as f64;
        // Two products forward; in the backward op, the scores again and four more.
        self.layers[node].cost = (4.0 * macs + 6.0 * scores) * self.batch as f64;
        self.layers[node].backward_cost = (10.0 * macs + 8.0 * scores) * self.batch as f64;
        let rows = heads.heads * from.height;
        self.layers[node].statistics_bytes = rows.saturating_mul(self.batch).saturating_mul(4);
        node
    }

    /// A 3x3 convolution with bias, as its own op.
    pub fn conv3(&mut self, name: &str, x: Node, channels: u64, stride: u64) -> Node {
        self.conv(name, x, channels, window(3, stride), super::net::Activation::None)
    }

    /// Nearest-neighbour enlargement to twice the height and width.
    pub fn enlarge(&mut self, name: &str, x: Node) -> Node {
        let from = self.shape(x);
        self.plain(name, &[x], Shape { height: 2 * from.height, width: 2 * from.width, ..from }, 1.0, vec![])
    }

    /// The indices of the `ways` best experts of each token, without a gradient.
    pub fn top_indices(&mut self, name: &str, probabilities: Node, ways: u64) -> Node {
        let shape = Shape { channels: ways, ..self.shape(probabilities) };
        let node = self.plain(name, &[probabilities], shape, 4.0, vec![]);
        self.layers[node].needs_gradient = false;
        node
    }

    /// Gathers rows at `indices`, or adds rows at these positions; its backward op reads the indices.
    pub fn rows(&mut self, name: &str, inputs: &[Node], indices: Node, shape: Shape) -> Node {
        let all: Vec<Node> = inputs.iter().copied().chain([indices]).collect();
        self.plain(name, &all, shape, 1.0, vec![indices])
    }

    /// The softmax of a router over experts.
    pub fn router(&mut self, name: &str, x: Node, experts: u64) -> Node {
        let scores = self.linear_no_bias(&format!("{name}.scores"), x, experts);
        self.plain(&format!("{name}.softmax"), &[scores], self.shape(scores), 5.0, vec![self.next()])
    }

    /// The sum of several losses: the end of a network with more than one.
    pub fn total(&mut self, losses: &[Node]) -> Node {
        self.stage("loss");
        self.plain("loss.total", losses, self.shape(losses[0]), losses.len() as f64, vec![])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Pass, lower::lower};
    use crate::graph::Graph;

    const SMALL: Shape = Shape { channels: 4, height: 3, width: 1 };

    /// A linear map, then `layers`, then a loss.
    fn graph(kernels: Kernels, layers: impl FnOnce(&mut Net, Node) -> Node) -> Graph {
        let mut net = Net::new("small", 2, SMALL);
        net.kernels = kernels;
        let x = net.linear("x", 0, 4);
        let end = layers(&mut net, x);
        net.loss(end);
        lower(&net, Pass::TrainingWithUpdate).unwrap()
    }

    /// Names of the values that the op called `name` reads.
    fn reads<'a>(graph: &'a Graph, name: &str) -> Vec<&'a str> {
        let op = graph.ops().iter().find(|op| op.name == name).unwrap_or_else(|| panic!("no op {name}"));
        op.inputs.iter().map(|&value| graph.values()[value].name.as_str()).collect()
    }

    #[test]
    fn a_dropout_saves_its_mask_which_is_drawn_once() {
        let graph = graph(Kernels::Fused, |net, x| net.dropout("drop", x));
        assert_eq!(reads(&graph, "drop.grad"), ["drop.mask.out", "drop.grad:loss"]);
        let mask = graph.ops().iter().find(|op| op.name == "drop.mask").unwrap();
        assert!(!mask.recomputable && mask.inputs.is_empty());
        assert_eq!(graph.bytes(mask.outputs[0]), 4 * 3 * 2);
        assert!(!graph.ops().iter().any(|op| op.name == "drop.mask.grad"));
    }

    #[test]
    fn a_norm_saves_its_input_and_two_numbers_for_each_position() {
        let graph = graph(Kernels::Fused, |net, x| net.layer_norm("norm", x));
        assert_eq!(reads(&graph, "norm.grad"), ["x.out", "norm.statistics", "norm.grad:loss"]);
        let norm = graph.ops().iter().find(|op| op.name == "norm").unwrap();
        assert_eq!(graph.bytes(norm.outputs[1]), 3 * 2 * 8);
        assert!(graph.ops().iter().any(|op| op.name == "norm.update"));
    }

    #[test]
    fn attention_saves_probabilities_and_flash_attention_the_sums_of_their_rows() {
        let heads = Heads { heads: 2, attention: Attention::Plain, mask: None, dropout: false };
        let plain = graph(Kernels::Fused, |net, x| net.attention("at", [x; 3], heads));
        assert_eq!(reads(&plain, "at.softmax.grad"), ["at.softmax.out", "at.softmax.grad:at.weighted"]);
        assert!(reads(&plain, "at.scores.grad").contains(&"x.out"));
        let heads = Heads { attention: Attention::Flash, dropout: true, ..heads };
        let flash = graph(Kernels::Fused, |net, x| net.attention("at", [x; 3], heads));
        let saved = ["x.out", "at.seed.out", "at.out", "at.statistics", "at.grad:loss"];
        assert_eq!(reads(&flash, "at.grad"), saved);
    }

    #[test]
    fn elementary_kernels_are_more_ops_with_more_values() {
        let ops = |kernels| graph(kernels, |net, x| net.layer_norm("norm", x)).ops().len();
        assert!(ops(Kernels::Elementary) >= ops(Kernels::Fused) + 10);
        let spread = graph(Kernels::Elementary, |net, x| net.layer_norm("norm", x));
        // The gradient of the mean is added up over the channels.
        assert_eq!(reads(&spread, "norm.center.grad").len(), 1);
    }
}
