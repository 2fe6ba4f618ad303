//! The training steps of the examples, for the example itself and for `larger-batches`. Plain Burn: a task knows nothing of
//! budgets, and trains on the device that it is given.

mod accumulation;
mod fine_tuning;
mod mnist;
mod segmentation;
mod sequences;
mod task;
mod text_classification;
mod text_generation;
mod wgan;
mod workload;

pub use accumulation::Accumulation;
pub use fine_tuning::{Beside, FineTuning, Tuning, load_adapters, save_adapters};
pub use mnist::Mnist;
pub use segmentation::Segmentation;
pub use sequences::Sequences;
pub use task::{SEED, Task, accuracy};
pub use text_classification::TextClassification;
pub use text_generation::TextGeneration;
pub use wgan::Wgan;
pub use workload::Workload;
