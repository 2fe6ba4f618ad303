//! The locks and threads that [`queue`](super::queue) and [`reads`](super::reads) are built on.
//!
//! They use nothing else, so that `tests/tests/schedules` can compile the same two files with a scheduler of its own, which decides at each lock which
//! thread goes next.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::thread;

pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
