//! Families of transformers: each has one structure, with any number of layers.

use super::net::{Kernels, Net, Node, Shape, window};
use super::net_tokens::{Attention, Heads};
use super::nets::image;

/// Size of GPT-2's vocabulary, and number of positions.
const GPT_VOCABULARY: u64 = 50_257;
const GPT_SEQUENCE: u64 = 1024;
/// Width and heads of GPT-2 medium, whatever the depth.
const GPT_WIDTH: u64 = 1024;
const GPT_HEADS: u64 = 16;

/// How a GPT-like network computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptStyle {
    /// Attention with or without scores in memory.
    pub attention: Attention,
    /// Whether norms, softmax, GELU and dropout are one op each or several.
    pub kernels: Kernels,
}

/// A sequence of tokens.
fn tokens(length: u64) -> Shape {
    Shape { channels: 1, height: length, width: 1 }
}

/// A layer of a transformer.
struct Block {
    heads: Heads,
    hidden: u64,
}

impl Block {
    fn drop(&self, net: &mut Net, name: &str, x: Node) -> Node {
        if self.heads.dropout { net.dropout(name, x) } else { x }
    }

    /// Queries from `x`, keys and values from `memory`, and the linear map after attention.
    fn attend(&self, net: &mut Net, name: &str, x: Node, memory: Node) -> Node {
        let width = net.shape(x).channels;
        let query = net.linear(&format!("{name}.query"), x, width);
        let key = net.linear(&format!("{name}.key"), memory, width);
        let value = net.linear(&format!("{name}.value"), memory, width);
        let y = net.attention(&format!("{name}.attention"), [query, key, value], self.heads);
        let y = net.linear(&format!("{name}.out"), y, width);
        self.drop(net, &format!("{name}.drop"), y)
    }

    fn feed_forward(&self, net: &mut Net, name: &str, x: Node) -> Node {
        let width = net.shape(x).channels;
        let y = net.linear(&format!("{name}.up"), x, self.hidden);
        let y = net.gelu(&format!("{name}.gelu"), y);
        let y = net.linear(&format!("{name}.down"), y, width);
        self.drop(net, &format!("{name}.drop"), y)
    }

    /// Normalization comes first in each half.
    fn pre_norm(&self, net: &mut Net, name: &str, x: Node) -> Node {
        let x = self.pre_norm_attention(net, name, x);
        let y = net.layer_norm(&format!("{name}.norm2"), x);
        let y = self.feed_forward(net, &format!("{name}.mlp"), y);
        net.add(&format!("{name}.add2"), x, y)
    }

    fn pre_norm_attention(&self, net: &mut Net, name: &str, x: Node) -> Node {
        net.stage(name);
        let y = net.layer_norm(&format!("{name}.norm1"), x);
        let y = self.attend(net, name, y, y);
        net.add(&format!("{name}.add1"), x, y)
    }

    /// Normalization comes last in each part; `memory` is what a decoder attends to besides itself.
    fn post_norm(&self, net: &mut Net, name: &str, mut x: Node, memory: Option<Node>) -> Node {
        net.stage(name);
        let y = self.attend(net, name, x, x);
        x = net.add(&format!("{name}.add1"), x, y);
        x = net.layer_norm(&format!("{name}.norm1"), x);
        if let Some(memory) = memory {
            let across = Self { heads: Heads { mask: None, ..self.heads }, ..*self };
            let y = across.attend(net, &format!("{name}.cross"), x, memory);
            x = net.add(&format!("{name}.add_cross"), x, y);
            x = net.layer_norm(&format!("{name}.norm_cross"), x);
        }
        let y = self.feed_forward(net, &format!("{name}.mlp"), x);
        x = net.add(&format!("{name}.add2"), x, y);
        net.layer_norm(&format!("{name}.norm2"), x)
    }
}

/// GPT-2 (Radford et al. 2019) with `depth` layers of the width of GPT-2 medium, 1,024 tokens, and dropout everywhere.
/// GPT-2 medium has depth 24.
pub fn gpt(name: &str, batch: u64, depth: usize, style: GptStyle) -> Net {
    let mut net = Net::new(name, batch, tokens(GPT_SEQUENCE));
    net.kernels = style.kernels;
    let (block, x) = gpt_start(&mut net, style.attention);
    let x = (0..depth).fold(x, |x, k| block.pre_norm(&mut net, &format!("layer{k}"), x));
    gpt_end(net, x)
}

