//! A language model that has learned one text, and adapters that teach it another.

use std::path::Path;

use burn::module::{Lora, Module};
use burn::store::ModuleRecord;
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use burn::tensor::{Bytes, Device, Tensor};

use crate::data::Text;
use crate::models::{Adapt, AdapterSize, Llama, TransformerSize};
use crate::training::{Run, train_model};

/// Numbers that share a scale in a quantized base.
const BLOCK: u8 = 32;
/// The learning rate of adapters: higher than that of a whole model, since there are few of them and they start at zero.
const RATE: f64 = 5e-3;

/// What adapters are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The output of a projection: two smaller projections beside it.
    Outputs,
    /// The weight of a projection, as in Burn's own [`Lora`].
    Weights,
}

/// What is tuned, and how.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The size of the base.
    pub size: TransformerSize,
    /// The size of the adapters.
    pub adapters: AdapterSize,
    /// The projections that get adapters.
    pub adapt: Adapt,
    /// What adapters are added to.
    pub beside: Beside,
    /// Whether the base is quantized to four bits per number (QLoRA).
    pub quantized: bool,
    /// Sequences per step.
    pub batch_size: usize,
}

/// A base that has been trained, and a text that it will learn with adapters.
pub struct FineTuning {
    /// What is tuned, and how.
    pub tuning: Tuning,
    /// A record of the base.
    base: Vec<u8>,
    text: Text,
}

impl FineTuning {
    /// Trains all parameters of the base on `device` for some steps, on the repository's documents. Adapters will learn `text`.
    ///
    /// # Errors
    ///
    /// Data that cannot be read, and what the device reports.
    pub fn new(tuning: Tuning, steps: usize, text: Text, device: &Device) -> Result<Self, String> {
        let device = &device.clone().autodiff();
        let documents = Text::open(None)?;
        let (_, base) = train_model(Llama::new(&tuning.size, device), 1e-3, steps, &mut |_, _| {}, |model, step| {
            let (text, next) = documents.batch(step, tuning.batch_size, tuning.size.length, device);
            model.loss(text, next)
        })?;
        let base = base.into_record().into_bytes().map_err(|error| error.to_string())?;
        Ok(Self { tuning, base: base.to_vec(), text })
    }

    /// The frozen base on `device`, with fresh adapters.
    ///
    /// # Errors
    ///
    /// A base that cannot be loaded.
    pub fn model(&self, device: &Device) -> Result<Llama, String> {
        let Tuning { size, adapters, adapt, beside, quantized, .. } = self.tuning;
        let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(self.base.clone()));
        let record = record.map_err(|error| error.to_string())?;
        let base = Llama::new(&size, device).try_load_record(record).map_err(|error| error.to_string())?.no_grad();
        let base = if quantized { base.quantized(four_bits()) } else { base };
        Ok(match beside {
            Beside::Outputs => base.with_adapters(adapt, adapters, device),
            Beside::Weights => {
                base.apply_lora(Lora::new(adapters.rank, adapters.alpha).set_param_group(Llama::projections(adapt)))
            }
        })
    }

    /// Trains fresh adapters on `device`, and calls `seen` after every step.
    ///
    /// # Errors
    ///
    /// A base that cannot be loaded, and what the device reports.
    pub fn train(
        &self,
        device: &Device,
        steps: usize,
        seed: u64,
        seen: &mut dyn FnMut(usize, f32),
    ) -> Result<(Run, Llama), String> {
        let device = &device.clone().autodiff();
        device.seed(seed);
        train_model(self.model(device)?, RATE, steps, seen, |model, step| self.loss(model, step, device))
    }

    /// Loss of `model` on batch number `step` of the text.
    pub fn loss(&self, model: &Llama, step: usize, device: &Device) -> Tensor<1> {
        let Tuning { size, batch_size, .. } = self.tuning;
        let (text, next) = self.text.batch(step, batch_size, size.length, device);
        model.loss(text, next)
    }

    /// The outputs of `model` for batch number `step` of the text.
    ///
    /// # Errors
    ///
    /// What the device reports.
    pub fn outputs(&self, model: &Llama, step: usize, device: &Device) -> Result<Vec<f32>, String> {
        let Tuning { size, batch_size, .. } = self.tuning;
        let (text, _) = self.text.batch(step, batch_size, size.length, device);
        let logits = model.forward(text).try_into_data().map_err(|error| error.to_string())?;
        Ok(logits.iter::<f32>().collect())
    }
}

/// Writes the adapters of `model`, and nothing else, to `file`.
///
/// # Errors
///
/// A file that cannot be written.
pub fn save_adapters(model: &Llama, file: &Path) -> Result<(), String> {
    let record = model.clone().into_record_group(Llama::adapters());
    record.save(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// `model` with the adapters in `file`.
///
/// # Errors
///
/// A file that cannot be read, or that contains other adapters.
pub fn load_adapters(model: Llama, file: &Path) -> Result<Llama, String> {
    let failed = |error| format!("{}: {error}", file.display());
    let record = ModuleRecord::load(file).map_err(failed)?.allow_partial(true);
    model.try_load_record(record).map_err(failed)
}

/// Four bits per number, and a scale for each [`BLOCK`] of them.
fn four_bits() -> QuantScheme {
    QuantScheme::default()
        .with_store(QuantStore::PackedU32(0))
        .with_value(QuantValue::Q4S)
        .per_block([BLOCK], ScaleDtype::F32)
}
