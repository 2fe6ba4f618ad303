//! Where a remat device gives different bits than plain Flex: the complete list, and how large the differences are.
//!
//! Burn asks every router, and so every group of devices, whether it has a backward pass of its own for attention and for the CTC loss; a router
//! says yes whatever the backend behind it, and Flex itself says no. So plain Flex derives those gradients from single operations, and a
//! group (of Burn's own, or a remat device) computes them by another formula. A decorator of a backend is not asked.
//!
//! Larger than the rule: `cases`, because it is the list itself.

use burn::tensor::module::{
    adaptive_avg_pool2d, attention, attention_fallback, avg_pool2d, batch_norm_train, conv_transpose2d, conv2d,
    ctc_loss, interpolate, layer_norm, linear, max_pool2d, unfold4d,
};
use burn::tensor::ops::{
    AttentionModuleOptions, AvgPoolOptions, ConvOptions, ConvTransposeOptions, InterpolateMode, InterpolateOptions,
    MaxPoolOptions, UnfoldOptions,
};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, activation};
use burn_remat::RematExt;
use burn_remat_examples::device::is_flex;

/// What differs, and by how much at most: the largest difference as a share of the largest value of that gradient.
const EXCEPTIONS: [(&str, f32); 3] = [("attention", 2e-6), ("attention, causal", 2e-6), ("ctc_loss", 2e-6)];

type Case = (&'static str, fn(&Device) -> Vec<Vec<f32>>);

fn leaf<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device).require_grad()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}

/// A result and the gradients of what it was computed from.
macro_rules! with_gradients {
    ($y:expr, $($leaf:expr),+) => {{
        let y = $y;
        let gradients = (y.clone() * y.clone()).sum().backward();
        vec![values(y.inner()), $(values($leaf.grad(&gradients).unwrap())),+]
    }};
}

fn attend(
    device: &Device,
    options: AttentionModuleOptions,
    masked: bool,
    by: impl Fn([Tensor<4>; 3], Option<Tensor<4, Bool>>, AttentionModuleOptions) -> Tensor<4>,
) -> Vec<Vec<f32>> {
    let [q, k, v] = [(); 3].map(|()| leaf([2, 3, 24, 16], device));
    let mask = masked
        .then(|| Tensor::<2, Bool>::tril_mask([24, 24], 0, device).reshape([1, 1, 24, 24]).expand([2, 3, 24, 24]));
    with_gradients!(by([q.clone(), k.clone(), v.clone()], mask, options), q, k, v)
}

