//! The U-Net of a latent diffusion model.

use super::net::{Activation, Net, Node, Shape, window};
use super::net_tokens::{Attention, Heads};

/// Channels at the top.
const WIDTH: u64 = 320;
/// Channels of each level, in multiples of those at the top.
const MULTIPLES: [u64; 4] = [1, 2, 4, 4];
/// Levels with attention, from the top.
const ATTENTION_LEVELS: usize = 3;
/// Groups of a group normalization.
const GROUPS: u64 = 32;
/// Tokens of the text, and their width.
const TEXT: Shape = Shape { channels: 768, height: 77, width: 1 };

/// The U-Net of Stable Diffusion 1 (Rombach et al. 2021) on latents of 64x64, with `depth` residual blocks on each level
/// of the encoder and one more on each level of the decoder. On the upper three levels, each block has self- and
/// cross-attention. The published network has depth 2.
pub fn diffusion_unet(batch: u64, depth: usize) -> Net {
    let mut net = Net::new("diffusion-unet", batch, Shape { channels: 4, height: 64, width: 64 });
    let text = net.input("text", TEXT);
    let time = net.input("time", Shape { channels: WIDTH, height: 1, width: 1 });
    net.stage("time");
    let time = net.linear("time.up", time, 4 * WIDTH);
    let time = net.silu("time.silu", time);
    let time = net.linear("time.out", time, 4 * WIDTH);
    let time = net.silu("time.silu2", time);
    let context = Context { text, time };
    net.stage("in");
    let mut x = net.conv3("in", 0, WIDTH, 1);
    let mut skips = vec![x];
    for (level, multiple) in MULTIPLES.into_iter().enumerate() {
        for block in 0..depth {
            let name = format!("down{level}.{block}");
            x = context.block(&mut net, &name, x, WIDTH * multiple, level < ATTENTION_LEVELS);
            skips.push(x);
        }
        if level + 1 < MULTIPLES.len() {
            let name = format!("down{level}.half");
            x = net.stage(name.clone()).conv3(&name, x, WIDTH * multiple, 2);
            skips.push(x);
        }
    }
    let bottom = WIDTH * MULTIPLES[MULTIPLES.len() - 1];
    x = context.block(&mut net, "middle.0", x, bottom, true);
    x = context.block(&mut net, "middle.1", x, bottom, false);
    for (level, multiple) in MULTIPLES.into_iter().enumerate().rev() {
        for block in 0..=depth {
            let name = format!("up{level}.{block}");
            let skip = skips.pop().unwrap_or(x);
            net.stage(name.clone());
            x = net.concat(&format!("{name}.concat"), &[x, skip]);
            x = context.block(&mut net, &name, x, WIDTH * multiple, level < ATTENTION_LEVELS);
        }
        if level > 0 {
            let name = format!("up{level}.double");
            x = net.stage(name.clone()).enlarge(&format!("{name}.copy"), x);
            x = net.conv3(&name, x, WIDTH * multiple, 1);
        }
    }
    net.stage("out");
    x = net.group_norm("out.norm", x, GROUPS);
    x = net.silu("out.silu", x);
    x = net.conv3("out", x, 4, 1);
    net.loss(x);
    net
}

/// What every block reads.
struct Context {
    text: Node,
    time: Node,
}

impl Context {
    fn block(&self, net: &mut Net, name: &str, x: Node, channels: u64, attends: bool) -> Node {
        net.stage(name);
        let x = self.residual(net, name, x, channels);
        if attends { self.transformer(net, &format!("{name}.attention"), x) } else { x }
    }

    fn residual(&self, net: &mut Net, name: &str, x: Node, channels: u64) -> Node {
        let y = net.group_norm(&format!("{name}.norm1"), x, GROUPS);
        let y = net.silu(&format!("{name}.silu1"), y);
        let y = net.conv3(&format!("{name}.conv1"), y, channels, 1);
        let time = net.linear(&format!("{name}.time"), self.time, channels);
        let y = net.add_spread(&format!("{name}.add_time"), y, time);
        let y = net.group_norm(&format!("{name}.norm2"), y, GROUPS);
        let y = net.silu(&format!("{name}.silu2"), y);
        let y = net.conv3(&format!("{name}.conv2"), y, channels, 1);
        let skip = if net.shape(x).channels == channels {
            x
        } else {
            net.conv(&format!("{name}.skip"), x, channels, window(1, 1), Activation::None)
        };
        net.add(&format!("{name}.add"), skip, y)
    }

    /// Self-attention, attention to the text and a gated feed-forward part, each after a normalization.
    fn transformer(&self, net: &mut Net, name: &str, image: Node) -> Node {
        let shape = net.shape(image);
        let (width, sequence) = (shape.channels, Shape { height: shape.height * shape.width, width: 1, ..shape });
        let x = net.group_norm(&format!("{name}.norm"), image, GROUPS);
        let x = net.conv(&format!("{name}.in"), x, width, window(1, 1), Activation::None);
        let mut x = net.select(&format!("{name}.sequence"), x, sequence);
        for (part, is_cross) in [("self", false), ("cross", true)] {
            let part = format!("{name}.{part}");
            let y = net.layer_norm(&format!("{part}.norm"), x);
            let memory = if is_cross { self.text } else { y };
            let query = net.linear_no_bias(&format!("{part}.query"), y, width);
            let key = net.linear_no_bias(&format!("{part}.key"), memory, width);
            let value = net.linear_no_bias(&format!("{part}.value"), memory, width);
            let heads = Heads { heads: 8, attention: Attention::Flash, mask: None, dropout: false };
            let y = net.attention(&part, [query, key, value], heads);
            let y = net.linear(&format!("{part}.out"), y, width);
            x = net.add(&format!("{part}.add"), x, y);
        }
        let y = net.layer_norm(&format!("{name}.mlp.norm"), x);
        let y = net.linear(&format!("{name}.mlp.up"), y, 8 * width);
        let y = net.gated_gelu(&format!("{name}.mlp.gelu"), y);
        let y = net.linear(&format!("{name}.mlp.down"), y, width);
        x = net.add(&format!("{name}.mlp.add"), x, y);
        let x = net.select(&format!("{name}.image"), x, shape);
        let x = net.conv(&format!("{name}.out"), x, width, window(1, 1), Activation::None);
        net.add(&format!("{name}.add"), image, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_published_and_the_end_has_the_size_of_the_latent() {
        let net = diffusion_unet(1, 2);
        assert_eq!(net.parameters(), 859_520_964);
        let out = net.layers.iter().position(|layer| layer.name == "out").unwrap();
        assert_eq!(net.shape(out), net.shape(0));
    }
}
