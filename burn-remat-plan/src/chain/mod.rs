//! The chain model of Beaumont et al.: stages in a row, each with a forward and a backward operation.
//!
//! A [`Chain`] has stages `0..n`, the last of which is the loss. *Boundary* `i` is what stage `i` reads; boundary 0
//! is the chain's input, boundary `n` the output of the loss stage. A boundary is held in one of two forms: as the bare
//! *activation*, or as the *saved* set of the stage before it (everything that the stage's backward operation needs,
//! including the activation). The gradient at boundary `i + 1` is what the backward operation of stage `i` reads.
//!
//! | here                                   | report (stage `ℓ = i + 1`)              |
//! | -------------------------------------- | --------------------------------------- |
//! | boundary `i`, bare / saved             | `a^(ℓ-1)` / `ā^(ℓ-1)`                   |
//! | `input_bytes`, `activation_bytes`      | `ω_a^0`, `ω_a^ℓ`                        |
//! | `saved_bytes`                          | `ω_ā^ℓ`                                 |
//! | `input_gradient_bytes`, `gradient_bytes` | `ω_δ^0`, `ω_δ^ℓ`                      |
//! | `forward_scratch_bytes`, `backward_scratch_bytes` | `o_f^ℓ`, `o_b^ℓ`             |
//! | `forward_cost`, `backward_cost`        | `u_f^ℓ`, `u_b^ℓ`                        |
//!
//! # What the steps do (the report's Table 1)
//!
//! At the start, boundary 0 is held bare, and the gradient of the last stage is held too. Indices count from 0.
//!
//! | step    | report   | needs                                                   | releases                                | additionally holds                  |
//! | ------- | -------- | ------------------------------------------------------- | --------------------------------------- | ----------------------------------- |
//! | `Fall2` | `F_all`  | boundary 2, either form                                 | nothing                                 | boundary 3, saved                   |
//! | `Fck2`  | `F_ck`   | boundary 2, either form                                 | nothing                                 | boundary 3, bare                    |
//! | `Fn2`   | `F_∅`    | boundary 2, bare                                        | boundary 2                              | boundary 3, bare                    |
//! | `B2`    | `B`      | gradient 3, boundary 3 saved, boundary 2 in either form | gradient 3, boundary 3; boundary 2 if bare | gradient 2                       |
//! | `D2`    | (none)   | boundary 2, either form                                 | boundary 2                              |                                     |
//!
//! During a step, memory is everything held before it, plus what the step adds, plus its scratch: inputs + outputs +
//! scratch, including the chain's input. A boundary counts once: if the output of `Fall` is already held bare, the
//! saved set replaces it; if the output of `Fck` or `Fn` is already held saved, it stays saved. `D` is our addition: it
//! lets a schedule release a checkpoint early, so that schedules need not be *persistent*.
//!
//! Every backward operation runs exactly once, from the last stage to the first.

mod check;
mod json;
mod minimum;
mod plan;
mod simulate;
mod store_all;
pub(crate) mod terms;

pub use crate::planner::ChainOutcome;
pub use check::{ChainViolation, check};
pub(crate) use minimum::minimum_by;
pub use minimum::{ChainMinimum, minimum, minimum_within};
pub use plan::{ChainPlan, ChainStep, ParseChainStepError};
pub use simulate::{ChainTimeline, simulate};
pub(crate) use store_all::peak_stage;

use crate::error::ChainError;

/// Index of a stage, from 0.
pub type StageId = usize;

/// One stage: costs in any unit (the same for all stages), sizes in bytes.
#[derive(Clone, Debug, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainStage {
    /// Cost of the forward operation.
    pub forward_cost: f64,
    /// Cost of the backward operation.
    pub backward_cost: f64,
    /// Size of the activation that the stage passes on.
    pub activation_bytes: u64,
    /// Size of everything that the backward operation needs from the forward one: with the activation, without the input.
    pub saved_bytes: u64,
    /// Size of the gradient of the activation.
    pub gradient_bytes: u64,
    /// Bytes held only while the forward operation runs.
    #[serde(default)]
    pub forward_scratch_bytes: u64,
    /// Bytes held only while the backward operation runs.
    #[serde(default)]
    pub backward_scratch_bytes: u64,
}

/// A valid chain: at least one stage, finite non-negative costs, sizes whose sum fits in 63 bits.
///
/// ```
/// use burn_remat_plan::chain::{Chain, ChainStage};
///
/// let stage = ChainStage { forward_cost: 1.0, backward_cost: 2.0, activation_bytes: 4, saved_bytes: 8, gradient_bytes: 4, ..Default::default() };
/// let chain = Chain::new("three", 4, 4, vec![stage; 3])?;
/// assert_eq!(chain.store_all_makespan(), 9.0);
/// # Ok::<(), burn_remat_plan::ChainError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    name: String,
    input_bytes: u64,
    input_gradient_bytes: u64,
    stages: Vec<ChainStage>,
}

impl Chain {
    /// Creates a chain and validates it. Complexity: O(stages).
    ///
    /// # Errors
    ///
    /// The first problem, with the field that contains it: see [`ChainError`].
    pub fn new(
        name: impl Into<String>,
        input_bytes: u64,
        input_gradient_bytes: u64,
        stages: Vec<ChainStage>,
    ) -> Result<Self, ChainError> {
        if stages.is_empty() {
            return Err(ChainError::Empty);
        }
        for (i, stage) in stages.iter().enumerate() {
            for (field, cost) in [("forward_cost", stage.forward_cost), ("backward_cost", stage.backward_cost)] {
                if !cost.is_finite() || cost < 0.0 {
                    return Err(ChainError::BadNumber { field: format!("stages[{i}].{field}"), number: cost });
                }
            }
        }
        // A planner may run a forward operation once for every later stage: even that total must not overflow.
        let costs: f64 = stages.iter().map(|stage| stage.forward_cost + stage.backward_cost).sum();
        if !(costs * (stages.len() + 1) as f64).is_finite() {
            return Err(ChainError::CostOverflow { total: costs });
        }
        let sizes = |s: &ChainStage| {
            [s.activation_bytes, s.saved_bytes, s.gradient_bytes, s.forward_scratch_bytes, s.backward_scratch_bytes]
        };
        let total: u128 =
            stages.iter().flat_map(sizes).chain([input_bytes, input_gradient_bytes]).map(u128::from).sum();
        if total > i64::MAX as u128 {
            return Err(ChainError::TooLarge { total });
        }
        Ok(Self { name: name.into(), input_bytes, input_gradient_bytes, stages })
    }

    /// Name of the chain; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size of the chain's input.
    pub fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Size of the gradient of the chain's input.
    pub fn input_gradient_bytes(&self) -> u64 {
        self.input_gradient_bytes
    }

    /// All stages; the last is the loss.
    pub fn stages(&self) -> &[ChainStage] {
        &self.stages
    }
}
