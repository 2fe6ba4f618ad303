//! A panic of one thread must not bring down the others.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn_remat_core::Failure;

/// Locks a mutex, whatever happened to the thread that held it before.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the backend panicked without a message")
}

/// What a backend answers, or the message of its panic.
#[inline]
pub(crate) fn caught<T>(ask: impl FnOnce() -> T) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(ask)).map_err(|payload| panic_message(&*payload).into())
}
