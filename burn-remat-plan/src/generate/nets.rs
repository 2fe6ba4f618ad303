//! Layer tables: VGG, MobileNet and U-Net.

use super::net::{Activation, Net, Node, Shape, window};

/// A color image.
pub(super) fn image(height: u64, width: u64) -> Shape {
    Shape { channels: 3, height, width }
}

/// Convolutions per block of VGG, with the channels of the block.
type VggBlocks = [(usize, u64); 5];

fn vgg(name: &str, batch: u64, blocks: VggBlocks) -> Net {
    let mut net = Net::new(name, batch, image(224, 224));
    let mut x: Node = 0;
    for (block, (convolutions, channels)) in blocks.into_iter().enumerate() {
        let block = block + 1;
        net.stage(format!("block{block}"));
        for k in 1..=convolutions {
            x = net.conv(&format!("conv{block}_{k}"), x, channels, window(3, 1), Activation::None);
            x = net.relu_of_input(&format!("relu{block}_{k}"), x);
        }
        x = net.max_pool(&format!("pool{block}"), x, window(2, 2));
    }
    net.stage("classifier");
    x = net.fully_connected("fc6", x, 4096, Activation::None);
    x = net.relu_of_input("relu6", x);
    x = net.fully_connected("fc7", x, 4096, Activation::None);
    x = net.relu_of_input("relu7", x);
    x = net.fully_connected("fc8", x, 1000, Activation::None);
    net.loss(x);
    net
}

/// VGG16 on 224x224 images (Simonyan & Zisserman 2014, configuration D). Convolution and ReLU are separate ops.
pub fn vgg16(batch: u64) -> Net {
    vgg("vgg16", batch, [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)])
}

/// VGG19 on 224x224 images (Simonyan & Zisserman 2014, configuration E). Convolution and ReLU are separate ops.
pub fn vgg19(batch: u64) -> Net {
    vgg("vgg19", batch, [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)])
}

/// MobileNet (version 1, width 1.0) on 224x224 images (Howard et al. 2017, table 1). Convolution, normalization and ReLU
/// are separate ops.
pub fn mobilenet(batch: u64) -> Net {
    // Output channels and stride of each separable convolution.
    const BLOCKS: [(u64, u64); 13] = [
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        (512, 1),
        (512, 1),
        (512, 1),
        (512, 1),
        (512, 1),
        (1024, 2),
        (1024, 1),
    ];
    let mut net = Net::new("mobilenet", batch, image(224, 224));
    net.stage("stem");
    let mut x = net.conv_no_bias("stem.conv", 0, 32, window(3, 2));
    x = norm_relu(&mut net, "stem", x);
    for (block, (channels, stride)) in BLOCKS.into_iter().enumerate() {
        let name = format!("block{}", block + 1);
        net.stage(name.clone());
        x = net.depthwise(&format!("{name}.dw"), x, window(3, stride));
        x = norm_relu(&mut net, &format!("{name}.dw"), x);
        x = net.conv_no_bias(&format!("{name}.pw"), x, channels, window(1, 1));
        x = norm_relu(&mut net, &format!("{name}.pw"), x);
    }
    net.stage("classifier");
    x = net.global_average("pool", x);
    x = net.fully_connected("fc", x, 1000, Activation::None);
    net.loss(x);
    net
}

/// Batch normalization and ReLU.
pub(super) fn norm_relu(net: &mut Net, name: &str, x: Node) -> Node {
    let x = net.batch_norm(&format!("{name}.bn"), x);
    net.relu(&format!("{name}.relu"), x)
}

/// U-Net on 416x608 images (Ronneberger et al. 2015), with padded convolutions so that the output covers the image, and
/// two classes. A convolution and its ReLU are one op.
pub fn unet416x608(batch: u64) -> Net {
    unet_of("unet416x608", batch, image(416, 608), 64, 4)
}

/// A U-Net with `levels` halvings and `width` channels at the top, doubled at every level.
pub(super) fn unet_of(name: &str, batch: u64, input: Shape, width: u64, levels: usize) -> Net {
    let mut net = Net::new(name, batch, input);
    let mut x: Node = 0;
    let mut skips = Vec::new();
    for level in 0..levels {
        net.stage(format!("down{level}"));
        x = double_conv(&mut net, &format!("down{level}"), x, width << level);
        skips.push(x);
        x = net.max_pool(&format!("down{level}.pool"), x, window(2, 2));
    }
    net.stage("bottom");
    x = double_conv(&mut net, "bottom", x, width << levels);
    for (level, skip) in skips.into_iter().enumerate().rev() {
        net.stage(format!("up{level}"));
        x = net.up_conv(&format!("up{level}.up"), x, width << level);
        x = net.concat(&format!("up{level}.concat"), &[skip, x]);
        x = double_conv(&mut net, &format!("up{level}"), x, width << level);
    }
    net.stage("head");
    x = net.conv("head.conv", x, 2, window(1, 1), Activation::None);
    net.loss(x);
    net
}

fn double_conv(net: &mut Net, name: &str, x: Node, channels: u64) -> Node {
    let x = net.conv(&format!("{name}.conv1"), x, channels, window(3, 1), Activation::Relu);
    net.conv(&format!("{name}.conv2"), x, channels, window(3, 1), Activation::Relu)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiply-adds of the forward pass in billions; elementwise work counts as half of its operations.
    fn giga_macs(net: &Net) -> f64 {
        net.layers.iter().map(|layer| layer.cost).sum::<f64>() / 2e9
    }

    #[test]
    fn parameters_are_those_published() {
        assert_eq!(vgg16(1).parameters(), 138_357_544);
        assert_eq!(vgg19(1).parameters(), 143_667_240);
        assert_eq!(mobilenet(1).parameters(), 4_231_976);
        // The published net reads one channel and has 31,030,658 parameters. Two more channels add 3x3x64 weights each.
        assert_eq!(unet416x608(1).parameters(), 31_030_658 + 2 * 9 * 64);
    }

    #[test]
    fn multiply_adds_are_those_published() {
        for (net, published) in [(vgg16(1), 15.5), (vgg19(1), 19.6), (mobilenet(1), 0.569)] {
            let found = giga_macs(&net);
            assert!((found / published - 1.0).abs() < 0.05, "{}: {found} against {published}", net.name);
        }
    }

    #[test]
    fn the_unet_ends_at_the_size_of_its_input() {
        let net = unet416x608(1);
        let last = net.shape(net.layers.len() - 1);
        assert_eq!((last.height, last.width), (416, 608));
    }
}
