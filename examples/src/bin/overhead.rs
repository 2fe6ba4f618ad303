//! What the engine costs where nothing needs to be evicted.
#![recursion_limit = "256"]
use burn_autodiff::Autodiff;
use burn_backend::{AutodiffBackend, Distribution, FloatDType, Shape, ops::*};
use burn_flex::{Flex, FlexDevice};
use burn_remat::{Remat, RematConfig, RematDevice};
use std::time::Instant;

fn step<B: AutodiffBackend>(
    ws: Vec<B::FloatTensorPrimitive>,
    dev: &B::Device,
    rows: usize,
    d: usize,
) -> (Vec<B::FloatTensorPrimitive>, u32) {
    let mut x = B::float_ones(Shape::from([rows, d]), dev, FloatDType::F32);
    for w in &ws {
        let h = B::float_matmul(x.clone(), w.clone());
        let h = B::float_tanh(h);
        let h = B::float_mul_scalar(h, 1.5f32.into());
        let h = B::gelu(h);
        let h = B::float_add(h, x);
        let h2 = B::float_exp(B::float_mul_scalar(h.clone(), (-0.1f32).into()));
        x = B::float_mul(h, h2);
    }
    let loss = B::float_mean(B::float_mul(x.clone(), x));
    let mut g = B::backward(loss.clone());
    let ws = ws
        .into_iter()
        .map(|w| {
            let gw = B::grad_remove(&w, &mut g).unwrap();
            let wi = B::inner(w);
            let wi = <B::InnerBackend as FloatTensorOps<_>>::float_sub(
                wi,
                <B::InnerBackend as FloatTensorOps<_>>::float_mul_scalar(gw, 0.01f32.into()),
            );
            B::float_set_require_grad(B::from_inner(wi), true)
        })
        .collect();
    drop(g);
    let v = burn_std::reader::try_read_sync(B::float_into_data(loss)).unwrap().unwrap().try_to_vec::<f32>().unwrap()[0];
    (ws, v.to_bits())
}
fn init<B: AutodiffBackend>(dev: &B::Device, layers: usize, d: usize) -> Vec<B::FloatTensorPrimitive> {
    B::seed(dev, 7);
    (0..layers)
        .map(|_| {
            B::float_set_require_grad(
                B::float_random(Shape::from([d, d]), Distribution::Uniform(-0.3, 0.3), dev, FloatDType::F32),
                true,
            )
        })
        .collect()
}
fn main() {
    type P = Autodiff<Flex>;
    type R = Autodiff<Remat<Flex>>;
    for (d, rows) in [(16, 4), (64, 128)] {
        let layers = 24;
        let dev = RematDevice::new(FlexDevice, RematConfig::new("8 GiB")).unwrap();
        let mut a = init::<P>(&FlexDevice, layers, d);
        let mut b = init::<R>(&dev, layers, d);
        let (mut ta, mut tb) = (vec![], vec![]);
        for _ in 0..std::env::args().nth(2).map_or(200, |n| n.parse().unwrap()) {
            let t = Instant::now();
            let (na, la) = step::<P>(a, &FlexDevice, rows, d);
            ta.push(t.elapsed().as_nanos());
            let t = Instant::now();
            let (nb, lb) = step::<R>(b, &dev, rows, d);
            tb.push(t.elapsed().as_nanos());
            assert_eq!(la, lb);
            a = na;
            b = nb;
        }
        ta.sort();
        tb.sort();
        let r = dev.report::<Flex>();
        let ops = r.operations as f64 / 200.0;
        println!(
            "d={d} plain {:.1} us, remat {:.1} us, ops/step {ops:.0}, overhead {:.3} us/op",
            ta[ta.len() / 2] as f64 / 1e3,
            tb[tb.len() / 2] as f64 / 1e3,
            (tb[tb.len() / 2] as f64 - ta[ta.len() / 2] as f64) / 1e3 / ops
        );
        println!("{r}");
        println!("size {}", std::mem::size_of::<burn_ir::OperationIr>());
        if std::env::args().nth(1).is_some() {
            break;
        }
        for share in [90, 80, 70, 60, 50, 40, 30] {
            let dev = RematDevice::new(FlexDevice, RematConfig::new(r.peak_bytes * share / 100)).unwrap();
            let mut b = init::<R>(&dev, layers, d);
            let mut tb = vec![];
            for _ in 0..50 {
                let t = Instant::now();
                let (nb, _) = step::<R>(b, &dev, rows, d);
                tb.push(t.elapsed().as_nanos());
                b = nb;
            }
            tb.sort();
            let q = dev.report::<Flex>();
            println!(
                "{share}%: {:.1} us peak {:.3} budget {} floor {} {:?} re-run {:.2} over {} of {} tensors {} recipes {}",
                tb[25] as f64 / 1e3,
                q.peak_bytes as f64 / r.peak_bytes as f64,
                q.budget_bytes.unwrap(),
                q.floor_bytes,
                q.floor_op,
                q.recomputed_operations as f64 / q.operations as f64,
                q.steps_over_budget,
                q.steps,
                q.tensors,
                q.recipes
            );
        }
    }
}
