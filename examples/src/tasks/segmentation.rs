//! Finding the pixels of the figure in noisy images.

use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use super::task::{Task, update};
use crate::data::Images;
use crate::models::UNet;

/// A U-Net that separates figure from background.
pub struct Segmentation {
    /// The network.
    pub model: UNet,
    optimizer: ModuleOptimizer,
    images: Images,
    device: Device,
}

impl Segmentation {
    /// A network to be trained on `images`.
    pub fn new(images: Images, device: &Device) -> Self {
        Self { model: UNet::new(device), optimizer: AdamConfig::new().init(), images, device: device.clone() }
    }
}

impl Task for Segmentation {
    fn standard(device: &Device) -> Result<Self, String> {
        Ok(Self::new(Images::digits()?, device))
    }

    fn step(mut self, step: usize, batch_size: usize) -> (Self, Tensor<1>) {
        let (images, _) = self.images.batch(step, batch_size, &self.device);
        let loss = self.model.loss(images);
        self.model = update(self.model, &mut self.optimizer, 3e-3, &loss);
        (self, loss)
    }
}
