//! Train any Burn model within a memory budget stated in bytes.
//!
//! The device evicts what does not fit and computes it again when it is needed. Gradients are those of plain Burn, bit for bit, and the
//! model does not change.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burn_remat::RematExt;
//!
//! let device = Device::flex().remat("512 MiB")?; // the one line
//! let x = Tensor::<2>::ones([8, 8], &device.clone().autodiff()).require_grad();
//! let gradients = x.clone().matmul(x.clone()).sum().backward();
//! assert!(x.grad(&gradients).is_some());
//! println!("{}", device.remat_report()?);
//! # Ok::<(), burn_remat::RematError>(())
//! ```
//!
//! Start here:
//!
//! - [`RematExt`] gives any device a budget, [`RematConfig`] sets everything else, and [`RematReport`] says what it cost.
//! - [`remat_forecast`], [`minimum_budget`] and [`largest_batch`] say what a program needs before anything is allocated.
//! - With the attribute [`remat`](macro@remat) and with [`checkpoint`] you tell the planner what it cannot know.
//! - [`planner`] has what you need to write a planner of your own.
//! - [`Remat`] decorates a backend, for programs that are generic over backends.
//!
//! The book is in the folder `docs/src` of the repository.
#![recursion_limit = "256"]

mod backend;
mod budget;
mod checkpoint;
mod compression;
mod config;
mod door;
mod drive;
mod engine;
mod error;
mod forecast;
mod guide;
#[cfg(feature = "learner")]
mod learner;
mod module;
mod names;
mod panics;
pub mod planner;
mod planning;
mod recording;
mod rehearse;
mod report;
mod routed;
#[doc(hidden)]
pub mod stage;

pub use backend::{BufferId, DeviceMemory, Extent, Padding, RematBackend};
/// Sets a budget on a model, or names a stage.
///
/// # On a model (`struct` or `enum`)
///
/// The attribute implements [`RematModule`], so that `Model::remat_device(&Device::flex())?` gives a device with this configuration. It can stand before
/// or after `#[derive(Module)]`, and the model may be generic. Mistakes in it are compile errors.
///
/// | setting | meaning |
/// | --- | --- |
/// | `budget = "8 GiB"` | required: a string that [`Budget`] can parse, or a whole number of bytes |
/// | `planner = "auto"` | [`RematConfig::with_planner`] |
/// | `time_limit = 10` | [`RematConfig::with_time_limit`], in seconds |
/// | `strict` | [`RematConfig::strict`] |
/// | `random = "keep"`, `"reseed"` | [`RematConfig::with_random`] |
/// | `recompute_limit = 20` | [`AdvancedConfig::with_recompute_limit`] |
/// | `cache = "folder"`, `no_cache` | [`RematConfig::with_cache`], [`RematConfig::without_cache`] |
/// | `no_planning` | [`AdvancedConfig::without_planning`] |
///
/// There is no planner called `chaindp`, so this does not compile:
///
/// ```compile_fail
/// #[derive(burn::config::Config, Debug)]
/// #[burn_remat::remat(budget = "60%", planner = "chaindp")]
/// struct Settings {
///     width: usize,
/// }
/// ```
///
/// # On an `impl` block
///
/// Every method called `forward` is a stage, and so is every function of the block that is itself marked with `#[remat]`. A stage is called
/// `Type::function`, unless you name it with `stage = ".."`: on a function, this names that function's stage; on the block, that of its `forward`. A
/// policy is set in the same way, with `policy = "must-recompute"` (or `"must-save"`, `"prefer-save"`, `"prefer-recompute"`): see [`CheckpointPolicy`].
///
/// # On a `fn`
///
/// The function is a stage, named after the function or by `#[remat(stage = "..")]`, with a policy if one is set. With `#[remat(step)]` it is not a
/// stage: a training step begins whenever it is called, as with [`RematExt::remat_mark_step`].
///
/// # Stages
///
/// The operations that run between entering the function and leaving it, on any path, belong to its stage: the report counts them there, and pictures and
/// graphs show its name. Stages nest, and recursion is nesting. Results are the same with and without stages. A stage acts on the devices of the tensors
/// among the arguments, also of those in options, lists and tuples. If there are none, it acts on the devices of the modules among them, including
/// `self`. It does not see tensors inside a type of your own. On a plain device a stage does nothing. `async`, `const` and `extern` functions cannot be
/// stages.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor, activation};
/// use burn_remat::{RematExt, remat};
///
/// #[derive(Module, Debug)]
/// struct Block {
///     layer: Linear,
/// }
///
/// #[remat]
/// impl Block {
///     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
///         activation::relu(self.layer.forward(x))
///     }
/// }
///
/// #[remat(stage = "encoder")]
/// fn encode(blocks: &[Block], x: Tensor<2>) -> Tensor<2> {
///     blocks.iter().fold(x, |x, block| block.forward(x))
/// }
///
/// let device = Device::flex().remat("64 MiB")?;
/// let blocks: Vec<Block> = (0..3).map(|_| Block { layer: LinearConfig::new(8, 8).init(&device) }).collect();
/// let y = encode(&blocks, Tensor::ones([4, 8], &device));
/// assert_eq!(y.dims(), [4, 8]);
/// let report = device.remat_report()?;
/// assert_eq!(report.stages[0].stage, "encoder/Block::forward");
/// # Ok::<(), burn_remat::RematError>(())
/// ```
pub use burn_remat_macros::remat;

pub use budget::{Budget, BudgetError, DisplayBytes};
pub use burn_remat_core::CheckpointPolicy;
pub use checkpoint::{checkpoint, checkpoint_sequential, checkpoint_with};
pub use compression::{Compression, CompressionError};
pub use config::{AdvancedConfig, MemoryProbe, RandomPolicy, RematConfig};
pub use door::{Recording, Remat, RematBridge, RematChannel, RematClient, RematDevice, RematExt, remat_on};
#[cfg(feature = "serve")]
pub use door::{random_token, serve};
pub use error::RematError;
pub use forecast::{Forecast, ForecastPoint, ForecastProgress, Forecaster, remat_forecast};
#[cfg(feature = "learner")]
pub use learner::{MemoryMetric, RecomputingMetric};
pub use module::RematModule;
pub use planning::{ActivationPlan, CompressionCost, Explanation, PlanReport, StagePlan};
pub use recording::{RecordedProgram, RecordingError, ReplayReport};
pub use rehearse::{LargestBatch, MinimumBudget, largest_batch, minimum_budget, minimum_budget_with};
pub use report::{CompressionReport, PatchedSteps, RematReport, StageReport};
pub use routed::RoutedChannel;
pub use stage::Stage;
