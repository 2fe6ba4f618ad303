//! How long operations take on a device that runs them later.
//!
//! On such a device, the time of a call is only the time to enqueue it. So operations run in Burn's profiling windows, which the device timestamps, while
//! a step is traced, or measured because its plan was made without measured times. The windows are read when the step has ended, so that nothing waits
//! for the device in between. The least time seen counts for all operations of a kind with the same shapes, so that plans do not go by a first run, which
//! compiles kernels or tries several of them (autotune). Until a time is known, that of the call is used.
//!
//! A window takes longer than a small kernel, so a step has only a few for each kind: a recurrent network runs the same operations thousands of times.
//!
//! A device that fuses operations runs an operation by itself while it is in a window. When it is fused with others, it takes a share of that time
//! ([`shares`]). In a step that follows a plan, nobody can measure what it takes, so the plan's own figures count.

use std::hash::{Hash, Hasher};

use burn_backend::{ProfileDuration, ProfileToken};
use burn_ir::OperationIr;
use burn_remat_core::{Position, Run, Trace};
use burn_std::reader::try_read_sync;
use rustc_hash::{FxHashMap, FxHasher};

use super::executor::Executor;
use super::operation::joining;
use crate::backend::RematBackend;
use crate::panics::caught;
use crate::planning::shares;

/// The most windows for operations of one kind in a step.
const WINDOWS: u32 = 8;

/// How many windows in a row may fail before the clock is given up. If autotune tries a kernel that cannot run, the open window fails too.
const FAILURES: u32 = 32;

/// Times of operations by kind and shapes.
#[derive(Default)]
pub(super) struct Clock {
    least_ns: FxHashMap<u64, u64>,
    /// Windows of the current step.
    windows: Vec<(u64, ProfileDuration)>,
    /// How many there are of each kind.
    begun: FxHashMap<u64, u32>,
    /// Operations of the step.
    places: Vec<Placed>,
    /// The device has no clock.
    off: bool,
    /// How many windows in a row have failed.
    failures: u32,
}

/// An operation that is being timed.
pub(super) struct Timed {
    /// Kind and shapes.
    kind: u64,
    /// The window, if it has one.
    token: Option<ProfileToken>,
    /// See [`Placed`].
    joins: Option<u64>,
}

/// An operation by its place in the trace of its step.
struct Placed {
    kind: u64,
    position: Position,
    /// A number for the shape of its result, if the device may fuse it with others of that shape.
    joins: Option<u64>,
}

impl Clock {
    fn fail(&mut self) {
        self.failures += 1;
        if self.failures == FAILURES {
            log::warn!(
                "the device's clock has failed {FAILURES} times in a row: from now on, the times of the calls are used"
            );
            self.off = true;
        }
    }

    /// Reads the windows of the step that has ended, and corrects its trace.
    pub fn read(&mut self, trace: Option<&mut Trace>) {
        self.begun.clear();
        for (kind, window) in self.windows.drain(..) {
            let Ok(Some(Some(ticks))) = caught(|| try_read_sync(window.into_future())) else { continue };
            let ns = (ticks.duration().as_nanos() as u64).max(1);
            let least = self.least_ns.entry(kind).or_insert(ns);
            *least = ns.min(*least);
        }
        let places = std::mem::take(&mut self.places);
        let Some(trace) = trace else { return };
        let mut joins = vec![None; trace.ops.len()];
        for place in &places {
            if let Some(joins) = joins.get_mut(place.position as usize) {
                *joins = place.joins;
            }
        }
        let shares = if joins.iter().any(Option::is_some) { shares(trace, &joins) } else { vec![1.0; joins.len()] };
        for place in places {
            let at = place.position as usize;
            if let (Some(op), Some(&ns)) = (trace.ops.get_mut(at), self.least_ns.get(&place.kind)) {
                op.cost_ns = ((ns as f64 * shares[at]) as u64).max(1);
            }
        }
    }

    /// Begins to time an operation, if the device has a clock.
    pub fn begin<B: RematBackend>(&mut self, executor: &Executor<B>, op: &OperationIr, run: &Run<'_>) -> Option<Timed> {
        if !B::HAS_CLOCK || self.off || executor.is_dry() {
            return None;
        }
        let mut hasher = FxHasher::default();
        run.kind.hash(&mut hasher);
        for tensor in op.inputs().chain(op.outputs()) {
            (&tensor.shape, tensor.dtype).hash(&mut hasher);
        }
        let joins = if B::FUSES && run.timed { joining(op) } else { None };
        let kind = hasher.finish();
        let mut token = None;
        if run.timed {
            let begun = self.begun.entry(kind).or_insert(0);
            if *begun < WINDOWS {
                *begun += 1;
                match caught(|| B::window_start(&executor.device)) {
                    Ok(Ok(started)) => (token, self.off) = (started, started.is_none()),
                    _ => self.fail(),
                }
            }
        }
        Some(Timed { kind, token, joins })
    }

    /// Ends the timing. The window of an operation that failed is abandoned. Returns the time that is known for such operations.
    pub fn end<B: RematBackend>(
        &mut self,
        executor: &Executor<B>,
        timed: Option<Timed>,
        has_run: bool,
        run: &Run<'_>,
    ) -> Option<u64> {
        let Timed { kind, token, joins } = timed?;
        match token {
            Some(token) if !has_run => drop(caught(|| B::profile_abandon(&executor.device, token))),
            Some(token) => match caught(|| B::window_end(&executor.device, token)) {
                Ok(Ok(window)) => {
                    self.failures = 0;
                    self.windows.push((kind, window));
                }
                _ => self.fail(),
            },
            None => {}
        }
        if has_run && run.timed {
            self.places.extend(run.position.map(|position| Placed { kind, position, joins }));
        }
        // How it was fused this time is not known.
        let planned = run.planned_ns.filter(|_| B::FUSES);
        planned.or_else(|| self.least_ns.get(&kind).copied())
    }
}
