//! The locks and threads of `src/door/sync.rs`, over a scheduler that decides at each of them which thread runs next.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

pub use shuttle::sync::atomic::{AtomicUsize, Ordering};

/// A lock that cannot be poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no thread panics")))
    }
}

/// Holds a lock; empty only while it waits for a [`Condvar`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

impl<T> MutexGuard<'_, T> {
    /// The scheduler chooses which thread is next, so this is one of its cases.
    pub fn unlock_fair(self) {}
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("nobody uses it while it waits")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("nobody uses it while it waits")
    }
}

thread_local! {
    /// Whether [`Condvar::notify_one`] wakes nobody, to see the consequences. All tasks of a schedule run on one thread.
    pub static LOSES_ONE: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("nobody waits twice");
        guard.0 = Some(self.0.wait(held).expect("no thread panics"));
    }

    pub fn notify_one(&self) {
        if !LOSES_ONE.get() {
            self.0.notify_one();
        }
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub mod thread {
    pub use shuttle::thread::yield_now;

    /// Starts threads that live as long as the process: here, they may be asleep when all others have ended.
    #[derive(Debug)]
    pub struct Builder;

    impl Builder {
        pub fn new() -> Self {
            Self
        }

        pub fn name(self, _: String) -> Self {
            self
        }

        pub fn spawn(self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
            // Of the scheduler's tasks, only futures can be left running.
            drop(shuttle::future::spawn(async { work() }));
            Ok(())
        }
    }
}
