//! What a training program needs, found before anything large is allocated.
//!
//! A *dry* device records a program's operations and executes none: reads give zeros, and no memory is allocated. The steps seen there yield the smallest
//! budget ([`minimum_budget`]), the largest batch ([`largest_batch`], Checkmate's experiment of figure 6, by search) and plans that are in force from the
//! first step on ([`RematExt::remat_rehearsed`](crate::RematExt::remat_rehearsed)).

mod trial;

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_remat_core::{Spine, Trace};

use crate::budget::Budget;
use crate::config::{Rehearsal, RematConfig};
use crate::door::{rehearse, remat, validated_on};
use crate::error::RematError;
use crate::guide::Guide;
use crate::panics::caught;
use crate::planning::{Fit, Met, Origin, Ready, does_like, hand_over, lower};
use crate::recording::RecordedProgram;
pub(crate) use trial::Seen;
use trial::Trial;

/// Batch size of the measured run that guides the dry ones: small, but with a batch dimension that is not 1.
const GUIDE_BATCH: usize = 2;
/// The largest batch size of a second measured run. The two show what grows with the batch.
const SECOND_BATCH: usize = 8;
/// The share of free memory that the second run is expected to fit in, if there is no budget in bytes.
const FREE_SHARE: f64 = 0.5;
/// Larger batch sizes are not tried.
const MOST: usize = 1 << 16;
/// If the floor is above the budget by at most one part in this many, a search may still find a plan that fits.
const NEAR: u64 = 20;
/// The smallest budget that is kept to is found with at most this many trials, to one part in `FINE`, within `TRIAL_TIME`.
const TRIALS: usize = 10;
const FINE: u64 = 32;
const TRIAL_TIME: Duration = Duration::from_secs(4);
/// If the whole program does not keep to the budget with a batch, the batch is made smaller by one part in this many. Each further cut is half as large
/// again.
const LESS: usize = 32;
/// Time to plan one batch size. Training has more, so a batch that fits here also fits there.
const PLAN_TIME: Duration = Duration::from_millis(500);

/// The smallest budget of a program: the result of [`minimum_budget`].
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct MinimumBudget {
    /// Bytes that the step holds at its peak if nothing is evicted.
    pub store_all_bytes: u64,
    /// The smallest budget for which there are plans for all steps that come more than once, plus 0.1% for small tensors that come and go. It is larger
    /// if the whole program, replayed under that budget, holds more.
    pub minimum_bytes: u64,
    /// The operation that sets it.
    pub op: String,
    /// The stage of that operation.
    pub stage: Option<String>,
}

/// The result of [`largest_batch`].
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct LargestBatch {
    /// The largest batch that fits within the budget and the overhead limit.
    pub batch: usize,
    /// The largest batch that fits if nothing is evicted; 0 if none does.
    pub store_all_batch: usize,
    /// Time that its plan adds, as a share of the step's own time.
    pub predicted_overhead: f64,
    /// The most bytes that its plan holds.
    pub predicted_peak_bytes: u64,
    /// The configuration, with the plans for this batch.
    #[serde(skip)]
    config: RematConfig,
}

impl LargestBatch {
    /// Makes a device like `device` on which training with this batch follows the plans that were found, from the first step on. Once the steps have been
    /// measured, they are planned again, and cheaper plans are used.
    ///
    /// # Errors
    ///
    /// Those of [`RematExt::remat`](crate::RematExt::remat).
    pub fn device(&self, device: &Device) -> Result<Device, RematError> {
        remat(device, self.config.clone())
    }
}

/// Finds the smallest budget within which `train` is known to run on a device like `device`.
///
/// `train` gets a dry device, on which nothing is executed. It must do at least three training steps (the first may differ from
/// the others; a step ends where the next one begins). A few are enough: all that it does is kept in memory. Reads give zeros there, so it must not
/// stop because of a loss, and it should not write files. What it returns is dropped. If there are several kinds of step, the one that needs most
/// counts.
///
/// The smallest plans are stored [on disk](RematConfig::with_cache), so that later training keeps to the budget found here, even in another process.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_remat::{RematExt, minimum_budget};
///
/// let needs = minimum_budget(&Device::flex(), |device| {
///     for _ in 0..3 {
///         device.remat_mark_step();
///         let x = Tensor::<2>::ones([256, 256], &device.clone().autodiff()).require_grad();
///         let y = (0..8).fold(x.clone(), |y, _| y.tanh());
///         y.sum().backward();
///     }
///     device.remat_mark_step();
/// })?;
/// assert!(needs.minimum_bytes < needs.store_all_bytes);
/// # Ok::<(), burn_remat::RematError>(())
/// ```
///
/// # Errors
///
/// [`RematError::NoSteps`] if no whole step was seen, [`RematError::DryRun`] if `train` panics, and those of
/// [`RematExt::remat`](crate::RematExt::remat).
pub fn minimum_budget<R>(device: &Device, train: impl FnOnce(&Device) -> R) -> Result<MinimumBudget, RematError> {
    minimum_budget_with(device, RematConfig::default(), train)
}

