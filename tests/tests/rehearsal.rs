//! What a dry device reports before anything is allocated.
//!
//! Larger than the rule: `a_dry_device_knows_what_a_step_needs`, because it follows one program from what is named to what is held.

use std::cell::RefCell;
use std::time::Duration;

use burn::tensor::{Device, Tensor, activation};
use burn_remat::{
    AdvancedConfig, Budget, Compression, RandomPolicy, RematConfig, RematError, RematExt, largest_batch,
    minimum_budget, minimum_budget_with,
};
use burn_remat_examples::device::{is_flex, under_test};
use burn_remat_examples::training::{Job, ModelKind};

fn train(model: ModelKind, batch_size: usize, steps: usize, device: &Device) -> Vec<u32> {
    let job = Job::standard(model, batch_size, steps, 1).unwrap();
    job.run(device, |_, _| {}).unwrap().losses.iter().map(|loss| loss.to_bits()).collect()
}

#[test]
fn rehearsals() {
    // One test, because runs on the backend share its generator of random numbers.
    a_dry_device_knows_what_a_step_needs();
    what_lies_between_two_passes_asks_for_no_more_than_it_takes();
    what_cannot_be_rehearsed_is_refused();
}

fn a_dry_device_knows_what_a_step_needs() {
    let plain = under_test().remat(RematConfig::default().advanced(AdvancedConfig::without_planning)).unwrap();
    let losses = train(ModelKind::Unet, 8, 4, &plain);
    let store_all = plain.remat_report().unwrap().peak_bytes;
    let needs = minimum_budget(&under_test(), |device| {
        // Nothing is computed there.
        assert!(train(ModelKind::Unet, 8, 4, device).iter().all(|&loss| loss == 0));
    })
    .unwrap();
    assert!(needs.store_all_bytes.abs_diff(store_all) <= store_all / 20, "{needs:?}, measured {store_all}");
    assert!(needs.minimum_bytes < store_all * 7 / 10, "{needs:?}");

    // With plans from the dry run, the first step already fits.
    let budget = store_all * 3 / 4;
    let config = RematConfig::new(budget).without_cache();
    let device = under_test().remat_rehearsed(config, |dry| drop(train(ModelKind::Unet, 8, 4, dry))).unwrap();
    assert_eq!(train(ModelKind::Unet, 8, 4, &device), losses);
    let report = device.remat_report().unwrap();
    assert_eq!(report.steps_over_budget, 0, "{report}");
    assert!(report.peak_bytes <= budget, "{report}");
    // Only a real step shows what a pool holds beyond tensors; the rest is then planned again, with room for it.
    let has_pool = under_test().memory_pool_usage().is_some();
    let followed = if has_pool { 1 } else { 2 };
    assert!(report.plan.as_ref().is_some_and(|plan| plan.steps_followed >= followed), "{report}");

    let found = largest_batch(&under_test(), store_all, 1.0, |device, batch| {
        train(ModelKind::Unet, batch, 4, device);
    })
    .unwrap();
    assert_eq!(found.store_all_batch, 8, "{found:?}");
    assert!(found.batch >= 14 && found.predicted_peak_bytes <= store_all, "{found:?}");

    // Its device has the plans, improves them with what it measures, and changes no result.
    let losses = train(ModelKind::Unet, found.batch, 9, &under_test());
    let device = found.device(&under_test()).unwrap();
    let mut planned = Vec::new();
    let job = Job::standard(ModelKind::Unet, found.batch, 9, 1).unwrap();
    let outcome = job.run(&device, |step, _| {
        if step == 5 {
            assert!(device.remat_wait_for_plan(Duration::from_secs(60)).unwrap());
        }
        planned.extend(device.remat_report().unwrap().plan);
    });
    assert_eq!(outcome.unwrap().losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>(), losses);
    let report = device.remat_report().unwrap();
    assert!(report.steps_over_budget == 0 && report.peak_bytes <= store_all, "{report}");
    let (first, last) = (&planned[0], &planned[planned.len() - 1]);
    let followed = if has_pool { 3 } else { 7 };
    assert!(last.steps_followed >= followed && last.steps_left == 0, "{last:?}");
    assert_ne!(first.store_all_ns, last.store_all_ns, "the last plan was made from measured times");

    // A dry run follows the configuration: dropout masks that may not be packed stay.
    let needs = |config| {
        let train = |device: &Device| train(ModelKind::Transformer, 4, 4, device);
        minimum_budget_with(&under_test(), config, train).unwrap()
    };
    let whole = needs(RematConfig::default().advanced(|advanced| advanced.with_compression(Compression::NONE)));
    let drawn_again = RematConfig::default()
        .advanced(|advanced| advanced.with_compression(Compression::NONE))
        .with_random(RandomPolicy::Reseed);
    let (packed, reseeded) = (needs(RematConfig::default()), needs(drawn_again));
    // Masks are packed only in host memory. If parameters can be drawn again, as masks are, their first update is not seen,
    // and two steps count as one.
    assert!(has_pool || packed.minimum_bytes < whole.minimum_bytes, "{packed:?} {whole:?}");
    assert!(has_pool || reseeded.minimum_bytes < whole.minimum_bytes, "{reseeded:?} {whole:?}");
}

