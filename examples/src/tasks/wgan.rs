//! Two networks against each other (Arjovsky et al., "Wasserstein GAN"): a critic that distinguishes real images from generated
//! ones, and a generator of images that the critic takes for real.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{ModuleOptimizer, RmsPropConfig};
use burn::tensor::{Device, Tensor};

use super::task::{Task, update};
use crate::data::Images;
use crate::models::{Critic, Generator};

/// Updates of the critic per update of the generator.
pub const CRITIC_UPDATES: usize = 3;
/// The critic's weights stay within this distance of zero.
const CLIP: f32 = 0.02;
const RATE: f64 = 5e-4;

/// Two models with an optimizer each.
pub struct Wgan {
    /// The network that generates images.
    pub generator: Generator,
    critic: Critic,
    generator_optimizer: ModuleOptimizer,
    critic_optimizer: ModuleOptimizer,
    images: Images,
    device: Device,
}

impl Wgan {
    /// A pair of networks to be trained on `images`.
    pub fn new(images: Images, device: &Device) -> Self {
        let optimizer = || RmsPropConfig::new().with_centered(false).init();
        Self {
            generator: Generator::new(device),
            critic: Critic::new(device),
            generator_optimizer: optimizer(),
            critic_optimizer: optimizer(),
            images,
            device: device.clone(),
        }
    }
}

impl Task for Wgan {
    fn standard(device: &Device) -> Result<Self, String> {
        Ok(Self::new(Images::digits()?, device))
    }

    /// The loss returned is the critic's: how well it separates real and generated images, with a minus sign.
    fn step(mut self, step: usize, batch_size: usize) -> (Self, Tensor<1>) {
        let mut distance = Tensor::zeros([1], &self.device);
        for pass in 0..CRITIC_UPDATES {
            let (real, _) = self.images.batch(step * CRITIC_UPDATES + pass, batch_size, &self.device);
            // The generator learns nothing here: its images come without their history.
            let drawn = self.generator.draw(batch_size, &self.device).detach();
            let loss = self.critic.forward(drawn).mean() - self.critic.forward(real).mean();
            self.critic = update(self.critic, &mut self.critic_optimizer, RATE, &loss).map(&mut Clip);
            distance = loss.detach();
        }
        let drawn = self.generator.draw(batch_size, &self.device);
        let loss = -self.critic.forward(drawn).mean();
        self.generator = update(self.generator, &mut self.generator_optimizer, RATE, &loss);
        (self, distance)
    }
}

/// Clips weights to near zero; they keep their place in the module.
struct Clip;

impl ModuleMapper for Clip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, weight, mapper) = param.consume();
        let weight = Tensor::from_inner(weight.inner().clamp(-CLIP, CLIP)).require_grad();
        Param::from_mapped_value(id, weight, mapper)
    }
}