/// [`minimum_budget`] on a device with this configuration: how little a step needs depends on what happens to random results and
/// on which [compression](crate::Compression) is allowed. The budget of the configuration is ignored.
///
/// # Errors
///
/// Those of [`minimum_budget`].
pub fn minimum_budget_with<R>(
    device: &Device,
    config: impl Into<RematConfig>,
    train: impl FnOnce(&Device) -> R,
) -> Result<MinimumBudget, RematError> {
    let config = config.into().validated()?;
    Rehearsed::new(dry_run(device, &config, None, |device| drop(train(device)))?)?.needs(&config)
}

/// What `train` does on a dry device. Warns if training may do something else.
pub(crate) fn dry_run(
    device: &Device,
    config: &RematConfig,
    guide: Option<Arc<Guide>>,
    train: impl FnOnce(&Device),
) -> Result<Seen, RematError> {
    let seen = rehearse(device, config, Rehearsal::Dry(guide), train)?;
    seen.warn_of_reads();
    Ok(seen)
}

impl RecordedProgram {
    /// The smallest budget that the program is known to keep to, found as by [`minimum_budget`], but with the sizes and times that were recorded, and for
    /// the path that the program took with the data that it read. It must have done at least three training steps.
    ///
    /// # Errors
    ///
    /// [`RematError::NoSteps`] if no whole step was recorded.
    pub fn minimum_budget(&self) -> Result<MinimumBudget, RematError> {
        let config = self.config();
        Rehearsed::new(Seen::of(&self.recording, &config, config.plans_for(self.device())))?.needs(&config)
    }
}

/// A program may hold a few more small tensors than on a dry device (a loss that it reads later): one part in this many of what a step needs.
const MARGIN: u64 = 1024;

fn with_margin(bytes: u64) -> u64 {
    bytes.saturating_add(bytes.div_ceil(MARGIN))
}

/// What a program has done on a dry device.
pub(crate) struct Rehearsed {
    seen: Seen,
    /// The kinds of step that are planned, each once, in order.
    pub kinds: Vec<Kind>,
}

/// A kind of step.
pub(crate) struct Kind {
    pub fit: Fit,
    /// Whether it [comes again](come_again).
    pub comes_again: bool,
}

impl Rehearsed {
    pub fn new(seen: Seen) -> Result<Self, RematError> {
        let planned = planned(&seen.steps);
        let start = Instant::now();
        let mut kinds: Vec<Kind> = Vec::new();
        for (comes_again, Met { trace, .. }) in come_again(&planned).into_iter().zip(planned) {
            // Once the time is up, only kinds that do something new, or need more than a kind that does the same.
            let covers = |known: &Trace| known.peak() >= trace.peak() && does_like(known, &trace);
            let is_covered = |kind: &Kind| kind.comes_again == comes_again && covers(&kind.fit.least().0.trace);
            if start.elapsed() < TRIAL_TIME || !kinds.iter().any(is_covered) {
                kinds.push(Kind { fit: fit(trace)?, comes_again });
            }
        }
        Ok(Self { seen, kinds })
    }

    fn usual(&self) -> impl Iterator<Item = &Fit> {
        self.kinds.iter().filter(|kind| kind.comes_again).map(|kind| &kind.fit)
    }

    /// The smallest plans, for kinds that [come again](come_again). Plans for other kinds would be followed by passes that only begin like them.
    fn least(&self, steps: &[Met]) -> Vec<Ready> {
        let planned = planned(steps);
        let come_again = come_again(&planned);
        let kind = |trace: &Trace| (trace.signature(), Spine::of(trace).structure());
        let known: Vec<_> = self.usual().map(Fit::least).map(|least| (kind(&least.0.trace), least)).collect();
        let start = Instant::now();
        let least = |met: Met| {
            let kind = kind(&met.trace);
            let found = known.iter().find(|(known, _)| *known == kind).map(|(_, least)| least.clone());
            let new = || fit(met.trace).ok().map(|fit| fit.least());
            found.or_else(|| (start.elapsed() < TRIAL_TIME).then(new).flatten())
        };
        planned.into_iter().zip(come_again).filter(|&(_, again)| again).filter_map(|(met, _)| least(met)).collect()
    }

