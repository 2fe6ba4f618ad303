//! Calls that wait for a taker, who takes them in order, on a thread of its own.
//!
//! Whoever submits a call goes on at once. [`Queue::taker`] gives out the taker when it has taken all calls so far, on whatever thread that is. A full
//! queue is emptied by the one who has filled it, so it bounds how far a program is ahead.
//!
//! There are two locks: that of the taker is held while it works, that of the calls only while one is added or all are taken out. Who holds
//! the second asks for no other. Whether the taker's thread sleeps is known under the second, so that no call can come between its last look and its
//! sleep.
//!
//! [`Draws`] keeps several queues in order where their takers share one generator of random numbers.
//!
//! Adding a call and taking it are O(1), but for the one who finds the queue full.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::sync::{Condvar, Mutex, MutexGuard, thread};

/// How a queue is used.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Most calls that wait.
    pub capacity: usize,
    /// How often the taker's thread lets others go first before it sleeps.
    pub patience: usize,
}

/// Takes calls.
pub(super) trait Taker: Send + 'static {
    type Call: Send;
    /// What is left of calls, for whoever makes the next ones.
    type Spare: Default + Send;

    /// Takes a call. Must not panic: the calls behind it would be lost.
    fn take(&mut self, call: Self::Call);

    /// Gets what is left over in the queue, and puts there what it has.
    fn exchange(&mut self, spare: &mut Self::Spare);
}

/// A taker, and the calls that it has still to take.
pub(super) struct Queue<T: Taker> {
    limits: Limits,
    served: Mutex<Served<T>>,
    waiting: Mutex<Waiting<T>>,
    /// Wakes the taker's thread.
    arrived: Condvar,
}

struct Served<T: Taker> {
    taker: T,
    /// The calls being taken: empty between turns.
    batch: Vec<T::Call>,
}

struct Waiting<T: Taker> {
    calls: Vec<T::Call>,
    spare: T::Spare,
    thread: TakersThread,
}

/// The thread of a taker. It lives as long as the process, like those of Burn's connections.
#[derive(Clone, Copy, PartialEq)]
enum TakersThread {
    NotStarted,
    Awake,
    Asleep,
    /// The system gives none.
    Refused,
}

/// The taker, to be used by one thread alone.
pub(super) struct Turn<'a, T: Taker>(MutexGuard<'a, Served<T>>);

impl<T: Taker> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.taker
    }
}

impl<T: Taker> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.taker
    }
}

impl<T: Taker> Queue<T> {
    /// An empty queue.
    pub fn new(taker: T, limits: Limits) -> Self {
        let waiting = Waiting { calls: Vec::new(), spare: T::Spare::default(), thread: TakersThread::NotStarted };
        Self {
            limits,
            served: Mutex::new(Served { taker, batch: Vec::new() }),
            waiting: Mutex::new(waiting),
            arrived: Condvar::new(),
        }
    }

    /// The taker, which has taken all calls so far.
    pub fn taker(&self) -> Turn<'_, T> {
        let mut served = self.served.lock();
        self.take_waiting(&mut served);
        Turn(served)
    }

    /// The taker as it is, whatever waits for it.
    pub fn taker_as_it_is(&self) -> Turn<'_, T> {
        Turn(self.served.lock())
    }

    /// Adds the call that `make` makes of what is left over.
    #[inline]
    pub fn submit(self: &Arc<Self>, make: impl FnOnce(&mut T::Spare) -> T::Call) {
        let mut waiting = self.waiting.lock();
        let call = make(&mut waiting.spare);
        waiting.calls.push(call);
        let thread = waiting.thread;
        if waiting.calls.len() >= self.limits.capacity || thread == TakersThread::Refused {
            drop(waiting);
            return drop(self.taker());
        }
        waiting.thread = TakersThread::Awake;
        drop(waiting);
        match thread {
            TakersThread::NotStarted => self.start(),
            TakersThread::Asleep => {
                self.arrived.notify_one();
            }
            TakersThread::Awake | TakersThread::Refused => {}
        }
    }

    #[cold]
    fn start(self: &Arc<Self>) {
        let queue = self.clone();
        let started = thread::Builder::new().name("remat-engine".to_owned()).spawn(move || queue.work());
        if let Err(error) = started {
            log::warn!("the engine has no thread of its own, steps may take longer: {error}");
            self.waiting.lock().thread = TakersThread::Refused;
            drop(self.taker());
        }
    }

    /// What the taker's thread does.
    fn work(&self) {
        loop {
            let mut served = self.served.lock();
            let any = self.take_waiting(&mut served);
            // Who waits for the taker gets it before more calls do.
            MutexGuard::unlock_fair(served);
            if any || (0..self.limits.patience).any(|_| self.is_asked_after_others()) {
                continue;
            }
            let mut waiting = self.waiting.lock();
            while waiting.calls.is_empty() {
                waiting.thread = TakersThread::Asleep;
                self.arrived.wait(&mut waiting);
            }
            waiting.thread = TakersThread::Awake;
        }
    }

    fn is_asked_after_others(&self) -> bool {
        thread::yield_now();
        !self.waiting.lock().calls.is_empty()
    }

    /// Has the taker take the calls that wait. Whether there were any.
    fn take_waiting(&self, Served { taker, batch }: &mut Served<T>) -> bool {
        {
            let mut waiting = self.waiting.lock();
            std::mem::swap(batch, &mut waiting.calls);
            taker.exchange(&mut waiting.spare);
        }
        let any = !batch.is_empty();
        batch.drain(..).for_each(|call| taker.take(call));
        any
    }
}

/// A queue of whatever taker that may have calls to take.
trait CatchUp: Send + Sync {
    fn catch_up(&self);
}

impl<T: Taker> CatchUp for Queue<T> {
    fn catch_up(&self) {
        drop(self.taker());
    }
}

/// Whose taker has drawn random numbers last, of all that share a generator.
pub(super) struct Draws(Mutex<Option<Weak<dyn CatchUp>>>);

impl Draws {
    /// Nobody has drawn yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Says that the taker of `queue` is about to draw: another one that did so last catches up first. So numbers come in the order in which they were asked
    /// for.
    pub fn next<T: Taker>(&self, queue: &Arc<Queue<T>>) {
        let me = Arc::downgrade(queue) as Weak<dyn CatchUp>;
        let before = self.0.lock().replace(me.clone());
        if let Some(other) = before.filter(|other| !other.ptr_eq(&me)).and_then(|other| other.upgrade()) {
            other.catch_up();
        }
    }
}
