//! Small forms: used where they may be, and without a trace in any result.

use burn::module::Module;
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_remat::{Alternatives, RematConfig, RematExt, RematReport};
use burn_remat_examples::device::is_flex;
use burn_remat_examples::training::{Job, ModelKind};

const WIDTH: usize = 256;
const DEPTH: usize = 12;

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

/// Gradients of a deep tower with dropout behind each layer, over a few steps. Its masks are half of what backward needs.
fn tower(device: &Device) -> Vec<f32> {
    let training = &device.clone().autodiff();
    training.seed(3);
    let tower = Tower { layers: (0..DEPTH).map(|_| LinearConfig::new(WIDTH, WIDTH).init(training)).collect() };
    let dropout = DropoutConfig::new(0.3).init();
    (0..3)
        .flat_map(|_| {
            device.remat_mark_step();
            let x = Tensor::<2>::random([1024, WIDTH], Distribution::Default, training);
            let y = tower.layers.iter().fold(x, |x, layer| dropout.forward(layer.forward(x).tanh()));
            let gradients = y.mean().backward();
            let first = tower.layers[0].weight.grad(&gradients).unwrap();
            let last = tower.layers[DEPTH - 1].weight.grad(&gradients).unwrap();
            (first.narrow(0, 0, 2) + last.narrow(0, 0, 2)).into_data().try_to_vec::<f32>().unwrap()
        })
        .collect()
}

fn under(budget: u64, alternatives: &str, program: impl Fn(&Device) -> Vec<f32>) -> (Vec<f32>, RematReport) {
    let alternatives: Alternatives = alternatives.parse().unwrap();
    let config = RematConfig::new(budget).with_alternatives(alternatives).without_planning();
    let device = Device::flex().remat(config).unwrap();
    (program(&device), device.remat_report().unwrap())
}

/// Max poolings whose indices alone exceed the budget.
fn pools(device: &Device) -> Vec<f32> {
    let training = &device.clone().autodiff();
    training.seed(4);
    let pool = MaxPool2dConfig::new([3, 3]).with_strides([1, 1]).init();
    let x = Tensor::<4>::random([8, 8, 40, 40], Distribution::Default, training).require_grad();
    let mut y = x.clone();
    for _ in 0..8 {
        y = pool.forward(y).mul_scalar(0.9).sin();
    }
    let gradients = y.mean().backward();
    let gradient = x.grad(&gradients).unwrap();
    gradient.slice([0..1, 0..1]).into_data().try_to_vec::<f32>().unwrap()
}

#[test]
fn small_forms_are_used_and_change_no_bit() {
    // One test, because all runs share the backend's generator of random numbers.
    if !is_flex("small_forms_are_used_and_change_no_bit", "tensors are packed in the memory of the host only") {
        return;
    }
    let plain = tower(&Device::flex());
    // Masks take 12 MiB, parameters and gradients 6; everything else that backward needs can be computed again.
    let budget = 18 << 20;
    let (kept, none) = under(budget, "none", tower);
    let (packed, some) = under(budget, "mask-bits", tower);
    assert!(kept == plain && packed == plain);
    assert!(none.peak_bytes > budget && none.packed_tensors == 0, "{none}");
    assert!(some.peak_bytes <= budget && some.packed_tensors == 3 * DEPTH as u64, "{some}");
    assert!(some.packed_to_bytes * 31 < some.packed_from_bytes, "{some}");

    let plain = pools(&Device::flex());
    let budget = 9 << 20;
    let (kept, none) = under(budget, "mask-bits", pools);
    let (packed, some) = under(budget, "small-indices", pools);
    assert!(kept == plain && packed == plain);
    assert!(none.packed_tensors == 0 && some.packed_tensors == 8, "{none}\n{some}");
    // Two bytes for four, and one more for each tensor.
    assert_eq!(some.packed_from_bytes, 2 * (some.packed_to_bytes - 8));

    // Planned, in models with dropout and poolings, down to below what masks and indices take.
    for model in [ModelKind::Transformer, ModelKind::Cnn, ModelKind::Unet] {
        let job = Job::standard(model, 8, 10, 5).unwrap();
        let plain = job.run(&Device::flex(), |_, _| {}).unwrap();
        let device = Device::flex().remat(RematConfig::new("50%").without_cache()).unwrap();
        let run = job
            .run(&device, |step, _| {
                if step == 5 {
                    device.remat_wait_for_plan(std::time::Duration::from_secs(120)).unwrap();
                }
            })
            .unwrap();
        let report = device.remat_report().unwrap();
        assert!(run.is_identical(&plain), "{model:?}: {report}");
        assert!(report.packed_tensors > 0, "{model:?}: {report}");
        if let Some(plan) = &report.plan {
            assert_eq!(plan.deviation_bytes, 0, "{model:?}: {report}");
        }
    }
}
