//! What the end-to-end tests in `tests/` share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of the suite holds this. All devices of a process draw from one generator of random numbers, so of the tests that draw
/// only one may run at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
