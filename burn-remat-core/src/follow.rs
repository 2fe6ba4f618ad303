//! A plan being followed.

use alloc::sync::Arc;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::carry::Carried;
use crate::driver::{Followed, Mended};
use crate::facts::TensorId;
use crate::keys::TensorKey;
use crate::schedule::Schedule;
use crate::trace::{Place, Trace};

/// A tensor by its key, and its number, which tells whether the key still stands for it.
pub(crate) type Named = (TensorKey, TensorId);

/// The situation when the plan began.
#[derive(Clone, Copy, Default)]
pub(crate) struct Start {
    /// Clock at its first operation.
    pub clock: u64,
    /// Signature of its first operation, if that is only similar to the plan's; otherwise 0.
    pub like: u64,
    /// Bytes held, without those of other threads; and how many of these the program still needs, because the others are evicted before them.
    pub held: u64,
    pub needed: u64,
    /// Time of first runs and of recomputations up to then.
    pub compute_ns: u64,
    pub recompute_ns: u64,
}

/// See the [module](self).
pub(crate) struct Follow {
    pub schedule: Arc<Schedule>,
    pub start: Start,
    /// Tensors made by each operation so far.
    pub made: Vec<SmallVec<[Named; 1]>>,
    /// Tensors from outside the step, by storage.
    pub externals: FxHashMap<Place, Named>,
    pub held: Vec<Named>,
    /// Largest difference so far between bytes held and bytes predicted.
    pub deviation: u64,
    /// Bytes predicted when the plan was last compared with what is held, and bytes held beyond them when the current operation begins, which are not part
    /// of the plan.
    pub expected: u64,
    pub beside: u64,
    /// Most bytes held during each operation.
    pub measured: Vec<u64>,
    /// Time and scratch bytes of each operation, if they are requested.
    pub measures: Option<Vec<(u64, u64)>>,
    /// The sizes seen so far, if the plan is carried to other sizes.
    pub carried: Option<Carried>,
    /// How far the pass has departed from the plan, if it has.
    pub mended: Option<Mended>,
}

impl Follow {
    pub fn new(schedule: Arc<Schedule>, measures: bool, start: Start) -> Self {
        let made = Vec::with_capacity(schedule.trace.ops.len());
        Self {
            schedule,
            start,
            made,
            externals: FxHashMap::default(),
            held: Vec::new(),
            deviation: 0,
            expected: start.held,
            beside: 0,
            measured: Vec::new(),
            measures: measures.then(Vec::new),
            carried: None,
            mended: None,
        }
    }

    /// From here on the plan is carried to sizes other than its own.
    pub fn carry(&mut self) {
        self.carried.get_or_insert_default();
        let planned = self.schedule.trace.ops.iter().map(|op| (op.cost_ns, op.scratch));
        self.measures.get_or_insert_with(|| planned.take(self.made.len()).collect());
    }

    /// What was done so far, followed by what is planned after it. `None` if what was done differs from the plan.
    pub fn trace(&self) -> Option<Arc<Trace>> {
        if self.is_mended() {
            return None;
        }
        Some(match &self.carried {
            Some(carried) => Arc::new(carried.trace(&self.schedule.trace, self.start.needed)),
            None => self.schedule.trace.clone(),
        })
    }

    /// Whether the pass has departed from the plan.
    pub fn is_mended(&self) -> bool {
        self.mended.is_some()
    }

    /// The plan reads a storage from outside for the first time. One that was there from the start in the traced step and has come later now, or the other
    /// way round, counts at the start as in the trace. (What earlier steps have saved may be evicted or not when a step begins.)
    pub fn meet(&mut self, place: Place, bytes: u64, has_come: bool) {
        match (self.schedule.trace.storages[place as usize].uploaded, has_come) {
            (true, false) => self.start.held = self.start.held.saturating_sub(bytes),
            (false, true) => self.start.held += bytes,
            _ => {}
        }
    }

    /// Converts predicted `bytes`: more or less may have been held when the plan began than when the step was traced.
    pub fn foreseen(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.start.held).saturating_sub(self.schedule.trace.held_at_start)
    }

    /// Most bytes that the plan may take if that is more than the budget: its peak, less what is not held this time.
    pub fn most(&self) -> u64 {
        self.schedule.peak.min(self.foreseen(self.schedule.peak))
    }

    /// Whether the whole step followed the plan.
    pub fn is_complete(&self) -> bool {
        self.made.len() == self.schedule.trace.ops.len()
    }

    pub fn outcome(mut self) -> Followed {
        let (trace, measures) = (self.trace(), self.measures.take());
        let measured = trace.zip(measures);
        let trace = measured.map(|(trace, measures)| Arc::unwrap_or_clone(trace).with_measures(measures));
        let (carried, mended) = (self.carried.is_some(), self.mended);
        Followed { deviation: self.deviation, held: self.measured, carried, mended, trace }
    }
}
