//! Finding the document that a passage of text comes from.

use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use super::task::{Task, update};
use crate::data::Passages;
use crate::models::TextClassifier;

/// A transformer encoder with Adam.
pub struct TextClassification {
    model: TextClassifier,
    optimizer: ModuleOptimizer,
    passages: Passages,
    device: Device,
}

impl Task for TextClassification {
    fn standard(device: &Device) -> Result<Self, String> {
        let passages = Passages::documents();
        Ok(Self {
            model: TextClassifier::new(passages.classes(), device),
            optimizer: AdamConfig::new().init(),
            passages,
            device: device.clone(),
        })
    }

    fn step(mut self, step: usize, batch_size: usize) -> (Self, Tensor<1>) {
        let (passages, labels) = self.passages.batch(step, batch_size, &self.device);
        let loss = self.model.loss(passages, labels);
        self.model = update(self.model, &mut self.optimizer, 1e-3, &loss);
        (self, loss)
    }
}
