//! Metrics for Burn's `Learner`: memory and recomputation of a remat device, in the dashboard and the logs.
//!
//! They read counters of the engine and wait for nothing that runs on the device.

use std::sync::Arc;

use burn::tensor::{Device, TensorReadError};
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry, SerializedEntry,
};

use crate::door::{EngineControl, engine_of};
use crate::error::RematError;
use crate::report::Usage;

const GIB: u64 = 1 << 30;

/// Peak memory so far, as `memory 7.6/8.0 GiB`, for `SupervisedTraining::metrics`. The number is in GiB, or in MiB if the budget is
/// below one GiB when the metric is made.
///
/// ```
/// use burn::tensor::Device;
/// use burn::train::metric::{Metric, Numeric};
/// use burn_remat::{MemoryMetric, RematExt};
///
/// let device = Device::flex().remat("512 MiB")?;
/// let mut metric = MemoryMetric::new(&device)?;
/// assert_eq!(metric.compute().map(|entry| entry.formatted).ok().as_deref(), Some("memory 0.0/512.0 MiB"));
/// # Ok::<(), burn_remat::RematError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryMetric {
    engine: Arc<dyn EngineControl>,
    name: MetricName,
    /// Bytes of the unit, and its name.
    unit: (u64, &'static str),
    peak: f64,
}

impl MemoryMetric {
    /// Makes the metric for a remat device of this process.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    pub fn new(device: &Device) -> Result<Self, RematError> {
        let engine = engine_of(device)?;
        let is_large = engine.usage().budget_bytes.is_some_and(|budget| budget >= GIB);
        let unit = if is_large { (GIB, "GiB") } else { (1 << 20, "MiB") };
        Ok(Self { engine, name: Arc::new("Memory".to_owned()), unit, peak: 0.0 })
    }
}

impl Metric for MemoryMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("Peak memory of the remat device, and its budget".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: Some(self.unit.1.to_owned()), higher_is_better: false }.into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.compute()
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        let Usage { peak_bytes, budget_bytes, .. } = self.engine.usage();
        let (unit, name) = self.unit;
        let of = |bytes: u64| bytes as f64 / unit as f64;
        self.peak = of(peak_bytes);
        let budget = budget_bytes.map_or_else(String::new, |budget| format!("/{:.1}", of(budget)));
        Ok(SerializedEntry::new(format!("memory {:.1}{budget} {name}", self.peak), self.peak.to_string()))
    }

    fn clear(&mut self) {}
}

impl Numeric for MemoryMetric {
    fn value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(self.peak))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.value()
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Value(self.peak)
    }
}

/// Time spent on recomputation since the last entry, as a percentage of the other time, for example `recomputing 4%`. The value of an epoch covers the
/// whole epoch.
#[derive(Clone, Debug)]
pub struct RecomputingMetric {
    engine: Arc<dyn EngineControl>,
    name: MetricName,
    /// The counters when the epoch began, at the entry before the last, and at the last.
    began: Usage,
    before: Usage,
    last: Usage,
}

impl RecomputingMetric {
    /// Makes the metric for a remat device of this process.
    ///
    /// # Errors
    ///
    /// [`RematError::NotRemat`] for any other device.
    pub fn new(device: &Device) -> Result<Self, RematError> {
        let engine = engine_of(device)?;
        let now = engine.usage();
        Ok(Self { engine, name: Arc::new("Recomputing".to_owned()), began: now, before: now, last: now })
    }

    /// The percentage of recomputation between two moments. If the counters were reset in between, it counts from the reset.
    fn percent(from: Usage, to: Usage) -> f64 {
        let is_anew = to.compute_ns < from.compute_ns;
        let from = if is_anew { Usage::default() } else { from };
        let compute = to.compute_ns - from.compute_ns;
        100.0 * to.recompute_ns.saturating_sub(from.recompute_ns) as f64 / compute.max(1) as f64
    }

    fn entry(percent: f64) -> SerializedEntry {
        SerializedEntry::new(format!("recomputing {percent:.0}%"), percent.to_string())
    }
}

impl Metric for RecomputingMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("Time that the remat device spends on recomputation, as a share of its other time".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: Some("%".to_owned()), higher_is_better: false }.into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        (self.before, self.last) = (self.last, self.engine.usage());
        Ok(Self::entry(Self::percent(self.before, self.last)))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(Self::entry(Self::percent(self.began, self.last)))
    }

    fn clear(&mut self) {
        self.last = self.engine.usage();
        (self.began, self.before) = (self.last, self.last);
    }
}

impl Numeric for RecomputingMetric {
    fn value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(Self::percent(self.before, self.last)))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(Self::percent(self.began, self.last)))
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Value(Self::percent(self.began, self.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recomputation_is_a_share_of_the_time_between_two_readings() {
        let at = |compute_ns, recompute_ns| Usage { compute_ns, recompute_ns, ..Usage::default() };
        let percent = RecomputingMetric::percent;
        assert_eq!(percent(at(1000, 0), at(2000, 40)), 4.0);
        assert_eq!(percent(at(2000, 40), at(2000, 40)), 0.0);
        // The report was reset in between.
        assert_eq!(percent(at(2000, 1000), at(100, 5)), 5.0);
    }
}
