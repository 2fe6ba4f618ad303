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

/// A tensor, by its key, and by the number that tells whether the key still stands for it.
pub(crate) type Named = (TensorKey, TensorId);

/// How it was when the plan began.
#[derive(Clone, Copy, Default)]
pub(crate) struct Start {
    /// Clock of its first operation.
    pub clock: u64,
    /// Signature of its first operation, if that is only like the plan's; else 0.
    pub like: u64,
    /// Bytes held, those of other threads not counted; and those of them that the program still needs, which the others will go before.
    pub held: u64,
    pub needed: u64,
    /// Time of first runs and of recomputations until then.
    pub compute_ns: u64,
    pub recompute_ns: u64,
}

/// See the [module](self).
pub(crate) struct Follow {
    pub schedule: Arc<Schedule>,
    pub start: Start,
    /// Tensors made by each operation so far.
    pub made: Vec<SmallVec<[Named; 1]>>,
    /// Tensors from outside the step by storage.
    pub externals: FxHashMap<Place, Named>,
    pub held: Vec<Named>,
    /// Largest difference so far between bytes held and bytes foreseen.
    pub deviation: u64,
    /// Bytes foreseen when the plan was last compared with what is held, and what is there beyond them when the operation at hand begins: that is none of
    /// the plan's.
    pub expected: u64,
    pub beside: u64,
    /// Most bytes held during each operation.
    pub measured: Vec<u64>,
    /// Time and scratch bytes of each operation, where they are wanted.
    pub measures: Option<Vec<(u64, u64)>>,
    /// Where the plan is carried to other sizes: those.
    pub carried: Option<Carried>,
    /// Where the pass has done other things than the plan: how many.
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

    /// From here on the plan is carried to other sizes than those for which it is.
    pub fn carry(&mut self) {
        self.carried.get_or_insert_default();
        let planned = self.schedule.trace.ops.iter().map(|op| (op.cost_ns, op.scratch));
        self.measures.get_or_insert_with(|| planned.take(self.made.len()).collect());
    }

    /// What has been done so far, and what is planned after that. `None` where other things were done.
    pub fn trace(&self) -> Option<Arc<Trace>> {
        if self.is_mended() {
            return None;
        }
        Some(match &self.carried {
            Some(carried) => Arc::new(carried.trace(&self.schedule.trace, self.start.needed)),
            None => self.schedule.trace.clone(),
        })
    }

    /// Whether the pass has done other things than the plan.
    pub fn is_mended(&self) -> bool {
        self.mended.is_some()
    }

    /// What the plan foresees as so many bytes: more or less may have been there when it began than when it was written down.
    pub fn foreseen(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.start.held).saturating_sub(self.schedule.trace.held_at_start)
    }

    /// Most bytes that the plan may take where that is more than the budget: what it holds, less what is not there this time.
    pub fn most(&self) -> u64 {
        self.schedule.peak.min(self.foreseen(self.schedule.peak))
    }

    /// Whether the whole step went by the plan.
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