/// The same with flash attention and a mixture of eight experts instead of every second feed-forward part. Each token
/// goes to two experts, and each expert has room for a quarter more tokens than its share (Shazeer et al. 2017,
/// Lepikhin et al. 2020).
pub fn mixture_of_experts(batch: u64, depth: usize) -> Net {
    let mut net = Net::new("mixture-of-experts", batch, tokens(GPT_SEQUENCE));
    let (block, mut x) = gpt_start(&mut net, Attention::Flash);
    for k in 0..depth {
        let name = format!("layer{k}");
        x = if k % 2 == 0 { experts(&mut net, &block, &name, x) } else { block.pre_norm(&mut net, &name, x) };
    }
    gpt_end(net, x)
}

fn gpt_start(net: &mut Net, attention: Attention) -> (Block, Node) {
    let mask = (attention == Attention::Plain).then(|| causal_mask(net, GPT_SEQUENCE));
    let block = Block { heads: Heads { heads: GPT_HEADS, attention, mask, dropout: true }, hidden: 4 * GPT_WIDTH };
    net.stage("embedding");
    let x = net.embedding("embedding", 0, GPT_VOCABULARY, GPT_WIDTH, GPT_SEQUENCE * GPT_WIDTH);
    (block, net.dropout("embedding.drop", x))
}

fn gpt_end(mut net: Net, x: Node) -> Net {
    net.stage("head");
    let x = net.layer_norm("head.norm", x);
    let x = net.linear_shared("head", x, GPT_VOCABULARY);
    net.loss(x);
    net
}

/// One byte for each pair of positions.
fn causal_mask(net: &mut Net, length: u64) -> Node {
    let mask = net.input("causal_mask", Shape { channels: 1, height: length, width: length });
    net.layers[mask].bytes = length * length;
    mask
}

fn experts(net: &mut Net, block: &Block, name: &str, x: Node) -> Node {
    const EXPERTS: u64 = 8;
    const WAYS: u64 = 2;
    let x = block.pre_norm_attention(net, name, x);
    let y = net.layer_norm(&format!("{name}.norm2"), x);
    let shape = net.shape(y);
    let probabilities = net.router(&format!("{name}.router"), y, EXPERTS);
    let indices = net.top_indices(&format!("{name}.router.top"), probabilities, WAYS);
    let places = net.shape(indices);
    let gates = net.rows(&format!("{name}.router.gates"), &[probabilities], indices, places);
    let room = Shape { height: shape.height * WAYS * 5 / (EXPERTS * 4), ..shape };
    let mut sum = None;
    for expert in 0..EXPERTS {
        let part = format!("{name}.expert{expert}");
        let taken = net.rows(&format!("{part}.take"), &[y], indices, room);
        let up = net.linear(&format!("{part}.up"), taken, block.hidden);
        let active = net.gelu(&format!("{part}.gelu"), up);
        let down = net.linear(&format!("{part}.down"), active, shape.channels);
        let gate = net.rows(&format!("{part}.gate"), &[gates], indices, Shape { channels: 1, ..room });
        let scaled = net.product(&format!("{part}.scaled"), down, gate);
        let inputs: Vec<Node> = sum.into_iter().chain([scaled]).collect();
        sum = Some(net.rows(&format!("{part}.give"), &inputs, indices, shape));
    }
    let y = net.dropout(&format!("{name}.drop2"), sum.unwrap_or(y));
    net.add(&format!("{name}.add2"), x, y)
}