fn cases() -> Vec<Case> {
    vec![
        ("attention", |device| {
            attend(device, AttentionModuleOptions::default(), false, |[q, k, v], mask, o| {
                attention(q, k, v, mask, None, o)
            })
        }),
        ("attention, causal", |device| {
            let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
            attend(device, causal, false, |[q, k, v], mask, o| attention(q, k, v, mask, None, o))
        }),
        ("attention, masked", |device| {
            attend(device, AttentionModuleOptions::default(), true, |[q, k, v], mask, o| {
                attention(q, k, v, mask, None, o)
            })
        }),
        ("attention_fallback", |device| {
            let causal = AttentionModuleOptions { is_causal: true, ..Default::default() };
            attend(device, causal, false, |[q, k, v], mask, o| attention_fallback(q, k, v, mask, None, o))
        }),
        ("ctc_loss", |device| {
            let x = leaf([12, 2, 5], device);
            let targets = Tensor::<2, Int>::from_ints([[1, 2, 3], [2, 4, 1]], device);
            let lengths = |length: i64| Tensor::<1, Int>::full([2], length, device);
            with_gradients!(ctc_loss(activation::log_softmax(x.clone(), 2), targets, lengths(12), lengths(3), 0), x)
        }),
        ("conv2d", |device| {
            let (x, w) = (leaf([2, 3, 9, 9], device), leaf([4, 3, 3, 3], device));
            let b = leaf([4], device);
            let options = ConvOptions::new([2, 2], [1, 1], [1, 1], 1);
            with_gradients!(conv2d(x.clone(), w.clone(), Some(b.clone()), options), x, w, b)
        }),
        ("conv_transpose2d", |device| {
            let (x, w) = (leaf([2, 4, 5, 5], device), leaf([4, 3, 3, 3], device));
            let options = ConvTransposeOptions::new([2, 2], [1, 1], [0, 0], [1, 1], 1);
            with_gradients!(conv_transpose2d(x.clone(), w.clone(), None, options), x, w)
        }),
        ("max_pool2d", |device| {
            let x = leaf([2, 3, 8, 8], device);
            with_gradients!(max_pool2d(x.clone(), MaxPoolOptions::new([2, 2])), x)
        }),
        ("avg_pool2d", |device| {
            let x = leaf([2, 3, 8, 8], device);
            let options = AvgPoolOptions { stride: [2, 2], padding: [(1, 1); 2], ..AvgPoolOptions::new([3, 3]) };
            with_gradients!(avg_pool2d(x.clone(), options), x)
        }),
        ("adaptive_avg_pool2d", |device| {
            let x = leaf([2, 3, 7, 7], device);
            with_gradients!(adaptive_avg_pool2d(x.clone(), [3, 3]), x)
        }),
        ("interpolate", |device| {
            let x = leaf([1, 2, 5, 5], device);
            let options =
                InterpolateOptions { output_size: Some([9, 9]), ..InterpolateOptions::new(InterpolateMode::Bilinear) };
            with_gradients!(interpolate(x.clone(), options), x)
        }),
        ("linear", |device| {
            let (x, w, b) = (leaf([2, 7, 9], device), leaf([9, 11], device), leaf([11], device));
            with_gradients!(linear(x.clone(), w.clone(), Some(b.clone())), x, w, b)
        }),
        ("layer_norm", |device| {
            let (x, g, b) = (leaf([4, 9], device), leaf([9], device), leaf([9], device));
            with_gradients!(layer_norm(x.clone(), g.clone(), Some(b.clone()), 1e-5), x, g, b)
        }),
        ("batch_norm_train", |device| {
            let (x, g, b) = (leaf([4, 3, 5, 5], device), leaf([3], device), leaf([3], device));
            with_gradients!(batch_norm_train(x.clone(), g.clone(), b.clone(), 1e-5).output, x, g, b)
        }),
        ("unfold4d", |device| {
            let x = leaf([1, 2, 6, 6], device);
            with_gradients!(unfold4d(x.clone(), [3, 3], UnfoldOptions::new([1, 1], [1, 1], [1, 1])), x)
        }),
        ("softmax", |device| {
            let x = leaf([4, 9], device);
            with_gradients!(activation::softmax(x.clone(), 1), x)
        }),
    ]
}

fn run(device: &Device, case: Case) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    device.seed(3);
    case.1(&device)
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn gradients_differ_from_plain_flex_only_where_every_group_of_devices_differs() {
    if !is_flex("gradients_differ_from_plain_flex_only_where_every_group_of_devices_differs", "it is about Flex") {
        return;
    }
    let group = Device::group_options(&[Device::flex()]).init().unwrap();
    let remat = Device::flex().remat("8 MiB").unwrap();
    for case in cases() {
        let (plain, group, ours) = (run(&Device::flex(), case), run(&group, case), run(&remat, case));
        assert!(group.iter().zip(&ours).all(|(a, b)| same_bits(a, b)), "{}: differs from a group of one", case.0);
        // The forward results are the same everywhere.
        assert!(same_bits(&plain[0], &ours[0]), "{}: another result", case.0);
        let differences = plain[1..].iter().zip(&ours[1..]).map(|(plain, ours)| {
            let largest = plain.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
            plain.iter().zip(ours).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f32::max)
        });
        let difference = differences.fold(0.0, f32::max);
        match EXCEPTIONS.iter().find(|(name, _)| *name == case.0) {
            Some((name, most)) => {
                println!("{name}: gradients differ by {difference:e} of the largest");
                assert!(
                    difference > 0.0,
                    "{name} is no longer an exception: remove it from the list here and in the README"
                );
                assert!(difference <= *most, "{name}: gradients differ by {difference:e} of the largest");
            }
            None => assert!(plain.iter().zip(&ours).all(|(a, b)| same_bits(a, b)), "{}: {difference:e}", case.0),
        }
    }
}
