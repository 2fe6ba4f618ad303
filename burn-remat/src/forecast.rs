//! Answers a question before anything is allocated: does this program fit, and at what cost?
//!
//! The program runs on a dry device ([`rehearse`](crate::rehearse)), which records its operations. Each kind of step is planned at nine budgets, from the
//! smallest for which a plan is known to what the program takes without evictions, and at the budget asked about. A plan for a smaller budget also fits a
//! larger one, so a larger budget never gets a more expensive plan.
//!
//! Complexity: one planner run for each budget and kind of step. All runs for a budget take at most the [plan time](Forecaster::with_plan_time).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use serde::Serialize;

use crate::budget::{Budget, DisplayBytes};
use crate::config::RematConfig;
use crate::door::{remat, validated_on};
use crate::error::RematError;
use crate::guide::Guide;
#[cfg(feature = "show")]
use crate::planning::picture::{self, Curve};
use crate::planning::{Ready, budgets};
use crate::rehearse::{Kind, LargestBatch, MinimumBudget, Rehearsed, best, dry_run, guide, is_of_use, largest_guided};

/// Forecasts what `train` needs on a device like `device`, and what smaller budgets cost. This is the short form of a [`Forecaster`] without a budget.
///
/// `train` gets a dry device and must do at least three training steps, as for [`minimum_budget`](crate::minimum_budget).
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_remat::{RematExt, remat_forecast};
///
/// let forecast = remat_forecast(&Device::flex(), |device| {
///     for _ in 0..3 {
///         device.remat_mark_step();
///         let x = Tensor::<2>::ones([256, 256], &device.clone().autodiff()).require_grad();
///         (0..8).fold(x, |y, _| y.tanh()).sum().backward();
///     }
///     device.remat_mark_step();
/// })?;
/// println!("{forecast}");
/// assert!(forecast.minimum_bytes < forecast.needs_bytes);
/// # Ok::<(), burn_remat::RematError>(())
/// ```
///
/// # Errors
///
/// Those of [`minimum_budget`](crate::minimum_budget).
pub fn remat_forecast<R>(device: &Device, train: impl FnOnce(&Device) -> R) -> Result<Forecast, RematError> {
    Forecaster::new(Budget::Unlimited).forecast(device, train)
}

/// Makes forecasts with a budget and other settings.
#[derive(Clone)]
pub struct Forecaster {
    config: RematConfig,
    plan_time: Duration,
    overhead_limit: f64,
    progress: Option<Arc<Progress>>,
}

type Progress = dyn Fn(ForecastProgress);

/// The progress of a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForecastProgress {
    /// A few steps with small batches run for real and are measured.
    Measuring,
    /// The program runs on a dry device.
    DryRun,
    /// A plan within this budget is being made.
    Planning {
        /// The budget, in bytes.
        budget: u64,
        /// Budgets planned so far.
        done: usize,
        /// All budgets.
        of: usize,
    },
    /// A batch of this size is being tried.
    TryingBatch {
        /// The batch size.
        batch: usize,
    },
}

/// What a program needs and what smaller budgets cost, found before anything is allocated.
///
/// `Display` gives the answer in one line and a table; serde gives JSON.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Forecast {
    /// Bytes that the program holds at its peak if nothing is evicted.
    pub needs_bytes: u64,
    /// The smallest budget for which plans are known.
    pub minimum_bytes: u64,
    /// The operation that sets it.
    pub minimum_op: String,
    /// The stage of that operation.
    pub minimum_stage: Option<String>,
    /// The budget asked about, in bytes.
    pub budget_bytes: Option<u64>,
    /// What budgets cost, in ascending order, including the budget asked about if there is a plan for it. The time added never rises with
    /// the budget.
    pub points: Vec<ForecastPoint>,
    /// Whether times were measured with small batches and scaled. If not, the time of an operation is estimated from the bytes that it reads
    /// and writes.
    pub is_measured: bool,
    /// The batch size of the program, if it is known.
    pub batch: Option<usize>,
    /// The largest batch within the budget asked about; `None` without a budget, if not even a batch of one fits, or from [`Forecaster::forecast`].
    pub largest_batch: Option<LargestBatch>,
    #[serde(skip)]
    config: RematConfig,
}

/// The cost of the program within one budget.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ForecastPoint {
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// The most bytes that are held.
    pub predicted_peak_bytes: u64,
    /// Time that recomputation adds, as a share of the other time, over one step of each kind. The first step is left out if there are others.
    pub predicted_overhead: f64,
    /// A plan for each kind of step, in the order in which they occur.
    #[serde(skip)]
    plans: Vec<Ready>,
}

impl Forecaster {
    /// Forecasts for this budget or configuration: `"8 GiB"`, `"60%"` of what the program needs, `"80% free"`, or [`Budget::Unlimited`]
    /// for no budget.
    pub fn new(config: impl Into<RematConfig>) -> Self {
        Self { config: config.into(), plan_time: Duration::from_millis(500), overhead_limit: 1.0, progress: None }
    }

