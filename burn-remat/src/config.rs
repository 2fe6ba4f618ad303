//! The configuration of a remat device.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use burn_remat_core::{Asked, Config, LayoutFollows};
use burn_remat_plan::registry::PlannerChoice;

use crate::backend::DeviceMemory;
use crate::budget::{Budget, BudgetError, DisplayBytes};
use crate::compression::Compression;
use crate::error::RematError;
use crate::guide::Guide;
use crate::planning::{ChosenPlanner, PlanSettings};

/// What happens to the results of random operations, such as dropout masks and noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RandomPolicy {
    /// Keeps them: the random stream is that of plain Burn, bit for bit.
    #[default]
    Keep,
    /// Gives each random operation a seed of its own, so that its result can be evicted and drawn again. This saves the memory of
    /// the masks. Results are deterministic for a seed, but the random numbers are not those of plain Burn.
    Reseed,
}

/// The memory of this process, as a counting allocator sees it.
///
/// A backend reports what its tensors take, but not what a kernel allocates while it runs (a convolution gathers its patches, a matrix product packs its
/// operands). On the CPU backend this memory comes from the heap, where a counting allocator sees it. With a probe it is measured for every operation and
/// shown in the report; with [`with_workspace_in_budget`](AdvancedConfig::with_workspace_in_budget) it also counts against the budget.
/// The device calls the probe while it runs an operation, so the probe must not use the device.
pub trait MemoryProbe: Debug + Send + Sync {
    /// Bytes allocated now.
    fn current(&self) -> u64;
    /// Most bytes allocated at once since [`reset_peak`](Self::reset_peak).
    fn peak(&self) -> u64;
    /// Resets the peak to what is allocated now.
    fn reset_peak(&self);
}

/// How a program is rehearsed.
#[derive(Clone, Debug)]
pub(crate) enum Rehearsal {
    /// Nothing is executed. A guide from real steps, with the same operations on other shapes, says what is written in place, and how long operations
    /// take.
    Dry(Option<Arc<Guide>>),
    /// Everything is executed and measured.
    Real,
}

/// Configuration of a remat device.
///
/// ```
/// use burn_remat::{RandomPolicy, RematConfig};
///
/// let config = RematConfig::new("8 GiB").with_random(RandomPolicy::Reseed).strict();
/// assert!(config.validated().is_ok());
/// assert!(RematConfig::new("8 XB").validated().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct RematConfig {
    pub(crate) budget: Budget,
    pub(crate) random: RandomPolicy,
    pub(crate) compression: Compression,
    pub(crate) strict: bool,
    pub(crate) recompute_limit: f64,
    pub(crate) planning: PlanSettings,
    pub(crate) probe: Option<Arc<dyn MemoryProbe>>,
    pub(crate) count_workspaces: bool,
    pub(crate) fusion: bool,
    /// Set if the program is rehearsed, not trained.
    pub(crate) rehearsal: Option<Rehearsal>,
    /// Whether the engine runs on a thread of its own: see `door/intake.rs`.
    pub(crate) own_thread: bool,
    /// An invalid setting, reported when the device is made.
    error: Option<RematError>,
}

impl Default for RematConfig {
    fn default() -> Self {
        Self {
            budget: Budget::Unlimited,
            random: RandomPolicy::Keep,
            compression: Compression::default(),
            strict: false,
            recompute_limit: 20.0,
            planning: PlanSettings::default(),
            probe: None,
            count_workspaces: false,
            fusion: false,
            rehearsal: None,
            own_thread: false,
            error: None,
        }
    }
}

impl RematConfig {
    /// A configuration with this budget: a text such as `"8 GiB"`, `"60%"` or `"80% free"`, a number of bytes, or a [`Budget`].
    ///
    /// [`validated`](Self::validated), which every device calls, reports a budget that cannot be parsed.
    pub fn new<T>(budget: T) -> Self
    where
        T: TryInto<Budget>,
        RematError: From<T::Error>,
    {
        match budget.try_into() {
            Ok(budget) => Self { budget, ..Self::default() },
            Err(error) => Self { error: Some(error.into()), ..Self::default() },
        }
    }

    /// This configuration for a rehearsal: without a budget or a plan.
    pub(crate) fn rehearsing(&self, rehearsal: Rehearsal) -> Self {
        let (random, compression) = (self.random, self.compression);
        let config = Self { rehearsal: Some(rehearsal), random, compression, ..Self::default() };
        config.advanced(AdvancedConfig::without_planning)
    }

