//! What a program asks of an engine, on its way there.
//!
//! A program that uses `Remat<B>` itself calls the engine on its own thread. Through a device every operation also passes Burn's autodiff, the group that
//! the device is, and two routers, which take as long as a small operation itself. So there the engine has a thread of its own and takes operations
//! from a queue: while it works, the program goes on to the next ones. Measured (BENCHMARKS.md, "The engine's own thread"): steps of small operations take two
//! thirds of the time that they take without, large ones a few percent less, and where no processor is free it makes no difference, because the program waits
//! whenever it reads.
//!
//! Nothing is seen of this: whoever wants an answer, or hands over data, first has everything done that was asked before ([`Intake::engine`]), on
//! whatever thread that is. A full queue is emptied by the one who would add to it, so it bounds how far a program is ahead.
//!
//! A backend has one generator of random numbers for all devices of a process. So whoever draws from it first has everything done that was asked of
//! the device that drew last, if that is another one ([`draws_next`](Intake::draws_next)): numbers come in the order of the program.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Thread};

use burn_ir::OperationIr;
use burn_remat_core::CheckpointPolicy;
use burn_std::id::StreamId;
use parking_lot::{MappedMutexGuard, MutexGuard};

use crate::backend::RematBackend;
use crate::drive::{Boxes, is_random};
use crate::engine::Engine;
use crate::names::NameId;
use crate::panics::{lock, panic_message};

/// Most calls that wait. Operations take some 600 bytes each, and as many may be in the hands of the engine.
const CAPACITY: usize = 2048;

/// How often the engine's thread lets others go first before it sleeps. Waking it takes as long as an operation or two.
const PATIENCE: usize = 16;

/// What is asked of an engine without waiting for it.
pub(super) enum Call {
    Operation(Box<OperationIr>),
    Mark,
    EnterStage(NameId, i64, Option<CheckpointPolicy>),
    LeaveStage(i64),
}

/// An engine, and the calls that it has still to take.
pub(super) struct Intake<B: RematBackend> {
    /// Whether calls wait for the engine's own thread.
    queues: bool,
    served: parking_lot::Mutex<Served<B>>,
    waiting: Mutex<Waiting>,
    /// The engine's own thread, once it has one. It lives as long as the process, like those of Burn's connections.
    worker: OnceLock<Option<Thread>>,
    /// Whether that thread sleeps, or is about to.
    sleeps: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    /// Each with the stream on which it was made.
    calls: Vec<(StreamId, Call)>,
    /// What the engine has emptied, for the next operations.
    boxes: Boxes,
}

struct Served<B: RematBackend> {
    engine: Engine<B>,
    /// The calls being taken: empty between turns.
    batch: Vec<(StreamId, Call)>,
}

/// A device of whatever backend that may have calls to take.
trait CatchUp: Send + Sync {
    fn catch_up(&self);
}

impl<B: RematBackend> CatchUp for Intake<B> {
    fn catch_up(&self) {
        drop(self.engine());
    }
}

/// The device that has drawn random numbers last.
static LAST_TO_DRAW: Mutex<Option<Weak<dyn CatchUp>>> = Mutex::new(None);

impl<B: RematBackend> Intake<B> {
    /// With `queues` the engine has a thread of its own; else it runs on that of whoever calls it.
    pub fn new(engine: Engine<B>, queues: bool) -> Self {
        let served = parking_lot::Mutex::new(Served { engine, batch: Vec::new() });
        Self { queues, served, waiting: Mutex::default(), worker: OnceLock::new(), sleeps: AtomicBool::new(false) }
    }