    /// Limits the time to plan one budget. Default: half a second.
    #[must_use]
    pub fn with_plan_time(mut self, limit: Duration) -> Self {
        self.plan_time = limit;
        self
    }

    /// Limits the time that recomputation may add with the largest batch, as a share of the step's own time. Default: 1.0, which doubles it.
    #[must_use]
    pub fn with_overhead_limit(mut self, limit: f64) -> Self {
        self.overhead_limit = limit;
        self
    }

    /// Calls `progress`, on this thread, whenever a new part of the work begins.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(ForecastProgress) + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// The forecast for `train` on a device like `device`. Nothing is executed, so times are rough: see [`Forecast::is_measured`].
    ///
    /// # Errors
    ///
    /// Those of [`minimum_budget`](crate::minimum_budget).
    pub fn forecast<R>(&self, device: &Device, train: impl FnOnce(&Device) -> R) -> Result<Forecast, RematError> {
        let config = validated_on(device, self.config.clone())?;
        self.planned(device, config, None, train)
    }

    /// The forecast for `train` with `batch`, and the largest batch within the budget. `train(device, batch)` runs twice for real, to measure: with a
    /// batch of two, and with a larger one of at most eight. Then it runs once on a dry device, and about 20 times more if a budget is given.
    ///
    /// # Errors
    ///
    /// Those of [`minimum_budget`](crate::minimum_budget).
    pub fn forecast_batch<R>(
        &self,
        device: &Device,
        batch: usize,
        train: impl Fn(&Device, usize) -> R,
    ) -> Result<Forecast, RematError> {
        let config = validated_on(device, self.config.clone())?;
        self.say(ForecastProgress::Measuring);
        let guide = guide(device, &config, batch, &train)?;
        let mut forecast = self.planned(device, config, Some(guide.clone()), |device| train(device, batch))?;
        (forecast.batch, forecast.is_measured) = (Some(batch), true);
        if let Some(budget) = forecast.budget_bytes {
            let config = forecast.config.within(budget);
            let found = largest_guided(device, config, self.overhead_limit, &guide, |device, batch| {
                self.say(ForecastProgress::TryingBatch { batch });
                train(device, batch)
            });
            forecast.largest_batch = match found {
                Ok(found) => Some(found),
                Err(RematError::NothingFits { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(forecast)
    }

    fn say(&self, progress: ForecastProgress) {
        if let Some(tell) = &self.progress {
            tell(progress);
        }
    }

    fn planned<R>(
        &self,
        device: &Device,
        config: RematConfig,
        guide: Option<Arc<Guide>>,
        train: impl FnOnce(&Device) -> R,
    ) -> Result<Forecast, RematError> {
        self.say(ForecastProgress::DryRun);
        let program = Rehearsed::new(dry_run(device, &config, guide, |device| drop(train(device)))?)?;
        let MinimumBudget { store_all_bytes, minimum_bytes, op, stage } = program.needs(&config)?;
        let budget_bytes = match config.budget {
            Budget::Unlimited => None,
            Budget::Bytes(bytes) => Some(bytes),
            Budget::Share(share) | Budget::Free(share) => Some((store_all_bytes as f64 * share) as u64),
        };
        let points = self.points(&program, &config, (minimum_bytes, store_all_bytes), budget_bytes);
        Ok(Forecast {
            needs_bytes: store_all_bytes,
            minimum_bytes,
            minimum_op: op,
            minimum_stage: stage,
            budget_bytes,
            points,
            is_measured: false,
            batch: None,
            largest_batch: None,
            config,
        })
    }

    fn points(
        &self,
        program: &Rehearsed,
        config: &RematConfig,
        (least, most): (u64, u64),
        asked: Option<u64>,
    ) -> Vec<ForecastPoint> {
        let mut budgets: Vec<u64> = budgets(least, most.max(least)).collect();
        budgets.extend(asked.filter(|budget| (least..most).contains(budget)));
        budgets.sort_unstable();
        budgets.dedup();
        let limit = self.plan_time / program.kinds.len().max(1) as u32;
        let of = budgets.len();
        let mut points: Vec<ForecastPoint> = Vec::new();
        for (done, budget) in budgets.into_iter().enumerate() {
            self.say(ForecastProgress::Planning { budget, done, of });
            let before = points.last().map_or(&[][..], |point| &point.plans);
            let plan = |kind: &Kind| {
                // A plan for a smaller budget will do too.
                let known = before.iter().find(|(plan, _)| plan.structure() == kind.fit.structure()).cloned();
                let plans = best(&kind.fit, config, budget, limit).into_iter().chain(known);
                (plans.min_by(|a, b| a.0.makespan.total_cmp(&b.0.makespan)), kind.comes_again)
            };
            let plans = program.kinds.iter().map(plan).collect();
            points.extend(ForecastPoint::within(budget, plans));
        }
        points
    }
}

impl ForecastPoint {
    /// The cost of these plans for the kinds of step, if they keep to the budget. A kind that does not come again may lack a plan.
    fn within(budget_bytes: u64, kinds: Vec<(Option<Ready>, bool)>) -> Option<Self> {
        if kinds.iter().any(|(plan, comes_again)| plan.is_none() && *comes_again) {
            return None;
        }
        let usual = || kinds.iter().filter(|(_, comes_again)| *comes_again).flat_map(|(plan, _)| plan);
        let predicted_peak_bytes = usual().map(|(schedule, _)| schedule.peak).max()?;
        let alone: f64 = usual().map(|(schedule, _)| schedule.lowered.cost_ns as f64).sum();
        let planned: f64 = usual().map(|(schedule, _)| schedule.makespan).sum();
        let predicted_overhead = (planned / alone.max(1.0) - 1.0).max(0.0);
        let of_use =
            |(plan, comes_again): (Option<Ready>, bool)| plan.filter(|plan| is_of_use(plan, comes_again, budget_bytes));
        let plans = kinds.into_iter().filter_map(of_use).collect();
        let point = Self { budget_bytes, predicted_peak_bytes, predicted_overhead, plans };
        (predicted_peak_bytes <= budget_bytes).then_some(point)
    }
}

impl Forecast {
    /// The cheapest known way to train within `budget` bytes; `None` below the minimum.
    pub fn within(&self, budget: u64) -> Option<&ForecastPoint> {
        self.points.iter().rev().find(|point| point.budget_bytes <= budget)
    }

    /// Makes a device like `device` with a budget of this many bytes, on which the program follows the plans that were found, from the first step on.
    /// Once its steps have been measured, they are planned again, and cheaper plans are used.
    ///
    /// # Errors
    ///
    /// [`RematError::BelowMinimum`] if no plan fits, and those of [`RematExt::remat`](crate::RematExt::remat).
    pub fn device(&self, device: &Device, budget: u64) -> Result<Device, RematError> {
        let point = self.within(budget).ok_or(RematError::BelowMinimum { budget, minimum: self.minimum_bytes })?;
        let mut config = self.config.within(budget);
        config.planning.ready = point.plans.clone();
        remat(device, config)
    }

    /// A picture (SVG, `size` in pixels) of the time added against the budget. The budget asked about is marked.
    ///
    /// # Errors
    ///
    /// Errors of the drawing library.
    #[cfg(feature = "show")]
    pub fn overhead_picture(&self, size: (u32, u32)) -> Result<String, String> {
        let asked = self.budget_bytes.and_then(|budget| {
            let share = self.within(budget)?.predicted_overhead;
            Some((budget.min(self.needs_bytes), share, "your budget"))
        });
        let points = self.points.iter().map(|point| (point.budget_bytes, point.predicted_overhead)).collect();
        picture::curve(&Curve { points, least: self.minimum_bytes, most: self.needs_bytes, here: asked }, size)
    }

    /// The forecast in one line.
    pub fn summary(&self) -> String {
        let mut said = vec![format!("needs {}", DisplayBytes(self.needs_bytes))];
        if let Some(budget) = self.budget_bytes {
            let bytes = DisplayBytes(budget);
            said.push(match self.within(budget) {
                _ if self.needs_bytes <= budget => format!("fits {bytes} without recomputing"),
                Some(point) => format!("fits {bytes} at +{:.1}%", 100.0 * point.predicted_overhead),
                None => format!("does not fit {bytes}"),
            });
        }
        let stage = self.minimum_stage.as_ref().map_or_else(String::new, |stage| format!(" in {stage}"));
        said.push(format!("minimum {}, set by {}{stage}", DisplayBytes(self.minimum_bytes), self.minimum_op));
        if let Some((found, budget)) = self.largest_batch.as_ref().zip(self.budget_bytes) {
            let now = self.batch.map_or_else(String::new, |batch| format!(" (now {batch})"));
            said.push(format!("largest batch at {}: {}{now}", DisplayBytes(budget), found.batch));
        }
        said.join(" · ")
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.summary())?;
        writeln!(f, "{:>12}  {:>12}  {:>10}", "budget", "peak", "time added")?;
        for ForecastPoint { budget_bytes, predicted_peak_bytes, predicted_overhead, .. } in &self.points {
            let (budget, peak) = (DisplayBytes(*budget_bytes), DisplayBytes(*predicted_peak_bytes));
            writeln!(f, "{budget:>12}  {peak:>12}  {:>9.1}%", 100.0 * predicted_overhead)?;
        }
        if !self.is_measured {
            writeln!(f, "\nTimes are estimated from bytes: nothing has been measured.")?;
        }
        Ok(())
    }
}

impl fmt::Display for ForecastProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Measuring => f.write_str("measuring small batches"),
            Self::DryRun => f.write_str("running the program on a dry device"),
            Self::Planning { budget, done, of } => {
                write!(f, "planning {} ({} of {of})", DisplayBytes(budget), done + 1)
            }
            Self::TryingBatch { batch } => write!(f, "trying a batch of {batch}"),
        }
    }
}

impl fmt::Debug for Forecaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forecaster").field("config", &self.config).finish_non_exhaustive()
    }
}