    /// This configuration with an engine on a thread of its own.
    pub(crate) fn with_own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }

    /// Sets what happens to random results. Default: [`RandomPolicy::Keep`].
    pub fn with_random(mut self, random: RandomPolicy) -> Self {
        self.random = random;
        self
    }

    /// If the budget is below the floor, ends the run with an error instead of going on over budget. The next read returns the error.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Sets the planner: a name that `remat-plan list` shows, or a [`Planner`](crate::planner::Planner) of your own, as a value or in an `Arc`. Default:
    /// `"auto"`.
    ///
    /// [`planner`](crate::planner) shows how to write your own.
    pub fn with_planner(mut self, planner: impl Into<PlannerChoice>) -> Self {
        match ChosenPlanner::of(planner.into()) {
            Ok(planner) => self.planning.planner = Some(planner),
            Err(error) => self.error = Some(error),
        }
        self
    }

    /// Sets how long the planner may work on each kind of step, in the background and at low priority: this much processor time, or four times as much
    /// wall-clock time if the processors are busy. Default: 10 s. It stops sooner if longer searches gain nothing.
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.planning.time_limit = limit;
        self
    }

    /// Keeps plans in a folder `burn-remat-plans` inside `folder`, so that the next run of the same program has them at once. Default:
    /// `$BURN_REMAT_CACHE`, or `burn-remat` in the user's cache folder. Other files there are left alone.
    pub fn with_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.planning.cache = Some(folder.into());
        self
    }

    /// Neither keeps plans on disk nor uses stored ones.
    pub fn without_cache(mut self) -> Self {
        self.planning.cache = None;
        self
    }

    /// Changes settings that few programs need: see [`AdvancedConfig`].
    ///
    /// ```
    /// use burn_remat::{Compression, RematConfig};
    ///
    /// let config = RematConfig::new("8 GiB").advanced(|advanced| advanced.with_compression(Compression::ALL));
    /// assert!(config.validated().is_ok());
    /// ```
    pub fn advanced(self, change: impl FnOnce(AdvancedConfig) -> AdvancedConfig) -> Self {
        change(AdvancedConfig(self)).0
    }

    /// Checks the settings: every function that takes a configuration does this.
    ///
    /// # Errors
    ///
    /// The error of the last setting that is not valid.
    pub fn validated(self) -> Result<Self, RematError> {
        match (&self.error, self.budget.defect()) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Ok(self),
        }
    }

    /// The name under which plans for `device` are known. It also says what they may do to results, if that is not the default.
    pub(crate) fn plans_for(&self, device: &str) -> String {
        let random = if self.random == RandomPolicy::Reseed { ", reseed" } else { "" };
        let compression = Some(self.compression).filter(|&forms| forms != Compression::default());
        let compression = compression.map_or_else(String::new, |forms| format!(", compression {forms}"));
        format!("{device}{random}{compression}")
    }

    /// The same with a budget of this many bytes.
    pub(crate) fn within(&self, bytes: u64) -> Self {
        let mut config = self.clone();
        config.budget = Budget::Bytes(bytes);
        config
    }

    /// The part of the configuration that the core needs.
    pub(crate) fn of_core(&self, layout: LayoutFollows) -> Config {
        Config {
            budget: match self.budget {
                Budget::Unlimited => Asked::Unlimited,
                Budget::Bytes(bytes) => Asked::Bytes(bytes),
                // A share of free memory became bytes when the device was made.
                Budget::Share(share) | Budget::Free(share) => Asked::Share(share),
            },
            reseed: self.random == RandomPolicy::Reseed,
            strict: self.strict,
            recompute_limit: self.recompute_limit,
            count_workspaces: self.count_workspaces,
            rehearsing: self.rehearsal.is_some(),
            layout,
        }
    }

    /// The settings for planning. Without a budget, nothing is planned.
    pub(crate) fn planning_in_force(&self) -> PlanSettings {
        let mut planning = self.planning.clone();
        if self.budget == Budget::Unlimited {
            planning.planner = None;
        }
        planning
    }

    /// The budget, if it is a number of bytes.
    pub(crate) fn budget_bytes(&self) -> Result<u64, RematError> {
        match self.budget {
            Budget::Bytes(bytes) => Ok(bytes),
            budget => Err(RematError::BudgetInBytes { budget }),
        }
    }

    /// The configuration for `device`, if it is valid there. A share of free memory becomes bytes.
    pub(crate) fn validated_on(self, device: &impl DeviceMemory) -> Result<Self, RematError> {
        let valid = self.validated()?;
        let Budget::Free(share) = valid.budget else { return Ok(valid) };
        let unknown = || RematError::FreeMemory { device: format!("{device:?}") };
        let free = device.free_bytes().filter(|free| *free > 0).ok_or_else(unknown)?;
        let bytes = ((free as f64 * share) as u64).max(1);
        log::info!("{} are free on {device:?}: the budget is {bytes} bytes", DisplayBytes(free));
        Ok(Self { budget: Budget::Bytes(bytes), ..valid })
    }
}

