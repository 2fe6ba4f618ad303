//! Learning a text, one character after the other.

use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use super::task::{Task, update};
use crate::data::Text;
use crate::models::{CharTransformer, SEQUENCE_LENGTH};

/// A causal transformer that predicts the next character.
pub struct TextGeneration {
    /// The network.
    pub model: CharTransformer,
    optimizer: ModuleOptimizer,
    text: Text,
    device: Device,
}

impl TextGeneration {
    /// A network to be trained on `text`.
    pub fn new(text: Text, device: &Device) -> Self {
        Self { model: CharTransformer::new(device), optimizer: AdamConfig::new().init(), text, device: device.clone() }
    }
}

impl Task for TextGeneration {
    fn standard(device: &Device) -> Result<Self, String> {
        Ok(Self::new(Text::open(None)?, device))
    }

    fn step(mut self, step: usize, batch_size: usize) -> (Self, Tensor<1>) {
        let (text, next) = self.text.batch(step, batch_size, SEQUENCE_LENGTH, &self.device);
        let loss = self.model.loss(text, next);
        self.model = update(self.model, &mut self.optimizer, 1e-3, &loss);
        (self, loss)
    }
}