    /// The smallest budget that is kept to: what the neediest step that comes again needs, or more if the whole program needs more.
    pub fn needs(&self, config: &RematConfig) -> Result<MinimumBudget, RematError> {
        let most = self.usual().max_by_key(|fit| fit.floor().0).ok_or(RematError::NoSteps)?;
        let (bytes, op) = most.floor();
        let (op, stage) = (op.to_owned(), most.floor_stage().map(str::to_owned));
        let of_steps = self.seen.steps.iter().map(|met| met.trace.peak()).max().unwrap_or(0);
        let store_all_bytes = of_steps.max(self.seen.peak(config));
        let minimum_bytes = with_margin(bytes).min(of_steps.max(bytes));
        let least = MinimumBudget { store_all_bytes, minimum_bytes, op, stage };
        Ok(self.kept(config, least))
    }

    /// The smallest budget, starting from this one, that the whole program keeps to, as far as a few trials can tell.
    fn kept(&self, config: &RematConfig, mut least: MinimumBudget) -> MinimumBudget {
        let known: Vec<(bool, Ready)> = self.kinds.iter().map(|kind| (kind.comes_again, kind.fit.least())).collect();
        let ready = |budget| -> Vec<Ready> {
            let is_of_use = |(comes_again, plan): &&(bool, Ready)| is_of_use(plan, *comes_again, budget);
            known.iter().filter(is_of_use).map(|(_, ready)| ready.clone()).collect()
        };
        // Training that looks for plans by itself must keep to the budget that is returned. Once it knows what a pass does, its next pass may end
        // elsewhere.
        let within = self.seen.train_within(config, least.minimum_bytes).steps;
        let ways = [&within, &self.seen.steps].map(|steps| self.least(steps));
        let needs_within = ways[0].iter().map(|(plan, _)| with_margin(plan.peak)).max().unwrap_or(0);
        hand_over(ways.into(), &config.planning, &self.seen.device);
        let start = Instant::now();
        // The largest budget that was not kept, and the smallest that was.
        let (mut low, mut high) = (0, least.store_all_bytes);
        let mut budget = least.minimum_bytes;
        for trial in 0..TRIALS {
            let Trial { peak, is_over, op } = self.seen.try_budget(config, budget, ready(budget));
            log::debug!("tried a budget of {budget} bytes on a dry device: the program holds up to {peak}, in {op}");
            if is_over {
                low = budget;
                (least.op, least.stage) = (op, None);
            } else {
                high = budget;
            }
            if low == 0 || high - low <= high / FINE || start.elapsed() > TRIAL_TIME {
                break;
            }
            // What was held under a budget that was too small is usually enough, though often more than needed.
            budget = if trial == 0 && peak < high { peak } else { low + (high - low) / 2 };
        }
        // Plans for steps that end elsewhere than those of training only mislead it.
        let is_late = |budget| self.seen.train_within(config, budget).is_late;
        let is_more = (high + 1..least.store_all_bytes).contains(&needs_within);
        let is_led_astray = is_more && is_late(high) && !is_late(needs_within);
        least.minimum_bytes = if is_led_astray { needs_within } else { high };
        least
    }
}

fn fit(trace: Trace) -> Result<Fit, RematError> {
    let lowered = lower(&trace, "rehearsal").map_err(|_| RematError::NoSteps)?;
    Fit::new(Arc::new(trace), lowered, None, 0).map_err(|violations| {
        log::error!("internal error: the checker rejects the smallest plan of a step: {violations}");
        RematError::NoSteps
    })
}

/// Finds the largest batch that trains within a budget on a device like `device`, with recomputation of at most `overhead_limit`
/// (a share of the step's own time: 1.0 doubles it).
///
/// `config` is what a device would be made with: a budget in bytes, such as `"8 GiB"`, a share of free memory, such as `"80% free"`,
/// or a [`RematConfig`] with one of these. `train(device, batch)` must do at least three training steps with that batch. It runs
/// twice for real, with a batch of two and with one of at most eight, to measure, and then about 20 times on dry devices.
///
/// # Errors
///
/// [`RematError::BudgetInBytes`], [`RematError::NothingFits`] if not even a batch of one fits, and those of [`minimum_budget`].
pub fn largest_batch<R>(
    device: &Device,
    config: impl Into<RematConfig>,
    overhead_limit: f64,
    train: impl Fn(&Device, usize) -> R,
) -> Result<LargestBatch, RematError> {
    let config = validated_on(device, config.into())?;
    config.budget_bytes()?;
    let guide = guide(device, &config, SECOND_BATCH, &train)?;
    largest_guided(device, config, overhead_limit, &guide, train)
}

