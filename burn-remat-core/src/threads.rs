//! Which thread trains, if several threads use one device.
//!
//! Data loaders prepare batches and metrics are computed on threads of their own, at no particular place among the operations of
//! a step. If these operations were traced too, every step would differ from all others. So one thread is taken for the one that trains: the
//! last one that marked a step, or, without marks, the one that updates parameters. What other threads do is *foreign*: it is
//! executed and counted like everything else, and may be evicted, but is neither traced nor compared with a plan. What the step
//! reads of it counts as uploaded. A plan leaves room for as much as was recently foreign at once. How far the other threads have come differs
//! from step to step, so the room that was once needed fades slowly.
use crate::facts::ThreadId;

/// The training thread can be ahead by at most this many updates, so that another one that takes over all updates is soon recognised.
const MOST_LEAD: u32 = 16;

/// What was foreign at once fades by one part in this many with each step.
const FADES: u64 = 8;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Threads {
    trainer: Option<ThreadId>,
    /// Whether it marks its steps.
    marks: bool,
    /// How many more parameters it has recently updated than other threads.
    lead: u32,
    /// Most bytes that were foreign at once in this step, and in those before.
    peak: u64,
    last_peak: u64,
}

impl Threads {
    /// Whether what this thread does is not part of the step.
    pub fn is_foreign(&self, thread: ThreadId) -> bool {
        self.trainer.is_some_and(|trainer| trainer != thread)
    }

    /// This thread marks a step. What was traced so far is the previous step, whichever thread it came from.
    pub fn mark(&mut self, thread: ThreadId) {
        self.marks = true;
        self.trainer = Some(thread);
    }

    /// This thread has begun a backward pass, so it trains. Returns whether what was taken for the current step came from another thread.
    pub fn pass(&mut self, thread: ThreadId) -> bool {
        if self.marks {
            return false;
        }
        self.trainer.replace(thread).is_some_and(|before| before != thread)
    }

    /// This thread has updated a parameter. Returns whether what was taken for the current step came from another thread.
    pub fn update(&mut self, thread: ThreadId) -> bool {
        if self.marks {
            return false;
        }
        if self.is_foreign(thread) && self.lead > 0 {
            self.lead -= 1;
            return false;
        }
        self.lead = MOST_LEAD.min(self.lead + 1);
        self.trainer.replace(thread).is_some_and(|before| before != thread)
    }

    /// This many bytes are foreign now.
    pub fn note(&mut self, bytes: u64) {
        self.peak = self.peak.max(bytes);
    }

    /// A step ends while this many bytes are foreign.
    pub fn end_step(&mut self, bytes: u64) {
        let faded = self.last_peak - self.last_peak.div_ceil(FADES);
        self.last_peak = core::mem::replace(&mut self.peak, bytes).max(faded);
    }

    /// How many bytes a plan leaves free for other threads.
    pub fn room(&self) -> u64 {
        self.peak.max(self.last_peak)
    }
}
