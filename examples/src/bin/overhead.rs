//! What a remat device costs where its budget is ample: per operation in the process, and per step through the device.
//!
//! Both sides of every ratio come from one interleaved run, as medians.

use std::net::TcpListener;
use std::time::Instant;

use burn::remote::RemoteHost;
use burn::server::{RemoteServer, WebSocketTransport};
use burn::tensor::Device;
use burn_autodiff::Autodiff;
use burn_backend::ops::FloatTensorOps;
use burn_backend::{AutodiffBackend, Distribution, FloatDType, Shape};
use burn_flex::{Flex, FlexDevice};
use burn_remat::{Remat, RematConfig, RematDevice, RematExt};
use burn_remat_examples::training::{Job, ModelKind};
use clap::Parser;

/// More than anything here needs.
const AMPLE: &str = "8 GiB";

/// Measure the cost of a remat device with an ample budget.
#[derive(Parser)]
struct Arguments {
    /// Rounds of the interleaved runs.
    #[arg(long, default_value_t = 300)]
    rounds: usize,
    /// Only steps of this model, through the device.
    #[arg(long, value_enum)]
    model: Option<ModelKind>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    if arguments.model.is_none() {
        println!("in the process: a chain of 24 layers, forward, backward and update");
        for (width, rows) in [(16, 4), (64, 32)] {
            in_process(width, rows, arguments.rounds)?;
        }
        println!();
    }
    println!("through the device: step of a model on a stock Burn remote device and on a remat device");
    for (model, batch_size) in [(ModelKind::Cnn, 16), (ModelKind::Lstm, 16), (ModelKind::Transformer, 8)] {
        if arguments.model.is_none_or(|only| only == model) {
            through_the_device(model, batch_size, arguments.rounds / 30 + 2)?;
        }
    }
    Ok(())
}

// ---- in the process

fn in_process(width: usize, rows: usize, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let device = RematDevice::new(FlexDevice, RematConfig::new(AMPLE))?;
    let mut plain = weights::<Autodiff<Flex>>(&FlexDevice, width);
    let mut remat = weights::<Autodiff<Remat<Flex>>>(&device, width);
    let (mut plain_ns, mut remat_ns) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let start = Instant::now();
        plain = step::<Autodiff<Flex>>(plain, &FlexDevice, [rows, width]);
        plain_ns.push(start.elapsed().as_nanos() as f64);
        if round == 0 {
            device.reset_report::<Flex>();
        }
        let start = Instant::now();
        remat = step::<Autodiff<Remat<Flex>>>(remat, &device, [rows, width]);
        remat_ns.push(start.elapsed().as_nanos() as f64);
    }
    let operations = device.report::<Flex>().operations as f64 / rounds as f64;
    let (plain, remat) = (median(&mut plain_ns), median(&mut remat_ns));
    println!(
        "  [{rows}, {width}]: {operations:.0} operations a step; Autodiff<Flex> {:.1} us, Autodiff<Remat<Flex>> {:.1} us: \
         {:.3} us per operation",
        plain / 1e3,
        remat / 1e3,
        (remat - plain) / 1e3 / operations
    );
    Ok(())
}

fn weights<B: AutodiffBackend>(device: &B::Device, width: usize) -> Vec<B::FloatTensorPrimitive> {
    B::seed(device, 7);
    let random = Distribution::Uniform(-0.3, 0.3);
    (0..24)
        .map(|_| B::float_random(Shape::new([width, width]), random, device, FloatDType::F32))
        .map(|weight| B::float_set_require_grad(weight, true))
        .collect()
}

/// One step of gradient descent on a chain of matrix products with elementwise work between them.
fn step<B: AutodiffBackend>(
    weights: Vec<B::FloatTensorPrimitive>,
    device: &B::Device,
    shape: [usize; 2],
) -> Vec<B::FloatTensorPrimitive> {
    let mut x = B::float_ones(Shape::new(shape), device, FloatDType::F32);
    for weight in &weights {
        let h = B::float_tanh(B::float_matmul(x.clone(), weight.clone()));
        let h = B::float_add(B::gelu(B::float_mul_scalar(h, 1.5.into())), x);
        let scale = B::float_exp(B::float_mul_scalar(h.clone(), (-0.1).into()));
        x = B::float_mul(h, scale);
    }
    let mut gradients = B::backward(B::float_mean(B::float_mul(x.clone(), x)));
    weights
        .into_iter()
        .map(|weight| match B::grad_remove(&weight, &mut gradients) {
            Some(gradient) => {
                let change = B::InnerBackend::float_mul_scalar(gradient, 0.01.into());
                let weight = B::InnerBackend::float_sub(B::inner(weight), change);
                B::float_set_require_grad(B::from_inner(weight), true)
            }
            None => weight,
        })
        .collect()
}

// ---- through the device

fn through_the_device(model: ModelKind, batch_size: usize, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let job = Job::standard(model, batch_size, 6, 1)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let stock = stock_remote_device(&runtime)?;
    let remat = Device::flex().remat(AMPLE)?;
    let (mut stock_ms, mut remat_ms) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // The first step of each run also initialises parameters.
        stock_ms.extend_from_slice(&job.run(&stock, |_, _| {})?.step_ms[1..]);
        remat_ms.extend_from_slice(&job.run(&remat, |_, _| {})?.step_ms[1..]);
    }
    let (stock, remat) = (median(&mut stock_ms), median(&mut remat_ms));
    println!(
        "  {} at batch size {batch_size}: stock {stock:.2} ms, remat {remat:.2} ms: {:.3}x",
        model.name(),
        remat / stock
    );
    Ok(())
}

fn stock_remote_device(runtime: &tokio::runtime::Runtime) -> Result<Device, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("ws://{}", listener.local_addr()?);
    let serving = RemoteServer::new([Device::flex()]).serve_async(WebSocketTransport::from_listener(listener));
    runtime.spawn(serving);
    Ok(Device::remote_options(&RemoteHost::websocket(&address)).init()?)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
