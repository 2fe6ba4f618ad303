//! How a program's calls reach an engine.
//!
//! A program that uses `Remat<B>` itself calls the engine on its own thread. Through a `Device`, every operation also passes Burn's autodiff, the device
//! group and two routers, which together take as long as a small operation. So there the engine has a thread of its own and takes operations from a
//! [queue](super::queue); while it works, the program goes on to the next ones. Measured (BENCHMARKS.md, "What a remat device costs"): steps of small
//! operations take two thirds of the time that they take without this thread, and steps of large ones a few percent less. If no processor is free it
//! makes no difference, because the program waits whenever it reads.
//!
//! The program cannot tell the difference. Before a call that needs an answer or hands over data, all earlier calls are handled ([`Intake::engine`]), on
//! the thread that makes the call. A thread that finds the queue full empties it, so the program cannot get far ahead.
//!
//! A backend has one random number generator for all devices of a process. So before a device draws, the calls to the device that drew last are handled,
//! if that is another one ([`draws_next`](Intake::draws_next)): random numbers come in the order of the program.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn_ir::{OperationIr, TensorId};
use burn_remat_core::CheckpointPolicy;
use burn_std::id::StreamId;

use super::queue::{Draws, Limits, Queue, Taker, Turn};
use crate::backend::RematBackend;
use crate::drive::{Boxes, is_random};
use crate::engine::Engine;
use crate::names::NameId;
use crate::panics::panic_message;

/// The most calls that may wait. An operation takes about 600 bytes, and the engine may hold as many again.
const CAPACITY: usize = 2048;

/// How often the engine's thread yields before it sleeps. Waking it takes as long as one or two operations.
const PATIENCE: usize = 16;

/// A call to an engine that does not wait for an answer.
pub(super) enum Call {
    Operation(Box<OperationIr>),
    Drop(TensorId),
    Mark,
    EnterStage(NameId, i64, Option<CheckpointPolicy>),
    LeaveStage(i64),
}

impl<B: RematBackend> Taker for Engine<B> {
    /// Each with the stream on which it was made.
    type Call = (StreamId, Call);
    /// Boxes that the engine has emptied, for the next operations.
    type Spare = Boxes;

    fn take(&mut self, (stream, call): Self::Call) {
        let done = catch_unwind(AssertUnwindSafe(|| stream.executes(|| perform(self, call))));
        if let Err(payload) = done {
            log::error!("internal error: an operation was lost: {}", panic_message(&*payload));
        }
    }

    fn exchange(&mut self, spare: &mut Boxes) {
        self.boxes().give(spare);
    }
}

/// The backends of a process share one random number generator.
static DRAWS: Draws = Draws::new();

/// An engine, and the calls that it still has to handle.
pub(super) struct Intake<B: RematBackend> {
    /// Whether calls wait for the engine's own thread.
    queues: bool,
    queue: Arc<Queue<Engine<B>>>,
}

impl<B: RematBackend> Intake<B> {
    /// With `queues`, the engine has a thread of its own; otherwise it runs on the caller's thread.
    pub fn new(engine: Engine<B>, queues: bool) -> Self {
        let limits = Limits { capacity: CAPACITY, patience: PATIENCE };
        Self { queues, queue: Arc::new(Queue::new(engine, limits)) }
    }

    /// The engine, after it has handled all calls so far.
    pub fn engine(&self) -> Turn<'_, Engine<B>> {
        match self.queues {
            true => self.queue.taker(),
            false => self.queue.taker_as_it_is(),
        }
    }

    /// Hands an operation to the engine, which handles it now, or soon on its own thread.
    #[inline]
    pub fn register(&self, op: &mut OperationIr) {
        if let OperationIr::Drop(tensor) = op {
            return self.ask(Call::Drop(tensor.id));
        }
        if is_random(op) {
            self.draws_next();
        }
        if self.queues {
            self.queue.submit(|boxes| (StreamId::current(), Call::Operation(boxes.fill(op))));
        } else {
            let mut engine = self.engine();
            let op = engine.boxes().fill(op);
            engine.register(op);
        }
    }

    /// Announces that this device is about to draw or seed random numbers. If another device did so last, that one catches up first.
    pub fn draws_next(&self) {
        DRAWS.next(&self.queue);
    }

    /// Hands a call to the engine in the same way.
    #[inline]
    pub fn ask(&self, call: Call) {
        if self.queues {
            self.queue.submit(|_| (StreamId::current(), call));
        } else {
            perform(&mut self.engine(), call);
        }
    }
}

#[inline]
fn perform<B: RematBackend>(engine: &mut Engine<B>, call: Call) {
    match call {
        Call::Operation(op) => engine.register(op),
        Call::Drop(tensor) => engine.drop_tensor(tensor),
        Call::Mark => engine.mark(),
        Call::EnterStage(name, number, policy) => engine.enter_stage(name, number, policy),
        Call::LeaveStage(number) => engine.leave_stage(number),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use burn_flex::{Flex, FlexDevice};

    use super::*;
    use crate::config::RematConfig;

    fn intake(queues: bool) -> Intake<Flex> {
        Intake::new(Engine::new(FlexDevice, RematConfig::new("1 MiB")), queues)
    }

    fn mark(intake: &Intake<Flex>, times: usize) {
        (0..times).for_each(|_| intake.ask(Call::Mark));
    }

    #[test]
    fn what_was_asked_is_done_before_an_answer_is_given() {
        for queues in [false, true] {
            let intake = intake(queues);
            let mut marks = 0;
            // The first mark ends no step. The last number is more than the queue holds.
            for times in [1, 1, 100, 3 * CAPACITY] {
                mark(&intake, times);
                marks += times as u64;
                assert_eq!(intake.engine().report().steps, marks - 1);
            }
        }
    }

    #[test]
    fn what_was_asked_is_done_without_anybody_waiting_for_it() {
        let intake = intake(true);
        for round in 1..=5 {
            mark(&intake, 3);
            let begun = Instant::now();
            while intake.queue.taker_as_it_is().report().steps + 1 < 3 * round {
                assert!(begun.elapsed() < Duration::from_secs(60), "the engine's thread is asleep");
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
