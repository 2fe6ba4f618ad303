//! How much may be held: the budget, less what is left free of it.

use crate::pool::Pool;
use crate::reuse::Reuse;

/// What steps need beyond the budget fades by one part in this many with each step.
const FADES: u64 = 8;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Room {
    /// The budget in force: `None` while unlimited, or while a share of the first step's peak is not known yet.
    pub budget: Option<u64>,
    /// Most bytes that could not be evicted when more than the budget was needed, in this step and in those before.
    overrun: u64,
    last_overrun: u64,
    pub reuse: Reuse,
    pub pool: Pool,
    /// Bytes that are left free to compress into: those of the largest tensor that is small compared with the budget.
    pub reserve: u64,
    /// Evictions so far, and when the step began.
    pub evictions: u64,
    pub evictions_before: u64,
    /// Whether it was reported that the budget cannot be kept.
    pub floor_said: bool,
}

impl Room {
    pub fn new(budget: Option<u64>) -> Self {
        Self { budget, ..Self::default() }
    }

    /// The limit to keep to: no attempt is made to keep a budget that cannot be kept.
    #[inline]
    pub fn most(&self, budget: u64) -> u64 {
        budget.max(self.overrun())
    }

    /// Bytes that the last steps could not do without.
    pub fn overrun(&self) -> u64 {
        self.overrun.max(self.last_overrun)
    }

    /// This many bytes, more than the budget, were needed and could not be evicted.
    pub fn exceed(&mut self, bytes: u64) {
        self.overrun = self.overrun.max(bytes);
    }

    /// A step ends. What steps need beyond the budget is remembered, and fades, for as long as they need it; once a step has managed
    /// without, it is forgotten.
    pub fn end_step(&mut self) {
        let overrun = core::mem::take(&mut self.overrun);
        let faded = self.last_overrun - self.last_overrun / FADES;
        self.last_overrun = if overrun == 0 { 0 } else { overrun.max(faded) };
    }

    /// What is left free of the budget for what the pool holds beyond tensors.
    pub fn beside_tensors(&self) -> u64 {
        self.budget.map_or(0, |budget| self.pool.room(budget))
    }

    /// The budget for tensors: the whole budget, less that.
    #[inline]
    pub fn tensor_budget(&self) -> Option<u64> {
        self.budget.map(|budget| budget - self.beside_tensors())
    }
}
