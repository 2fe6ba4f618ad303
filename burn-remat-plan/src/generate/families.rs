//! Families of small convolutional nets: each has one structure, in any depth.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::net::{Activation, Net, Node, Shape, window};
use super::nets::{image, unet_of};

const CHANNELS: u64 = 32;

fn head(mut net: Net, x: Node) -> Net {
    net.stage("head");
    let x = net.global_average("head.pool", x);
    let x = net.fully_connected("head.fc", x, 10, Activation::None);
    net.loss(x);
    net
}

/// A chain of `depth` convolutions that halves the image and doubles the channels at intervals, at most four times.
pub fn linear(batch: u64, depth: usize) -> Net {
    let mut net = Net::new("linear", batch, image(64, 64));
    let every = depth.div_ceil(5).max(1);
    let mut x = 0;
    for k in 0..depth {
        net.stage(format!("layer{k}"));
        let halve = k > 0 && k % every == 0;
        let channels = if halve { 2 * net.shape(x).channels } else { net.shape(x).channels.max(CHANNELS) };
        x = net.conv(&format!("conv{k}"), x, channels, window(3, if halve { 2 } else { 1 }), Activation::Relu);
    }
    head(net, x)
}

/// `depth` blocks of two convolutions with a skip connection around them.
pub fn residual(batch: u64, depth: usize) -> Net {
    let mut net = Net::new("residual", batch, image(32, 32));
    net.stage("stem");
    let mut x = net.conv("stem", 0, CHANNELS, window(3, 1), Activation::Relu);
    for k in 0..depth {
        net.stage(format!("block{k}"));
        let y = net.conv(&format!("block{k}.conv1"), x, CHANNELS, window(3, 1), Activation::Relu);
        let y = net.conv(&format!("block{k}.conv2"), y, CHANNELS, window(3, 1), Activation::None);
        let y = net.add(&format!("block{k}.add"), x, y);
        x = net.relu(&format!("block{k}.relu"), y);
    }
    head(net, x)
}

/// Encoder and decoder of `depth` levels with a skip connection across each: 256x256 images.
pub fn unet(batch: u64, depth: usize) -> Net {
    unet_of("unet", batch, image(256, 256), 8, depth)
}

/// `depth` layers, each of which reads the concatenation of the network's stem and all layers before it, so that no
/// vertex between the stem and the end separates the graph.
pub fn dense(batch: u64, depth: usize) -> Net {
    let mut net = Net::new("dense", batch, image(32, 32));
    net.stage("stem");
    let mut features = vec![net.conv("stem", 0, CHANNELS, window(3, 1), Activation::Relu)];
    for k in 0..depth {
        net.stage(format!("layer{k}"));
        let all = net.concat(&format!("layer{k}.concat"), &features);
        features.push(net.conv(&format!("layer{k}.conv"), all, CHANNELS, window(3, 1), Activation::Relu));
    }
    net.stage("end");
    let all = net.concat("end.concat", &features);
    head(net, all)
}

/// `depth` blocks of four parallel branches (1x1; 1x1 and 3x3; 1x1 and two 3x3; pooling and 1x1), concatenated.
pub fn inception(batch: u64, depth: usize) -> Net {
    let mut net = Net::new("inception", batch, image(32, 32));
    net.stage("stem");
    let mut x = net.conv("stem", 0, CHANNELS, window(3, 1), Activation::Relu);
    for k in 0..depth {
        let name = format!("block{k}");
        net.stage(name.clone());
        let conv = |net: &mut Net, part: &str, x: Node, channels: u64, size: u64| {
            net.conv(&format!("{name}.{part}"), x, channels, window(size, 1), Activation::Relu)
        };
        let a = conv(&mut net, "a1", x, CHANNELS / 2, 1);
        let b = conv(&mut net, "b1", x, CHANNELS / 4, 1);
        let b = conv(&mut net, "b2", b, CHANNELS / 2, 3);
        let c = conv(&mut net, "c1", x, CHANNELS / 8, 1);
        let c = conv(&mut net, "c2", c, CHANNELS / 4, 3);
        let c = conv(&mut net, "c3", c, CHANNELS / 4, 3);
        let d = net.max_pool(&format!("block{k}.d1"), x, window(3, 1));
        let d = conv(&mut net, "d2", d, CHANNELS / 4, 1);
        x = net.concat(&format!("block{k}.concat"), &[a, b, c, d]);
    }
    head(net, x)
}

/// `depth` random layers: a convolution or ReLU of one of the last six layers, its sum or concatenation with the last
/// one, or a batch normalization.
pub fn random(batch: u64, depth: usize, seed: u64) -> Net {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut net = Net::new("random", batch, Shape { channels: 4, height: 32, width: 32 });
    net.stage("stem");
    let mut x = net.conv("stem", 0, 16, window(3, 1), Activation::Relu);
    for k in 0..depth {
        net.stage(format!("layer{k}"));
        let back = rng.random_range(1..=x.min(6));
        let other = x + 1 - back;
        x = match rng.random_range(0..6) {
            0 if other != x && net.shape(other) == net.shape(x) => net.add(&format!("layer{k}.add"), other, x),
            1 if other != x && net.shape(other).channels + net.shape(x).channels <= 256 => {
                net.concat(&format!("layer{k}.concat"), &[other, x])
            }
            2 => net.relu(&format!("layer{k}.relu"), other),
            3 => net.batch_norm(&format!("layer{k}.bn"), x),
            kind => {
                let (channels, size) = (1 << rng.random_range(2..7), if kind == 4 { 1 } else { 3 });
                net.conv(&format!("layer{k}.conv"), other, channels, window(size, 1), Activation::Relu)
            }
        };
    }
    // Layers that no other layer reads go into the end, so that no layer is unused.
    let mut read = vec![false; net.layers.len()];
    for layer in &net.layers {
        layer.inputs.iter().for_each(|&input| read[input] = true);
    }
    let ends: Vec<Node> = (1..net.layers.len()).filter(|&node| !read[node]).collect();
    net.stage("end");
    let end = if let [only] = ends[..] { only } else { net.concat("end.concat", &ends) };
    head(net, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_net_and_another_gives_another() {
        assert_eq!(random(1, 20, 7), random(1, 20, 7));
        assert_ne!(random(1, 20, 7), random(1, 20, 8));
    }

    #[test]
    fn a_linear_net_of_any_depth_keeps_to_sizes_that_count() {
        for depth in [1, 2, 5, 50, 2000] {
            let net = linear(1, depth);
            assert_eq!(net.layers.len(), depth + 4);
            assert!(net.layers.iter().all(|layer| layer.bytes > 0 && layer.bytes < 1 << 20));
        }
    }
}
