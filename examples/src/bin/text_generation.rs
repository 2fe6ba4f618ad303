//! A causal transformer that learns a text character by character and then writes some text itself.

use std::path::PathBuf;
use std::process::ExitCode;

use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_remat::RematExt;
use burn_remat_examples::cli::{self, Common, Outcome};
use burn_remat_examples::data::Text;
use burn_remat_examples::models::{CharTransformer, SEQUENCE_LENGTH};
use burn_remat_examples::tasks::{SEED, Task, TextGeneration};
use clap::Parser;
use rand::distr::{Distribution, weighted::WeightedIndex};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Train a small language model on a text, and let it write.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    /// A text file. Default: the repository's own documents.
    #[arg(long)]
    text: Option<PathBuf>,
    /// The beginning of the text that the model writes.
    #[arg(long, default_value = "The budget ")]
    prompt: String,
    /// How many characters it writes.
    #[arg(long, default_value_t = 200)]
    length: usize,
    /// Below 1 it writes what is likely, above 1 also what is unlikely.
    #[arg(long, default_value_t = 0.7, value_parser = temperature)]
    temperature: f64,
}

fn temperature(text: &str) -> Result<f64, String> {
    let temperature: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if temperature.is_finite() && temperature > 0.0 { Ok(temperature) } else { Err("must be above 0".to_owned()) }
}

fn main() -> ExitCode {
    cli::main(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Outcome {
    let common = &arguments.common;
    // The line that burn-remat needs. Everything after it is plain Burn.
    let device = common.device()?.remat(common.config("32 MiB"))?;

    let steps = common.steps(300);
    device.seed(SEED);
    let mut task = TextGeneration::new(Text::open(arguments.text.as_deref())?, &device.clone().autodiff());
    let progress = common.progress(&device, steps);
    for step in 0..steps {
        let loss;
        (task, loss) = task.step(step, common.batch_size(16));
        progress.step(loss)?;
    }

    let mut random = StdRng::seed_from_u64(SEED);
    let text = write(&task.model.valid(), arguments, &device, &mut random)?;
    progress.say(format!("generated text:\n{text}\n"));
    println!("{}", device.remat_report()?);
    Ok(())
}

fn write(model: &CharTransformer, arguments: &Arguments, device: &Device, random: &mut impl Rng) -> Outcome<String> {
    let mut text = arguments.prompt.as_bytes().to_vec();
    if text.is_empty() {
        return Err("--prompt: give at least one character".into());
    }
    for _ in 0..arguments.length {
        let last: Vec<i32> = text.iter().rev().take(SEQUENCE_LENGTH).rev().map(|&byte| i32::from(byte)).collect();
        let length = last.len();
        let last = Tensor::<2, Int>::from_data(TensorData::new(last, [1, length]), device);
        let logits = model.forward(last).narrow(1, length - 1, 1) / arguments.temperature;
        let likely = softmax(logits, 2).try_into_data()?;
        let next = WeightedIndex::new(likely.iter::<f32>())?.sample(random);
        text.push(u8::try_from(next)?);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
