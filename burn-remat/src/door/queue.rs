//! A queue of calls to a *taker*, which handles them in order on a thread of its own.
//!
//! Submitting a call does not wait for it to be handled. [`Queue::taker`] gives access to the taker after it has handled all calls so far, on the current
//! thread. A thread that finds the queue full empties it, so the program cannot get far ahead.
//!
//! There are two locks. The taker's is held while it works; that of the calls only while one is added or all are taken out. A thread that holds the
//! second takes no other. Whether the taker's thread sleeps is recorded under the second, so that no call can come between its last look and its sleep.
//!
//! [`Draws`] keeps several queues in order if their takers share one random number generator.
//!
//! Adding a call and taking it out are O(1), except for a thread that finds the queue full.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use super::sync::{Condvar, Mutex, MutexGuard, thread};

/// The limits of a queue.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The most calls that may wait.
    pub capacity: usize,
    /// How often the taker's thread yields before it sleeps.
    pub patience: usize,
}

/// Handles calls.
pub(super) trait Taker: Send + 'static {
    type Call: Send;
    /// Memory left over from calls, for the next ones.
    type Spare: Default + Send;

    /// Handles a call. Must not panic: the calls after it would be lost.
    fn take(&mut self, call: Self::Call);

    /// Takes what is left over in the queue, and gives the queue what it has left over.
    fn exchange(&mut self, spare: &mut Self::Spare);
}

/// A taker, and the calls that it still has to handle.
pub(super) struct Queue<T: Taker> {
    limits: Limits,
    served: Mutex<Served<T>>,
    waiting: Mutex<Waiting<T>>,
    /// Wakes the taker's thread.
    arrived: Condvar,
}

struct Served<T: Taker> {
    taker: T,
    /// The calls being handled; empty between turns.
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
    /// The system could not start it.
    Refused,
}

/// The taker, for the use of one thread alone.
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

    /// The taker, after it has handled all calls so far.
    pub fn taker(&self) -> Turn<'_, T> {
        let mut served = self.served.lock();
        self.take_waiting(&mut served);
        Turn(served)
    }

    /// The taker as it is, even if calls wait for it.
    pub fn taker_as_it_is(&self) -> Turn<'_, T> {
        Turn(self.served.lock())
    }

    /// Adds the call that `make` returns. `make` may reuse what is left over from earlier calls.
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
            log::warn!("the engine has no thread of its own, so steps may take longer: {error}");
            self.waiting.lock().thread = TakersThread::Refused;
            drop(self.taker());
        }
    }

    /// The loop of the taker's thread.
    fn work(&self) {
        loop {
            let mut served = self.served.lock();
            let any = self.take_waiting(&mut served);
            // A thread that waits for the taker gets it before further calls do.
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

    /// Lets the taker handle the calls that wait. Returns whether there were any.
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

/// A queue with any type of taker, which can be told to catch up.
trait CatchUp: Send + Sync {
    fn catch_up(&self);
}

impl<T: Taker> CatchUp for Queue<T> {
    fn catch_up(&self) {
        drop(self.taker());
    }
}

/// The queue whose taker drew random numbers last, of all that share a generator.
pub(super) struct Draws(Mutex<Option<Weak<dyn CatchUp>>>);

impl Draws {
    /// Nobody has drawn yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Announces that the taker of `queue` is about to draw. If another taker drew last, that one catches up first, so that numbers come in the order of
    /// the requests.
    pub fn next<T: Taker>(&self, queue: &Arc<Queue<T>>) {
        let me = Arc::downgrade(queue) as Weak<dyn CatchUp>;
        let before = self.0.lock().replace(me.clone());
        if let Some(other) = before.filter(|other| !other.ptr_eq(&me)).and_then(|other| other.upgrade()) {
            other.catch_up();
        }
    }
}