    /// The engine, which has taken all calls so far.
    pub fn engine(&self) -> MappedMutexGuard<'_, Engine<B>> {
        let mut served = self.served.lock();
        if self.queues {
            self.take_waiting(&mut served);
        }
        MutexGuard::map(served, |served| &mut served.engine)
    }

    /// Has the engine take an operation: now, or soon and on its own thread.
    #[inline]
    pub fn register(self: &Arc<Self>, op: OperationIr) {
        if is_random(&op) {
            self.draws_next();
        }
        if self.queues {
            let mut waiting = lock(&self.waiting);
            let op = waiting.boxes.fill(op);
            self.submit(waiting, Call::Operation(op));
        } else {
            let engine = &mut self.served.lock().engine;
            let op = engine.boxes().fill(op);
            engine.register(op);
        }
    }

    /// Says that this device is about to draw random numbers, or to seed them: another one that did so last catches up first.
    pub fn draws_next(self: &Arc<Self>) {
        let me = Arc::downgrade(self) as Weak<dyn CatchUp>;
        let before = lock(&LAST_TO_DRAW).replace(me.clone());
        if let Some(other) = before.filter(|other| !other.ptr_eq(&me)).and_then(|other| other.upgrade()) {
            other.catch_up();
        }
    }

    /// Has the engine take a call, in the same way.
    #[inline]
    pub fn ask(self: &Arc<Self>, call: Call) {
        if self.queues {
            self.submit(lock(&self.waiting), call);
        } else {
            perform(&mut self.served.lock().engine, call);
        }
    }

    #[inline]
    fn submit(self: &Arc<Self>, mut waiting: std::sync::MutexGuard<'_, Waiting>, call: Call) {
        waiting.calls.push((StreamId::current(), call));
        let count = waiting.calls.len();
        drop(waiting);
        if count >= CAPACITY {
            return drop(self.engine());
        }
        match self.worker.get_or_init(|| self.start()) {
            Some(worker) if self.sleeps.swap(false, Ordering::SeqCst) => worker.unpark(),
            Some(_) => {}
            None => drop(self.engine()),
        }
    }

    /// The engine's thread; `None` where the system gives none.
    fn start(self: &Arc<Self>) -> Option<Thread> {
        let intake = self.clone();
        let started = thread::Builder::new().name("remat-engine".to_owned()).spawn(move || intake.work());
        match started {
            Ok(handle) => Some(handle.thread().clone()),
            Err(error) => {
                log::warn!("the engine has no thread of its own, steps may take longer: {error}");
                None
            }
        }
    }

    fn work(&self) {
        loop {
            let mut served = self.served.lock();
            let any = self.take_waiting(&mut served);
            // Who waits for the engine gets it before more calls do.
            MutexGuard::unlock_fair(served);
            if any || (0..PATIENCE).any(|_| self.is_asked_after_others()) {
                continue;
            }
            self.sleeps.store(true, Ordering::SeqCst);
            if lock(&self.waiting).calls.is_empty() {
                thread::park();
            }
            self.sleeps.store(false, Ordering::SeqCst);
        }
    }

    fn is_asked_after_others(&self) -> bool {
        thread::yield_now();
        !lock(&self.waiting).calls.is_empty()
    }

    /// Has the engine take the calls that wait. Whether there were any.
    fn take_waiting(&self, Served { engine, batch }: &mut Served<B>) -> bool {
        {
            let mut waiting = lock(&self.waiting);
            std::mem::swap(batch, &mut waiting.calls);
            engine.boxes().give(&mut waiting.boxes);
        }
        let any = !batch.is_empty();
        for (stream, call) in batch.drain(..) {
            // The calls behind it are not to be lost with it.
            let done = catch_unwind(AssertUnwindSafe(|| stream.executes(|| perform(engine, call))));
            if let Err(payload) = done {
                log::error!("internal error: an operation was lost: {}", panic_message(&*payload));
            }
        }
        any
    }
}

#[inline]
fn perform<B: RematBackend>(engine: &mut Engine<B>, call: Call) {
    match call {
        Call::Operation(op) => engine.register(op),
        Call::Mark => engine.mark(),
        Call::EnterStage(name, number, policy) => engine.enter_stage(name, number, policy),
        Call::LeaveStage(number) => engine.leave_stage(number),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use burn_flex::{Flex, FlexDevice};

    use super::*;
    use crate::config::RematConfig;

    fn intake(queues: bool) -> Arc<Intake<Flex>> {
        Arc::new(Intake::new(Engine::new(FlexDevice, RematConfig::new("1 MiB")), queues))
    }

    fn mark(intake: &Arc<Intake<Flex>>, times: usize) {
        (0..times).for_each(|_| intake.ask(Call::Mark));
    }

    #[test]
    fn what_was_asked_is_done_before_an_answer_is_given() {
        for queues in [false, true] {
            let intake = intake(queues);
            let mut marks = 0;
            // The first mark ends no step. The last number is more than may wait.
            for times in [1, 1, 100, 3 * CAPACITY] {
                mark(&intake, times);
                marks += times as u64;
                assert_eq!(intake.engine().report().steps, marks - 1);
            }
            assert_eq!(intake.worker.get().is_some(), queues);
        }
    }

    #[test]
    fn what_was_asked_is_done_without_anybody_waiting_for_it() {
        let intake = intake(true);
        for round in 1..=5 {
            mark(&intake, 3);
            let begun = Instant::now();
            while intake.served.lock().engine.report().steps + 1 < 3 * round {
                assert!(begun.elapsed() < Duration::from_secs(60), "the engine's thread sleeps");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn several_threads_may_ask_at_once() {
        let intake = intake(true);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        mark(&intake, 4);
                        drop(intake.engine());
                    }
                });
            }
        });
        assert_eq!(intake.engine().report().steps, 4 * 500 * 4 - 1);
    }
}
