//! The locks and threads that [`queue`](super::queue) and [`reads`](super::reads) are built on.
//!
//! They take them from here and from nowhere else, so that `tests/tests/schedules` can compile the same two files over a scheduler of its
//! own, which decides at each lock who goes next.

pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
pub(super) use std::thread;

pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
