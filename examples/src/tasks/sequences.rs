//! Classifying images that are read two rows at a time, as sequences.

use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use super::task::{Task, update};
use crate::data::Images;
use crate::models::ModernLstm;

/// A custom LSTM with Adam.
pub struct Sequences {
    /// The network.
    pub model: ModernLstm,
    optimizer: ModuleOptimizer,
    images: Images,
    device: Device,
}

impl Sequences {
    /// A network for the classes of `images`.
    pub fn new(images: Images, device: &Device) -> Self {
        Self {
            model: ModernLstm::new(images.classes(), device),
            optimizer: AdamConfig::new().init(),
            images,
            device: device.clone(),
        }
    }
}

impl Task for Sequences {
    fn standard(device: &Device) -> Result<Self, String> {
        Ok(Self::new(Images::digits()?, device))
    }

    fn step(mut self, step: usize, batch_size: usize) -> (Self, Tensor<1>) {
        let (images, labels) = self.images.batch(step, batch_size, &self.device);
        let loss = self.model.loss(images, labels);
        self.model = update(self.model, &mut self.optimizer, 2e-3, &loss);
        (self, loss)
    }
}