/// Without marks passes are planned, and the end of the backward pass and the optimizer lie between two of them.
fn what_lies_between_two_passes_asks_for_no_more_than_it_takes() {
    let train = |device: &Device| train(ModelKind::Cnn, 32, 6, device);
    let needs = minimum_budget(&under_test(), |dry| drop(train(dry))).unwrap();
    let has_pool = under_test().memory_pool_usage().is_some();
    assert!(has_pool || needs.minimum_bytes < needs.store_all_bytes * 11 / 20, "{needs:?}");
    let config = RematConfig::new(needs.minimum_bytes).without_cache();
    let device = under_test().remat_rehearsed(config, |dry| drop(train(dry))).unwrap();
    assert_eq!(train(&device), train(&under_test()));
    let report = device.remat_report().unwrap();
    assert!(report.steps_over_budget == 0 && report.peak_bytes <= needs.minimum_bytes, "{report}");
}

fn what_cannot_be_rehearsed_is_refused() {
    let nothing = minimum_budget(&under_test(), |_| {});
    assert_eq!(nothing.unwrap_err(), RematError::NoSteps);

    // What the program reads is zero there.
    let panicked = minimum_budget(&under_test(), |device| {
        let read: f32 = burn::tensor::Tensor::<1>::ones([1], device).into_scalar();
        assert!(read > 0.5, "nothing was read");
    });
    assert_eq!(panicked.unwrap_err(), RematError::DryRun { reason: "nothing was read".to_owned() });
    let share = largest_batch(&under_test(), "60%", 1.0, |_, _| {});
    assert_eq!(share.unwrap_err(), RematError::BudgetInBytes { budget: Budget::Share(0.6) });
    let tiny = largest_batch(&under_test(), 1000_u64, 1.0, |device, batch| {
        train(ModelKind::Mlp, batch, 4, device);
    });
    assert!(matches!(tiny, Err(RematError::NothingFits { .. })), "{tiny:?}");
}

/// A program may let go of what an earlier run has left only when it runs again: autodiff does with the graphs of outputs that metrics have read, and so
/// does a cache.
#[test]
fn what_an_earlier_run_has_left_is_no_part_of_the_next() {
    let left = RefCell::new(None);
    let train = |device: &Device, batch: usize| {
        let device = &device.clone().autodiff();
        drop(left.take());
        for _ in 0..4 {
            device.remat_mark_step();
            let x = Tensor::<2>::ones([batch, 64], device).require_grad();
            let y = (0..8).fold(x, |y, _| y.tanh());
            left.replace(Some(y.clone().detach().narrow(0, 0, 1)));
            drop(y.sum().backward());
        }
        device.remat_mark_step();
    };
    let one = minimum_budget(&under_test(), |device| train(device, 64)).unwrap();
    let again = minimum_budget(&under_test(), |device| train(device, 64)).unwrap();
    assert_eq!(again, one);
    let most = largest_batch(&under_test(), one.store_all_bytes, 1.0, train).unwrap();
    // Small runs show that a few more fit, since operations overwrite what they read.
    assert!((64..80).contains(&most.store_all_batch) && most.batch < 640, "{most:?}");
}