/// The transformer of Vaswani et al. 2017 with base width, `depth` layers and 512 tokens on each side, and dropout
/// everywhere. The published network has depth 6. Every layer of the decoder reads the encoder's output.
pub fn encoder_decoder(batch: u64, depth: usize) -> Net {
    const WIDTH: u64 = 512;
    const LENGTH: u64 = 512;
    const VOCABULARY: u64 = 37_000;
    let mut net = Net::new("encoder-decoder", batch, tokens(LENGTH));
    let target = net.input("target", tokens(LENGTH));
    let mask = causal_mask(&mut net, LENGTH);
    let heads = Heads { heads: 8, attention: Attention::Plain, mask: None, dropout: true };
    let block = Block { heads, hidden: 4 * WIDTH };
    net.stage("encoder.embedding");
    let x = net.embedding("encoder.embedding", 0, VOCABULARY, WIDTH, 0);
    let x = net.dropout("encoder.embedding.drop", x);
    let memory = (0..depth).fold(x, |x, k| block.post_norm(&mut net, &format!("encoder{k}"), x, None));
    net.stage("decoder.embedding");
    let x = net.embedding("decoder.embedding", target, VOCABULARY, WIDTH, 0);
    net.layers[x].parameters = 0; // one table serves both sides and the head
    let x = net.dropout("decoder.embedding.drop", x);
    let causal = Block { heads: Heads { mask: Some(mask), ..heads }, ..block };
    let x = (0..depth).fold(x, |x, k| causal.post_norm(&mut net, &format!("decoder{k}"), x, Some(memory)));
    net.stage("head");
    let x = net.linear_shared("head", x, VOCABULARY);
    net.loss(x);
    net
}

/// ViT-B/16 (Dosovitskiy et al. 2020) on 224x224 images with `depth` layers, without dropout. The
/// published network has depth 12.
pub fn vit(batch: u64, depth: usize) -> Net {
    const WIDTH: u64 = 768;
    let mut net = Net::new("vit", batch, image(224, 224));
    net.stage("patches");
    let x = net.conv("patches", 0, WIDTH, window(16, 16), super::net::Activation::None);
    // A class token before the patches, and positions added to all.
    let sequence = Shape { channels: WIDTH, height: 1 + 14 * 14, width: 1 };
    let mut x = net.select("tokens", x, sequence);
    net.layers[x].parameters = WIDTH + sequence.elements();
    let heads = Heads { heads: 12, attention: Attention::Flash, mask: None, dropout: false };
    let block = Block { heads, hidden: 4 * WIDTH };
    for k in 0..depth {
        x = block.pre_norm(&mut net, &format!("layer{k}"), x);
    }
    net.stage("head");
    let x = net.layer_norm("head.norm", x);
    let x = net.select("head.token", x, Shape { channels: WIDTH, height: 1, width: 1 });
    let x = net.linear("head", x, 1000);
    net.loss(x);
    net
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: GptStyle = GptStyle { attention: Attention::Plain, kernels: Kernels::Fused };

    #[test]
    fn parameters_are_those_published() {
        assert_eq!(gpt("gpt", 1, 24, PLAIN).parameters(), 354_823_168);
        assert_eq!(vit(1, 12).parameters(), 86_567_656);
        // 65 million in the paper, which counts a little more than tables, maps and norms.
        assert_eq!(encoder_decoder(1, 6).parameters(), 63_082_496);
    }

    #[test]
    fn the_styles_of_a_gpt_have_the_same_weights() {
        let parameters = gpt("gpt", 1, 3, PLAIN).parameters();
        for attention in [Attention::Plain, Attention::Flash] {
            for kernels in [Kernels::Fused, Kernels::Elementary] {
                assert_eq!(gpt("gpt", 1, 3, GptStyle { attention, kernels }).parameters(), parameters);
            }
        }
    }

    #[test]
    fn flash_attention_keeps_no_scores() {
        let flash = gpt("gpt", 1, 2, GptStyle { attention: Attention::Flash, ..PLAIN });
        let scores = GPT_HEADS * GPT_SEQUENCE * GPT_SEQUENCE;
        let most = |net: &Net| net.layers.iter().filter(|layer| layer.stage == "layer1").map(|layer| layer.bytes).max();
        assert!(most(&flash).unwrap() <= scores && most(&gpt("gpt", 1, 2, PLAIN)).unwrap() == 4 * scores);
    }

    #[test]
    fn experts_add_weights_to_every_second_layer() {
        let without = gpt("gpt", 1, 2, GptStyle { attention: Attention::Flash, ..PLAIN }).parameters();
        let expert = 2 * 4 * GPT_WIDTH * GPT_WIDTH + 5 * GPT_WIDTH;
        assert_eq!(mixture_of_experts(1, 2).parameters(), without + 7 * expert + 8 * GPT_WIDTH);
    }
}