/// Settings that few programs need, set with [`RematConfig::advanced`].
///
/// ```
/// use burn_remat::RematConfig;
///
/// let config = RematConfig::new("8 GiB").advanced(|advanced| {
///     advanced.with_compression("exact,offload".parse().expect("known names")).with_recompute_limit(5.0)
/// });
/// assert!(config.validated().is_ok());
/// assert!(RematConfig::new("8 GiB").advanced(|advanced| advanced.with_recompute_limit(-1.0)).validated().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct AdvancedConfig(RematConfig);

impl AdvancedConfig {
    /// Sets how evicted tensors may be compressed or offloaded. Default: [`Compression::EXACT`].
    pub fn with_compression(mut self, compression: Compression) -> Self {
        self.0.compression = compression;
        self
    }

    /// Sets how long a step may spend on recomputation before it stops evicting, as a multiple of its own compute time. Default: 20.
    ///
    /// [`validated`](RematConfig::validated) reports a limit that is negative or not finite.
    pub fn with_recompute_limit(mut self, times: f64) -> Self {
        if times.is_finite() && times >= 0.0 {
            self.0.recompute_limit = times;
        } else {
            self.0.error = Some(RematError::RecomputeLimit { times });
        }
        self
    }

    /// Makes no plans: in every step the online policy decides at each operation what to evict.
    pub fn without_planning(mut self) -> Self {
        self.0.planning.planner = None;
        self
    }

    /// Measures the workspace of each operation: what its kernel allocates in addition to its tensors. The peak of `probe` is reset at every operation.
    /// This is useful if tensors live on the heap of this process (Flex).
    pub fn with_memory_probe(mut self, probe: impl MemoryProbe + 'static) -> Self {
        self.0.probe = Some(Arc::new(probe));
        self
    }

    /// Counts workspace against the budget, as far as a [memory probe](Self::with_memory_probe) has measured it. The floor is then higher:
    /// the patches of a convolution may take more than its tensors.
    pub fn with_workspace_in_budget(mut self) -> Self {
        self.0.count_workspaces = true;
        self
    }

    /// Runs operations through Burn's kernel fusion, which joins consecutive elementwise operations into one kernel. By default, each runs by itself.
    ///
    /// This needs a GPU and a build with Burn's feature `fusion`. Buffers cannot be seen then, so bytes are counted by tensor. Plans treat consecutive
    /// elementwise operations as one kernel, whose time depends on the bytes that it reads and writes. A recomputation that is fused differently from the
    /// first run may differ from it in the last bits.
    pub fn with_fusion(mut self) -> Self {
        self.0.fusion = true;
        self
    }
}

macro_rules! from_budget {
    ($($type:ty),*) => {$(
        impl From<$type> for RematConfig {
            fn from(budget: $type) -> Self {
                Self::new(budget)
            }
        }
    )*};
}
from_budget!(&str, u64, Budget);

impl From<&String> for RematConfig {
    fn from(budget: &String) -> Self {
        Self::new(budget.as_str())
    }
}

impl From<String> for RematConfig {
    fn from(budget: String) -> Self {
        Self::new(budget.as_str())
    }
}

impl From<BudgetError> for RematError {
    fn from(error: BudgetError) -> Self {
        Self::Budget(error)
    }
}

impl From<std::convert::Infallible> for RematError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use burn_remat_plan::registry::planners;

    use super::*;

    #[test]
    fn a_planner_that_this_build_lacks_is_refused() {
        for entry in planners() {
            let (name, lacks) = (entry.name, entry.planner().missing_feature());
            let refusal = RematConfig::default().with_planner(name).validated().err();
            assert_eq!(refusal.is_some(), lacks.is_some(), "{name}");
            assert!(refusal.is_none_or(|error| error.to_string().contains("the feature `highs`")), "{name}");
        }
    }
}
