//! Stages: named parts of the program, and their policies for what is kept of them.

use super::Machine;
use crate::driver::World;
use crate::facts::ThreadId;
use crate::keys::PathId;
use crate::stages::{Entered, NO_STAGE};

impl<W: World> Machine<W> {
    /// A stage begins, on the thread whose operations follow.
    pub fn enter_stage(&mut self, thread: ThreadId, stage: Entered) {
        let world = &self.world;
        self.stages.enter(thread, stage, || world.stage_name(stage.name));
        // What will be evicted must be recorded.
        self.own.records |= self.stages.any_forced;
    }

    /// A stage ends. What it must not keep is evicted, unless a plan does that: everything that has been read. What has not
    /// been read is what the stage returns.
    pub fn leave_stage(&mut self, number: i64) {
        let made = self.stages.leave(number);
        if self.watch.follow.is_some() {
            return;
        }
        for name in made {
            if !self.history.knows(name) {
                continue;
            }
            let Some(buffer) = self.history.tensors[name.0].buffer else { continue };
            let may_go = |&owner: &usize| {
                let tensor = &self.history.tensors[owner];
                tensor.pins == 0 && tensor.lineage.read > 0 && tensor.recipe.is_some()
            };
            if self.ledger.get(buffer).owners.iter().all(may_go) {
                self.evict(buffer);
            }
        }
    }

    /// Counts an operation of the program that has run.
    pub(super) fn count_in_stage(&mut self, path: PathId, ns: u64) {
        if path != NO_STAGE {
            let counts = self.counters.stage(path);
            counts.operations += 1;
            counts.compute_ns += ns;
        }
    }

    /// Counts a recomputation of something that was first computed in a stage.
    pub(super) fn count_again_in_stage(&mut self, path: PathId, ns: u64, bytes: u64) {
        if path != NO_STAGE {
            let counts = self.counters.stage(path);
            counts.recomputed += 1;
            counts.recompute_ns += ns;
            counts.recomputed_bytes += bytes;
        }
    }
}
