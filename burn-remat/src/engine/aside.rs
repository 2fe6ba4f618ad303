//! Which operations belong to the training step, where several threads use one device.
//!
//! Data loaders prepare batches and metrics are computed on threads of their own, at no particular place among the
//! operations of a step. Written down with it, they would make every step another one. So one thread is taken for the one
//! that trains: the last that marked a step, or, without marks, the one that updates parameters. What other threads do is
//! *aside*: it is executed and counted like everything else, and may be evicted, but is neither traced nor compared with a
//! plan. What the step reads of it counts as uploaded. A plan leaves room for as much as was held aside at once.

use burn_std::id::StreamId;

use super::Engine;
use super::table::TensorKey;
use crate::backend::RematBackend;

/// Updates by which the thread that trains is ahead at most: another one that does all of them from now on soon takes over.
const MOST_LEAD: u32 = 16;

/// The thread that trains, and what others do meanwhile.
#[derive(Default)]
pub(super) struct Aside {
    trainer: Option<StreamId>,
    /// Whether it marks its steps.
    marks: bool,
    /// How many more parameters it has updated of late than others.
    lead: u32,
    /// Whether the operation being served is another thread's.
    pub now: bool,
    /// Most bytes that were aside at once.
    pub peak: u64,
}

impl Aside {
    /// Whether what this thread does is no part of the step.
    pub fn is_other_thread(&self) -> bool {
        self.trainer.is_some_and(|trainer| trainer != StreamId::current())
    }
}

impl<B: RematBackend> Engine<B> {
    /// This thread marks a step. What was written down so far is the step before, whichever thread did that.
    pub(super) fn note_mark(&mut self) {
        self.aside.marks = true;
        self.aside.trainer = Some(StreamId::current());
    }

    /// This thread has updated a parameter.
    pub(super) fn note_update(&mut self) {
        let aside = &mut self.aside;
        if aside.marks {
            return;
        }
        if aside.is_other_thread() && aside.lead > 0 {
            aside.lead -= 1;
            return;
        }
        aside.lead = MOST_LEAD.min(aside.lead + 1);
        let before = aside.trainer.replace(StreamId::current());
        if before.is_some_and(|before| before != StreamId::current()) {
            // What was taken for the step at hand was another thread's.
            self.forget_step();
        }
    }

    /// Counts what an operation of another thread has made.
    pub(super) fn note_aside(&mut self, outputs: &[TensorKey]) {
        for storage in outputs.iter().filter_map(|&output| self.tensors[output].storage) {
            let mut owners = self.storages.get(storage).owners.iter();
            if owners.all(|owner| outputs.contains(owner)) {
                self.storages.put_aside(storage);
            }
        }
        self.aside.peak = self.aside.peak.max(self.storages.aside);
    }
}
