//! Every failure is reported with its cause and never takes the device down.

use burn::tensor::{Device, Tensor, TensorData};
use burn_remat::{AdvancedConfig, Budget, RematConfig, RematError, RematExt};
use burn_remat_examples::device::{is_flex, name_under_test, skip, under_test};

fn wide(device: &Device) -> Tensor<2> {
    Tensor::ones([64, 64], device)
}

#[test]
fn budgets_that_cannot_be_are_refused_before_anything_runs() {
    for text in ["0", "-1", "8 XB", "150%", ""] {
        let error = under_test().remat(text).unwrap_err();
        assert!(matches!(error, RematError::Budget(_)), "{text}");
        assert!(error.to_string().contains("8 GiB"), "{error}");
    }
    assert!(under_test().remat(0).is_err());
}

#[test]
fn a_share_of_free_memory_comes_to_bytes_where_the_device_tells_them() {
    let quarter = Device::flex().remat("25% free").unwrap().remat_report().unwrap().budget_bytes.unwrap();
    let all = Device::flex().remat("100% free").unwrap().remat_report().unwrap().budget_bytes.unwrap();
    // Other programs allocate and free some in the meantime.
    assert!(quarter > 0 && 2 * quarter < all && all < 8 * quarter, "{quarter} {all}");
    if name_under_test() == "wgpu" {
        let error = under_test().remat("80% free").unwrap_err();
        assert!(matches!(error, RematError::FreeMemory { .. }), "{error}");
        assert!(error.to_string().contains("8 GiB"), "{error}");
    }
}

#[test]
fn a_device_that_cannot_carry_a_budget_is_refused() {
    let device = under_test().remat("1 MiB").unwrap();
    let error = device.remat("1 MiB").unwrap_err();
    assert!(matches!(error, RematError::UnsupportedDevice { .. }), "{error}");
    let error = Device::flex().remat(RematConfig::new("1 MiB").advanced(AdvancedConfig::with_fusion)).unwrap_err();
    assert!(error.to_string().contains("it has no kernel fusion"), "{error}");
    let error = under_test().remat_report().unwrap_err();
    assert!(matches!(error, RematError::NotRemat { .. }), "{error}");
}

#[test]
fn a_budget_below_the_floor_is_reported_and_the_run_goes_on() {
    let device = under_test().remat("20 KiB").unwrap();
    let product = wide(&device).matmul(wide(&device)) + 1.0;
    assert_eq!(product.sum().into_scalar::<f32>(), 65.0 * 64.0 * 64.0);
    let report = device.remat_report().unwrap();
    // Two operands and the product, 16 KiB each.
    assert_eq!(report.floor_bytes, 48 << 10);
    assert!(report.floor_op.unwrap().contains("Matmul"));
}

#[test]
fn a_strict_device_ends_the_run_with_the_floor_and_the_operation() {
    let device = under_test().remat(RematConfig::new("20 KiB").strict()).unwrap();
    let product = wide(&device).matmul(wide(&device)) + 1.0;
    let error = product.try_into_data().unwrap_err().to_string();
    assert!(error.contains("below the floor") && error.contains("Matmul") && error.contains("20.00 KiB"), "{error}");
    // The device is still usable.
    assert_eq!(Tensor::<1>::ones([4], &device).sum().into_scalar::<f32>(), 4.0);
}

#[test]
fn a_kernel_that_panics_reaches_the_reader_with_its_cause() {
    if !is_flex("a_kernel_that_panics_reaches_the_reader_with_its_cause", "kernels do not check indices there") {
        return;
    }
    let device = under_test().remat("1 MiB").unwrap();
    let fail = |device: &Device| {
        // An index out of bounds is noticed only by the kernel.
        let indices = Tensor::<1, burn::tensor::Int>::from_data(TensorData::from([0, 99]), device);
        let bad = wide(device).select(0, indices);
        let error = (bad * 2.0).try_into_data().unwrap_err().to_string();
        assert!(error.contains("Select") && error.contains("99"), "{error}");
    };
    fail(&device);
    assert!(device.sync().is_err(), "a sync reports it too");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            fail(&device);
            device.sync()
        });
        assert!(other.join().unwrap().is_err(), "so does a sync of another thread");
        scope.spawn(|| fail(&device));
    });
    assert!(device.sync().is_ok(), "what another thread did not sync is not a failure of this one");
    assert_eq!(wide(&device).sum().into_scalar::<f32>(), 4096.0);
    let report = device.remat_report().unwrap();
    assert!(report.failure.unwrap().contains("Select"));
    assert_eq!(report.tensors, 0);
}

#[test]
fn a_device_without_memory_says_so_and_lives_on() {
    let test = "a_device_without_memory_says_so_and_lives_on";
    if under_test().memory_pool_usage().is_none() {
        return skip(test, "the system kills a process that asks for too much");
    }
    let device = under_test().remat("unlimited").unwrap();
    device.remat_mark_step();
    // 1 TiB.
    let huge = Tensor::<1>::ones([1_usize << 38], &device);
    let error = huge.narrow(0, 0, 4).try_into_data().unwrap_err().to_string();
    for part in ["out of memory on the device", "step 1", "follows no plan", "a smaller budget"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(device.remat_report().unwrap().failure.is_some_and(|failure| error.contains(&failure)));
    assert_eq!(wide(&device).sum().into_scalar::<f32>(), 4096.0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_remat_device_opens_no_socket() {
    let sockets = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = files.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    // A driver may have opened some.
    let plain = wide(&under_test()).sum().into_scalar::<f32>();
    let before = sockets();
    let device = under_test().remat("1 MiB").unwrap();
    assert_eq!(wide(&device).sum().into_scalar::<f32>(), plain);
    assert_eq!(sockets(), before);
}

#[test]
fn several_budgets_live_side_by_side() {
    let small = under_test().remat("128 KiB").unwrap();
    let large = under_test().remat(Budget::Bytes(1 << 20)).unwrap();
    assert_ne!(small, large);
    let kept: Vec<Tensor<2>> = (0..12).map(|at| wide(&large) * at as f32).collect();
    let moved: Vec<Tensor<2>> = kept.iter().map(|tensor| tensor.clone().exp().to_device(&small) + 1.0).collect();
    drop(moved);
    let (small, large) = (small.remat_report().unwrap(), large.remat_report().unwrap());
    assert_eq!(small.budget_bytes, Some(128 << 10));
    assert!(large.live_bytes > small.budget_bytes.unwrap());
    assert_eq!(large.evictions, 0);
}

#[test]
fn a_share_of_the_first_step_becomes_the_budget() {
    let device = under_test().autodiff().remat("60%").unwrap();
    let weight = Tensor::<2>::full([32, 32], 0.01, &device).require_grad();
    for _ in 0..3 {
        device.remat_mark_step();
        let x = (0..8).fold(Tensor::<2>::ones([64, 32], &device), |x, _| x.matmul(weight.clone()).tanh().exp());
        let gradients = x.sum().backward();
        assert!(weight.grad(&gradients).is_some());
    }
    let report = device.remat_report().unwrap();
    let budget = report.budget_bytes.expect("known after the first step");
    assert!(report.peak_bytes <= budget, "{report}");
    assert!(report.evictions > 0, "{report}");
    assert!(report.steps >= 2);
}

#[test]
fn a_mark_on_another_device_does_nothing() {
    let plain = under_test();
    plain.remat_mark_step();
    let group = Device::group_options(&[Device::flex()]).init().unwrap();
    group.remat_mark_step();
    assert_eq!(wide(&group).sum().into_scalar::<f32>(), 4096.0);
    assert!(group.remat("1 MiB").is_err());
}
