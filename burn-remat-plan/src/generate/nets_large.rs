//! Layer tables: ResNet-50 and DenseNet-161.

use super::net::{Activation, Net, Node, window};
use super::nets::{image, norm_relu};

/// ResNet-50 on 224x224 images (He et al. 2015, table 1; the first convolution of a stage has the stride, as in the paper).
/// Convolution, normalization, ReLU and sum are separate ops.
pub fn resnet50(batch: u64) -> Net {
    let mut net = Net::new("resnet50", batch, image(224, 224));
    let mut x = stem(&mut net, 64);
    for (stage, (blocks, width)) in [(3, 64), (4, 128), (6, 256), (3, 512)].into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            x = bottleneck(&mut net, &format!("layer{}.{block}", stage + 1), x, width, stride);
        }
    }
    classifier(net, x)
}

/// A 7x7 convolution with normalization, and pooling: 224x224 to 56x56.
fn stem(net: &mut Net, channels: u64) -> Node {
    net.stage("stem");
    let x = net.conv_no_bias("stem.conv", 0, channels, window(7, 2));
    let x = norm_relu(net, "stem", x);
    net.max_pool("stem.pool", x, window(3, 2))
}

fn classifier(mut net: Net, x: Node) -> Net {
    net.stage("classifier");
    let x = net.global_average("pool", x);
    let x = net.fully_connected("fc", x, 1000, Activation::None);
    net.loss(x);
    net
}

fn bottleneck(net: &mut Net, name: &str, x: Node, width: u64, stride: u64) -> Node {
    net.stage(name);
    let out = 4 * width;
    let mut y = net.conv_no_bias(&format!("{name}.conv1"), x, width, window(1, stride));
    y = norm_relu(net, &format!("{name}.1"), y);
    y = net.conv_no_bias(&format!("{name}.conv2"), y, width, window(3, 1));
    y = norm_relu(net, &format!("{name}.2"), y);
    y = net.conv_no_bias(&format!("{name}.conv3"), y, out, window(1, 1));
    y = net.batch_norm(&format!("{name}.3.bn"), y);
    let skip = if net.shape(x) == net.shape(y) {
        x
    } else {
        let skip = net.conv_no_bias(&format!("{name}.skip"), x, out, window(1, stride));
        net.batch_norm(&format!("{name}.skip.bn"), skip)
    };
    y = net.add(&format!("{name}.add"), y, skip);
    net.relu(&format!("{name}.relu"), y)
}

/// DenseNet-161 on 224x224 images (Huang et al. 2016: growth 48, bottleneck and compression). Every layer of a block
/// concatenates its output to everything before it, in an op with its own result.
pub fn densenet161(batch: u64) -> Net {
    const GROWTH: u64 = 48;
    let mut net = Net::new("densenet161", batch, image(224, 224));
    let mut x = stem(&mut net, 2 * GROWTH);
    for (block, layers) in [6, 12, 36, 24].into_iter().enumerate() {
        for layer in 0..layers {
            let name = format!("block{}.{layer}", block + 1);
            net.stage(name.clone());
            let mut y = norm_relu(&mut net, &format!("{name}.1"), x);
            y = net.conv_no_bias(&format!("{name}.conv1"), y, 4 * GROWTH, window(1, 1));
            y = norm_relu(&mut net, &format!("{name}.2"), y);
            y = net.conv_no_bias(&format!("{name}.conv2"), y, GROWTH, window(3, 1));
            x = net.concat(&format!("{name}.concat"), &[x, y]);
        }
        if block < 3 {
            let name = format!("transition{}", block + 1);
            net.stage(name.clone());
            let channels = net.shape(x).channels / 2;
            x = norm_relu(&mut net, &name, x);
            x = net.conv_no_bias(&format!("{name}.conv"), x, channels, window(1, 1));
            x = net.average_pool(&format!("{name}.pool"), x, window(2, 2));
        }
    }
    net.stage("classifier");
    x = norm_relu(&mut net, "final", x);
    classifier(net, x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_multiply_adds_are_those_published() {
        for (net, parameters, giga_macs) in [(resnet50(1), 25_557_032, 3.86), (densenet161(1), 28_681_000, 7.8)] {
            assert_eq!(net.parameters(), parameters, "{}", net.name);
            // Normalization and activations come on top of the published multiply-adds.
            let convolutions =
                net.layers.iter().filter(|layer| layer.input_gradient_cost > 0.0).map(|layer| layer.cost);
            let found = convolutions.sum::<f64>() / 2e9;
            assert!((found / giga_macs - 1.0).abs() < 0.02, "{}: {found} against {giga_macs}", net.name);
        }
    }
}
