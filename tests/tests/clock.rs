//! Operations are weighted by the time that the device takes for them, not by the time until their call returns.

use burn::tensor::Tensor;
use burn_remat::{RematConfig, RematExt};
use burn_remat_examples::device::under_test;

#[test]
fn large_operations_count_more_than_small_ones() {
    let device = under_test().remat(RematConfig::new("1 GiB").without_cache()).unwrap();
    let large = Tensor::<2>::ones([768, 768], &device);
    let small = Tensor::<2>::ones([2, 2], &device);
    for step in 0..8 {
        device.remat_mark_step();
        if step == 6 {
            // The steps so far were traced, and timed.
            device.remat_reset_report().unwrap();
        }
        let product = {
            let _stage = device.remat_stage("large");
            large.clone().matmul(large.clone())
        };
        let sum = {
            let _stage = device.remat_stage("small");
            small.clone() + 1.0
        };
        assert_eq!(product.max().into_scalar::<f32>() + sum.max().into_scalar::<f32>(), 768.0 + 2.0);
    }
    let report = device.remat_report().unwrap();
    let ns = |name: &str| report.stages.iter().find(|stage| stage.stage == name).unwrap().compute_ns;
    assert!(ns("large") > 20 * ns("small"), "{report}");
}
