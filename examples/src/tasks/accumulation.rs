//! Classifying images, with several backward passes per update.

use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use super::task::Task;
use crate::data::Images;
use crate::models::ResNet;

/// Backward passes per update.
pub const PASSES: usize = 2;

/// A residual network whose gradients are summed over `PASSES` batches.
pub struct Accumulation {
    /// The network.
    pub model: ResNet,
    /// Adam and its state.
    pub optimizer: ModuleOptimizer,
    images: Images,
    device: Device,
}

impl Accumulation {
    /// A network for the classes of `images`.
    pub fn new(images: Images, device: &Device) -> Self {
        Self {
            model: ResNet::new(images.classes(), device),
            optimizer: AdamConfig::new().init(),
            images,
            device: device.clone(),
        }
    }
}

impl Task for Accumulation {
    fn standard(device: &Device) -> Result<Self, String> {
        Ok(Self::new(Images::digits()?, device))
    }

    fn step(mut self, step: usize, batch_size: usize) -> (Self, Tensor<1>) {
        let mut accumulator = GradientsAccumulator::new();
        let mut total: Option<Tensor<1>> = None;
        for pass in 0..PASSES {
            let (images, labels) = self.images.batch(step * PASSES + pass, batch_size, &self.device);
            let loss = self.model.loss(images, labels) / PASSES as f64;
            let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
            accumulator.accumulate(&self.model, gradients);
            let loss = loss.detach();
            total = Some(total.map_or(loss.clone(), |total| total + loss));
        }
        self.model = self.optimizer.step(1e-3, self.model, accumulator.grads());
        let loss = total.unwrap_or_else(|| Tensor::zeros([1], &self.device));
        (self, loss)
    }
}
