//! Four models so small that training takes milliseconds: the parts of the models of `train`, in few operations.

#![allow(dead_code, reason = "each test file uses only some of it")]

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_remat::RematExt;
use burn_remat_examples::models::{CharTransformer, TransformerSize};
use burn_remat_examples::training::{Run, train};

/// Samples of a batch.
pub const BATCH: usize = 16;
const WIDTH: usize = 8;
const LENGTH: usize = 5;
const SYMBOLS: usize = 11;
const SEED: u64 = 7;

/// The name of a model, and a function that trains it for this many steps, always from the same start.
pub type Small = (&'static str, fn(&Device, usize) -> Result<Run, String>);

pub const ALL: [Small; 4] = [("mlp", mlp), ("cnn", cnn), ("transformer", transformer), ("lstm", lstm)];

fn numbers<const D: usize>(shape: [usize; D], step: usize, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|at| ((at * 31 + step * 17) % 113) as f32 / 113.0 - 0.5).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn symbols(step: usize, device: &Device) -> Tensor<2, Int> {
    let values: Vec<i32> = (0..BATCH * LENGTH).map(|at| ((at * 7 + step * 5) % SYMBOLS) as i32).collect();
    Tensor::from_data(TensorData::new(values, [BATCH, LENGTH]), device)
}

/// Trains from the same seed, and waits for the device at the end.
fn run<M: Module>(
    device: &Device,
    steps: usize,
    model: impl FnOnce(&Device) -> M,
    loss: impl Fn(&M, usize, &Device) -> Tensor<1>,
) -> Result<Run, String> {
    let device = device.clone().autodiff();
    device.seed(SEED);
    let run = train(model(&device), steps, &mut |_, _| {}, |model, step| {
        device.remat_mark_step();
        loss(model, step, &device)
    })?;
    device.sync().map_err(|error| error.to_string())?;
    Ok(run)
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
    dropout: Dropout,
}

fn mlp(device: &Device, steps: usize) -> Result<Run, String> {
    let new = |device: &Device| Mlp {
        layers: (0..3).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect(),
        dropout: DropoutConfig::new(0.2).init(),
    };
    run(device, steps, new, |model, step, device| {
        let x = numbers([BATCH, WIDTH], step, device);
        let y = model.layers.iter().fold(x.clone(), |x, layer| model.dropout.forward(relu(layer.forward(x))));
        (y - x).powf_scalar(2.0).mean()
    })
}

#[derive(Module, Debug)]
struct Cnn {
    first: Conv2d,
    norm: BatchNorm,
    second: Conv2d,
    pool: MaxPool2d,
    dropout: Dropout,
    last: Linear,
}

fn cnn(device: &Device, steps: usize) -> Result<Run, String> {
    let new = |device: &Device| Cnn {
        first: Conv2dConfig::new([1, 3], [3, 3]).init(device),
        norm: BatchNormConfig::new(3).init(device),
        second: Conv2dConfig::new([3, 4], [2, 2]).init(device),
        pool: MaxPool2dConfig::new([2, 2]).init(),
        dropout: DropoutConfig::new(0.3).init(),
        last: LinearConfig::new(4 * 2 * 2, 3).init(device),
    };
    run(device, steps, new, |model, step, device| {
        let x = numbers([BATCH, 1, WIDTH, WIDTH], step, device);
        let x = gelu(model.norm.forward(model.first.forward(x)));
        let x = model.dropout.forward(model.pool.forward(relu(model.second.forward(x))));
        model.last.forward(x.flatten::<2>(1, 3)).powf_scalar(2.0).mean()
    })
}

fn transformer(device: &Device, steps: usize) -> Result<Run, String> {
    let size = TransformerSize { layers: 1, width: WIDTH, heads: 2, length: LENGTH, symbols: SYMBOLS };
    run(
        device,
        steps,
        |device| CharTransformer::with_size(&size, device),
        |model, step, device| model.loss(symbols(step, device), symbols(step + 1, device)),
    )
}

#[derive(Module, Debug)]
struct Reader {
    lstm: Lstm,
    last: Linear,
}

fn lstm(device: &Device, steps: usize) -> Result<Run, String> {
    let new = |device: &Device| Reader {
        lstm: LstmConfig::new(WIDTH, WIDTH, true).init(device),
        last: LinearConfig::new(WIDTH, 2).init(device),
    };
    run(device, steps, new, |model, step, device| {
        let (_, state) = model.lstm.forward(numbers([BATCH, LENGTH, WIDTH], step, device), None);
        model.last.forward(state.hidden).powf_scalar(2.0).mean()
    })
}
