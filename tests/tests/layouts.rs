//! How bits depend on the layout of tensors: on a GPU a sum adds in an order that follows the strides of its input, including those of axes of one element.

use std::time::Duration;

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor, activation};
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::under_test;

const STEPS: usize = 12;
/// Steps before the run waits for the planner.
const SEEN: usize = 6;

/// What is made from a mask, by operations that overwrite what they may.
const HEADS: [fn(Tensor<4>) -> Tensor<4>; 8] = [
    activation::sigmoid,
    activation::gelu,
    |mask| activation::leaky_relu(mask, 0.1),
    |mask| (mask * 2.0 + 1.0).clamp(-3.0, 3.0).abs(),
    |mask| (mask.exp() + 1.0).log().powf_scalar(0.5),
    |mask| mask.slice_fill([0..1, 0..1, 8..20, 8..20], 0.5).tanh(),
    |mask| {
        let low = mask.clone().lower_elem(-0.2);
        mask.mask_fill(low, -0.2).neg()
    },
    |mask| {
        let half = mask.clone() * 0.5;
        half * mask.sin()
    },
];

/// Convolutions, the last of which make one channel each: the strides of that axis depend on what is written over what.
#[derive(Module, Debug)]
struct Masks {
    inner: Vec<Conv2d>,
    outputs: Vec<Conv2d>,
}

impl Masks {
    fn new(device: &Device) -> Self {
        let padding = PaddingConfig2d::Explicit(1, 0, 1, 0);
        let conv =
            |channels: [usize; 2]| Conv2dConfig::new(channels, [3, 1]).with_padding(padding.clone()).init(device);
        let inner = [3, 16, 16, 16].windows(2).map(|pair| conv([pair[0], pair[1]])).collect();
        Self { inner, outputs: HEADS.iter().map(|_| conv([16, 1])).collect() }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let inner = self.inner.iter().fold(images, |x, conv| {
            // What they hold makes the masks small in comparison.
            (0..24).fold(conv.forward(x), |x, _| (x * 1.01).tanh())
        });
        let masks = self.outputs.iter().zip(HEADS).map(|(output, head)| head(output.forward(inner.clone())));
        masks.reduce(|sum, mask| sum + mask).expect("there are heads")
    }
}

/// The result of training on `device`, as bits.
fn train(device: &Device, mut after_step: impl FnMut(usize)) -> Vec<Vec<u32>> {
    let training = &device.clone().autodiff();
    training.seed(3);
    let mut model = Masks::new(training);
    let mut optimizer = SgdConfig::new().init();
    let mut seen = Vec::new();
    for step in 0..STEPS {
        let images = Tensor::<4>::random([2, 3, 64, 64], Distribution::Default, training);
        let masks = images.clone().slice([0..2, 0..1]).greater_elem(0.5).float();
        let off = model.forward(images) - masks;
        let loss = (off.clone() * off).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        seen.push(vec![loss.into_scalar::<f32>().to_bits()]);
        model = optimizer.step(0.01, model, gradients);
        for output in &model.outputs {
            let bias = output.bias.as_ref().expect("a bias").val().into_data().try_to_vec::<f32>().unwrap();
            seen.push(bias.into_iter().map(f32::to_bits).collect());
        }
        after_step(step);
    }
    seen
}

#[test]
fn a_plan_leaves_strides_of_single_elements_as_they_are() {
    let plain = train(&under_test(), |_| {});
    assert!(plain.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()), "nothing was learned");
    let unlimited = under_test().remat("unlimited").unwrap();
    assert_eq!(train(&unlimited, |_| {}), plain);
    let peak = unlimited.remat_report().unwrap().peak_bytes;
    let config = RematConfig::new(peak * 6 / 10).without_cache().with_time_limit(Duration::from_millis(500));
    let device = under_test().remat(config).unwrap();
    let seen = train(&device, |step| {
        if step + 1 == SEEN {
            assert!(device.remat_wait_for_plan(Duration::from_secs(120)).unwrap());
        }
    });
    let report = device.remat_report().unwrap();
    assert!(report.plan.as_ref().is_some_and(|plan| plan.steps_followed >= 3), "{report}");
    assert_eq!(seen, plain, "{report}");
}