/// What small measured runs tell dry ones: what is written in place, and how long operations take. The second run has a batch of at most `most` that
/// fits.
pub(crate) fn guide<R>(
    device: &Device,
    config: &RematConfig,
    most: usize,
    train: impl Fn(&Device, usize) -> R,
) -> Result<Arc<Guide>, RematError> {
    let measured = |batch| {
        let seen = rehearse(device, config, Rehearsal::Real, |device| drop(train(device, batch)))?;
        neediest(&seen.steps)
    };
    let small = measured(GUIDE_BATCH)?;
    let free = || validated_on(device, RematConfig::new(Budget::Free(FREE_SHARE)));
    let room = config.budget_bytes().or_else(|_| free()?.budget_bytes()).unwrap_or(0);
    let fits = room.saturating_mul(GUIDE_BATCH as u64) / small.peak().max(1);
    let second = usize::try_from(fits).unwrap_or(usize::MAX).min(most).min(SECOND_BATCH);
    let untold = |error: &String| {
        log::warn!("a batch of {second} was not measured, so times are scaled from a batch of {GUIDE_BATCH}: {error}");
    };
    // A backend may panic if its memory runs out.
    let larger = || caught(|| measured(second)).map_err(|panic| panic.to_string())?.map_err(|error| error.to_string());
    let larger = if second > GUIDE_BATCH { larger().inspect_err(untold).ok() } else { None };
    Ok(Arc::new(Guide::new(small, larger.as_ref())))
}

/// [`largest_batch`], for when the guide is known already.
pub(crate) fn largest_guided<R>(
    device: &Device,
    config: RematConfig,
    overhead_limit: f64,
    guide: &Arc<Guide>,
    train: impl Fn(&Device, usize) -> R,
) -> Result<LargestBatch, RematError> {
    let budget = config.budget_bytes()?;
    let dry = || Rehearsal::Dry(Some(guide.clone()));
    let seen = |batch| rehearse(device, &config, dry(), |device| drop(train(device, batch)));
    let fits_whole = |batch| Ok(seen(batch)?.peak(&config) <= budget);
    let store_all_batch = last_true(0, fits_whole)?;
    let attempt = |batch| -> Result<Option<(Ready, Seen)>, RematError> {
        let seen = seen(batch)?;
        let plan = plan(neediest(&seen.steps)?, &config, budget, overhead_limit)?;
        Ok(plan.map(|plan| (plan, seen)))
    };
    // The plan of the largest batch that fits so far, and what was seen with it.
    let mut found = None;
    let fits = |batch| Ok(attempt(batch)?.map(|attempt| found = Some(attempt)).is_some());
    let mut batch = last_true(store_all_batch, fits)?;
    let mut less = (batch / LESS).max(1);
    while batch > store_all_batch {
        if let Some((plan, seen)) = found.take() {
            let ready = plans_beside(&plan, &seen, &config, budget)?;
            if !seen.try_budget(&config, budget, ready.clone()).is_over {
                seen.warn_of_reads();
                let (predicted_overhead, predicted_peak_bytes) = (plan.0.overhead(), plan.0.peak);
                let mut config = config.clone();
                config.planning.ready = ready;
                return Ok(LargestBatch { batch, store_all_batch, predicted_overhead, predicted_peak_bytes, config });
            }
        }
        // What is held between the steps, or in another step, leaves too little; or no plan is found in time for a batch, although one is found for a
        // larger.
        batch = batch.saturating_sub(less).max(store_all_batch);
        less += less.div_ceil(2);
        if batch > store_all_batch {
            found = attempt(batch)?;
        }
    }
    if store_all_batch == 0 {
        let needs = Rehearsed::new(seen(1)?)?.needs(&config)?;
        return Err(RematError::NothingFits { budget, minimum: needs.minimum_bytes, op: needs.op });
    }
    let (batch, predicted_peak_bytes) = (store_all_batch, seen(store_all_batch)?.peak(&config));
    Ok(LargestBatch { batch, store_all_batch, predicted_overhead: 0.0, predicted_peak_bytes, config: config.clone() })
}