#[test]
fn what_an_earlier_run_has_left_cannot_be_used() {
    let known = RefCell::new(None::<Tensor<2>>);
    let train = |device: &Device| {
        let table = known.borrow_mut().get_or_insert_with(|| Tensor::<2>::ones([64, 64], device)).clone();
        for _ in 0..4 {
            device.remat_mark_step();
            let x = Tensor::<2>::ones([64, 64], &device.clone().autodiff()).require_grad();
            drop((x * Tensor::from_inner(table.clone())).sum().backward());
        }
        device.remat_mark_step();
    };
    minimum_budget(&under_test(), train).unwrap();
    // Another test may have taken the device of the first run: then the tensors are on two devices, and Burn panics.
    let again = minimum_budget(&under_test(), train).unwrap_err();
    assert!(matches!(again, RematError::Unfollowed { .. } | RematError::DryRun { .. }), "{again}");
}

/// An operation on the data of a step.
type Work = fn(Tensor<2>) -> Tensor<2>;

/// The most that a step holds is predicted to the byte, whatever its operations overwrite or make views of.
#[test]
fn a_dry_device_writes_over_what_the_cpu_does() {
    if !is_flex("a_dry_device_writes_over_what_the_cpu_does", "pools hold more than tensors") {
        return;
    }
    let work: &[(&str, Work)] = &[
        ("the square", |x| x.clone() * x),
        ("a power of two", |x| x.powi_scalar(2)),
        ("a power", |x| x.powf_scalar(1.5)),
        ("a root", |x| x.sqrt() + 1.0),
        ("gelu", activation::gelu),
        ("a logarithm of softmax", |x| activation::log_softmax(x, 1)),
        ("softmax", |x| activation::softmax(x, 1)),
        ("a sum over one row", |x| x.reshape([1, -1]).sum_dim(0).reshape([64, 64])),
        ("a mask", |x| x.clone().mask_fill(x.greater_elem(0.5), 0.0)),
        ("part of a tensor", |x| {
            let rows = Tensor::zeros([8, 64], &x.device());
            x.slice_assign([0..8, 0..64], rows)
        }),
        ("rows", |x| x.narrow(0, 0, 8).reshape([4, 128]).exp().reshape([8, 64]).repeat_dim(0, 8)),
        ("columns", |x| x.slice([0..64, 0..8]).reshape([8, 64]).exp().repeat_dim(0, 8)),
        ("transposed twice", |x| x.transpose().transpose().reshape([32, 128]).exp().reshape([64, 64])),
        ("transposed", |x| x.transpose().reshape([32, 128]).exp().reshape([64, 64])),
        ("axes of one element", |x| x.reshape([1, 64, 1, 64]).swap_dims(0, 2).exp().reshape([64, 64])),
        ("flipped", |x| x.clone() - x.flip([0])),
        ("clamped", |x| x.clamp_min(0.1).clamp(0.0, 0.5)),
        ("one row for all", |x| x.clone().narrow(0, 0, 1).expand([64, 64]) + x),
    ];
    for (name, work) in work {
        let program = |device: &Device| {
            let training = device.clone().autodiff();
            let mut weight = Tensor::<1>::ones([1], &training).require_grad();
            for _ in 0..4 {
                let gradients = (weight.clone() * 2.0).sum().backward();
                weight = Tensor::from_inner(weight.clone().inner() - weight.grad(&gradients).unwrap()).require_grad();
                let x = Tensor::<2>::ones([64, 64], device) * 0.5;
                work(x).sum().into_data();
            }
        };
        let real = under_test().remat(RematConfig::default().advanced(AdvancedConfig::without_planning)).unwrap();
        program(&real);
        let held = real.remat_report().unwrap().peak_bytes;
        let needs = minimum_budget(&under_test(), program).unwrap();
        assert_eq!(needs.store_all_bytes, held, "{name}");
    }
}