/// Plans for all kinds of step that were seen. One kind has its plan already.
fn plans_beside(
    (schedule, origin): &Ready,
    seen: &Seen,
    config: &RematConfig,
    budget: u64,
) -> Result<Vec<Ready>, RematError> {
    let mut ready = Vec::new();
    for Met { trace, .. } in planned(&seen.steps) {
        if Spine::of(&trace).structure() == schedule.structure() {
            ready.push((schedule.clone(), origin.clone()));
        } else {
            ready.extend(best(&fit(trace)?, config, budget, PLAN_TIME));
        }
    }
    Ok(ready)
}

/// The steps that are planned, each kind once, as it came most often. Steps of a kind may differ in what is not part of its structure.
fn planned(steps: &[Met]) -> Vec<Met> {
    // Each with its structure, and how often exactly this step came.
    let mut kinds: Vec<(u64, Met, usize)> = Vec::new();
    for Met { trace, times } in steps {
        let (planned, times) = (trace.clone().planned_part(), *times);
        let structure = Spine::of(&planned).structure();
        match kinds.iter_mut().find(|(known, ..)| *known == structure) {
            Some((_, known, most)) => {
                let held_at_start = known.trace.held_at_start.max(planned.held_at_start);
                if times > *most {
                    (known.trace, *most) = (planned, times);
                }
                known.trace.held_at_start = held_at_start;
                known.times += times;
            }
            None => kinds.push((structure, Met { trace: planned, times }, times)),
        }
    }
    kinds.into_iter().map(|(_, met, _)| met).collect()
}

/// Which of these kinds come more than once, in any sizes; all of them if none does. The first step of a program does things that no other step does.
fn come_again(planned: &[Met]) -> Vec<bool> {
    let times = |of: &Met| planned.iter().filter(|met| does_like(&met.trace, &of.trace)).map(|met| met.times).sum();
    let times: Vec<usize> = planned.iter().map(times).collect();
    let often = times.iter().max().copied().unwrap_or(1).min(2);
    times.into_iter().map(|times| times >= often).collect()
}

/// Whether a plan is followed under a budget: a step that comes only once does without one if that is too large.
pub(crate) fn is_of_use((plan, _): &Ready, comes_again: bool, budget: u64) -> bool {
    comes_again || plan.peak <= budget
}

fn neediest(steps: &[Met]) -> Result<Trace, RematError> {
    // The first step may initialise parameters. If no other is like it, it counts only if there is no other.
    let from = usize::from(steps.len() > 1 && steps[0].times == 1);
    let needy = steps.iter().skip(from).map(|met| &met.trace).max_by_key(|trace| trace.peak());
    needy.cloned().ok_or(RematError::NoSteps)
}

/// The cheapest plan that is found within the time limit.
pub(crate) fn best(fit: &Fit, config: &RematConfig, budget: u64, limit: Duration) -> Option<Ready> {
    let start = Instant::now();
    let found = fit.best(&config.planning.any_planner(), budget, limit);
    found.map(|(schedule, outcome)| (schedule, Origin::of(&outcome, start.elapsed().as_secs_f64())))
}

/// The largest number for which `holds` is true. It is assumed to be true for `known`, and false for all numbers after the first for which it is false.
fn last_true(known: usize, mut holds: impl FnMut(usize) -> Result<bool, RematError>) -> Result<usize, RematError> {
    let (mut low, mut high) = (known, (2 * known).max(1));
    while high <= MOST && holds(high)? {
        (low, high) = (high, 2 * high);
    }
    high = high.min(MOST + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

/// A plan for a step within both limits, if there is one.
fn plan(trace: Trace, config: &RematConfig, budget: u64, overhead_limit: f64) -> Result<Option<Ready>, RematError> {
    let fit = fit(trace.planned_part())?;
    // A search may find a plan that holds a little less than the smallest one that is found first.
    if fit.floor().0 > budget + budget / NEAR {
        return Ok(None);
    }
    Ok(best(&fit, config, budget, PLAN_TIME)
        .filter(|(schedule, _)| schedule.overhead() <= overhead_limit && schedule.peak <= budget))
}

/// A device like `device` with plans for the steps that `train` does.
pub(crate) fn rehearsed(
    device: &Device,
    mut config: RematConfig,
    train: impl FnOnce(&Device),
) -> Result<Device, RematError> {
    config = validated_on(device, config)?;
    let budget = config.budget_bytes()?;
    let kinds = planned(&dry_run(device, &config, None, train)?.steps);
    let limit = config.planning.time_limit / kinds.len().max(1) as u32;
    for (comes_again, Met { trace, .. }) in come_again(&kinds).into_iter().zip(kinds) {
        let found = best(&fit(trace)?, &config, budget, limit);
        config.planning.ready.extend(found.filter(|plan| is_of_use(plan, comes_again, budget)));
    }
    remat(device, config)
}
